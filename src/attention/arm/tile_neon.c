/* NEON: every AArch64 CPU. */
#include <arm_neon.h>
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

enum { W = 4 };
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

static inline void v_load_f32(vf *x, vf *y, const void *from) {
    *x = vld1q_f32(from);
    *y = vld1q_f32((const float *)from + W);
}

static inline void v_load_f16(vf *x, vf *y, const void *from) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(from));
    *x = vcvt_f32_f16(vget_low_f16(halves));
    *y = vcvt_high_f32_f16(halves);
}

/* A bf16 is the upper half of its f32. */
static inline void v_load_bf16(vf *x, vf *y, const void *from) {
    const uint16x8_t words = vld1q_u16(from);
    *x = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16));
    *y = vreinterpretq_f32_u32(vshll_high_n_u16(words, 16));
}

static inline vf v_sums(const vf a[W]) {
    return vpaddq_f32(vpaddq_f32(a[0], a[1]), vpaddq_f32(a[2], a[3]));
}

#include "attention/tile.h"

void kvc__ops_neon(kvc__ops *ops) {
    fill_ops(ops);
}
