/** @file
 * What tile_quant.h asks of vectors of integers, in AVX2, with VNNI or without. */
#ifndef KVC_ATTENTION_X86_INTEGERS_AVX2_H
#define KVC_ATTENTION_X86_INTEGERS_AVX2_H

static inline vf v_float(vi x) {
    return _mm256_cvtepi32_ps((__m256i)x);
}
static inline vi v_round(vf x) {
    return (vi)_mm256_cvtps_epi32(x);
}

static inline vi v_broadcast(const void *from) {
    int32_t word;
    memcpy(&word, from, sizeof word);
    return (vi)_mm256_set1_epi32(word);
}
static inline vi v_lanes(const void *const from[LANES], bool same) {
    const __m256i x = (__m256i)v_broadcast(from[0]);
    return (vi)(same ? x : _mm256_blend_epi32(x, (__m256i)v_broadcast(from[1]), 0xf0));
}

static inline vi v_load_bytes(const char *from, int64_t lanes) {
    if (lanes >= LANES) return (vi)_mm256_loadu_si256((const __m256i *)(const void *)from);
    return (vi)_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* 16 bytes of each of two rows. An insert takes as long as two blends. */
static inline __m256i two_rows(const char *a, const char *b) {
    const __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)a));
    const __m128i y = _mm_loadu_si128((const __m128i *)(const void *)b);
    return _mm256_blend_epi32(x, _mm256_broadcastsi128_si256(y), 0xf0);
}
static inline void v_columns(vi x[4], const char *row, int64_t step) {
    const char *more = row + 4 * step;
    const __m256i a = two_rows(row, more), b = two_rows(row + step, more + step);
    const __m256i c = two_rows(row + 2 * step, more + 2 * step);
    const __m256i d = two_rows(row + 3 * step, more + 3 * step);
    const __m256i ab = _mm256_unpacklo_epi32(a, b), more_ab = _mm256_unpackhi_epi32(a, b);
    const __m256i cd = _mm256_unpacklo_epi32(c, d), more_cd = _mm256_unpackhi_epi32(c, d);
    x[0] = (vi)_mm256_unpacklo_epi64(ab, cd);
    x[1] = (vi)_mm256_unpackhi_epi64(ab, cd);
    x[2] = (vi)_mm256_unpacklo_epi64(more_ab, more_cd);
    x[3] = (vi)_mm256_unpackhi_epi64(more_ab, more_cd);
}

static inline vi v_zip_bytes(vi a, vi b, int upper) {
    const __m256i x = (__m256i)a, y = (__m256i)b;
    return (vi)(upper ? _mm256_unpackhi_epi8(x, y) : _mm256_unpacklo_epi8(x, y));
}
static inline vi v_zip_words(vi a, vi b, int upper) {
    const __m256i x = (__m256i)a, y = (__m256i)b;
    return (vi)(upper ? _mm256_unpackhi_epi16(x, y) : _mm256_unpacklo_epi16(x, y));
}

static inline vi v_even_bytes(vi x) {
    return (vi)_mm256_and_si256((__m256i)x, _mm256_set1_epi16(0xff));
}
static inline vi v_odd_bytes(vi x) {
    return (vi)_mm256_srli_epi16((__m256i)x, 8);
}
static inline vi v_even_nibbles(vi x) {
    return (vi)_mm256_and_si256((__m256i)x, _mm256_set1_epi8(15));
}
static inline vi v_odd_nibbles(vi x) {
    return v_even_nibbles((vi)_mm256_srli_epi16((__m256i)x, 4));
}

typedef vi word_sums; /* i32 */
typedef vi byte_sums; /* i32, or pairs of i16 */

static inline word_sums v_keep_words(word_sums sum) {
    return (vi)v_keep((vf)sum);
}
static inline byte_sums v_keep_bytes(byte_sums sum) {
    return (vi)v_keep((vf)sum);
}
static inline word_sums v_dot_words(word_sums sum, vi x, vi y) {
    return sum + (vi)_mm256_madd_epi16((__m256i)x, (__m256i)y);
}
static inline vi v_fold_words(word_sums sum) {
    return sum;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(KVC_EMULATE_VNNI)
enum { BY_BYTES = 1, SIGNED_BYTES = 0 };

static inline byte_sums v_dot_bytes(byte_sums sum, vi x, vi y) {
#ifdef KVC_EMULATE_VNNI
    const __m256i signs = _mm256_set1_epi16((int16_t)0xff00), a = (__m256i)x, b = (__m256i)y;
    const __m256i even = _mm256_madd_epi16(_mm256_andnot_si256(signs, a),
                                           _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return sum + (vi)even + (vi)odd;
#elif defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)y);
#else
    return (vi)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)x, (__m256i)y);
#endif
}
static inline vi v_fold_bytes(byte_sums sum) {
    return sum;
}
#else
enum { BY_BYTES = 0, SIGNED_BYTES = 0 }; /* bytes are added up in 16 bits */

static inline byte_sums v_dot_bytes(byte_sums sum, vi x, vi y) {
    return (vi)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)x, (__m256i)y));
}
static inline vi v_fold_bytes(byte_sums sum) {
    return (vi)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
}
#endif

static inline void v_store_words(int16_t *to, vi a, vi b) {
    const __m256i words = _mm256_packs_epi32((__m256i)a, (__m256i)b);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(words, 0xd8));
}
static inline void v_store_bytes(int8_t *to, const vi x[4]) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i ab = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]);
    const __m256i cd = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
}

static inline void v_unzip(vf *even, vf *odd, vf a, vf b) {
    const __m256d evens = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    const __m256d odds = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(evens, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(odds, 0xd8));
}
static inline void v_unzip_bf16(vf *even, vf *odd, const void *from) {
    *even = v_load_bf16(from, 0);
    *odd = v_load_bf16(from, 1);
}

static inline void v_add_lanes(float *to, int64_t step, int64_t lanes, vf factor, vf a, vf b) {
    v_store(to, v_load(to) * factor + (vf)_mm256_permute2f128_ps(a, b, 0x20));
    if (lanes < LANES) return;
    v_store(to + step, v_load(to + step) * factor + (vf)_mm256_permute2f128_ps(a, b, 0x31));
}

#endif
