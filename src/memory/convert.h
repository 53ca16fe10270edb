/** @file
 * Moving elements in host memory: strided copies that convert on the way, and fills. */
#ifndef KVC_MEMORY_CONVERT_H
#define KVC_MEMORY_CONVERT_H

#include <kvcache/device.h>

/** Copies as a device's copy does (device.h), between host pointers. O(elements); merges
 * dimensions first, so that what is contiguous on both sides goes by memcpy. */
void kvc__convert_copy(const kvc_strided *dst, const kvc_strided *src, int ndim,
                       const int64_t *shape);

/** Sets count contiguous elements to value, rounded once. */
void kvc__convert_fill(void *dst, kvc_dtype dtype, int64_t count, double value);

/** Returns one element of host memory, exactly. */
double kvc__convert_load(const void *src, kvc_dtype dtype);

#endif
