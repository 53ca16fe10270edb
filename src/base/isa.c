#include "base/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITE(text, ...) ((void)snprintf(text, sizeof(text), __VA_ARGS__))

static bool is_everywhere(void) {
    return true;
}

#if defined(__x86_64__)
/* clang 14 has no name for it. */
static bool has_f16c(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

/* clang 14 has no name for it either. */
static bool has_avxvnni(void) {
    enum { LEAF = 7, BIT = 1 << 4 };
    unsigned a = 0, b, c, d;
    return has_avx2() && __get_cpuid_count(LEAF, 1, &a, &b, &c, &d) && (a & BIT) != 0;
}

/* The compilers' libraries ask the system, too, whether it keeps 512-bit registers. */
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512bf16(void) {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

bool kvc__isa_has_vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
static bool has_dot(void) {
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static bool has_bf16(void) {
    return has_dot() && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}
#endif

/* Each is faster than those before it. The first runs everywhere. */
static const struct isa {
    const char *name; /* what KVC_ISA calls it */
    kvc__isa isa;
    bool (*is_here)(void);
} isas[] = {
    {"generic", KVC__ISA_GENERIC, is_everywhere},
#if defined(__x86_64__)
    {"avx2", KVC__ISA_AVX2, has_avx2},
    {"avxvnni", KVC__ISA_AVX_VNNI, has_avxvnni},
    {"avx512", KVC__ISA_AVX512, has_avx512},
    {"avx512bf16", KVC__ISA_AVX512_BF16, has_avx512bf16},
#elif defined(__aarch64__)
    {"neon", KVC__ISA_NEON, is_everywhere},
    {"neondot", KVC__ISA_NEON_DOT, has_dot},
    {"neonbf16", KVC__ISA_NEON_BF16, has_bf16},
#endif
};
enum { ISAS = sizeof isas / sizeof *isas };

/* Returns the place of a name, or ISAS. */
static int find(const char *name) {
    int i = 0;
    while (i < ISAS && strcmp(isas[i].name, name) != 0) i++;
    return i;
}

/* Returns the last of the first `count` that this CPU runs. */
static int best_of(int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (isas[i].is_here()) best = i;
    return best;
}

static void explain_unknown(kvc__isa_choice *out, const char *cap) {
    char names[sizeof out->remedy / 2] = "";
    for (size_t i = 0, at = 0; i < ISAS && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", isas[i].name);
    WRITE(out->limit, "KVC_ISA=%.16s names no instruction set here and is ignored", cap);
    WRITE(out->remedy, "unset KVC_ISA, or name one of %s", names);
}

void kvc__isa_choose(kvc__isa_choice *out, const char *cap) {
    const bool is_capped = cap && *cap;
    const int last = is_capped ? find(cap) : ISAS, best = best_of(ISAS);
    const int chosen = last < best ? best_of(last + 1) : best;
    *out = (kvc__isa_choice){.isa = isas[chosen].isa, .name = isas[chosen].name};
    if (is_capped && last == ISAS) {
        explain_unknown(out, cap);
    } else if (chosen < best) {
        WRITE(out->limit, "KVC_ISA=%s allows no more", cap);
        WRITE(out->remedy, "unset KVC_ISA: this CPU runs %s", isas[best].name);
    } else if (is_capped && chosen < last) {
        WRITE(out->limit, "KVC_ISA=%s allows more than this CPU runs", cap);
    }
}

static kvc__isa_choice best_choice;

static void choose(void) {
    kvc__isa_choose(&best_choice, getenv("KVC_ISA"));
}

const kvc__isa_choice *kvc__isa_best(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return &best_choice;
}
