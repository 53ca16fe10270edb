/** @file
 * What attention sees of a cache: one layer, where it lies. Nothing is retained. */
#ifndef KVC_CACHE_VIEW_H
#define KVC_CACHE_VIEW_H

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "cache/map.h"
#include "cache/spec.h"

/** One layer: planes of [batch][kv_heads][rows][dim], or of [kv_heads][rows][dim] in each block, of
 * rows for `capacity` positions (kvc__rows_of). Valid until the cache changes. */
typedef struct kvc__layer_view {
    kvc_layer_spec spec;
    const void *planes[KVC__PLANES];  /* NULL while capacity is 0, in blocks, and of no use */
    size_t offset_bytes[KVC__PLANES]; /* of planes from the start of a block */
    kvc__row_format rows[KVC__PLANES];
    int64_t batch;
    int64_t length;         /* of the longest sequence */
    const int64_t *lengths; /* [batch]; NULL: all are that */
    const int64_t *held;    /* [batch] lengths, of keys per channel; else NULL */
    int64_t capacity;
    kvc__map map; /* where positions lie */
    int64_t chunk, max_positions;
    kvc_growth growth;
    size_t k_buffer_bytes, v_buffer_bytes; /* whole buffers: may be a little more than needed */
    const kvc_device *device;
} kvc__layer_view;

/** Describes the layer of an index. O(1).
 * @errors KVC_E_INVALID cache is NULL, no such layer */
kvc_status kvc__cache_layer_view(kvc__layer_view *out, const kvc_cache *cache, int64_t index);

/** Describes a layer of a pool of blocks, without a sequence: batch, lengths and the tables of its
 * map are left to the caller. O(1); takes no lock.
 * @errors KVC_E_INVALID blocks is NULL, no such layer */
kvc_status kvc__blocks_layer_view(kvc__layer_view *out, const kvc_blocks *blocks, int64_t index);

/** Returns the place of the first of n ids that names no block in memory, n where all do. O(n);
 * takes no lock: the answer is true for as long as someone holds those blocks. */
int64_t kvc__blocks_first_missing(const kvc_blocks *blocks, const int32_t *ids, int64_t n);

#endif
