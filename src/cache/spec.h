/** @file
 * What a layer keeps for each of its positions: one row in each of several planes. */
#ifndef KVC_CACHE_SPEC_H
#define KVC_CACHE_SPEC_H

#include <kvcache/cache.h>

/** The planes. Those of scales and biases are in use where rows are packed; those of keys and
 * values then hold bytes. A side (KVC__KEYS or KVC__VALUES) has its scales at KVC__SCALES + 2 ·
 * side, its biases at one more. Where keys are packed per channel, a row of theirs holds a block of
 * positions, [key_dim][kv_group], and the last keys lie in KVC__TAIL as well, unpacked: position p
 * in row p mod 2 · kv_group. */
enum { KVC__KEYS, KVC__VALUES, KVC__SCALES, KVC__TAIL = KVC__SCALES + 4, KVC__PLANES };

/** A row of a plane. */
typedef struct kvc__row_format {
    kvc_dtype dtype;
    int64_t dim;
    size_t bytes;
    int64_t positions; /**< of a row */
    int64_t turn;      /**< of KVC__TAIL: rows, after which the first one comes again; else 0 */
} kvc__row_format;

/** Returns the rows of a range that positions [0, n) fill, n whole rows of positions where it is a
 * capacity. */
static inline int64_t kvc__rows_of(const kvc__row_format *row, int64_t n) {
    if (row->turn) return n > 0 ? row->turn : 0;
    return n / row->positions;
}

/** Returns the row of a position. */
static inline int64_t kvc__row_of(const kvc__row_format *row, int64_t position) {
    return row->turn ? position % row->turn : position / row->positions;
}

/** Fills a spec's value_dim in and verifies it.
 * @errors KVC_E_INVALID names desc.specs[index] */
kvc_status kvc__spec_complete(kvc_layer_spec *spec, int64_t index);

/** Tells the rows of a spec that is complete.
 * @param used  receives how many planes there are, from the first on
 * @errors KVC_E_RANGE */
kvc_status kvc__spec_rows(kvc__row_format rows[KVC__PLANES], int *used, const kvc_layer_spec *spec);

#endif
