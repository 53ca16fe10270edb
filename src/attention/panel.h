/** @file
 * The inner loops for many rows, written once for vectors of any width. Included by tile.h, whose
 * vectors and loaders it uses.
 *
 * A panel is PANEL rows, one a lane of VECTORS vectors, that take in a block of keys and values in
 * f32. What differs from row to row (queries, scores, sums) has the row as its last index, so that
 * the softmax goes by lanes, and both products are
 *     c[i][row] += a(i, k) · b[k][row]
 * with an element of a key or value for a(i, k): nothing is transposed, or summed across lanes.
 * @source register tiles as in BLIS; the online softmax of FlashAttention */
#ifndef KVC_ATTENTION_PANEL_H
#define KVC_ATTENTION_PANEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "attention/bits.h"
#include "attention/ops.h"

/* A register tile is some rows of c by the vectors in use. With 4 by 3 it takes all of 16
 * registers: 12 sums, a row of b and an element of a; and 7 loads go with 12 multiply-adds. Fewer
 * than 8 sums would wait for each other. */
enum { VECTORS = KVC__PANEL_VECTORS, PANEL = VECTORS * W, MOST_DEPTH = 8 };

/* The least rows of panels where tiles read keys and values as they lie, by slot. */
#ifndef PANEL_LEAST
#define PANEL_LEAST                                                                                \
    { 2 * W, 2 * W, 2 * W, 16, 16, 4 * W, 4 * W }
#endif

/* What rows see of a block, for lanes: bit j of a row is bit j % 32 of word j / 32. */
typedef struct panel_sight {
    uint64_t all, any; /* what every row sees, and what some do */
    int32_t words[2][PANEL];
} panel_sight;

static inline void look(panel_sight *out, const uint64_t *seen, int64_t count) {
    out->all = kvc__bits((kvc__range){0, count});
    out->any = 0;
    for (int r = 0; seen && r < PANEL; r++) {
        out->all &= seen[r];
        out->any |= seen[r];
        out->words[0][r] = (int32_t)(uint32_t)seen[r];
        out->words[1][r] = (int32_t)(uint32_t)(seen[r] >> 32);
    }
}

/* All bits of the lanes whose rows see position j. */
static inline vi sees(const panel_sight *sight, int64_t v, int64_t j) {
    vi words;
    memcpy(&words, &sight->words[j / 32][v * W], sizeof words);
    return (words << (int)(31 - j % 32)) >> 31;
}

/* sum[i][row] += Σ_k a[i][k · along] b[k][row] over a range of k, for D rows and V vectors of rows.
 * @param sight  rows that do not see k take a[i] as 0, whatever it is; NULL: all see all */
static inline __attribute__((always_inline)) void
multiply(vf sum[MOST_DEPTH][VECTORS], const float *const a[], int64_t along,
         const float *restrict b, kvc__range range, const panel_sight *sight, const int D,
         const int V) {
    for (int64_t k = range.begin; k < range.end; k++) {
        vf row[VECTORS];
        vi seen[VECTORS];
        for (int64_t v = 0; v < V; v++) row[v] = v_keep(v_load(b + k * PANEL + v * W));
        for (int64_t v = 0; v < V && sight; v++) seen[v] = sees(sight, v, k);
        for (int i = 0; i < D; i++) {
            const vf element = v_set(a[i][k * along]);
            for (int64_t v = 0; v < V; v++)
                sum[i][v] += (sight ? (vf)((vi)element & seen[v]) : element) * row[v];
        }
    }
}

/* s[j][row] = q[row] · k[j] */
static inline __attribute__((always_inline)) void
panel_score(float *restrict s, const kvc__tile *t, const kvc__block *k, const int D, const int V) {
    for (int64_t j = 0; j < k->count; j += D) {
        const float *key[MOST_DEPTH];
        vf sum[MOST_DEPTH][VECTORS];
        for (int i = 0; i < D; i++) {
            /* Beyond the last key the last is taken again: nobody looks at those scores. */
            const int64_t at = j + i < k->count ? j + i : k->count - 1;
            key[i] = (const float *)(const void *)(k->data + at * k->step_bytes);
            for (int64_t v = 0; v < V; v++) sum[i][v] = v_set(0);
        }
        multiply(sum, key, 1, t->q, (kvc__range){0, t->key_width}, NULL, D, V);
        for (int i = 0; i < D; i++)
            for (int64_t v = 0; v < V; v++) v_store(s + (j + i) * PANEL + v * W, sum[i][v]);
    }
}

/* Sets the scores that a row does not see to -inf. */
static inline void hide(const panel_sight *sight, int64_t count, float *s, int V) {
    const vi none = (vi)v_set(-INFINITY);
    uint64_t hidden = ~sight->all & kvc__bits((kvc__range){0, count});
    for (; hidden; hidden &= hidden - 1) {
        const int64_t j = __builtin_ctzll(hidden);
        for (int64_t v = 0; v < V; v++) {
            const vi seen = sees(sight, v, j);
            float *at = s + j * PANEL + v * W;
            v_store(at, (vf)(((vi)v_load(at) & seen) | (none & ~seen)));
        }
    }
}

static inline __attribute__((always_inline)) void panel_soften(kvc__tile *t, const uint64_t *seen,
                                                               int64_t count, float *restrict s,
                                                               float *factor, const int V) {
    vf most[VECTORS], sum[VECTORS], base[VECTORS];
    panel_sight sight;
    look(&sight, seen, count);
    hide(&sight, count, s, V);
    for (int64_t v = 0; v < V; v++) most[v] = v_load(t->max + v * W);
    for (int64_t j = 0; j < count; j++)
        for (int64_t v = 0; v < V; v++) most[v] = v_max(v_load(s + j * PANEL + v * W), most[v]);
    for (int64_t v = 0; v < V; v++) {
        /* With scores of -inf alone there is nothing to subtract: -inf - -inf would be NaN. */
        const vi nothing = most[v] == v_set(-INFINITY);
        base[v] = (vf)((vi)most[v] & ~nothing);
        sum[v] = v_set(0);
        v_store(factor + v * W, v_exp(v_load(t->max + v * W) - base[v]));
        v_store(t->max + v * W, most[v]);
    }
    for (int64_t j = 0; j < count; j++)
        for (int64_t v = 0; v < V; v++) {
            float *at = s + j * PANEL + v * W;
            const vf p = v_exp(v_load(at) - base[v]);
            v_store(at, p);
            sum[v] += p;
        }
    for (int64_t v = 0; v < V; v++) {
        float *total = t->total + v * W;
        v_store(total, v_load(total) * v_load(factor + v * W) + sum[v]);
    }
}

/* sums[d][row] = sums[d][row] · factor[row] + Σ_j s[j][row] v[j][d] over a run of positions.
 * @param factor  NULL: 1 */
static inline __attribute__((always_inline)) void
panel_sum(const kvc__tile *t, const kvc__block *v, const float *s, const float *factor,
          kvc__range run, const panel_sight *sight, const int D, const int V) {
    const float *values = (const float *)(const void *)v->data;
    const int64_t step = v->step_bytes / (int64_t)sizeof *values;
    for (int64_t d = 0; d < t->value_width; d += D) {
        const float *value[MOST_DEPTH];
        vf sum[MOST_DEPTH][VECTORS];
        float *sums = t->sums + d * PANEL;
        for (int64_t i = 0; i < D; i++) {
            value[i] = values + d + i;
            for (int64_t x = 0; x < V; x++) {
                sum[i][x] = v_load(sums + i * PANEL + x * W);
                if (factor) sum[i][x] *= v_load(factor + x * W);
            }
        }
        multiply(sum, value, step, s, run, sight, D, V);
        for (int64_t i = 0; i < D; i++)
            for (int64_t x = 0; x < V; x++) v_store(sums + i * PANEL + x * W, sum[i][x]);
    }
}

/* What all rows see, and then what only some do, where a weight of 0 times NaN would reach the
 * others: `rest` masks that, half as deep, as the masks want registers too. */
static inline __attribute__((always_inline)) void
panel_weigh(const kvc__tile *t, const kvc__block *v, const uint64_t *seen, const float *s,
            const float *factor,
            void (*rest)(const kvc__tile *, const kvc__block *, const float *, kvc__range,
                         const panel_sight *),
            const int D, const int V) {
    panel_sight sight;
    look(&sight, seen, v->count);
    uint64_t all = sight.all, some = sight.any & ~sight.all;
    panel_sum(t, v, s, factor, kvc__next_run(&all), NULL, D,
              V); /* the factor is due all the same */
    while (all) panel_sum(t, v, s, NULL, kvc__next_run(&all), NULL, D, V);
    while (some) rest(t, v, s, kvc__next_run(&some), &sight);
}

/* dst = src in f32, by whole units: zeros behind element n. */
static inline __attribute__((always_inline)) void widen(float *restrict dst, const char *src,
                                                        int64_t n, const load_fn load,
                                                        const int64_t element_bytes) {
    char last[UNIT * sizeof(float)] = {0};
    for (int64_t d = 0; d < n; d += UNIT) {
        const char *from = src + d * element_bytes;
        if (n - d < UNIT) from = memcpy(last, from, (size_t)((n - d) * element_bytes));
        v_store(dst + d, LOAD(load, from, 0, UNIT));
        v_store(dst + d + W, LOAD(load, from, 1, UNIT));
    }
}

#define PANELS(V, D)                                                                               \
    static void panel_score_##V(const kvc__tile *t, const kvc__block *k, float *s) {               \
        panel_score(s, t, k, D, V);                                                                \
    }                                                                                              \
    static void panel_soften_##V(kvc__tile *t, const uint64_t *seen, int64_t count, float *s,      \
                                 float *factor) {                                                  \
        panel_soften(t, seen, count, s, factor, V);                                                \
    }                                                                                              \
    static __attribute__((noinline)) void panel_rest_##V(const kvc__tile *t, const kvc__block *v,  \
                                                         const float *s, kvc__range run,           \
                                                         const panel_sight *sight) {               \
        panel_sum(t, v, s, NULL, run, sight, (D) / 2, V);                                          \
    }                                                                                              \
    static void panel_weigh_##V(kvc__tile *t, const kvc__block *v, const uint64_t *seen,           \
                                const float *s, const float *factor) {                             \
        panel_weigh(t, v, seen, s, factor, panel_rest_##V, D, V);                                  \
    }
#define WIDEN(dtype, load, element_bytes)                                                          \
    static void widen_##dtype(float *dst, const void *src, int64_t n) {                            \
        widen(dst, src, n, load, element_bytes);                                                   \
    }

PANELS(1, MOST_DEPTH)
PANELS(2, 4)
PANELS(3, 4)
WIDEN(f32, v_load_f32, 4)
#if TILES_F16
WIDEN(f16, v_load_f16, 2)
#endif
WIDEN(bf16, v_load_bf16, 2)

static void fill_panels(kvc__ops *ops) {
    const kvc__panel panels[] = {{panel_score_1, panel_soften_1, panel_weigh_1},
                                 {panel_score_2, panel_soften_2, panel_weigh_2},
                                 {panel_score_3, panel_soften_3, panel_weigh_3}};
    const int least[KVC__OPS_SLOTS] = PANEL_LEAST;
    memcpy(ops->panels, panels, sizeof panels);
    memcpy(ops->panel_least, least, sizeof least);
    ops->lanes = W;
    ops->widen[SLOT(KVC_F32)] = widen_f32;
    ops->widen[SLOT(KVC_BF16)] = widen_bf16;
#if TILES_F16
    ops->widen[SLOT(KVC_F16)] = widen_f16;
#endif
}

#endif
