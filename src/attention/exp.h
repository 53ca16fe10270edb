/** @file
 * exp for f32 in plain arithmetic, without branches, tables or calls, so that loops over it
 * vectorise on every target. Within 1.5 ulp of the true value (tests/unit/exp_test.c), gradual
 * underflow included; exp(-inf) is 0, exp(+inf) is +inf, NaN stays NaN. */
#ifndef KVC_ATTENTION_EXP_H
#define KVC_ATTENTION_EXP_H

#include <stdint.h>

#include "base/half.h"

/* exp(x) = 2^n · exp(r), n the integer nearest to x / ln 2, so |r| <= ln 2 / 2. There the Taylor
 * polynomial of degree 7 is off by less than 0.1 ulp: r^8 / 8! is 5.2e-9. */
static inline float kvc__exp_f32(float x) {
    /* Beyond these the result is +inf and 0 after rounding. NaN passes both comparisons. */
    uint32_t bits = kvc__bits_of_f32(x);
    bits = kvc__choose(x > 89.0f, kvc__bits_of_f32(89.0f), bits);
    bits = kvc__choose(x < -104.0f, kvc__bits_of_f32(-104.0f), bits);
    x = kvc__f32_of_bits(bits);

    /* Adding 1.5 · 2^23 rounds to an integer, which the low mantissa bits then hold. */
    const float magic = 0x1.8p23f;
    const float shifted = x * 0x1.715476p+0f + magic;
    const float n = shifted - magic;
    const int32_t exponent = (int32_t)(kvc__bits_of_f32(shifted) - kvc__bits_of_f32(magic));

    /* ln 2 in two parts: n times the first is exact, as it has 15 bits and n at most 8. */
    const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;

    /* 2^n in two factors, each a normal number, so that the product alone over- or underflows. */
    const int32_t half = exponent >> 1;
    const float low = kvc__f32_of_bits((uint32_t)(half + 127) << 23);
    const float high = kvc__f32_of_bits((uint32_t)(exponent - half + 127) << 23);
    return p * low * high;
}

#endif
