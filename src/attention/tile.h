/** @file
 * The inner loops of the fused path, written once for vectors of any width.
 *
 * Included by one .c file an instruction set, after a header that defines (all static inline):
 *     enum { W }                          lanes of a vector
 *     vf, vi                              W floats, W int32: GNU vector types, with operators
 *     vf v_load(const float *)            unaligned
 *     void v_store(float *, vf)           unaligned
 *     vf v_set(float)                     all lanes alike
 *     vf v_keep(vf)                       as it is, but in a register: a load is not repeated
 *     vf v_max(vf a, vf b)                b where a is NaN
 *     vf v_swap(vf x, int step)           lane i: lane i ^ step of x; step a power of 2 below W
 *     vf v_load_f32, v_load_bf16, v_load_f16(const void *, int64_t half)
 *                                         one half of 2 W elements as f32; which are in it, and in
 *                                         what order, is the loader's own
 *     TILES_CHANNELS, TILES_PACKED        0 where there is not what tile_channels.h or tile_quant.h
 *                                         wants, the latter not without the former
 *     TAILS                               1 where loaders take one argument more, how many of the
 *                                         2 W elements there are: the others are 0
 *     vf v_sums(const vf a[W])            lane i: the sum of the lanes of a[i]
 *
 * A tile is R rows, R in {1, 2, 4}: query heads of one kv head that share each key and value they
 * load. Scores are s[position][R], so that a vector of them holds W / R positions.
 * @source the online softmax of FlashAttention; register tiles as in BLIS */
#ifndef KVC_ATTENTION_TILE_H
#define KVC_ATTENTION_TILE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "array/pack.h"
#include "attention/kernel.h"
#include "attention/ops.h"
#include "attention/row.h"
#include "attention/seen.h"

#define SLOT KVC__OPS_SLOT

/* Elements that a loader takes. */
#define UNIT ((int64_t)2 * W)

#ifndef TAILS
#define TAILS 0 /* rows of whole units alone */
#endif
#if TAILS
typedef vf (*load_fn)(const void *from, int64_t half, int64_t left);
#define LOAD(load, from, half, left) load(from, half, left)
#else
typedef vf (*load_fn)(const void *from, int64_t half);
#define LOAD(load, from, half, left) load(from, half)
#endif

/* Dims d to d + left of W / R keys and R rows, left at most a unit, into a sum for each pair. */
static inline __attribute__((always_inline)) void
score_unit(vf sum[W], const kvc__tile *t, const char *const row[W], int64_t d, const int R,
           const load_fn load, const int64_t element_bytes, const int64_t left) {
    const int keys = W / R;
    (void)left;
    for (int64_t half = 0; half < 2; half++) {
        vf x[W];
        for (int i = 0; i < keys; i++) x[i] = LOAD(load, row[i] + d * element_bytes, half, left);
        for (int r = 0; r < R; r++) {
            const vf q = v_keep(v_load(t->q + r * t->key_width + d + half * W));
            for (int i = 0; i < keys; i++) sum[i * R + r] += q * x[i];
        }
    }
}

/* The products of one key and one row, lane by lane. */
static inline __attribute__((always_inline)) vf score_key(const float *q, const char *key,
                                                          int64_t dim, const load_fn load,
                                                          const int64_t element_bytes) {
    vf even = v_set(0), odd = v_set(0);
    int64_t d = 0;
    for (; d + UNIT <= dim; d += UNIT) {
        even += v_load(q + d) * LOAD(load, key + d * element_bytes, 0, UNIT);
        odd += v_load(q + d + W) * LOAD(load, key + d * element_bytes, 1, UNIT);
    }
    if (TAILS && d < dim) {
        even += v_load(q + d) * LOAD(load, key + d * element_bytes, 0, dim - d);
        odd += v_load(q + d + W) * LOAD(load, key + d * element_bytes, 1, dim - d);
    }
    return even + odd;
}

/* s[j][r] = q[r] · k[j]; every accumulator is one pair of key and row. */
static inline __attribute__((always_inline)) void score(float *restrict s, const kvc__tile *t,
                                                        const kvc__block *k, const int R,
                                                        const load_fn load,
                                                        const int64_t element_bytes) {
    const int keys = W / R;
    for (int64_t j = 0; j < k->count; j += keys) {
        const char *row[W];
        vf sum[W];
        for (int i = 0; i < keys; i++) {
            /* Beyond the last key the last is taken again: nobody looks at those scores. */
            const int64_t at = j + i < k->count ? j + i : k->count - 1;
            row[i] = k->data + at * k->step_bytes;
        }
        if (R == 1) /* key by key: memory is read in its order */
            for (int i = 0; i < keys; i++) {
                kvc__ask(k->ahead, k->dim);
                sum[i] = score_key(t->q, row[i], k->dim, load, element_bytes);
            }
        else {
            kvc__ask(k->ahead, keys * k->dim);
            for (int i = 0; i < W; i++) sum[i] = v_set(0);
            int64_t d = 0;
            for (; d + UNIT <= k->dim; d += UNIT)
                score_unit(sum, t, row, d, R, load, element_bytes, UNIT);
            if (TAILS && d < k->dim) score_unit(sum, t, row, d, R, load, element_bytes, k->dim - d);
        }
        v_store(s + j * R, v_sums(sum));
    }
}

/* R rows of UNITS times 2 W sums to and from registers: sum[unit · R + r][half]. */
static inline __attribute__((always_inline)) void load_sums(vf sum[4][2], const float *sums,
                                                            int64_t width, const float *factor,
                                                            const int R, const int UNITS) {
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++)
            for (int64_t half = 0; half < 2; half++)
                sum[u * R + r][half] =
                    v_load(sums + r * width + u * UNIT + half * W) * v_set(factor[r]);
}

static inline __attribute__((always_inline)) void
store_sums(float *sums, int64_t width, vf sum[4][2], const int R, const int UNITS) {
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++)
            for (int64_t half = 0; half < 2; half++)
                v_store(sums + r * width + u * UNIT + half * W, sum[u * R + r][half]);
}

/* sums[r] = sums[r] · factor[r] + Σ_j p[j · step + r] v[j], UNITS times 2 W dims from d on, or the
 * last `left` of a row. */
static inline __attribute__((always_inline)) void
weigh_units(float *restrict sums, const float *restrict p, int64_t step, const float *factor,
            const kvc__block *v, int64_t width, int64_t d, const int R, const int UNITS,
            const load_fn load, const int64_t element_bytes, const int64_t left) {
    vf sum[4][2];
    load_sums(sum, sums + d, width, factor, R, UNITS);
    const char *row = v->data + d * element_bytes;
    const int64_t together = R == 1 ? 1 : KVC__ASKED; /* one row waits for memory */
    for (int64_t j = 0; j < v->count;) {
        const int64_t stop = j + together < v->count ? j + together : v->count;
        kvc__ask(v->ahead, (stop - j) * (left < UNIT ? left : UNITS * UNIT));
        for (; j < stop; j++, row += v->step_bytes)
            for (int u = 0; u < UNITS; u++) {
                const vf x = LOAD(load, row + u * UNIT * element_bytes, 0, left);
                const vf y = LOAD(load, row + u * UNIT * element_bytes, 1, left);
                for (int r = 0; r < R; r++) {
                    const vf weight = v_set(p[j * step + r]);
                    sum[u * R + r][0] += weight * x;
                    sum[u * R + r][1] += weight * y;
                }
            }
    }
    store_sums(sums + d, width, sum, R, UNITS);
}

static inline __attribute__((always_inline)) void
weigh(float *restrict sums, const float *restrict p, int64_t step, const float *factor,
      const kvc__block *v, int64_t width, const int R, const load_fn load,
      const int64_t element_bytes) {
    const int units = 4 / R; /* eight accumulators: enough to hide the latency of a sum */
    int64_t d = 0;
    for (; d + units * UNIT <= v->dim; d += units * UNIT)
        weigh_units(sums, p, step, factor, v, width, d, R, units, load, element_bytes, UNIT);
    for (; d + UNIT <= v->dim; d += UNIT)
        weigh_units(sums, p, step, factor, v, width, d, R, 1, load, element_bytes, UNIT);
    if (TAILS && d < v->dim)
        weigh_units(sums, p, step, factor, v, width, d, R, 1, load, element_bytes, v->dim - d);
}

/* exp(x) = 2^exponent · (1 + what is returned): the reduction of kvc__exp_f32 (exp.h). */
static inline vf v_exp_reduced(vf x, vi *exponent) {
    const vf magic = v_set(0x1.8p23f);
    const vf shifted = x * v_set(0x1.715476p+0f) + magic;
    const vf n = shifted - magic;
    *exponent = (vi)shifted - (vi)magic;
    const vf r = (x - n * v_set(0x1.62e4p-1f)) - n * v_set(0x1.7f7d1cp-20f);
    vf p = v_set(1.0f / 5040);
    p = p * r + v_set(1.0f / 720);
    p = p * r + v_set(1.0f / 120);
    p = p * r + v_set(1.0f / 24);
    p = p * r + v_set(1.0f / 6);
    p = p * r + v_set(0.5f);
    return (p * r) * r + r;
}

/* x where it is at most `most`, or NaN. */
static inline vf v_at_most(vf x, vf most) {
    const vi high = x > most;
    return (vf)((high & (vi)most) | (~high & (vi)x));
}

/* exp of W floats that are at most 0, or NaN. Below 2^-126.5 it gives 0: beside the largest score's
 * 1 that is nothing. Elsewhere within 1.5 ulp: of the polynomials of degree 6 that begin with 1 + r
 * this is the one closest to exp on |r| <= ln 2 / 2, off by 3.1e-9 at most. */
static inline vf v_exp(vf x) {
    const vf magic = v_set(0x1.8p23f + 127); /* its low bits are then an exponent's */
    x = v_max(v_set(-88.0f), x);             /* exponent 0: the factor is 0 */
    const vf shifted = x * v_set(0x1.715476p+0f) + magic;
    const vf n = shifted - magic;
    const vf r = (x - n * v_set(0x1.62e4p-1f)) - n * v_set(0x1.7f7d1cp-20f);
    const vf r2 = r * r;
    const vf low = v_set(0x1.fffffcp-2f) + v_set(0x1.555490p-3f) * r;
    const vf high =
        (v_set(0x1.5558f4p-5f) + v_set(0x1.123a6cp-7f) * r) + v_set(0x1.6a2352p-10f) * r2;
    const vf p = (r + v_set(1.0f)) + (low + high * r2) * r2;
    return p * (vf)((vi)shifted << 23);
}

/* tanh |y| = e / (e + 2) with e = exp(2 |y|) - 1, which loses nothing where y is small. Beyond 2
 * |y| = 20 it is 1 in f32. */
static void cap_scores(float *s, int64_t n, float cap) {
    const vf one = v_set(1.0f), two = v_set(2.0f), half = v_set(cap / 2);
    for (int64_t i = 0; i < n; i += W) {
        const vf x = v_load(s + i);
        const vi sign = (vi)x & (vi)v_set(-0.0f);
        vi exponent;
        const vf y = v_at_most((vf)((vi)x ^ sign) / half, v_set(20.0f));
        const vf p = v_exp_reduced(y, &exponent);
        const vf power = (vf)((exponent + 127) << 23);
        const vf e = p * power + (power - one);
        v_store(s + i, (vf)((vi)(v_set(cap) * (e / (e + two))) | sign));
    }
}

/* Lane i: p[i % R], of row i % R. */
static inline __attribute__((always_inline)) vf v_rows(const float *p, const int R) {
    vf x;
    for (int i = 0; i < W; i++) x[i] = p[i % R];
    return x;
}

/* Turns scores into weights exp(score - max so far); sets factor, what earlier sums scale by. */
static inline __attribute__((always_inline)) void soften(kvc__tile *t, const kvc__range *seen,
                                                         int64_t count, float *restrict s,
                                                         float *factor, const int R) {
    const int64_t padded = (count * R + W - 1) / W * W;
    const size_t rows_bytes = (size_t)R * sizeof(float);
    for (int r = 0; r < R; r++) {
        for (int64_t j = 0; j < seen[r].begin; j++) s[j * R + r] = -INFINITY;
        for (int64_t j = seen[r].end; j * R + r < padded; j++) s[j * R + r] = -INFINITY;
    }

    const vf before = v_rows(t->max, R);
    vf max = v_load(s), sum = v_set(0);
    for (int64_t i = W; i < padded; i += W) max = v_max(v_load(s + i), max);
    for (int step = W / 2; step >= R; step /= 2) max = v_max(v_swap(max, step), max);
    max = v_max(max, before);
    memcpy(t->max, &max, rows_bytes);
    /* With scores of -inf alone there is nothing to subtract: -inf - -inf would be NaN. */
    const vf base = (vf)((max > v_set(-INFINITY)) & (vi)max);
    const vf scale = v_exp(before - base);
    memcpy(factor, &scale, rows_bytes);
    for (int64_t i = 0; i < padded; i += W) {
        const vf p = v_exp(v_load(s + i) - base);
        v_store(s + i, p);
        sum += p;
    }
    for (int step = W / 2; step >= R; step /= 2) sum += v_swap(sum, step);
    const vf total = v_rows(t->total, R) * scale + sum;
    memcpy(t->total, &total, rows_bytes);
}

#define SOFTEN(R)                                                                                  \
    static void soften_##R(kvc__tile *t, const kvc__range *seen, int64_t count, float *s,          \
                           float *factor) {                                                        \
        soften(t, seen, count, s, factor, R);                                                      \
    }
SOFTEN(1)
SOFTEN(2)
SOFTEN(4)

#define TILE(dtype, R, load, element_bytes)                                                        \
    static void score_##R##_##dtype(const kvc__tile *t, const kvc__block *k, float *s) {           \
        score(s, t, k, R, load, element_bytes);                                                    \
    }                                                                                              \
    static inline void sum_##R##_##dtype(float *sums, const float *p, int64_t step,                \
                                         const float *factor, const kvc__block *v,                 \
                                         int64_t width) {                                          \
        weigh(sums, p, step, factor, v, width, R, load, element_bytes);                            \
    }                                                                                              \
    static void weigh_##R##_##dtype(kvc__tile *t, const kvc__block *v, const kvc__range *seen,     \
                                    const float *s, const float *factor) {                         \
        weigh_seen(t, v, seen, s, factor, R, sum_##R##_##dtype, sum_1_##dtype);                    \
    }
#define TILES(dtype, load, element_bytes)                                                          \
    TILE(dtype, 1, load, element_bytes)                                                            \
    TILE(dtype, 2, load, element_bytes)                                                            \
    TILE(dtype, 4, load, element_bytes)

/* A row of the table. */
#define SCORES(dtype)                                                                              \
    { score_1_##dtype, score_2_##dtype, score_4_##dtype }
#define WEIGHS(dtype)                                                                              \
    { weigh_1_##dtype, weigh_2_##dtype, weigh_4_##dtype }

TILES(f32, v_load_f32, 4)
#ifndef TILES_F16
#define TILES_F16 1
#endif
#if TILES_F16
TILES(f16, v_load_f16, 2)
#endif
TILES(bf16, v_load_bf16, 2)

/* The place of every element in what a loader gives, found by asking it. */
static void order_of(uint8_t *place, load_fn load, kvc_dtype dtype) {
    uint16_t halves[2 * W];
    float floats[2 * W];
    for (int i = 0; i < 2 * W; i++) {
        floats[i] = (float)(i + 1);
        halves[i] = dtype == KVC_F16 ? kvc__f16_of_f32(floats[i]) : kvc__bf16_of_f32(floats[i]);
    }
    for (int64_t half = 0; half < 2; half++) {
        const void *from = dtype == KVC_F32 ? (const void *)floats : (const void *)halves;
        const vf x = LOAD(load, from, half, UNIT);
        for (int i = 0; i < W; i++) place[(int)x[i] - 1] = (uint8_t)(half * W + i);
    }
}

/* The sum of all lanes. */
static inline float sum_of(vf x) {
    for (int step = W / 2; step > 0; step /= 2) x += v_swap(x, step);
    return x[0];
}

/* Element i of some that follow each other, of 8 or 4 bits. */
static inline float element_of(const char *from, int64_t i, const int bits) {
    const uint8_t byte = (uint8_t)from[i * bits / 8];
    return (float)(bits == 8 ? byte : byte >> i % 2 * 4 & 15);
}

#include "attention/panel.h"
#ifndef TILES_CHANNELS
#define TILES_CHANNELS 1
#endif
#if TILES_CHANNELS
#include "attention/tile_channels.h"
#endif
#ifndef TILES_PACKED
#define TILES_PACKED 1
#endif
#if TILES_PACKED
#include "attention/tile_quant.h"
#endif

static inline void fill_ops(kvc__ops *ops) {
    *ops = (kvc__ops){
        .unit = 2 * W,
        .takes_any_dim = TAILS,
        .score = {[SLOT(KVC_F32)] = SCORES(f32), [SLOT(KVC_BF16)] = SCORES(bf16)},
        .weigh = {[SLOT(KVC_F32)] = WEIGHS(f32), [SLOT(KVC_BF16)] = WEIGHS(bf16)},
        .soften = {soften_1, soften_2, soften_4},
        .cap = cap_scores,
    };
    order_of(ops->place[SLOT(KVC_F32)], v_load_f32, KVC_F32);
    order_of(ops->place[SLOT(KVC_BF16)], v_load_bf16, KVC_BF16);
    fill_panels(ops);
#if TILES_CHANNELS
    fill_channels(ops);
#endif
#if TILES_PACKED
    fill_packed(ops);
#endif
#if TILES_F16
    const kvc__score_fn scores[KVC__TILES] = SCORES(f16);
    const kvc__weigh_fn weighs[KVC__TILES] = WEIGHS(f16);
    memcpy(ops->score[SLOT(KVC_F16)], scores, sizeof scores);
    memcpy(ops->weigh[SLOT(KVC_F16)], weighs, sizeof weighs);
    order_of(ops->place[SLOT(KVC_F16)], v_load_f16, KVC_F16);
#endif
}

#endif
