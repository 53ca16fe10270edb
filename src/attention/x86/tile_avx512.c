/* AVX-512 F, BW, DQ and VL: servers since 2017. Twice the lanes of AVX2 and twice the registers,
 * and masks, which take the end of a row of any length. */
#include <string.h>

#include "attention/ops.h"
#include "attention/x86/vector_avx512.h"
#include "base/half.h"

/* Bits for the first n of 32 elements, 0 < n < 32. */
static inline uint32_t first(int64_t n) {
    return (UINT32_C(1) << n) - 1;
}

/* Which of the 16 lanes of a half there are. */
static inline __mmask16 lanes(int64_t left, int64_t half) {
    return (__mmask16)(first(left) >> half * W);
}

static inline vf v_load_f32(const void *from, int64_t half, int64_t left) {
    const float *floats = (const float *)from + (int64_t)half * W;
    return left < (int64_t)2 * W ? _mm512_maskz_loadu_ps(lanes(left, half), floats)
                                 : _mm512_loadu_ps(floats);
}

static inline vf v_load_f16(const void *from, int64_t half, int64_t left) {
    const uint16_t *words = (const uint16_t *)from + (int64_t)half * W;
    return _mm512_cvtph_ps(left < (int64_t)2 * W
                               ? _mm256_maskz_loadu_epi16(lanes(left, half), words)
                               : _mm256_loadu_si256((const __m256i *)words));
}

/* A bf16 is the upper half of its f32: the even elements shifted there, or the odd ones masked. */
static inline vf v_load_bf16(const void *from, int64_t half, int64_t left) {
    const __m512i pairs = left < (int64_t)2 * W ? _mm512_maskz_loadu_epi16(first(left), from)
                                                : _mm512_loadu_si512(from);
    if (half == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

#define TAILS          1
#define TILES_CHANNELS 0 /* not until they can be measured: those of AVX2 serve (ops.c) */
#define TILES_PACKED   0
#define PANEL_DEPTH    8 /* of 32 registers */
#include "attention/tile.h"

void kvc__ops_avx512(kvc__ops *ops) {
    fill_ops(ops);
}
