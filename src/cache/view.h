/** @file
 * What attention sees of a cache: one layer, where it lies. Nothing is retained. */
#ifndef KVC_CACHE_VIEW_H
#define KVC_CACHE_VIEW_H

#include <kvcache/cache.h>

/** One layer's keys [batch][kv_heads][capacity][key_dim] and values, the latter likewise with
 * value_dim. Positions [0, length) are live. Valid until the cache changes. */
typedef struct kvc__layer_view {
    const void *k, *v; /* NULL while capacity is 0 */
    kvc_dtype dtype;
    int64_t batch, kv_heads, key_dim, value_dim;
    int64_t length, capacity;
    int64_t chunk, max_positions;
    kvc_growth growth;
    size_t k_buffer_bytes, v_buffer_bytes; /* whole buffers: may be a little more than needed */
    const kvc_device *device;
} kvc__layer_view;

/** Describes the layer of an index. O(1).
 * @errors KVC_E_INVALID cache is NULL, no such layer */
kvc_status kvc__cache_layer_view(kvc__layer_view *out, const kvc_cache *cache, int64_t index);

#endif
