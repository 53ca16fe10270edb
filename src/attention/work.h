/** @file
 * A part of a run at work: fused.c begins and ends its rows and has tiles take in its positions;
 * prefill.c has panels do that. */
#ifndef KVC_ATTENTION_WORK_H
#define KVC_ATTENTION_WORK_H

#include "attention/kernel.h"
#include "attention/ops.h"
#include "attention/schedule.h"

/** Row r of a kv head is query r / group of head r % group, so that what a row sees never shrinks
 * from one to the next. Pointers are to scratch. */
typedef struct kvc__work {
    const kvc__job *job;
    const kvc__ops *ops;
    kvc__part part;
    kvc__range common; /**< positions that every row sees, if any, but for those kept besides */
    int64_t key_step_bytes, value_step_bytes;
    int64_t panel;                  /**< rows side by side in q and sums: of a panel; 1: tiles */
    int64_t most;                   /**< rows that there is room for, in whole panels or tiles */
    int64_t key_width, value_width; /**< dims rounded up to whole units, the rest zeros */
    bool adjusts;                   /**< scores are not taken as they are */
    bool direct;                    /**< tiles read K and V where they lie; else a copy in f32.
                                         Of keys per channel V alone */
    bool columns;                   /**< tiles read packed keys channel by channel */
    bool cuts;                      /**< blocks end where rows or kept positions do */
    int64_t block;                  /**< positions taken in together at most */
    float *scores;                  /**< of a block, for a tile or panel */
    float *q;                       /**< [most / panel][key_width][panel], scaled */
    float *keys, *values;           /**< [block][width + KVC__WORK_PAD], unless direct; if so
                                         and packed, scales, then biases: [KVC__BLOCK][groups],
                                         and elements that are split, in bytes;
                                         of columns scales, biases and, of other widths than 8 and
                                         4, elements in bytes: [dim], [dim], [dim][block] */
    float *sums;                    /**< [most / panel][value_width][panel], Σ p v */
    float *max, *total;             /**< [most], largest score so far and Σ p */
} kvc__work;

/** Floats between the rows of a copy: a line, which spreads a column over the sets of a cache. */
#define KVC__WORK_PAD 16

/** Returns the query head and the query of a row; of one behind the last, those of that. */
static inline int64_t kvc__work_head(const kvc__work *w, int64_t row) {
    const int64_t own = w->part.row + kvc__smaller(row, w->part.rows - 1);
    return w->part.kv_head * w->job->group + own % w->job->group;
}

static inline int64_t kvc__work_query(const kvc__work *w, int64_t row) {
    return (w->part.row + kvc__smaller(row, w->part.rows - 1)) / w->job->group;
}

/** Returns the address of a row of the part's sequence and head: kvc__kv_at. */
static inline const char *kvc__work_at(const kvc__work *w, const kvc__rows *rows, int64_t position,
                                       int64_t *run) {
    return kvc__kv_at(w->job, rows, w->part.sequence, w->part.kv_head, position, run);
}

/** Returns how many of `count` positions make one block: none lies on both sides of `keep`, and
 * where tiles read rows as they lie, these follow each other. At least 1, where count is. */
static inline int64_t kvc__work_together(const kvc__work *w, int64_t start, int64_t count) {
    int64_t run = count;
    if (!w->cuts) return count;
    if (w->columns) run = w->block - start % w->block;
    else if (w->direct) (void)kvc__work_at(w, &w->job->k, start, &run);
    if (start < w->job->keep) run = kvc__smaller(run, w->job->keep - start);
    return kvc__smaller(run, count);
}

/** Returns what a row sees of a block, but for masks. */
static inline kvc__range kvc__work_seen(const kvc__work *w, int64_t row, int64_t start,
                                        int64_t count) {
    kvc__range all = kvc__seen(w->job, w->part.sequence, kvc__work_query(w, row));
    if (start < w->job->keep && all.begin > 0) all = (kvc__range){0, w->job->keep};
    const int64_t begin = all.begin - start, end = all.end - start;
    const int64_t own_end = end < 0 ? 0 : end < count ? end : count;
    return (kvc__range){begin < 0 ? 0 : begin < own_end ? begin : own_end, own_end};
}

/** Returns rows `first` and on as tiles and panels know them. */
static inline kvc__tile kvc__work_tile(const kvc__work *w, int64_t first) {
    return (kvc__tile){w->q + first * w->key_width,
                       w->sums + first * w->value_width,
                       w->max + first,
                       w->total + first,
                       w->key_width,
                       w->value_width,
                       w->job->scale};
}

/** Returns log2 of the rows of the next tile, `left` being those that no tile has yet. Three make
 * one of four, faster than two tiles: its last row is zeros, sees what
 * the one before does, and is dropped. */
static inline int kvc__tile_size(int64_t left) {
    return left >= 3 ? 2 : left >= 2 ? 1 : 0;
}

/** Return positions of keys and values as tiles and panels read them: where they lie, or copied.
 * All are of one block: kvc__work_together. */
kvc__block kvc__work_keys(const kvc__work *w, int64_t start, int64_t count);
kvc__block kvc__work_values(const kvc__work *w, int64_t start, int64_t count);

/** Returns positions of packed keys or values: as they lie, with their scales and biases in f32, or
 * copied to f32 as well.
 * @param room  w->keys or w->values */
kvc__block kvc__packed_rows(const kvc__work *w, const kvc__rows *words, const kvc__scaling *scaling,
                            int64_t dim, float *room, int64_t start, int64_t count);

/** Splits rows of n packed elements, n a multiple of 32, a byte for each: to[rows][n].
 * @param step_bytes  from row to row of `from` */
void kvc__split_rows(uint8_t *to, const char *from, int64_t step_bytes, int64_t rows, int64_t n,
                     int bits);

/** Returns positions of keys that are packed per channel: packed ones as they lie, if tiles read
 * them so, or unpacked to f32; those behind them copied to f32. */
kvc__block kvc__channel_keys(const kvc__work *w, int64_t start, int64_t count);

/** Makes of the scores of rows what the job makes of them.
 * @param stride  from a position's scores to the next's */
void kvc__work_adjust(const kvc__work *w, int64_t first, int64_t rows, int64_t stride,
                      int64_t start, int64_t count);

/** Tells what the mask keeps of what rows see: a bit a position.
 * @param kept  [rows], what they see */
void kvc__work_keep(const kvc__work *w, int64_t first, int64_t rows, int64_t start, int64_t count,
                    uint64_t *kept);

/** How many lanes a part's positions are taken in by turns: each has a stream of keys and one of
 * values. */
#define KVC__LANES (KVC__STREAMS / 2)

/** Begins to ask for the rows of lanes.
 * @param w      the part, direct or not; has positions; outlives what is returned
 * @param start  [KVC__LANES], the first position of each */
kvc__ahead kvc__look_ahead(const kvc__work *w, const int64_t *start);

/** Asks for what is owed, finding rows where a stream has come to the end of its own; and lets
 * kvc__ask owe what it is asked for next, where it would come to such an end. */
void kvc__ahead_turn(kvc__ahead *a, int64_t elements);

/** Has to be called before as many elements are computed with. Rows that lie one after another have
 * no end: it then is a subtraction for a block, and nothing in the loops. */
static inline void kvc__ahead_go_on(kvc__ahead *a, int64_t elements) {
    a->safe -= elements;
    if (a->safe < 0) kvc__ahead_turn(a, elements);
}

/** Has panels take in the positions of a part. */
void kvc__prefill(const kvc__work *w);

#endif
