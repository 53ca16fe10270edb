/** @file
 * A pool of blocks: fixed pieces of a KV cache that sequences share.
 *
 * A block has room for B positions in every layer of a model. It is one contiguous range of memory,
 * so that one copy moves it, and holds layer after layer the keys [kv_heads][B][key_dim], then the
 * values [kv_heads][B][value_dim], and the scales and biases of these where they are packed; each
 * begins on KVC_ALIGNMENT_BYTES. Windows are not for blocks: they keep all. Whoever wants
 * memory takes whole blocks, and any free one serves: nothing fragments.
 *
 * Blocks are named by int32 ids, from 0 on. A sequence's block table is an array of these; it can
 * be handed to any kernel as it is. Position p of a sequence is row p % B of block table[p / B].
 *
 * How a kernel walks it. Blocks lie in slabs of 2^slab_shift, so that with the figures of
 * kvc_blocks_layout_get (once a plan) row r of head h of a block is found by a shift and a mask:
 *
 *     char *block = (char *)slabs[id >> slab_shift] + (id & ((1 << slab_shift) - 1)) * block_bytes;
 *     char *key   = block + k_offset_bytes + h * k_head_bytes + r * k_row_bytes;
 *     char *value = block + v_offset_bytes + h * v_head_bytes + r * v_row_bytes;
 *
 * The B rows of a head are contiguous. The table `slabs` never moves, and its entry for a block
 * stays as it is for as long as someone holds the block: a kernel takes no lock.
 *
 * References. Take gives a block with one reference, each retain adds one, each release drops one;
 * the last makes it free. Who holds the only one may write to the block; who shares it copies it
 * first (kvc_blocks_references, kvc_blocks_copy). A prefix tree (prefix.h) holds what it stores.
 *
 * All calls are thread-safe.
 * @source vLLM's PagedAttention, where the layers have pools of their own and the id names a block
 *         in each of them; here the layers of a block lie together. */
#ifndef KVCACHE_BLOCKS_H
#define KVCACHE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/cache.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/quantize.h>
#include <kvcache/status.h>

/** The positions of a block: least, most, and when a description says 0. */
#define KVC_BLOCK_POSITIONS_MIN     16
#define KVC_BLOCK_POSITIONS_MAX     256 /**< see KVC_BLOCK_POSITIONS_MIN */
#define KVC_BLOCK_POSITIONS_DEFAULT 64  /**< see KVC_BLOCK_POSITIONS_MIN */

/** No block: what ids hold after a call that failed. */
#define KVC_BLOCK_NONE (-1)

/** Everything about a pool of blocks that does not change. Zero it, then fill it. */
typedef struct kvc_blocks_desc {
    size_t struct_size;          /**< sizeof(kvc_blocks_desc) */
    int64_t layers;              /**< > 0 */
    const kvc_layer_spec *specs; /**< [spec_count], borrowed for the call */
    int64_t spec_count;          /**< layers, or 1 when all layers are alike */
    int64_t positions;    /**< of a block, 16 to 256, need not be a power of two; 0: the default */
    uint64_t limit_bytes; /**< the most that blocks may hold; 0: as much as the device has */
    uint64_t slab_bytes;  /**< memory is taken in pieces of about this size, at least a block; 0:
                             2 MiB, a huge page of most machines */
} kvc_blocks_desc;

/** Where the blocks of a pool lie, as one layer sees it: see the head of this file. */
typedef struct kvc_blocks_layout {
    size_t struct_size;    /**< sizeof(kvc_blocks_layout), set by the caller */
    void *const *slabs;    /**< device pointers; NULL where no slab is; the pool's own */
    int64_t slab_shift;    /**< a slab has 2^slab_shift blocks */
    int64_t positions;     /**< B, the rows of a head in a block */
    size_t block_bytes;    /**< from block to block, all layers; a multiple of the alignment */
    size_t k_offset_bytes; /**< from the block to the layer's keys */
    size_t v_offset_bytes; /**< to its values */
    size_t k_head_bytes;   /**< from head to head: B rows */
    size_t v_head_bytes;   /**< as k_head_bytes */
    size_t k_row_bytes;    /**< from position to position: key_dim elements */
    size_t v_row_bytes;    /**< value_dim elements */
    /* Where rows are packed, their bytes are those of words; beside them lie, [kv_heads][B][groups]
     * each, scales and biases: */
    size_t k_scales_offset_bytes; /**< from the block to the scales of the layer's keys */
    size_t k_biases_offset_bytes; /**< to their biases */
    size_t v_scales_offset_bytes; /**< to the scales of its values */
    size_t v_biases_offset_bytes; /**< to their biases */
    size_t k_scales_row_bytes;    /**< of scales and of biases, from position to position; from head
                                       to head are B of these */
    size_t v_scales_row_bytes;    /**< as k_scales_row_bytes */
} kvc_blocks_layout;

/** Figures of a pool of blocks. */
typedef struct kvc_blocks_stats {
    size_t struct_size;      /**< sizeof(kvc_blocks_stats), set by the caller */
    uint64_t block_bytes;    /**< memory of a block, all layers */
    uint64_t most_blocks;    /**< there can be under the limit */
    uint64_t used_blocks;    /**< that someone holds, a prefix tree too */
    uint64_t idle_blocks;    /**< of these: that only a prefix tree holds and would give back */
    uint64_t free_blocks;    /**< in memory that is held already */
    uint64_t peak_blocks;    /**< largest used_blocks so far */
    uint64_t resident_bytes; /**< memory held: slabs */
} kvc_blocks_stats;

KVC_BEGIN_DECLS

/** Makes a pool that holds no memory yet.
 * @param pool  where slabs come from; borrowed for the call, the blocks keep it alive
 * @errors KVC_E_INVALID names the field, what it holds and what it should (no window); KVC_E_RANGE
 *         the sizes multiply to more than a size can hold; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_new(kvc_blocks **out, kvc_pool *pool,
                                               const kvc_blocks_desc *desc);

/** Ends the caller's use. A prefix tree that is alive keeps the pool until it is freed; the memory
 * of blocks that are still held goes with the pool, but for what views keep. NULL is allowed. */
KVC_API void kvc_blocks_free(kvc_blocks *blocks);

/** Returns the pool where slabs come from; NULL when blocks is NULL. O(1).
 * @lifetime as long as the blocks */
KVC_API kvc_pool *kvc_blocks_pool(const kvc_blocks *blocks);

/** Takes n blocks, each with one reference: O(n), and a request to the buffer pool where the slabs
 * at hand have too few. At the limit, blocks that only the prefix tree holds are evicted for it.
 * Contents undefined. Whom the buffer pool asks under pressure may release blocks, not take some.
 * @param ids  receives [n]; KVC_BLOCK_NONE each on an error
 * @errors KVC_E_INVALID n < 0; KVC_E_LIMIT the limit of these blocks or of the buffer pool;
 *         KVC_E_NOMEM. No block is taken, but idle ones may have been evicted. */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_take(kvc_blocks *blocks, int64_t n, int32_t *ids);

/** Adds a reference to each of n blocks: O(n).
 * @param ids  [n], blocks that the caller holds; one may come several times
 * @errors KVC_E_INVALID n < 0; a block that no caller holds. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_retain(kvc_blocks *blocks, const int32_t *ids,
                                                  int64_t n);

/** Drops a reference to each of n blocks: O(n). The last one makes a block free, and a slab whose
 * blocks are all free goes back to the buffer pool, but for one that is kept.
 * @param ids  as kvc_blocks_retain
 * @errors KVC_E_INVALID n < 0; a block that no caller holds (so often). Nothing changed. */
KVC_API kvc_status kvc_blocks_release(kvc_blocks *blocks, const int32_t *ids, int64_t n);

/** Returns the references to a block: 1 when its holder may write to it, 0 when it is free or there
 * is no such block. O(1). */
KVC_API int64_t kvc_blocks_references(kvc_blocks *blocks, int32_t id);

/** Copies a block's contents, all layers: the step before a write to a shared block. One copy.
 * @param to    a block whose only holder is the caller
 * @param from  another, held by the caller
 * @errors KVC_E_INVALID a block that is not so; whatever the device's copy returns */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_copy(kvc_blocks *blocks, int32_t to, int32_t from);

/** Lends a block's keys and values of a layer, to write to or read from. Copies nothing.
 * @param k  receives [kv_heads][B][key_dim], contiguous; owns a reference to the slab's buffer, not
 *           to the block
 * @param v  receives [kv_heads][B][value_dim], as k
 * @errors KVC_E_INVALID layer; a block that nobody holds; KVC_E_UNSUPPORTED packed rows
 * @lifetime as long as the caller holds the block; memory stays until the arrays are released */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_view(kvc_blocks *blocks, int32_t id, int64_t layer,
                                                kvc_array *k, kvc_array *v);

/** As kvc_blocks_view, of a layer whose rows are packed. Each of the six arrays owns a reference.
 * @errors KVC_E_INVALID as there; KVC_E_UNSUPPORTED rows that are not packed */
KVC_API KVC_MUST_USE kvc_status kvc_blocks_view_quantized(kvc_blocks *blocks, int32_t id,
                                                          int64_t layer, kvc_quantized *k,
                                                          kvc_quantized *v);

/** Tells where the blocks lie, as one layer sees it. O(1).
 * @errors KVC_E_INVALID layer; out->struct_size is not set
 * @lifetime the pool's */
KVC_API kvc_status kvc_blocks_layout_get(const kvc_blocks *blocks, int64_t layer,
                                         kvc_blocks_layout *out);

/** Copies the description: specs points into the pool, defaults are filled in.
 * @errors KVC_E_INVALID blocks is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_blocks_desc_get(const kvc_blocks *blocks, kvc_blocks_desc *out);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID blocks is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_blocks_stats_get(kvc_blocks *blocks, kvc_blocks_stats *out);

/** Verifies every invariant: O(blocks in memory).
 * @errors KVC_E_CORRUPT the sentence says which one; KVC_E_INVALID blocks is NULL */
KVC_API kvc_status kvc_blocks_check(kvc_blocks *blocks);

KVC_END_DECLS

#endif
