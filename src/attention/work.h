/** @file
 * A part of a run at work: fused.c begins and ends its rows and has tiles take in its positions;
 * prefill.c has panels do that. */
#ifndef KVC_ATTENTION_WORK_H
#define KVC_ATTENTION_WORK_H

#include "attention/kernel.h"
#include "attention/ops.h"
#include "attention/schedule.h"

/** Row r of a kv head is query r / group of head r % group, so that neither end of what a row sees
 * decreases from one to the next. Pointers are to scratch. */
typedef struct kvc__work {
    const kvc__job *job;
    const kvc__ops *ops;
    kvc__part part;
    int64_t panel; /**< rows side by side in q and sums; 1: tiles work, not panels */
    int64_t most;  /**< rows that there is room for, in whole panels */
    int64_t key_width, value_width; /**< dims rounded up to whole units, the rest zeros */
    bool direct;                    /**< K and V are read where they lie; else a copy in f32 */
    float *scores;                  /**< of a block, for a tile or panel */
    float *q;                       /**< [most / panel][key_width][panel], scaled */
    float *keys, *values;           /**< [KVC__BLOCK][width + a line], unless direct */
    float *sums;                    /**< [most / panel][value_width][panel], Σ p v */
    float *max, *total;             /**< [most], largest score so far and Σ p */
} kvc__work;

/** Returns rows r, r + 1, … as tiles and panels know them. */
static inline kvc__tile kvc__work_tile(const kvc__work *w, int64_t r) {
    return (kvc__tile){w->q + r * w->key_width,
                       w->sums + r * w->value_width,
                       w->max + r,
                       w->total + r,
                       w->key_width,
                       w->value_width};
}

/** Returns what row r of the part sees of the positions from start on, as far as `count`. */
static inline kvc__range kvc__work_seen(const kvc__work *w, int64_t r, int64_t start,
                                        int64_t count) {
    const kvc__range all = kvc__seen(w->job, w->part.sequence, (w->part.row + r) / w->job->group);
    const int64_t begin = all.begin - start, end = all.end - start;
    return (kvc__range){begin < 0       ? 0
                        : begin > count ? count
                                        : begin,
                        end < 0       ? 0
                        : end > count ? count
                                      : end};
}

/** Has the panels of a part take in positions [start, start + count) of K and V.
 * @param k, v  those positions, in f32 */
void kvc__prefill_block(const kvc__work *w, const kvc__block *k, const kvc__block *v,
                        int64_t start);

#endif
