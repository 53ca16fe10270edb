/** @file
 * What tile.h asks of a vector of 8 floats, in AVX2, FMA and F16C. */
#ifndef KVC_ATTENTION_X86_VECTOR_AVX2_H
#define KVC_ATTENTION_X86_VECTOR_AVX2_H

#include <immintrin.h>
#include <limits.h>
#include <stdint.h>

enum { W = 8, LANES = W / 4 };
/* As measured, with panels of 24 rows: products of 4 bits are the faster ones for any number. */
#define PANEL_LEAST                                                                                \
    { 48, 48, 48, 48, INT_MAX, 48, INT_MAX }

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

static inline vf v_load(const float *from) {
    return _mm256_loadu_ps(from);
}
static inline void v_store(float *to, vf x) {
    _mm256_storeu_ps(to, x);
}
static inline vf v_set(float x) {
    return _mm256_set1_ps(x);
}
static inline vf v_keep(vf x) {
    __asm__("" : "+x"(x));
    return x;
}
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

/* step is 1, 2 or 4, known when inlined. */
static inline vf v_swap(vf x, const int step) {
    if (step == 4) return _mm256_permute2f128_ps(x, x, 1);
    return step == 2 ? _mm256_permute_ps(x, 0x4e) : _mm256_permute_ps(x, 0xb1);
}

static inline vf v_load_f32(const void *from, int64_t half) {
    return _mm256_loadu_ps((const float *)from + half * W);
}

static inline vf v_load_f16(const void *from, int64_t half) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from + half));
}

/* A bf16 is the upper half of its f32: the even elements shifted there, or the odd ones masked. */
static inline vf v_load_bf16(const void *from, int64_t half) {
    const __m256i pairs = _mm256_loadu_si256(from);
    if (half == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

/* Within each four lanes two sums of a and b each. */
static inline vf add_halves(vf a, vf b) {
    return _mm256_blend_ps(a, b, 0xcc) + _mm256_shuffle_ps(a, b, 0x4e);
}

/* Horizontal adds, of two shuffles each, would take five shuffles more for five blends. */
static inline vf v_sums(const vf a[W]) {
    const vf ab = add_halves(a[0], a[1]), cd = add_halves(a[2], a[3]);
    const vf ef = add_halves(a[4], a[5]), gh = add_halves(a[6], a[7]);
    const vf abcd = _mm256_shuffle_ps(ab, cd, 0x88) + _mm256_shuffle_ps(ab, cd, 0xdd);
    const vf efgh = _mm256_shuffle_ps(ef, gh, 0x88) + _mm256_shuffle_ps(ef, gh, 0xdd);
    return _mm256_blend_ps(abcd, efgh, 0xf0) + _mm256_permute2f128_ps(abcd, efgh, 0x21);
}

static inline vf v_bytes(const char *from) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)from);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
static inline void v_nibbles(vf *even, vf *odd, const char *from) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
    *even = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(15)));
    *odd = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 4));
}
static inline void v_zip(vf *lower, vf *upper, vf a, vf b) {
    const vf x = _mm256_unpacklo_ps(a, b), y = _mm256_unpackhi_ps(a, b);
    *lower = _mm256_permute2f128_ps(x, y, 0x20);
    *upper = _mm256_permute2f128_ps(x, y, 0x31);
}

#endif
