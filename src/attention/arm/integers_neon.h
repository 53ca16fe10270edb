/** @file
 * What tile_quant.h asks of vectors of integers, in NEON, with dot products or without. */
#ifndef KVC_ATTENTION_ARM_INTEGERS_NEON_H
#define KVC_ATTENTION_ARM_INTEGERS_NEON_H

#ifdef __ARM_FEATURE_DOTPROD
enum { BY_BYTES = 1, SIGNED_BYTES = 1 };
#else
enum { BY_BYTES = 0, SIGNED_BYTES = 1 };
#endif

static inline vf v_float(vi x) {
    return vcvtq_f32_s32(x);
}
static inline vi v_round(vf x) {
    return vcvtnq_s32_f32(x);
}

static inline vi v_broadcast(const void *from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return vdupq_n_s32(word);
}
static inline vi v_lanes(const void *const from[LANES], bool same) {
    (void)same;
    return v_broadcast(from[0]);
}

static inline vi v_load_bytes(const char *from, int64_t lanes) {
    (void)lanes;
    return vreinterpretq_s32_s8(vld1q_s8((const int8_t *)from));
}

static inline void v_columns(vi x[4], const char *row, int64_t step) {
    const vi a = v_load_bytes(row, 1), b = v_load_bytes(row + step, 1);
    const vi c = v_load_bytes(row + 2 * step, 1), d = v_load_bytes(row + 3 * step, 1);
    const int64x2_t ab = vreinterpretq_s64_s32(vzip1q_s32(a, b));
    const int64x2_t cd = vreinterpretq_s64_s32(vzip1q_s32(c, d));
    const int64x2_t more_ab = vreinterpretq_s64_s32(vzip2q_s32(a, b));
    const int64x2_t more_cd = vreinterpretq_s64_s32(vzip2q_s32(c, d));
    x[0] = vreinterpretq_s32_s64(vzip1q_s64(ab, cd));
    x[1] = vreinterpretq_s32_s64(vzip2q_s64(ab, cd));
    x[2] = vreinterpretq_s32_s64(vzip1q_s64(more_ab, more_cd));
    x[3] = vreinterpretq_s32_s64(vzip2q_s64(more_ab, more_cd));
}

static inline vi v_zip_bytes(vi a, vi b, int upper) {
    const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
    return vreinterpretq_s32_s8(upper ? vzip2q_s8(x, y) : vzip1q_s8(x, y));
}
static inline vi v_zip_words(vi a, vi b, int upper) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vreinterpretq_s32_s16(upper ? vzip2q_s16(x, y) : vzip1q_s16(x, y));
}

static inline vi v_even_bytes(vi x) {
    return x & 0x00ff00ff;
}
static inline vi v_odd_bytes(vi x) {
    return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(x), 8));
}
static inline vi v_even_nibbles(vi x) {
    return x & 0x0f0f0f0f;
}
static inline vi v_odd_nibbles(vi x) {
    return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), 4));
}

/* Products of the lower and of the upper half of a register: neighbours are added up at the end. */
typedef struct word_sums {
    int32x4_t lower, upper;
} word_sums;

static inline word_sums v_keep_words(word_sums sum) {
    return sum; /* compilers do not put these off */
}
static inline word_sums v_dot_words(word_sums sum, vi x, vi y) {
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
    return (word_sums){vmlal_s16(sum.lower, vget_low_s16(a), vget_low_s16(b)),
                       vmlal_high_s16(sum.upper, a, b)};
}
static inline vi v_fold_words(word_sums sum) {
    return vpaddq_s32(sum.lower, sum.upper);
}

#ifdef __ARM_FEATURE_DOTPROD
typedef vi byte_sums;

static inline byte_sums v_dot_bytes(byte_sums sum, vi x, vi y) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
static inline vi v_fold_bytes(byte_sums sum) {
    return sum;
}
#else
typedef struct byte_sums {
    int16x8_t lower, upper;
} byte_sums;

static inline byte_sums v_dot_bytes(byte_sums sum, vi x, vi y) {
    const int8x16_t a = vreinterpretq_s8_s32(x), b = vreinterpretq_s8_s32(y);
    return (byte_sums){vmlal_s8(sum.lower, vget_low_s8(a), vget_low_s8(b)),
                       vmlal_high_s8(sum.upper, a, b)};
}
static inline vi v_fold_bytes(byte_sums sum) {
    return vpaddq_s32(vpaddlq_s16(sum.lower), vpaddlq_s16(sum.upper));
}
#endif
static inline byte_sums v_keep_bytes(byte_sums sum) {
    return sum;
}

static inline void v_store_words(int16_t *to, vi a, vi b) {
    vst1q_s16(to, vcombine_s16(vmovn_s32(a), vmovn_s32(b)));
}
static inline void v_store_bytes(int8_t *to, const vi x[4]) {
    const int16x8_t ab = vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1]));
    const int16x8_t cd = vcombine_s16(vmovn_s32(x[2]), vmovn_s32(x[3]));
    vst1q_s8(to, vcombine_s8(vmovn_s16(ab), vmovn_s16(cd)));
}

static inline void v_unzip(vf *even, vf *odd, vf a, vf b) {
    *even = vuzp1q_f32(a, b);
    *odd = vuzp2q_f32(a, b);
}
static inline void v_unzip_bf16(vf *even, vf *odd, const void *from) {
    const uint32x4_t pairs = vld1q_u32(from);
    *even = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
}

static inline void v_add_lanes(float *to, int64_t step, int64_t lanes, vf factor, vf a, vf b) {
    (void)step;
    (void)lanes;
    v_store(to, v_load(to) * factor + a);
    v_store(to + W, v_load(to + W) * factor + b);
}

#endif
