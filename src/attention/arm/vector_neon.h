/** @file
 * What tile.h and tile_channels.h ask of a vector of 4 floats, in NEON. */
#ifndef KVC_ATTENTION_ARM_VECTOR_NEON_H
#define KVC_ATTENTION_ARM_VECTOR_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

enum { W = 4, LANES = W / 4 };
typedef float32x4_t vf;
typedef int32x4_t vi;

static inline vf v_load(const float *from) {
    return vld1q_f32(from);
}
static inline void v_store(float *to, vf x) {
    vst1q_f32(to, x);
}
static inline vf v_set(float x) {
    return vdupq_n_f32(x);
}
static inline vf v_keep(vf x) {
    return x; /* no operation takes a vector from memory */
}
static inline vf v_max(vf a, vf b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b); /* vmaxq gives NaN where either is */
}

static inline vf v_swap(vf x, const int step) {
    return step == 2 ? vextq_f32(x, x, 2) : vrev64q_f32(x);
}

static inline vf v_load_f32(const void *from, int64_t half) {
    return vld1q_f32((const float *)from + half * W);
}

static inline vf v_load_f16(const void *from, int64_t half) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)from + half * W)));
}

/* A bf16 is the upper half of its f32. */
static inline vf v_load_bf16(const void *from, int64_t half) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)from + half * W), 16));
}

static inline vf v_sums(const vf a[W]) {
    return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3]));
}

static inline uint32x4_t widen_bytes(const char *from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    const uint16x8_t halves = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)));
    return vmovl_u16(vget_low_u16(halves));
}
static inline vf v_bytes(const char *from) {
    return vcvtq_f32_u32(widen_bytes(from));
}
static inline void v_nibbles(vf *even, vf *odd, const char *from) {
    const uint32x4_t x = widen_bytes(from);
    *even = vcvtq_f32_u32(vandq_u32(x, vdupq_n_u32(15)));
    *odd = vcvtq_f32_u32(vshrq_n_u32(x, 4));
}
static inline void v_zip(vf *lower, vf *upper, vf a, vf b) {
    *lower = vzip1q_f32(a, b);
    *upper = vzip2q_f32(a, b);
}

#endif
