#include "roofline.h"

const roofline_ops *roofline_best(void) {
#if defined(__x86_64__)
    static roofline_ops with_bf16;
    if (__builtin_cpu_supports("avx512f")) {
        with_bf16 = roofline_avx512;
        if (__builtin_cpu_supports("avx512bf16")) {
            with_bf16.dot_bf16 = roofline_dot_bf16;
            with_bf16.dot_flops_a_round = roofline_dot_flops_a_round;
        }
        return &with_bf16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &roofline_avx2;
#endif
    return &roofline_generic;
}

const char *roofline_read_name(int variant) {
    static const char *const names[ROOFLINE_READS] = {"one stream",
                                                      "one stream, asking 1 KiB ahead",
                                                      "one stream, asking 4 KiB ahead",
                                                      "two streams, asking 512 B ahead",
                                                      "four streams",
                                                      "four streams, asking 512 B ahead",
                                                      "six streams",
                                                      "eight streams"};
    return variant >= 0 && variant < ROOFLINE_READS ? names[variant] : "?";
}
