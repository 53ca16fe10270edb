/** @file
 * What a job does to the scores of a row before they are weighed, apart from the soft cap, which
 * takes whole tiles (ops.h) and comes first. For kernels that hold scores in any order. */
#ifndef KVC_ATTENTION_ADJUST_H
#define KVC_ATTENTION_ADJUST_H

#include <stdint.h>

#include "attention/kernel.h"

/** Tells whether kvc__adjust does anything. */
static inline bool kvc__adjusts(const kvc__job *job) {
    return job->slopes.data;
}

/** Adds slopes to the scores of one row: query i of a head, keys first, first + 1, …
 * @param s  [count], `stride` from one to the next */
void kvc__adjust(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                 int64_t count, float *s, int64_t stride);

#endif
