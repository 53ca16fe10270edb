/** @file
 * The KV cache of a whole model: per layer the keys [batch][kv_heads][capacity][key_dim] and the
 * values [batch][kv_heads][capacity][value_dim]; positions [0, length) are live.
 *
 * Growth is a policy, chosen once:
 * - KVC_GROW_RESERVE (default): address space for max_positions is taken at once and made resident
 *   a little ahead of the length, on every append. Growth copies nothing, pointers never move, and
 *   no step stalls.
 * - KVC_GROW_CHUNK: the seed's fast way. Capacity is a multiple of the chunk; when it is full, a
 *   larger buffer is taken and the live positions copied. One step in a chunk pays for that.
 * - KVC_GROW_EXACT: the seed's slow way, every append concatenates. Here to be measured.
 *
 * All three hold the same bytes. Views stay valid across appends (an append writes behind them):
 * a view keeps its buffer alive even when growth has moved the cache to another.
 *
 * Threads: one writer or many readers at a time per cache.
 * @source MLX documentation, "Writing a Fast KV Cache"; mlx-lm's KVCache, whose capacity need not
 *         stay a multiple of the chunk after a long append: here it does. Reserve: vAttention. */
#ifndef KVCACHE_CACHE_H
#define KVCACHE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/status.h>

/** How a cache gets room for more positions. */
typedef enum kvc_growth {
    KVC_GROW_RESERVE = 0, /**< address space once, memory as it fills */
    KVC_GROW_CHUNK = 1,   /**< whole chunks, with a copy a chunk */
    KVC_GROW_EXACT = 2    /**< concatenate on every append */
} kvc_growth;

/** The chunk when a description says 0: the seed's. */
#define KVC_CHUNK_DEFAULT 256

/** One layer's geometry. */
typedef struct kvc_layer_spec {
    int64_t kv_heads;  /**< > 0 */
    int64_t key_dim;   /**< > 0, elements of one key */
    int64_t value_dim; /**< > 0, elements of one value; 0 means key_dim */
    kvc_dtype dtype;   /**< KVC_F32, KVC_F16 or KVC_BF16 */
} kvc_layer_spec;

/** Everything about a cache that does not change. Zero it, then fill it. */
typedef struct kvc_cache_desc {
    size_t struct_size;          /**< sizeof(kvc_cache_desc) */
    int64_t batch;               /**< sequences that advance together; 0 means 1 */
    int64_t layers;              /**< > 0 */
    const kvc_layer_spec *specs; /**< [spec_count], borrowed for the call */
    int64_t spec_count;          /**< layers, or 1 when all layers are alike */
    kvc_growth growth;           /**< how layers get room */
    int64_t chunk;               /**< positions; 0 means KVC_CHUNK_DEFAULT */
    int64_t max_positions; /**< most positions a layer may hold; 0: no limit, but not for RESERVE */
} kvc_cache_desc;

/** Bytes of a cache, all layers together. */
typedef struct kvc_cache_nbytes {
    size_t struct_size; /**< sizeof(kvc_cache_nbytes), set by the caller */
    uint64_t used;      /**< live positions, keys and values */
    uint64_t resident;  /**< memory held: capacity, or what a reserve cache has committed */
    uint64_t reserved;  /**< address space held; equals resident unless the policy is RESERVE */
} kvc_cache_nbytes;

/** What a cache has done since it was made. */
typedef struct kvc_cache_stats {
    size_t struct_size;      /**< sizeof(kvc_cache_stats), set by the caller */
    uint64_t appends;        /**< appends and commits that succeeded, each of one layer */
    uint64_t appended_bytes; /**< written by the caller's appends, in the cache's dtype */
    uint64_t copied_bytes;   /**< moved in all: appends and what growth copied */
    uint64_t growths;        /**< times a layer took a larger buffer, or RESERVE committed memory */
    uint64_t grown_bytes;    /**< bytes that growth copied from the old buffer to the new */
} kvc_cache_stats;

/** A KV cache. */
typedef struct kvc_cache kvc_cache;

KVC_BEGIN_DECLS

/** Makes an empty cache. RESERVE takes its address space here, no policy takes memory yet.
 * @param pool  borrowed for the call; the cache's buffers keep it alive
 * @errors KVC_E_INVALID names the field, what it holds and what it should; KVC_E_RANGE the sizes
 *         multiply to more than a size can hold; KVC_E_NOMEM; KVC_E_UNSUPPORTED (RESERVE on a
 *         device without reserve) */
KVC_API KVC_MUST_USE kvc_status kvc_cache_new(kvc_cache **out, kvc_pool *pool,
                                              const kvc_cache_desc *desc);

/** Frees a cache; its memory goes to the pool. Views taken stay valid. NULL is allowed. */
KVC_API void kvc_cache_free(kvc_cache *cache);

/** Appends n positions to one layer: O(n), the cost of copying them, plus what growth costs.
 * @param k  [batch][kv_heads][n][key_dim], any strides (engines hold [n][kv_heads][key_dim]: borrow
 *           it with strides, no transpose), KVC_F32, KVC_F16 or KVC_BF16, converted in the same
 *           pass; borrowed for the call, not overlapping the cache
 * @param v  [batch][kv_heads][n][value_dim], as k
 * @errors KVC_E_INVALID layer; KVC_E_SHAPE names the argument and both shapes; KVC_E_RANGE more
 *         than max_positions; KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed, but RESERVE keeps the
 * pages that it had got before the refusal. KVC_E_UNSUPPORTED the device cannot convert: the live
 *         positions are as before, room may have grown, what was prepared is void. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_append(kvc_cache *cache, int64_t layer,
                                                 const kvc_array *k, const kvc_array *v);

/** Makes room for n more positions and lends it: write there, then kvc_cache_commit. No copy at
 * all. The length does not change. Another prepare before the commit lends the same positions, with
 * what was written there, but growth may have moved them: write through its arrays from then on.
 * @param k  receives [batch][kv_heads][n][key_dim] over the cache's own memory; owns a reference
 * @param v  as k
 * @errors as kvc_cache_append. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_prepare(kvc_cache *cache, int64_t layer, int64_t n,
                                                  kvc_array *k, kvc_array *v);

/** Makes the first n prepared positions live. O(1).
 * @errors KVC_E_INVALID layer; KVC_E_RANGE n is negative or more than were prepared since the last
 *         change of the layer. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_commit(kvc_cache *cache, int64_t layer, int64_t n);

/** Lends the live keys and values of a layer. Copies nothing, ever.
 * @param k  receives [batch][kv_heads][length][key_dim], strides of the capacity; owns a reference
 * @param v  as k
 * @errors KVC_E_INVALID layer
 * @lifetime until released. Appends write behind the view; after a trim or a clear they may write
 *           into it. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_view(const kvc_cache *cache, int64_t layer, kvc_array *k,
                                               kvc_array *v);

/** Drops the last n positions of every layer: all layers or none. O(layers); memory stays.
 * @errors KVC_E_RANGE n is negative or a layer holds fewer, with its number. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_trim(kvc_cache *cache, int64_t n);

/** Makes every layer empty; memory stays for the next sequence. */
KVC_API void kvc_cache_clear(kvc_cache *cache);

/** Returns the live positions of a layer; -1 when there is no such layer. */
KVC_API int64_t kvc_cache_length(const kvc_cache *cache, int64_t layer);

/** Returns the positions between the starts of two heads: what the layer's buffers have room for
 * (RESERVE: address space for). -1 when there is no such layer. */
KVC_API int64_t kvc_cache_capacity(const kvc_cache *cache, int64_t layer);

/** Copies the description: spec_count is layers and specs points into the cache.
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set
 * @lifetime of specs: the cache's */
KVC_API kvc_status kvc_cache_desc_get(const kvc_cache *cache, kvc_cache_desc *out);

/** Adds up the bytes of all layers. O(layers).
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_cache_nbytes_get(const kvc_cache *cache, kvc_cache_nbytes *out);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_cache_stats *out);

/** Verifies every invariant of every layer. O(layers), and by RESERVE O(live pages).
 * @errors KVC_E_CORRUPT the sentence says which one; KVC_E_INVALID cache is NULL */
KVC_API kvc_status kvc_cache_check(const kvc_cache *cache);

/** Returns "reserve", "chunk" or "exact"; "?" for another value. Static storage. */
KVC_API const char *kvc_growth_name(kvc_growth growth);

KVC_END_DECLS

#endif
