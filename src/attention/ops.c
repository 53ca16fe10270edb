#include "attention/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static kvc__ops best;

static bool is_generic_wanted(void) {
    const char *cap = getenv("KVC_ISA");
    return cap && strcmp(cap, "generic") == 0;
}

#if defined(__x86_64__)
/* clang 14 has no name for it. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

static void choose(void) {
    kvc__ops_generic(&best);
    if (is_generic_wanted()) return;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        kvc__ops_avx2(&best);
#elif defined(__aarch64__)
    kvc__ops_neon(&best);
#endif
}

const kvc__ops *kvc__ops_best(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return &best;
}
