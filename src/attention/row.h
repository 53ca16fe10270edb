/** @file
 * Rows of contiguous elements, to and from f32. */
#ifndef KVC_ATTENTION_ROW_H
#define KVC_ATTENTION_ROW_H

#include <stdint.h>
#include <string.h>

#include <kvcache/dtype.h>

#include "base/half.h"

/** dst[0..n) = row[start..start + n) of f32, f16 or bf16. */
static inline void kvc__row_load(float *restrict dst, const void *restrict row, kvc_dtype dtype,
                                 int64_t start, int64_t n) {
    const float *floats = (const float *)row + start;
    const uint16_t *words = (const uint16_t *)row + start;
    if (dtype == KVC_F32) memcpy(dst, floats, (size_t)n * sizeof *dst);
    else if (dtype == KVC_F16)
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_f16(words[d]);
    else
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_bf16(words[d]);
}

/** row[start..start + n) = src[0..n), rounded to f32, f16 or bf16. */
static inline void kvc__row_store(void *restrict row, kvc_dtype dtype, int64_t start, int64_t n,
                                  const float *restrict src) {
    float *floats = (float *)row + start;
    uint16_t *words = (uint16_t *)row + start;
    if (dtype == KVC_F32) memcpy(floats, src, (size_t)n * sizeof *src);
    else if (dtype == KVC_F16)
        for (int64_t d = 0; d < n; d++) words[d] = kvc__f16_of_f32(src[d]);
    else
        for (int64_t d = 0; d < n; d++) words[d] = kvc__bf16_of_f32(src[d]);
}

#endif
