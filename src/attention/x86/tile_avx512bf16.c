/* AVX-512 BF16: keys and values in bf16 are multiplied as they lie in memory, 32 products an
 * instruction, summed in f32. The other dtypes have the loops of tile_avx512.c.
 *
 * What multiplies them must be bf16 too. Queries are rounded to it; one in bf16 stays what it is.
 * That is as if each key had been rounded once more, by 2^-9 of its size at most. Weights are split
 * in two parts, of which the sum is off by 2^-17 of a weight at most: rounded once, they would make
 * a result depend on how positions are shared out, as what they are relative to does. So a value
 * that is infinite gives NaN (0 · inf, in the lower part). The instruction takes and makes no
 * subnormal numbers: below 1.2e-38 they are 0.
 * @source Intel Architecture Instruction Set Extensions: VDPBF16PS, VCVTNEPS2BF16 */
#include <string.h>

#include "attention/ops.h"
#include "attention/seen.h"
#include "attention/x86/vector_avx512.h"

enum { UNIT = 2 * W };

static inline __m512i load(const char *from, int64_t left) {
    return left < UNIT ? _mm512_maskz_loadu_epi16((UINT32_C(1) << left) - 1, from)
                       : _mm512_loadu_si512(from);
}

/* sum[i] += a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1] */
static inline vf dot(vf sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Elements of a unit in the order that pairs of values are unpacked to: within each eight the
 * first four are in one vector, the others in the next. */
static void fill_places(uint8_t *place) {
    for (int i = 0; i < UNIT; i++) place[i] = (uint8_t)(i % 8 / 4 * W + i / 8 * 4 + i % 4);
}

/* To bf16, to nearest, ties to even. */
static inline __m256i round_of(vf x) {
    return (__m256i)_mm512_cvtneps_pbh(x);
}

/* A kvc__widen_fn: unpacked behind zeros, a bf16 is an f32. */
static void widen(float *dst, const void *src, int64_t n) {
    for (int64_t d = 0; d < n; d += UNIT) {
        const __m512i row = load((const char *)src + 2 * d, n - d), zero = _mm512_setzero_si512();
        v_store(dst + d, (vf)_mm512_unpacklo_epi16(zero, row));
        v_store(dst + d + W, (vf)_mm512_unpackhi_epi16(zero, row));
    }
}

/* To bf16, in the lower half of each lane. The largest numbers would round to infinity: these are
 * cut off. Infinity stays. */
static inline __m512i query_of(vf x) {
    const __m512i rounded = _mm512_cvtepu16_epi32(round_of(x));
    const __m512i magnitude = _mm512_and_si512(rounded, _mm512_set1_epi32(0x7fff));
    const __mmask16 infinite = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f80));
    return _mm512_mask_srli_epi32(rounded, infinite, (__m512i)x, 16);
}

/* A query becomes a row in bf16, in memory's order: packing undoes what unpacking does. */
static void pack(float *q, int64_t width, int64_t group) {
    (void)group;
    for (int64_t d = 0; d < width; d += UNIT) {
        const __m512i x = query_of(v_load(q + d)), y = query_of(v_load(q + d + W));
        _mm512_storeu_si512(q + d / 2, _mm512_packus_epi32(x, y));
    }
}

/* Dims d to d + left of `keys` keys and R queries, into a sum for each pair. */
static inline __attribute__((always_inline)) void score_unit(vf *sum, const kvc__tile *t,
                                                             const char *const *row, int64_t d,
                                                             const int keys, const int R,
                                                             int64_t left) {
    __m512i q[4];
    for (int r = 0; r < R; r++) q[r] = _mm512_loadu_si512(t->q + r * t->key_width + d / 2);
    for (int i = 0; i < keys; i++) {
        const __m512i key = load(row[i] + d * 2, left);
        for (int r = 0; r < R; r++) sum[i * R + r] = dot(sum[i * R + r], q[r], key);
    }
}

static inline __attribute__((always_inline)) void score(const kvc__tile *t, const kvc__block *k,
                                                        float *restrict s, const int R) {
    const int keys = W / R < 8 ? W / R : 8; /* at once: each wants a pointer */
    for (int64_t j = 0; j < k->count; j += W / R) {
        vf sum[W];
        for (int first = 0; first < W / R; first += keys) {
            const char *row[8];
            for (int i = 0; i < keys; i++) {
                /* Beyond the last key the last is taken again: nobody looks at those scores. */
                const int64_t last = k->count - 1, at = j + first + i;
                row[i] = k->data + (at < last ? at : last) * k->step_bytes;
            }
            kvc__ask(k->ahead, keys * k->dim);
            vf *own = sum + (int64_t)first * R;
            for (int i = 0; i < keys * R; i++) own[i] = v_set(0);
            int64_t d = 0;
            for (; d + UNIT <= k->dim; d += UNIT) score_unit(own, t, row, d, keys, R, UNIT);
            if (d < k->dim) score_unit(own, t, row, d, keys, R, k->dim - d);
        }
        v_store(s + j * R, v_sums(sum) * v_set(t->scale));
    }
}

/* Weights of two positions in a word each, [(n + 1) / 2][R]; an odd one is paired with 0. Their sum
 * is what both parts have. */
typedef struct pairs {
    uint32_t hi[2 * KVC__BLOCK], lo[2 * KVC__BLOCK];
} pairs;

static inline vf widen_of(__m256i words) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16);
}

static inline __m512i join(__m256i x, __m256i y) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1);
}

static inline __attribute__((always_inline)) void pair_up(pairs *out, const float *p, int64_t step,
                                                          int64_t n, const int R) {
    /* Of 2 R words in a row, those of one row of the tile side by side. */
    static const uint8_t orders[KVC__TILES][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15},
        {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15},
    };
    const __m512i order = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)orders[R / 2]));
    float row[KVC__BLOCK];
    if (step != R) { /* one row of several */
        for (int64_t j = 0; j < n; j++) row[j] = p[j * step];
        p = row;
    }
    for (int64_t i = 0; i < n * R; i += UNIT) {
        const int64_t left = n * R - i;
        const uint32_t mask = left < UNIT ? (UINT32_C(1) << left) - 1 : UINT32_MAX;
        const vf x = _mm512_maskz_loadu_ps((__mmask16)mask, p + i);
        const vf y = _mm512_maskz_loadu_ps((__mmask16)(mask >> W), p + i + W);
        const __m256i x_hi = round_of(x), y_hi = round_of(y);
        const __m512i hi = join(x_hi, y_hi);
        const __m512i lo = join(round_of(x - widen_of(x_hi)), round_of(y - widen_of(y_hi)));
        _mm512_storeu_si512(out->hi + i / 2, _mm512_shuffle_epi8(hi, order));
        _mm512_storeu_si512(out->lo + i / 2, _mm512_shuffle_epi8(lo, order));
    }
}

/* sums[r] = sums[r] · factor[r] + Σ_j p_j[r] v[j], UNITS units from d on, or the last `left` dims.
 */
static inline __attribute__((always_inline)) void
sum_units(float *restrict sums, const pairs *weights, const float *factor, const kvc__block *v,
          int64_t width, int64_t d, const int R, const int UNITS, const int64_t left) {
    vf sum[8][2];
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++)
            for (int64_t half = 0; half < 2; half++) {
                const float *in = sums + r * width + d + (int64_t)u * UNIT + (int64_t)half * W;
                sum[u * R + r][half] = v_load(in) * v_set(factor[r]);
            }
    const char *row = v->data + d * 2;
    const uint32_t *hi = weights->hi, *lo = weights->lo;
    for (int64_t j = 0; j < v->count; j += 2, row += 2 * v->step_bytes, hi += R, lo += R) {
        const bool is_pair = j + 1 < v->count;
        const int64_t more = v->count - j < KVC__ASKED ? v->count - j : KVC__ASKED;
        if (j % KVC__ASKED == 0)
            kvc__ask(v->ahead, more * (left < UNIT ? left : (int64_t)UNITS * UNIT));
        for (int u = 0; u < UNITS; u++) {
            const char *at = row + (int64_t)u * UNIT * 2;
            const __m512i a = load(at, left);
            const __m512i b = is_pair ? load(at + v->step_bytes, left) : _mm512_setzero_si512();
            const __m512i x = _mm512_unpacklo_epi16(a, b), y = _mm512_unpackhi_epi16(a, b);
            for (int r = 0; r < R; r++) {
                const __m512i weight = _mm512_set1_epi32((int32_t)hi[r]);
                sum[u * R + r][0] = dot(sum[u * R + r][0], weight, x);
                sum[u * R + r][1] = dot(sum[u * R + r][1], weight, y);
            }
            for (int r = 0; r < R; r++) {
                const __m512i weight = _mm512_set1_epi32((int32_t)lo[r]);
                sum[u * R + r][0] = dot(sum[u * R + r][0], weight, x);
                sum[u * R + r][1] = dot(sum[u * R + r][1], weight, y);
            }
        }
    }
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++)
            for (int64_t half = 0; half < 2; half++)
                v_store(sums + r * width + d + (int64_t)u * UNIT + (int64_t)half * W,
                        sum[u * R + r][half]);
}

static inline __attribute__((always_inline)) void sum_rows(float *restrict sums, const float *p,
                                                           int64_t step, const float *factor,
                                                           const kvc__block *v, int64_t width,
                                                           const int R) {
    const int units = R == 1 ? 4 : 8 / R;
    pairs weights;
    pair_up(&weights, p, step, v->count, R);
    int64_t d = 0;
    for (; d + (int64_t)units * UNIT <= v->dim; d += (int64_t)units * UNIT)
        sum_units(sums, &weights, factor, v, width, d, R, units, UNIT);
    for (; d + UNIT <= v->dim; d += UNIT)
        sum_units(sums, &weights, factor, v, width, d, R, 1, UNIT);
    if (d < v->dim) sum_units(sums, &weights, factor, v, width, d, R, 1, v->dim - d);
}

#define TILE(R)                                                                                    \
    static void score_##R(const kvc__tile *t, const kvc__block *k, float *s) {                     \
        score(t, k, s, R);                                                                         \
    }                                                                                              \
    static inline void sum_##R(float *sums, const float *p, int64_t step, const float *factor,     \
                               const kvc__block *v, int64_t width) {                               \
        sum_rows(sums, p, step, factor, v, width, R);                                              \
    }                                                                                              \
    static void weigh_##R(kvc__tile *t, const kvc__block *v, const kvc__range *seen,               \
                          const float *s, const float *factor) {                                   \
        weigh_seen(t, v, seen, s, factor, R, sum_##R, sum_1);                                      \
    }
TILE(1)
TILE(2)
TILE(4)

void kvc__ops_avx512bf16(kvc__ops *ops) {
    const int slot = KVC__OPS_SLOT(KVC_BF16);
    const kvc__score_fn scores[KVC__TILES] = {score_1, score_2, score_4};
    const kvc__weigh_fn weighs[KVC__TILES] = {weigh_1, weigh_2, weigh_4};
    kvc__ops_avx512(ops);
    memcpy(ops->score[slot], scores, sizeof scores);
    memcpy(ops->weigh[slot], weighs, sizeof weighs);
    ops->widen[slot] = widen;
    ops->prepare[slot] = pack;
    ops->rounds[slot] = true;
    fill_places(ops->place[slot]);
}
