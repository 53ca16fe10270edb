/** @file
 * What attention sees of a cache: one layer, where it lies. Nothing is retained. */
#ifndef KVC_CACHE_VIEW_H
#define KVC_CACHE_VIEW_H

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "cache/map.h"

/** One layer's keys [batch][kv_heads][capacity][key_dim] and values, the latter likewise with
 * value_dim. Positions [0, length) are live. Valid until the cache changes. With a map, `capacity`
 * is the rows of a ring, or rows lie in blocks, and k, v and capacity are unused. */
typedef struct kvc__layer_view {
    const void *k, *v; /* NULL while capacity is 0 */
    kvc_dtype dtype;
    int64_t batch, kv_heads, key_dim, value_dim;
    int64_t length, capacity;
    int64_t chunk, max_positions;
    kvc_growth growth;
    size_t k_buffer_bytes, v_buffer_bytes; /* whole buffers: may be a little more than needed */
    const kvc_device *device;
    kvc__map map;                          /* where positions lie; zeroed: one row after another */
    size_t k_offset_bytes, v_offset_bytes; /* in blocks: from the begin of one to the layer's rows,
                                              [kv_heads][block_positions][dim] */
    const int64_t *lengths;                /* [batch], `length` the longest; NULL: all `length` */
    int64_t window, keep;                  /* what the layer is to hold; 0: all */
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
