/** @file
 * Packing, written once for vectors of any width.
 *
 * Included by one .c file an instruction set, which is compiled without contraction of products
 * and sums (the results are to be the same everywhere), after a header that defines:
 *     enum { W }                    lanes of a vector, a divisor of 32
 *     vf                            W floats: a GNU vector type
 *     vf v_min(vf a, vf b)          b where either is NaN
 *     vf v_max(vf a, vf b)          b where either is NaN
 *     vf v_swap(vf x, int step)     lane i: lane i ^ step of x; step a power of 2 below W
 *     split(to, from, n, bits)      as in kvc__pack_ops
 * @source MLX's affine quantization, operation by operation */
#ifndef KVC_ARRAY_PACK_LOOPS_H
#define KVC_ARRAY_PACK_LOOPS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "array/pack.h"
#include "base/half.h"

/* Loops over a group go by this many, so that compilers see whole vectors. */
enum { STEP = 32 };

typedef struct affine {
    float scale, bias;
} affine;

/* Floats where they lie, others converted. */
static const float *load_floats(float *restrict x, const void *row, kvc_dtype dtype, int64_t start,
                                int n) {
    const uint16_t *words = (const uint16_t *)row + start;
    if (dtype == KVC_F32) return (const float *)row + start;
    if (dtype == KVC_F16)
        for (int i = 0; i < n; i++) x[i] = kvc__f32_of_f16(words[i]);
    else
        for (int i = 0; i < n; i++) x[i] = kvc__f32_of_bf16(words[i]);
    return x;
}

static void store_halves(uint16_t *restrict words, kvc_dtype dtype, const float *restrict x,
                         int n) {
    if (dtype == KVC_F16)
        for (int i = 0; i < n; i++) words[i] = kvc__f16_of_f32(x[i]);
    else
        for (int i = 0; i < n; i++) words[i] = kvc__bf16_of_f32(x[i]);
}

static float load_one(const void *row, kvc_dtype dtype, int64_t at) {
    float x;
    return *load_floats(&x, row, dtype, at, 1);
}

static void store_one(void *row, kvc_dtype dtype, int64_t at, float x) {
    if (dtype == KVC_F32) ((float *)row)[at] = x;
    else ((uint16_t *)row)[at] = dtype == KVC_F16 ? kvc__f16_of_f32(x) : kvc__bf16_of_f32(x);
}

static inline vf vector_at(const float *x) {
    vf v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* The least and the largest of a group. Returns false where some are NaN or infinite. */
static inline bool find_ends(const float *x, int n, float *least, float *most) {
    vf odd = {0}, low = odd + INFINITY, high = -low;
    for (int i = 0; i < n; i += W) {
        const vf v = vector_at(x + i);
        low = v_min(v, low);
        high = v_max(v, high);
        odd += v * 0; /* NaN from now on, if v is not finite */
    }
    for (int step = W / 2; step > 0; step /= 2) {
        low = v_min(v_swap(low, step), low);
        high = v_max(v_swap(high, step), high);
        odd += v_swap(odd, step);
    }
    *least = low[0];
    *most = high[0];
    return odd[0] == 0;
}

/* What is known of some groups of a row: those that are worked on together, so that the long way
 * from ends to scales is gone once. */
enum { TOGETHER = 2 };

typedef struct fits {
    float least[TOGETHER], most[TOGETHER];
    float scale[TOGETHER], bias[TOGETHER];
    bool finite[TOGETHER];
} fits;

/* Scales and biases. The end of a group that is larger by magnitude becomes a whole number of
 * scales, and the bias, unless it is less than half a scale from 0. */
static inline void fit(fits *f, int bits) {
    const float levels = (float)((1 << bits) - 1);
    for (int g = 0; g < TOGETHER; g++) {
        const float least = f->least[g], most = f->most[g];
        const float step = (most - least) / levels;
        const float size = step > 1e-7f ? step : 1e-7f;
        const bool negative = fabsf(least) > fabsf(most);
        const float edge = negative ? least : most, scale = negative ? size : -size;
        const float steps = rintf(edge / scale), exact = edge / steps;
        f->scale[g] = steps != 0 ? exact : scale;
        f->bias[g] = steps != 0 ? edge : 0;
    }
}

/* The largest f32 that a dtype rounds to a number. */
static float limit_of(kvc_dtype dtype) {
    if (dtype == KVC_F16) return 0x1.ffdffep15f;
    return dtype == KVC_BF16 ? 0x1.fefffep127f : 0x1.fffffep127f;
}

/* q = clamp(rint((x - bias) / scale)). Clamped first: rounding keeps order and whole numbers. */
static inline void to_integers(uint8_t *restrict q, const float *restrict x, int n, affine a,
                               int bits) {
    const float levels = (float)((1 << bits) - 1);
    for (int start = 0; start < n; start += STEP)
        for (int i = start; i < start + STEP; i++) {
            float t = (x[i] - a.bias) / a.scale;
            t = t > 0 ? t : 0;
            t = t < levels ? t : levels;
            /* Adding 1.5 · 2^23 rounds to an integer, which the low mantissa bits then hold. */
            q[i] = (uint8_t)kvc__bits_of_f32(t + 0x1.8p23f);
        }
}

/* Eight values are as many bytes as a value has bits. */
static void join(uint8_t *restrict to, const uint8_t *restrict q, int n, int bits) {
    if (bits == 8) memcpy(to, q, (size_t)n);
    else if (bits == 4)
        for (int i = 0; i < n / 2; i++)
            to[i] = (uint8_t)(q[2 * (size_t)i] | q[2 * (size_t)i + 1] << 4);
    else
        for (int i = 0; i < n; i += 8) {
            uint64_t eight = 0;
            for (int e = 0; e < 8; e++) eight |= (uint64_t)q[i + e] << (e * bits);
            for (int byte = 0; byte < bits; byte++) *to++ = (uint8_t)(eight >> (8 * byte));
        }
}

/* Groups [first, first + count) of a row, all converted. */
static inline void pack_some(const kvc__packing *p, const kvc__packed *to, const float *x,
                             int64_t first, int count) {
    const int n = p->group, bytes = n * p->bits / 8;
    const float limit = limit_of(p->scaling);
    fits f = {.least = {0}};
    for (int g = 0; g < count; g++)
        f.finite[g] = find_ends(x + (ptrdiff_t)g * n, n, &f.least[g], &f.most[g]);
    fit(&f, p->bits);
    for (int g = 0; g < count; g++) {
        uint8_t q[KVC__GROUP_MOST];
        affine a = {f.scale[g], f.bias[g]};
        if (f.finite[g] && fabsf(a.scale) <= limit && fabsf(a.bias) <= limit) {
            to_integers(q, x + (ptrdiff_t)g * n, n, a, p->bits);
        } else {
            a = (affine){NAN, NAN};
            memset(q, 0, sizeof q);
        }
        join(to->words + (first + g) * bytes, q, n, p->bits);
        store_one(to->scales, p->scaling, first + g, a.scale);
        store_one(to->biases, p->scaling, first + g, a.bias);
    }
}

static void pack(const kvc__packing *p, const kvc__packed *to, const void *from) {
    for (int64_t g = 0; g < p->groups; g += TOGETHER) {
        const int count = p->groups - g < TOGETHER ? (int)(p->groups - g) : TOGETHER;
        float converted[TOGETHER * KVC__GROUP_MOST];
        const float *x = load_floats(converted, from, p->dtype, g * p->group, count * p->group);
        pack_some(p, to, x, g, count);
    }
}

static void unpack(const kvc__packing *p, void *to, const kvc__packed *from) {
    const int n = p->group, bytes = n * p->bits / 8;
    for (int64_t g = 0; g < p->groups; g++) {
        float converted[KVC__GROUP_MOST];
        uint8_t bytes_of[KVC__GROUP_MOST];
        const uint8_t *q = from->words + g * bytes;
        float *x = p->dtype == KVC_F32 ? (float *)to + g * n : converted;
        const float scale = load_one(from->scales, p->scaling, g);
        const float bias = load_one(from->biases, p->scaling, g);
        if (p->bits < 8) {
            split(bytes_of, q, n, p->bits);
            q = bytes_of;
        }
        for (int start = 0; start < n; start += STEP)
            for (int i = start; i < start + STEP; i++) x[i] = scale * (float)q[i] + bias;
        if (p->dtype != KVC_F32) store_halves((uint16_t *)to + g * n, p->dtype, x, n);
    }
}

#endif
