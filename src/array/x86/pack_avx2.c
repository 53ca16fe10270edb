/* AVX2. This file is compiled for it, and run where it is. */
#include <immintrin.h>

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

#include "array/pack_loops.h"

const kvc__pack_ops kvc__pack_avx2 = {pack, unpack};
