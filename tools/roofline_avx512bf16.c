/* Compiled with AVX-512 BF16, run where the CPU has it. */

#include <immintrin.h>

#include "roofline.h"

enum { SUMS = 24 }; /* of 32 registers */

/* A multiply-add of two pairs in each of 16 lanes. */
const int64_t roofline_dot_flops_a_round = (int64_t)4 * 16 * SUMS;

float roofline_dot_bf16(int64_t rounds) {
    static volatile float value = 0.5f; /* unknown to the compiler */
    const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(value), _mm512_set1_ps(value));
    __m512 sums[SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = _mm512_set1_ps((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 32 /* registers have no index */
        for (int i = 0; i < SUMS; i++) sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
    }
    for (int i = 1; i < SUMS; i++) sums[0] = _mm512_add_ps(sums[0], sums[i]);
    return _mm512_cvtss_f32(sums[0]);
}
