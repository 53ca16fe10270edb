/** @file
 * What a layer keeps for each of its positions: one row in each of several planes. */
#ifndef KVC_CACHE_SPEC_H
#define KVC_CACHE_SPEC_H

#include <kvcache/cache.h>

/** The planes. Those of scales and biases are in use where rows are packed; those of keys and
 * values then hold bytes. A side (KVC__KEYS or KVC__VALUES) has its scales at KVC__SCALES + 2 ·
 * side, its biases at one more. */
enum { KVC__KEYS, KVC__VALUES, KVC__SCALES, KVC__PLANES = KVC__SCALES + 4 };

/** A row of a plane. */
typedef struct kvc__row_format {
    kvc_dtype dtype;
    int64_t dim;
    size_t bytes;
} kvc__row_format;

/** Fills a spec's value_dim in and verifies it.
 * @errors KVC_E_INVALID names desc.specs[index] */
kvc_status kvc__spec_complete(kvc_layer_spec *spec, int64_t index);

/** Tells the rows of a spec that is complete.
 * @param used  receives how many planes there are, from the first on
 * @errors KVC_E_RANGE */
kvc_status kvc__spec_rows(kvc__row_format rows[KVC__PLANES], int *used, const kvc_layer_spec *spec);

#endif
