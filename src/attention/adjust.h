/** @file
 * What a job does to the scores of a row before they are weighed, for kernels that hold scores in
 * any order. The soft cap, which takes whole tiles (ops.h), comes first; then kvc__adjust, then
 * kvc__hide. What kvc__kept does not keep is not to be weighed either: 0 · NaN is NaN. */
#ifndef KVC_ATTENTION_ADJUST_H
#define KVC_ATTENTION_ADJUST_H

#include <stdbool.h>
#include <stdint.h>

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

/** Returns the bits of a range within [0, 64). */
static inline uint64_t kvc__bits(kvc__range range) {
    if (range.begin >= range.end) return 0;
    return ~UINT64_C(0) >> (64 - (range.end - range.begin)) << range.begin;
}

/** Returns the first run of bits that are set, and clears them; an empty range where there is none.
 */
static inline kvc__range kvc__next_run(uint64_t *bits) {
    if (*bits == 0) return (kvc__range){0, 0};
    const int begin = __builtin_ctzll(*bits);
    const uint64_t behind = ~(*bits >> begin);
    const kvc__range run = {begin, behind == 0 ? 64 : begin + __builtin_ctzll(behind)};
    *bits &= ~kvc__bits(run);
    return run;
}

/** Returns from the first bit that is set to the last. */
static inline kvc__range kvc__hull(uint64_t bits) {
    if (bits == 0) return (kvc__range){0, 0};
    return (kvc__range){__builtin_ctzll(bits), 64 - __builtin_clzll(bits)};
}

#endif
