#include "attention/ops.h"

#include <pthread.h>

void kvc__ops_fill(kvc__ops *out, kvc__isa isa) {
    switch (isa) {
#if defined(__x86_64__)
    case KVC__ISA_AVX2: kvc__ops_avx2(out); return;
    case KVC__ISA_AVX512: kvc__ops_avx512(out); return;
    case KVC__ISA_AVX512_BF16: kvc__ops_avx512bf16(out); return;
#elif defined(__aarch64__)
    case KVC__ISA_NEON: kvc__ops_neon(out); return;
    case KVC__ISA_NEON_BF16: kvc__ops_neon_bf16(out); return;
#endif
    default: kvc__ops_generic(out);
    }
}

static kvc__ops best;

static void choose(void) {
    kvc__ops_fill(&best, kvc__isa_best()->isa);
}

const kvc__ops *kvc__ops_best(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return &best;
}
