/** @file
 * The inner loops of a tile over packed keys and values, of 8 and 4 bits: products of integers.
 *
 * An element is s (k - c) + (b + c s): scale s and bias b of its group, c the middle of what k can
 * be. So a group gives a score
 *     s · Σ q (k - c) + (b + c s) · Σ q
 * of which the first sum is one of integers, if q is: a query is rounded to t times integers, t its
 * largest element of the group over 32639 for keys of 8 bits, over 127 for keys of 4; Σ q is of the
 * query as it was. Weighted sums are the same with p s in place of q, positions in place of dims:
 *     Σ_j p_j s_j (v_j - c) + Σ_j p_j (b_j + c s_j)
 * where p s of a row and group is rounded for a block of positions at a time.
 *
 * What rounding costs, where packing has an element off by half a step (s / 2) at most:
 *     scores: |q| off by t / 2, times |k - c| <= 128 or 8 steps: |error| <= 2^-9 (8 bits) or
 *             2^-5 (4 bits) of a step for each element of the group, times its largest |q|
 *     sums:   the same for each position of the block, times its largest |p s|, in steps of 1
 * So it is below what packing did to the same element by 2^8 (8 bits) or 2^4 (4 bits), but for how
 * much the largest q or p s exceeds the others.
 *
 * No sum of integers overflows: 16 bits of a query times 8, 128 elements of a group or 128
 * positions: below 2^30. Sums of bytes are of up to 16 products of 127 · 15 in 16 bits: 30480.
 *
 * Where an instruction adds up products of bytes in 32 bits, what has 16 bits is multiplied as two
 * signed bytes, 256 · high + low (hence 32639): BY_BYTES is 1, and words are never multiplied.
 * Elements are signed bytes then too, less 128, or unsigned as they are: SIGNED_BYTES.
 *
 * Wants of the instruction set besides what tile.h and tile_channels.h want (lanes here are of
 * 16 bytes, LANES of them in a register):
 *     vf v_float(vi), vi v_round(vf)   conversions, to nearest
 *     vi v_broadcast(from)             4 bytes, W times
 *     vi v_lanes(from[LANES], same)    4 bytes for each lane; same: those of the first for all
 *     vi v_load_bytes(from, lanes)     as many lanes, the others 0
 *     v_columns(x[4], row, step)       x[i]: bytes 4 i to 4 i + 3 of each of W rows
 *     vi v_zip_bytes, v_zip_words(a, b, upper)  by turns of a and b, of the lower or upper half of
 *                                      each lane
 *     vi v_even_bytes, v_odd_bytes     of 16 bits each, as words
 *     vi v_even_nibbles, v_odd_nibbles of 8 bits each, as bytes
 *     word_sums v_dot_words(sum, x, y) adds products of words, two for each of W sums
 *     byte_sums v_dot_bytes(sum, x, y) adds products of bytes, four for each of W sums. y is
 *                                      signed; x as SIGNED_BYTES says and often, if BY_BYTES, or
 *                                      below 128 and eight times at most
 *     v_keep_words, v_keep_bytes       as v_keep, of sums
 *     vi v_fold_words, v_fold_bytes    the W sums
 *     v_store_words(to, a, b), v_store_bytes(to, x[4])  narrowed, 2 W and 4 W of them
 *     v_unzip(even, odd, a, b)         of 2 W floats in a row
 *     v_unzip_bf16(even, odd, from)    of 2 W bf16, as f32
 *     v_add_lanes(to, step, lanes, factor, a, b)  to[l · step + i] = factor · what is there + lane
 *                                      l of a, then that of b
 * Of the words that a product takes x is not negative. Sums start as {0}. */
#ifndef KVC_ATTENTION_TILE_QUANT_H
#define KVC_ATTENTION_TILE_QUANT_H

enum { LANE_BYTES = 16 };

/* The largest integers of queries and weights: of one byte, or of two. */
static inline float most_of(const int bits) {
    return bits == 8 ? 256 * 127 + 127 : 127;
}

/* The middle of what an element can be. */
static inline int32_t middle_of(const int bits) {
    return bits == 8 ? 128 : 8;
}

/* What an integer that is multiplied exceeds k - c by. */
static inline int32_t surplus_of(const int bits) {
    return BY_BYTES && SIGNED_BYTES && bits == 8 ? 0 : middle_of(bits);
}

/* Unsigned bytes as they are multiplied. */
static inline vi multiplied_bytes(vi x) {
    return SIGNED_BYTES ? x ^ -0x7f7f7f80 : x;
}

/* Where sums and queries have element i of a unit: of eight, which are four words or bytes of two
 * each, the even ones come first. */
static inline int64_t place_packed(int64_t i, const int bits) {
    if (BY_BYTES && bits == 8) return i;
    return i / 8 * 8 + i % 2 * 4 + i % 8 / 2;
}

/* The largest of all lanes; no NaN where there is a number. */
static inline float most_in(vf x) {
    for (int step = W / 2; step > 0; step /= 2) x = v_max(v_swap(x, step), x);
    return x[0];
}

/* Rows at the end of a block, fewer than are worked on together, and zeros behind them. */
typedef struct last_rows {
    _Alignas(64) char bytes[KVC__UNIT_MOST / 2][KVC__GROUP_MOST];
} last_rows;

static inline void copy_last(last_rows *to, const char *from, int64_t step_bytes, int64_t count,
                             int64_t bytes, int rows) {
    for (int i = 0; i < rows; i++)
        if (i < count) memcpy(to->bytes[i], from + i * step_bytes, (size_t)bytes);
        else memset(to->bytes[i], 0, (size_t)bytes);
}

#include "attention/quant_channels.h"
#include "attention/quant_score.h"
#include "attention/quant_weigh.h"

/* Two vectors of a unit of scales or biases: those of even and those of odd places. */
static inline __attribute__((always_inline)) void split_unit(vf *even, vf *odd, const char *unit,
                                                             kvc_dtype dtype) {
    if (dtype == KVC_BF16) v_unzip_bf16(even, odd, unit);
    else if (dtype == KVC_F16)
        v_unzip(even, odd, LOAD(v_load_f16, unit, 0, UNIT), LOAD(v_load_f16, unit, 1, UNIT));
    else v_unzip(even, odd, LOAD(v_load_f32, unit, 0, UNIT), LOAD(v_load_f32, unit, 1, UNIT));
}

/* Tells how many are done: whole units, two of them where there are 4 groups. */
static inline __attribute__((always_inline)) int64_t
load_units(float *to, const char *from, kvc_dtype dtype, int64_t n, const int groups) {
    const int64_t size = dtype == KVC_F32 ? 4 : 2, together = groups == 4 ? 2 * UNIT : UNIT;
    int64_t i = 0;
    for (; i + together <= n; i += together, to += together / groups) {
        vf x[4], even, odd;
        split_unit(&x[0], &x[1], from + i * size, dtype);
        if (groups == 1) v_zip(&x[0], &x[1], x[0], x[1]);
        if (groups == 4) {
            split_unit(&even, &odd, from + (i + UNIT) * size, dtype);
            v_unzip(&x[0], &x[2], x[0], even);
            v_unzip(&x[1], &x[3], x[1], odd);
        }
        if (groups == 1) {
            v_store(to, x[0]);
            v_store(to + W, x[1]);
        } else
            for (int g = 0; g < groups; g++) v_store(to + (int64_t)g * KVC__BLOCK, x[g]);
    }
    return i;
}

static inline __attribute__((always_inline)) int64_t
load_groups(float *to, const char *from, kvc_dtype dtype, int64_t groups, int64_t n) {
    if (groups == 1) return load_units(to, from, dtype, n, 1);
    if (groups == 2) return load_units(to, from, dtype, n, 2);
    return groups == 4 ? load_units(to, from, dtype, n, 4) : 0;
}

/* A kvc__scaling_fn. */
static void load_scaling(float *to, const void *from, kvc_dtype dtype, int64_t groups,
                         int64_t count) {
    const int64_t n = groups * count;
    int64_t i;
    if (dtype == KVC_BF16) i = load_groups(to, from, KVC_BF16, groups, n);
    else if (dtype == KVC_F16) i = load_groups(to, from, KVC_F16, groups, n);
    else i = load_groups(to, from, KVC_F32, groups, n);
    for (; i < n; i++) kvc__row_load(to + i % groups * KVC__BLOCK + i / groups, from, dtype, i, 1);
}

#define PACKED_TILE(R, bits)                                                                       \
    static void score_##R##_q##bits(const kvc__tile *t, const kvc__block *k, float *s) {           \
        score_packed(s, t, k, R, bits);                                                            \
    }                                                                                              \
    static inline void sum_##R##_q##bits(float *sums, const float *p, int64_t step,                \
                                         const float *factor, const kvc__block *v,                 \
                                         int64_t width) {                                          \
        weigh_packed(sums, p, step, factor, v, width, R, bits);                                    \
    }                                                                                              \
    static void weigh_##R##_q##bits(kvc__tile *t, const kvc__block *v, const kvc__range *seen,     \
                                    const float *s, const float *factor) {                         \
        weigh_seen(t, v, seen, s, factor, R, sum_##R##_q##bits, sum_1_q##bits);                    \
    }
#define PACKED_TILES(bits)                                                                         \
    PACKED_TILE(1, bits)                                                                           \
    PACKED_TILE(2, bits)                                                                           \
    PACKED_TILE(4, bits)                                                                           \
    static void prepare_q##bits(float *q, int64_t width, int64_t group) {                          \
        prepare_packed(q, width, group, bits);                                                     \
    }

PACKED_TILES(8)
PACKED_TILES(4)

static void fill_packed(kvc__ops *ops) {
    const kvc__score_fn scores[2][KVC__TILES] = {SCORES(q8), SCORES(q4)};
    const kvc__weigh_fn weighs[2][KVC__TILES] = {WEIGHS(q8), WEIGHS(q4)};
    const kvc__score_fn columns[2][KVC__TILES] = {SCORES(i8), SCORES(i4)};
    memcpy(ops->score[KVC__OPS_C8], columns, sizeof columns);
    memcpy(ops->score[KVC__OPS_Q8], scores, sizeof scores);
    memcpy(ops->weigh[KVC__OPS_Q8], weighs, sizeof weighs);
    ops->prepare[KVC__OPS_Q8] = prepare_q8;
    ops->prepare[KVC__OPS_Q4] = prepare_q4;
    ops->scaling = load_scaling;
    for (int i = 0; i < UNIT; i++) {
        ops->place[KVC__OPS_Q8][i] = (uint8_t)place_packed(i, 8);
        ops->place[KVC__OPS_Q4][i] = (uint8_t)place_packed(i, 4);
    }
}

#endif
