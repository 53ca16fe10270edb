/* NEON with products of bf16 matrices (Arm's FEAT_BF16): the scores of bf16 keys. All else is as in
 * tile_neon_dot.c. This file is compiled for it, and run where it is.
 *
 * BFMMLA multiplies two rows of four bf16 with two more, all four pairs. Here the first two are one
 * query in two parts, hi + lo = q, the others two keys: half the operations on vectors that FMA
 * takes, and keys are not widened. What it costs in precision: |q - hi - lo| ≤ 2^-18 |q|, where
 * rounding a key to bf16 may take 2^-9 of it. Products are exact; each sum is off by less than
 * 2^-23 of it, being rounded to odd, which is twice what FMA is off by. Numbers below 2^-126 count
 * as 0.
 * @source Arm Architecture Reference Manual, BFMMLA */
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* Keys at a time: with four rows, their sums take 16 of the 32 registers. */
enum { KEYS = 8, PAIRS = KEYS / 2 };

static inline bfloat16x8_t load(const void *from) {
    bfloat16x8_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Turns every four elements of a query, in place, into the four of hi, then the four of lo. */
static void split(float *q, int64_t width, int64_t group) {
    (void)group;
    const float32x4_t infinity = vdupq_n_f32(INFINITY), zero = vdupq_n_f32(0);
    for (int64_t d = 0; d < width; d += 4) {
        const float32x4_t x = vld1q_f32(q + d);
        float32x4_t hi = vcvt_f32_bf16(vcvt_bf16_f32(x));
        /* The largest numbers would round to infinity: these are cut off. Infinity stays. */
        const uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000u));
        hi = vbslq_f32(vceqq_f32(vabsq_f32(hi), infinity), vreinterpretq_f32_u32(bits), hi);
        const float32x4_t lo = vbslq_f32(vceqq_f32(x, hi), zero, vsubq_f32(x, hi));
        const bfloat16x8_t both = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(hi), lo);
        memcpy(q + d, &both, sizeof both);
    }
}

/* The sum in f32, one element after another. */
static float score_slowly(const float *q, const void *key, int64_t width) {
    const uint16_t *k = key;
    uint16_t parts[8];
    float sum = 0;
    for (int64_t d = 0; d < width; d++) {
        if (d % 4 == 0) memcpy(parts, q + d, sizeof parts);
        sum += (kvc__f32_of_bf16(parts[d % 4]) + kvc__f32_of_bf16(parts[4 + d % 4])) *
               kvc__f32_of_bf16(k[d]);
    }
    return sum;
}

/* A key of infinity times a lo of 0 is NaN, and two products may overflow that have a sum: scores
 * that are not finite are taken again. */
static void mend_scores(float *s, const kvc__tile *t, const kvc__block *k, int R) {
    bool is_finite = true;
    for (int64_t i = 0; i < k->count * R; i++) is_finite &= fabsf(s[i]) < INFINITY;
    if (is_finite) return;
    for (int64_t i = 0; i < k->count * R; i++)
        if (!(fabsf(s[i]) < INFINITY))
            s[i] = score_slowly(t->q + i % R * t->key_width, k->data + i / R * k->step_bytes,
                                t->key_width);
}

/* s[j][r] = q[r] · k[j], KEYS keys from j on. */
static inline __attribute__((always_inline)) void
score_keys(float *restrict s, const kvc__tile *t, const kvc__block *k, int64_t j, const int R) {
    const char *row[KEYS];
    float32x4_t sum[4][PAIRS];
    for (int i = 0; i < KEYS; i++) {
        /* Beyond the last key the last is taken again: nobody looks at those scores. */
        const int64_t at = j + i < k->count ? j + i : k->count - 1;
        row[i] = k->data + at * k->step_bytes;
    }
    kvc__ask(k->ahead, KEYS * t->key_width);
    for (int r = 0; r < R; r++)
        for (int i = 0; i < PAIRS; i++) sum[r][i] = vdupq_n_f32(0);
    for (int64_t d = 0; d < t->key_width; d += 8) {
        bfloat16x8_t first[PAIRS], second[PAIRS]; /* four dims of two keys each */
        for (int i = 0; i < PAIRS; i++) {
            const uint64x2_t a = vreinterpretq_u64_bf16(load(row[2 * i] + 2 * d));
            const uint64x2_t b = vreinterpretq_u64_bf16(load(row[2 * i + 1] + 2 * d));
            first[i] = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
            second[i] = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
        }
        for (int r = 0; r < R; r++) {
            const float *q = t->q + r * t->key_width + d;
            const bfloat16x8_t q_first = load(q), q_second = load(q + 4);
            for (int i = 0; i < PAIRS; i++) sum[r][i] = vbfmmlaq_f32(sum[r][i], q_first, first[i]);
            for (int i = 0; i < PAIRS; i++)
                sum[r][i] = vbfmmlaq_f32(sum[r][i], q_second, second[i]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < PAIRS; i++) {
            const float32x2_t both = vadd_f32(vget_low_f32(sum[r][i]), vget_high_f32(sum[r][i]));
            s[(j + 2 * i) * R + r] = vget_lane_f32(both, 0);
            s[(j + 2 * i + 1) * R + r] = vget_lane_f32(both, 1);
        }
}

static inline __attribute__((always_inline)) void score(float *restrict s, const kvc__tile *t,
                                                        const kvc__block *k, const int R) {
    for (int64_t j = 0; j < k->count; j += KEYS) score_keys(s, t, k, j, R);
    mend_scores(s, t, k, R);
}

static void score_1(const kvc__tile *t, const kvc__block *k, float *s) {
    score(s, t, k, 1);
}
static void score_2(const kvc__tile *t, const kvc__block *k, float *s) {
    score(s, t, k, 2);
}
static void score_4(const kvc__tile *t, const kvc__block *k, float *s) {
    score(s, t, k, 4);
}

void kvc__ops_neon_bf16(kvc__ops *ops) {
    const kvc__score_fn scores[KVC__TILES] = {score_1, score_2, score_4};
    kvc__ops_neon_dot(ops);
    memcpy(ops->score[KVC__OPS_SLOT(KVC_BF16)], scores, sizeof scores);
    ops->prepare[KVC__OPS_SLOT(KVC_BF16)] = split;
}
