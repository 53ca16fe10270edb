/** @file
 * Which positions of a block are weighed for all rows of a tile at once, and which for one.
 * Included by the files of an instruction set, whose inner loops it calls. */
#ifndef KVC_ATTENTION_SEEN_H
#define KVC_ATTENTION_SEEN_H

#include <stdint.h>

#include "attention/ops.h"

/* sums[r] = sums[r] · factor[r] + Σ_j p[j · step + r] v[j] over all of v, for rows r of a tile,
 * sums of one being `width` floats. */
typedef void (*sum_fn)(float *sums, const float *p, int64_t step, const float *factor,
                       const kvc__block *v, int64_t width);

static inline kvc__block part_of(const kvc__block *v, int64_t begin, int64_t end) {
    return (kvc__block){v->data + begin * v->step_bytes, v->step_bytes, end - begin, v->dim,
                        v->ahead};
}

/* Positions [begin, end) of a block, into the sums of one row. */
static inline __attribute__((always_inline)) void weigh_row(kvc__tile *t, const kvc__block *v,
                                                            int64_t begin, int64_t end,
                                                            const float *s, int r, const int R,
                                                            const sum_fn sum_row) {
    const float one = 1;
    if (begin >= end) return;
    const kvc__block part = part_of(v, begin, end);
    sum_row(t->sums + r * t->value_width, s + begin * R + r, R, &one, &part, t->value_width);
}

/* A kvc__weigh_fn, of loops that sum for all rows and for one. */
static inline __attribute__((always_inline)) void
weigh_seen(kvc__tile *t, const kvc__block *v, const kvc__range *seen, const float *s,
           const float *factor, const int R, const sum_fn sum_rows, const sum_fn sum_row) {
    kvc__range all = seen[0]; /* what every row sees, if it is not empty */
    for (int r = 1; r < R; r++) {
        if (seen[r].begin > all.begin) all.begin = seen[r].begin;
        if (seen[r].end < all.end) all.end = seen[r].end;
    }
    if (all.end < all.begin) all.end = all.begin;
    const kvc__block shared = part_of(v, all.begin, all.end);
    sum_rows(t->sums, s + all.begin * R, R, factor, &shared, t->value_width);

    /* What only some see goes row by row: a weight of 0 times NaN would reach the others. */
    for (int r = 0; r < R; r++) {
        const int64_t left = seen[r].end < all.begin ? seen[r].end : all.begin;
        const int64_t right = seen[r].begin > all.end ? seen[r].begin : all.end;
        weigh_row(t, v, seen[r].begin, left, s, r, R, sum_row);
        weigh_row(t, v, right, seen[r].end, s, r, R, sum_row);
    }
}

#endif
