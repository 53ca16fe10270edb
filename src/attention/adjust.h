/** @file
 * What a job does to the scores of a row before they are weighed, for kernels that hold scores in
 * any order. The soft cap, which takes whole tiles (ops.h), comes first; then kvc__adjust, then
 * kvc__hide. What kvc__kept does not keep is not to be weighed either: 0 · NaN is NaN. */
#ifndef KVC_ATTENTION_ADJUST_H
#define KVC_ATTENTION_ADJUST_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/bits.h"
#include "attention/kernel.h"

/** Tells whether kvc__adjust does anything. */
static inline bool kvc__adjusts(const kvc__job *job) {
    return job->slopes.data || (job->mask.data && job->mask.dtype != KVC_U8);
}

/** Adds slopes and mask to the scores of one row: query i of a head, keys first, first + 1, …
 * @param s  [count], `stride` from one to the next */
void kvc__adjust(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                 int64_t count, float *s, int64_t stride);

/** Tells what the mask, which there is, keeps of keys first, first + 1, …: a bit each, the lowest
 * first.
 * @param count  at most 64 */
uint64_t kvc__kept(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                   int64_t count);

/** Sets the scores that are not kept to -inf, whatever they were. As kvc__adjust. */
void kvc__hide(uint64_t kept, int64_t count, float *s, int64_t stride);

#endif
