/** @file
 * The inner loops of a tile over packed keys and values: those of tile.h, which includes this file,
 * with elements that become scale · q + bias as they are loaded.
 *
 * In exact arithmetic a score is Σ_g (scale_g · Σ q·w + bias_g · Σ q), which would spare the
 * product and sum of each element. But its partial sums want registers beside those of all rows,
 * and its terms are larger than what they add up to, by as much as a bias is larger than its steps.
 */
#ifndef KVC_ATTENTION_TILE_QUANT_H
#define KVC_ATTENTION_TILE_QUANT_H

/* Of 8 bits a loader gives the first W elements, then the others; of 4 bits the even ones, the low
 * halves of bytes, then the odd ones. */

/* sum[i · R + r] = q[r] · key i, for KEYS keys, so that each load of q serves them all. With few
 * rows the halves of units are added up apart: as many sums as hide the latency of one. */
static inline __attribute__((always_inline)) void
score_packed_keys(vf *sum, const float *q, int64_t width, const kvc__block *k, int64_t first,
                  const int R, const int KEYS, const load_fn load, const int bits) {
    const int ways = R < 4 ? 2 : 1;
    const char *row[2];
    const float *scales[2], *biases[2];
    vf part[2][8];
    for (int i = 0; i < KEYS; i++) {
        /* Beyond the last key the last is taken again, as by score. */
        const int64_t at = first + i < k->count ? first + i : k->count - 1;
        row[i] = k->data + at * k->step_bytes;
        scales[i] = k->scales + at * k->groups;
        biases[i] = k->biases + at * k->groups;
    }
    for (int i = 0; i < KEYS * R; i++) part[0][i] = part[1][i] = v_set(0);
    for (int64_t g = 0; g < k->groups; g++) {
        vf scale[2], bias[2];
        for (int i = 0; i < KEYS; i++) {
            scale[i] = v_set(scales[i][g]);
            bias[i] = v_set(biases[i][g]);
        }
        for (int64_t d = g * k->group; d < (g + 1) * k->group; d += UNIT)
            for (int64_t half = 0; half < 2; half++) {
                vf x[2];
                for (int i = 0; i < KEYS; i++)
                    x[i] = load(row[i] + d * bits / 8, half) * scale[i] + bias[i];
                for (int r = 0; r < R; r++) {
                    const vf y = v_keep(v_load(q + r * width + d + half * W));
                    for (int i = 0; i < KEYS; i++) part[half % ways][i * R + r] += y * x[i];
                }
            }
    }
    for (int i = 0; i < KEYS * R; i++) sum[i] = ways == 1 ? part[0][i] : part[0][i] + part[1][i];
}

/* As score. */
static inline __attribute__((always_inline)) void score_packed(float *restrict s,
                                                               const kvc__tile *t,
                                                               const kvc__block *k, const int R,
                                                               const load_fn load, const int bits) {
    const int keys = W / R, together = keys < 2 ? keys : 2;
    for (int64_t j = 0; j < k->count; j += keys) {
        vf sum[W];
        for (int i = 0; i < keys; i += together) {
            kvc__ask(k->ahead, together * t->key_width);
            score_packed_keys(sum + (int64_t)i * R, t->q, t->key_width, k, j + i, R, together, load,
                              bits);
        }
        v_store(s + j * R, v_sums(sum));
    }
}

/* As weigh_units. */
static inline __attribute__((always_inline)) void
weigh_packed_units(float *restrict sums, const float *restrict p, int64_t step, const float *factor,
                   const kvc__block *v, int64_t width, int64_t d, const int R, const int UNITS,
                   const load_fn load, const int bits) {
    vf sum[4][2];
    load_sums(sum, sums + d, width, factor, R, UNITS);
    const char *row = v->data + d * bits / 8;
    const float *scales = v->scales + d / v->group, *biases = v->biases + d / v->group;
    for (int64_t j = 0; j < v->count; j++, row += v->step_bytes) {
        if (R == 1) kvc__ask(v->ahead, UNITS * UNIT);
        const vf scale = v_set(scales[j * v->groups]), bias = v_set(biases[j * v->groups]);
        for (int u = 0; u < UNITS; u++) {
            const vf x = load(row + (int64_t)u * UNIT * bits / 8, 0) * scale + bias;
            const vf y = load(row + (int64_t)u * UNIT * bits / 8, 1) * scale + bias;
            for (int r = 0; r < R; r++) {
                const vf weight = v_set(p[j * step + r]);
                sum[u * R + r][0] += weight * x;
                sum[u * R + r][1] += weight * y;
            }
        }
    }
    store_sums(sums + d, width, sum, R, UNITS);
}

/* As weigh. Units that are worked on together are of one group. */
static inline __attribute__((always_inline)) void
weigh_packed(float *restrict sums, const float *restrict p, int64_t step, const float *factor,
             const kvc__block *v, int64_t width, const int R, const load_fn load, const int bits) {
    const int most = 4 / R, least = most * UNIT <= 32 ? most : R < 4 && 2 * UNIT <= 32 ? 2 : 1;
    const int units = most * UNIT <= v->group ? most : least; /* a group is of 32 or more */
    for (int64_t d = 0; d < width; d += units * UNIT) {
        if (R > 1) kvc__ask(v->ahead, v->count * units * UNIT);
        if (units == most)
            weigh_packed_units(sums, p, step, factor, v, width, d, R, most, load, bits);
        else weigh_packed_units(sums, p, step, factor, v, width, d, R, least, load, bits);
    }
}

#define PACKED_TILE(name, R, load, bits)                                                           \
    static void score_##R##_##name(const kvc__tile *t, const kvc__block *k, float *s) {            \
        score_packed(s, t, k, R, load, bits);                                                      \
    }                                                                                              \
    static inline void sum_##R##_##name(float *sums, const float *p, int64_t step,                 \
                                        const float *factor, const kvc__block *v, int64_t width) { \
        weigh_packed(sums, p, step, factor, v, width, R, load, bits);                              \
    }                                                                                              \
    static void weigh_##R##_##name(kvc__tile *t, const kvc__block *v, const kvc__range *seen,      \
                                   const float *s, const float *factor) {                          \
        weigh_seen(t, v, seen, s, factor, R, sum_##R##_##name, sum_1_##name);                      \
    }
#define PACKED_TILES(name, load, bits)                                                             \
    PACKED_TILE(name, 1, load, bits)                                                               \
    PACKED_TILE(name, 2, load, bits)                                                               \
    PACKED_TILE(name, 4, load, bits)

PACKED_TILES(q8, v_load_q8, 8)
PACKED_TILES(q4, v_load_q4, 4)

static void fill_packed(kvc__ops *ops) {
    const kvc__score_fn scores[2][KVC__TILES] = {SCORES(q8), SCORES(q4)};
    const kvc__weigh_fn weighs[2][KVC__TILES] = {WEIGHS(q8), WEIGHS(q4)};
    memcpy(ops->score[KVC__OPS_Q8], scores, sizeof scores);
    memcpy(ops->weigh[KVC__OPS_Q8], weighs, sizeof weighs);
    for (int i = 0; i < 2 * W; i++) {
        ops->place[KVC__OPS_Q8][i] = (uint8_t)i;
        ops->place[KVC__OPS_Q4][i] = (uint8_t)(i % 2 * W + i / 2);
    }
}

#endif
