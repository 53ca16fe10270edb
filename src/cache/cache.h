/** @file
 * The cache's insides: cache.c (life, figures), grow.c (room), append.c (positions), view.c. */
#ifndef KVC_CACHE_CACHE_H
#define KVC_CACHE_CACHE_H

#include <kvcache/cache.h>

/** The keys or the values of a layer: `ranges` = batch × kv_heads ranges of `capacity` rows. */
typedef struct kvc__side {
    kvc_buffer *buffer; /* [batch][kv_heads][capacity][dim]; NULL while capacity is 0 */
    int64_t dim;
    size_t row_bytes;
    size_t ranges;
    size_t units_done;  /* RESERVE: commit units asked for, in the order of grow.c */
    size_t phase_bytes; /* RESERVE: shifts this side's commits against those of the others */
} kvc__side;

/** One layer. */
typedef struct kvc__layer {
    kvc_layer_spec spec;
    kvc__side k, v;
    int64_t length, capacity;
    int64_t prepared; /* positions lent behind length by kvc_cache_prepare */
} kvc__layer;

struct kvc_cache {
    kvc_pool *pool; /* held */
    kvc_cache_desc desc;
    kvc_layer_spec *specs; /* [layers], behind desc.specs */
    kvc__layer *layers;    /* [layers] */
    kvc_cache_stats stats;
};

/** Verifies that a call was given a cache.
 * @errors KVC_E_INVALID it is NULL */
kvc_status kvc__cache_given(const kvc_cache *cache);

/** Finds a layer.
 * @errors KVC_E_INVALID cache is NULL, no such layer */
kvc_status kvc__cache_layer(kvc__layer **out, const kvc_cache *cache, int64_t layer);

/** Makes room for `need` positions in a layer, by the cache's policy. What is live stays.
 * @errors KVC_E_RANGE, KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed. */
kvc_status kvc__cache_grow(kvc_cache *cache, kvc__layer *layer, int64_t need);

/** RESERVE: takes the address space of a layer.
 * @errors KVC_E_RANGE, KVC_E_UNSUPPORTED, KVC_E_NOMEM. What was taken belongs to the layer. */
kvc_status kvc__cache_reserve(kvc_cache *cache, kvc__layer *layer);

/** Bytes of a side with room for some positions.
 * @errors KVC_E_RANGE names the factors */
kvc_status kvc__side_bytes(size_t *out, const kvc__side *side, int64_t positions);

/** Copies rows [batch][kv_heads][n][dim] to positions [first, first + n) of a buffer that is laid
 * out as the side with room for `capacity` positions. */
kvc_status kvc__side_write(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                           kvc_buffer *buffer, int64_t capacity, int64_t first,
                           const kvc_array *rows);

/** Describes `count` positions of a side from `first` on as an array without a reference. */
kvc_array kvc__side_array(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                          int64_t first, int64_t count);

#endif
