/* AVX2. This file is compiled for it, and run where it is. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { W = 8 };
typedef float vf __attribute__((vector_size(32)));

static inline vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

/* step is 1, 2 or 4, known when inlined. */
static inline vf v_swap(vf x, const int step) {
    if (step == 4) return _mm256_permute2f128_ps(x, x, 1);
    return step == 2 ? _mm256_permute_ps(x, 0x4e) : _mm256_permute_ps(x, 0xb1);
}

/* How eight elements become as many lanes: four bytes from the one in which it begins, shifted down
 * by as much as it begins in that, without what follows it. */
typedef struct splitting {
    __m256i bytes, shift, mask;
} splitting;

static inline __m256i split_eight(const splitting *s, const uint8_t *from) {
    int64_t eight;
    memcpy(&eight, from, sizeof eight);
    const __m256i lanes = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), s->bytes);
    return _mm256_and_si256(_mm256_srlv_epi32(lanes, s->shift), s->mask);
}

/* Reads eight bytes from where the last eight elements begin. */
static inline void split_some(const splitting *s, uint8_t *to, const uint8_t *from,
                              ptrdiff_t bits) {
    const __m256i a = split_eight(s, from), b = split_eight(s, from + bits);
    const __m256i c = split_eight(s, from + 2 * bits), d = split_eight(s, from + 3 * bits);
    const __m256i x = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permutevar8x32_epi32(x, order));
}

static void split(uint8_t *to, const uint8_t *from, int64_t n, int bits) {
    enum { SOME = 32 };
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i begin = _mm256_mullo_epi32(lane, _mm256_set1_epi32(bits));
    const __m256i byte =
        _mm256_mullo_epi32(_mm256_srli_epi32(begin, 3), _mm256_set1_epi32(0x01010101));
    const splitting s = {_mm256_add_epi32(byte, _mm256_set1_epi32(0x03020100)),
                         _mm256_and_si256(begin, _mm256_set1_epi32(7)),
                         _mm256_set1_epi32((1 << bits) - 1)};
    uint8_t last[SOME] = {0};
    for (; n > SOME; n -= SOME, to += SOME, from += (ptrdiff_t)SOME / 8 * bits)
        split_some(&s, to, from, bits);
    memcpy(last, from, (size_t)bits * SOME / 8);
    split_some(&s, to, last, bits);
}

#include "array/pack_loops.h"

const kvc__pack_ops kvc__pack_avx2 = {pack, unpack, split};
