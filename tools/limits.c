#include "limits.h"

const limits_ops *limits_best(void) {
#if defined(__x86_64__)
    static limits_ops with_bf16;
    if (__builtin_cpu_supports("avx512f")) {
        with_bf16 = limits_avx512;
        if (__builtin_cpu_supports("avx512bf16")) {
            with_bf16.dot_bf16 = limits_dot_bf16;
            with_bf16.dot_flops_a_round = limits_dot_flops_a_round;
        }
        return &with_bf16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &limits_avx2;
#endif
    return &limits_generic;
}

const char *limits_read_name(int variant) {
    static const char *const names[LIMITS_READS] = {"one stream",
                                                    "one stream, asking 1 KiB ahead",
                                                    "one stream, asking 4 KiB ahead",
                                                    "two streams, asking 512 B ahead",
                                                    "four streams",
                                                    "four streams, asking 512 B ahead",
                                                    "six streams",
                                                    "eight streams"};
    return variant >= 0 && variant < LIMITS_READS ? names[variant] : "?";
}
