/** @file
 * What tile.h and the AVX-512 kernels ask of a vector of 16 floats. */
#ifndef KVC_ATTENTION_X86_VECTOR_AVX512_H
#define KVC_ATTENTION_X86_VECTOR_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum { W = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));

static inline vf v_load(const float *from) {
    return _mm512_loadu_ps(from);
}
static inline void v_store(float *to, vf x) {
    _mm512_storeu_ps(to, x);
}
static inline vf v_set(float x) {
    return _mm512_set1_ps(x);
}
static inline vf v_keep(vf x) {
    __asm__("" : "+v"(x));
    return x;
}
static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}

/* step is 1, 2, 4 or 8, known when inlined. */
static inline vf v_swap(vf x, const int step) {
    if (step == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
    if (step == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
    return step == 2 ? _mm512_permute_ps(x, 0x4e) : _mm512_permute_ps(x, 0xb1);
}

/* Two lanes of each become one, then two of those, within each quarter; then the quarters. */
static inline vf add_halves(vf a, vf b) {
    return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
}
static inline vf add_pairs(vf a, vf b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return (vf)_mm512_unpacklo_pd(x, y) + (vf)_mm512_unpackhi_pd(x, y);
}
static inline vf add_quarters(vf a, vf b) {
    return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
}

static inline vf v_sums(const vf a[W]) {
    vf quads[4];
    for (size_t i = 0; i < 4; i++)
        quads[i] =
            add_pairs(add_halves(a[4 * i], a[4 * i + 1]), add_halves(a[4 * i + 2], a[4 * i + 3]));
    return add_quarters(add_quarters(quads[0], quads[1]), add_quarters(quads[2], quads[3]));
}

#endif
