/** @file
 * f16 and bf16 as 16-bit words. Conversions are exact to f32 and round to nearest even from it;
 * infinities stay, NaNs stay NaN (quiet). Loops over them vectorise: choices are made with masks,
 * as gcc 12 moves the floating-point arm of a ?: into a branch and then keeps the loop scalar. */
#ifndef KVC_BASE_HALF_H
#define KVC_BASE_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t kvc__bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kvc__f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float kvc__f32_of_bf16(uint16_t h) {
    return kvc__f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t kvc__bf16_of_f32(float x) {
    const uint32_t u = kvc__bits_of_f32(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float kvc__f32_of_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    /* As f32 exponents start 112 higher, a product by 2^112 sets normals and subnormals right. */
    const float scaled = kvc__f32_of_bits(magnitude) * 0x1p112f;
    const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0; /* infinity, NaN */
    return kvc__f32_of_bits(kvc__bits_of_f32(scaled) | special | sign);
}

static inline uint32_t kvc__choose(bool condition, uint32_t yes, uint32_t no) {
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline uint16_t kvc__f16_of_f32(float x) {
    const uint32_t u = kvc__bits_of_f32(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a = u & 0x7fffffffu;
    /* Normal: rebias the exponent and round to nearest even; 65520 and above carry to infinity. */
    const uint32_t normal = (a - 0x38000000u + 0x0fffu + ((a >> 13) & 1u)) >> 13;
    /* Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low mantissa bits. */
    const uint32_t subnormal = kvc__bits_of_f32(kvc__f32_of_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t h = kvc__choose(a < 0x38800000u, subnormal, normal);
    h = kvc__choose(a >= 0x477ff000u, 0x7c00u, h);
    h = kvc__choose(a > 0x7f800000u, 0x7e00u | ((a >> 13) & 0x3ffu), h);
    return (uint16_t)(h | sign);
}

#endif
