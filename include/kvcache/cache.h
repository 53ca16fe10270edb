/** @file
 * The KV cache of a whole model: per layer the keys and values of each sequence of a batch,
 * positions [0, length) of it. Layers may differ in geometry and in kind, as those of models do
 * that mix windows with full attention; sequences may differ in length, come and go.
 *
 * Where positions lie, chosen once for the cache:
 * - KVC_GROW_RESERVE (default): address space for max_positions is taken at once and made resident
 *   a little ahead of the length, on every append. Growth copies nothing, pointers never move, and
 *   no step stalls.
 * - KVC_GROW_CHUNK: the seed's fast way. Capacity is a multiple of the chunk; when it is full, a
 *   larger buffer is taken and the live positions copied. One step in a chunk pays for that.
 * - KVC_GROW_EXACT: the seed's slow way, every append concatenates. Here to be measured.
 * - KVC_GROW_PAGED: in blocks of a pool (blocks.h) that sequences and caches share: a fork copies
 *   no position, and what a sequence wastes is less than a block.
 * The first three hold keys [batch][kv_heads][capacity][key_dim] and values likewise, with
 * value_dim, resident as far as the longest sequence reaches.
 *
 * What a layer may be, by its spec:
 * - a window: only the last W positions are kept (and the first ones, where `keep` says so), in a
 *   ring that grows until it holds them. Memory and the time of a step then stay as they are. An
 *   append of n positions is exact for each of its queries: W + n - 1 positions are held until the
 *   next append.
 * - packed: 2 to 8 bits a number (quantize.h), packed as positions are appended, one by one: how a
 *   sequence was cut into appends makes no difference.
 * - packed, keys per channel: with G = kv_group, G positions of a key's element share a scale,
 * since in keys it is some elements that are large, at every position. Blocks of G positions are
 * packed when their last one comes; the keys behind them are kept as they are, in dtype. Those of
 * the last G to 2 G positions are, so that a trim can go back as far (kvc_cache_trimmable).
 * - packed, rotated: keys and values are multiplied by a Hadamard matrix before, which spreads what
 *   is large over all elements, so that a group has less to span. It is orthonormal, of the order
 * of the largest power of two that divides the dim (1024 at most), as often as that goes into it.
 *   Attention rotates queries likewise, and its sums back: scores and outputs mean the same. A NaN
 *   or an infinity reaches all that is rotated with it.
 *
 * All kinds hold the same positions, and attention.h reads them all. Views stay valid across
 * appends (an append writes behind them, but for windows): a view keeps its buffer alive even when
 * growth has moved the cache to another.
 *
 * Threads: one writer or many readers at a time per cache.
 * @source MLX documentation, "Writing a Fast KV Cache"; mlx-lm's KVCache, whose capacity need not
 *         stay a multiple of the chunk after a long append: here it does; its RotatingKVCache and
 *         QuantizedKVCache. Reserve: vAttention. Paged: vLLM. Keys per channel: KIVI. Rotation:
 * QuIP# and QuaRot, which fold a part of it into the model's weights; here it is all the cache's.
 */
#ifndef KVCACHE_CACHE_H
#define KVCACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/quantize.h>
#include <kvcache/status.h>

/** How a cache gets room for more positions. */
typedef enum kvc_growth {
    KVC_GROW_RESERVE = 0, /**< address space once, memory as it fills */
    KVC_GROW_CHUNK = 1,   /**< whole chunks, with a copy a chunk */
    KVC_GROW_EXACT = 2,   /**< concatenate on every append */
    KVC_GROW_PAGED = 3    /**< blocks of a shared pool, one at a time */
} kvc_growth;

/** A pool of blocks; see blocks.h. */
typedef struct kvc_blocks kvc_blocks;

/** The chunk when a description says 0: the seed's. */
#define KVC_CHUNK_DEFAULT 256

/** One layer's geometry and kind. Zero it, then fill it. */
typedef struct kvc_layer_spec {
    int64_t kv_heads;  /**< > 0 */
    int64_t key_dim;   /**< > 0, elements of one key */
    int64_t value_dim; /**< > 0, elements of one value; 0 means key_dim */
    kvc_dtype dtype;   /**< KVC_F32, KVC_F16 or KVC_BF16; of scales and biases, where packed */
    int64_t window;    /**< positions that a query sees, its own among them; no others are kept. 0:
                            all. Not for KVC_GROW_PAGED, whose plans have a window instead */
    int64_t keep;      /**< of the window: so many are the first of the sequence, for ever (sinks);
                            0 to window - 1 */
    int kv_bits;       /**< of a packed element: 2, 3, 4, 5, 6 or 8; 0: not packed */
    int kv_group;      /**< where packed: 32, 64 or 128, a divisor of both dims */
    bool keys_per_channel; /**< where packed: an element of the key over kv_group positions shares a
                                scale, instead of elements of one key. Not for windows and blocks */
    bool rotated;          /**< where packed: keys and values are rotated before */
} kvc_layer_spec;

/** Everything about a cache that does not change. Zero it, then fill it. */
typedef struct kvc_cache_desc {
    size_t struct_size;          /**< sizeof(kvc_cache_desc) */
    int64_t batch;               /**< sequences that there is room for; 0 means 1 */
    int64_t layers;              /**< > 0 */
    const kvc_layer_spec *specs; /**< [spec_count], borrowed for the call */
    int64_t spec_count;          /**< layers, or 1 when all layers are alike */
    kvc_growth growth;           /**< how layers get room */
    int64_t chunk;               /**< positions; 0 means KVC_CHUNK_DEFAULT. Rounded up to whole
                                      groups for keys per channel */
    int64_t max_positions; /**< most positions of a sequence; 0: no limit, but not for RESERVE */
    kvc_blocks *blocks;    /**< for PAGED: where blocks come from, kept alive by the cache. Layers
                                and specs are those of its blocks; layers 0 and specs NULL will do.
                                NULL otherwise */
    int64_t slack;         /**< positions that windows hold beyond their own: so many, and one more,
                                may be appended at once, or so many trimmed, without moving a row */
} kvc_cache_desc;

/** Bytes of a cache, all layers together. */
typedef struct kvc_cache_nbytes {
    size_t struct_size; /**< sizeof(kvc_cache_nbytes), set by the caller */
    uint64_t used;      /**< positions held, keys and values, in the form that is read */
    uint64_t resident;  /**< memory held: capacity, or what RESERVE has committed; of blocks, those
                             in a table, shared ones counted once for each sequence */
    uint64_t reserved;  /**< address space held; equals resident unless the policy is RESERVE */
} kvc_cache_nbytes;

/** What a cache has done since it was made. */
typedef struct kvc_cache_stats {
    size_t struct_size;      /**< sizeof(kvc_cache_stats), set by the caller */
    uint64_t appends;        /**< appends and commits that succeeded, each of one layer */
    uint64_t appended_bytes; /**< written by the caller's appends, in the cache's dtype */
    uint64_t copied_bytes;   /**< moved in all by appends: what they wrote, what growth copied,
                                  rows that windows turned, shared blocks before a write */
    uint64_t growths;        /**< times a layer took another buffer, RESERVE committed memory, or a
                                  sequence took blocks */
    uint64_t grown_bytes;    /**< bytes that growth copied from the old buffer to the new */
} kvc_cache_stats;

/** What a layer holds of a sequence, and in which rows of a view. But for windows: positions
 * [0, length), each in the row of its number. Of a window: positions [0, keep) in rows [0, keep),
 * and [first, length) from `row` on, which after the last of `rows` go on with row `keep`. */
typedef struct kvc_cache_held {
    int64_t length; /**< positions of the sequence */
    int64_t rows;   /**< that hold, or held, something */
    int64_t first;  /**< of a window: keep as long as nothing was overwritten; of keys per channel:
                         the first position whose key is held unpacked; else 0 */
    int64_t row;    /**< of a window: where `first` lies (or will, if length is less); else 0 */
} kvc_cache_held;

/** Where a layer's rows lie in a file: for each of its planes [batch][kv_heads][rows][dim], as the
 * views have them. */
typedef struct kvc_cache_file {
    int fd;              /**< open for reading; may be closed after the call */
    int64_t rows;        /**< of each head; at least those that are held. Keys per channel: in
                            positions, whole groups of them */
    uint64_t offsets[7]; /**< of the first byte of keys, of values; where packed, of both words,
                            then of the scales and biases of keys, then of those of values; where
                            keys are packed per channel, then of the unpacked ones */
} kvc_cache_file;

/** A KV cache. */
typedef struct kvc_cache kvc_cache;

KVC_BEGIN_DECLS

/** Makes an empty cache. RESERVE takes its address space here, no policy takes memory yet.
 * @param pool  borrowed for the call; the cache's buffers keep it alive
 * @errors KVC_E_INVALID names the field, what it holds and what it should; KVC_E_RANGE the sizes
 *         multiply to more than a size can hold; KVC_E_NOMEM; KVC_E_UNSUPPORTED (RESERVE on a
 *         device without reserve; windows and packed rows on one other than the cpu) */
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
 *         pages that it had got before the refusal, PAGED its own copies of shared blocks.
 *         KVC_E_UNSUPPORTED the device cannot convert: the live positions are as before, room may
 *         have grown, what was prepared is void. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_append(kvc_cache *cache, int64_t layer,
                                                 const kvc_array *k, const kvc_array *v);

/** As kvc_cache_append, but sequence b takes the first counts[b] positions of k and v alone: how
 * sequences of several lengths advance, or some rest.
 * @param k       [batch][kv_heads][n][key_dim]
 * @param counts  [batch], 0 to n each
 * @errors KVC_E_INVALID counts is NULL; KVC_E_RANGE a count; and as kvc_cache_append */
KVC_API KVC_MUST_USE kvc_status kvc_cache_append_ragged(kvc_cache *cache, int64_t layer,
                                                        const kvc_array *k, const kvc_array *v,
                                                        const int64_t *counts);

/** Makes room for n more positions and lends it: write there, then kvc_cache_commit. No copy at
 * all. The length does not change. Another prepare before the commit lends the same positions, with
 * what was written there, but growth may have moved them: write through its arrays from then on.
 * @param k  receives [batch][kv_heads][n][key_dim] over the cache's own memory; owns a reference
 * @param v  as k
 * @errors as kvc_cache_append; KVC_E_UNSUPPORTED room that is not one range a head: sequences of
 *         several lengths, a window, packed rows, blocks. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_prepare(kvc_cache *cache, int64_t layer, int64_t n,
                                                  kvc_array *k, kvc_array *v);

/** Makes the first n prepared positions live. O(1).
 * @errors KVC_E_INVALID layer; KVC_E_RANGE n is negative or more than were prepared since the last
 *         change of the layer. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_commit(kvc_cache *cache, int64_t layer, int64_t n);

/** Lends the live keys and values of a layer. Copies nothing, ever.
 * @param k  receives [batch][kv_heads][length][key_dim], strides of the capacity; owns a reference.
 *           Behind the end of a shorter sequence lies anything. Of a window, the rows of its ring
 *           that hold a position, in the ring's order: kvc_cache_row_positions
 * @param v  as k
 * @errors KVC_E_INVALID layer; KVC_E_UNSUPPORTED packed rows (kvc_cache_view_quantized) or blocks
 *         (kvc_cache_block_table)
 * @lifetime until released. Appends write behind the view; after a trim or a clear they may write
 *           into it, as forks and reorderings do. Of a window, until the next append, which writes
 *           into it, and may give back the memory of its longer ring. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_view(const kvc_cache *cache, int64_t layer, kvc_array *k,
                                               kvc_array *v);

/** As kvc_cache_view, of a layer whose rows are packed. Each of the six arrays owns a reference.
 * @param k  keys per channel: the whole blocks of G positions of the longest sequence, as [batch]
 *           [kv_heads][blocks][key_dim][G], elements that share a scale last. Behind the blocks of
 *           a shorter one lies anything. The other keys: kvc_cache_view_tail
 * @errors KVC_E_INVALID layer; KVC_E_UNSUPPORTED rows that are not packed, or blocks */
KVC_API KVC_MUST_USE kvc_status kvc_cache_view_quantized(const kvc_cache *cache, int64_t layer,
                                                         kvc_quantized *k, kvc_quantized *v);

/** Lends the keys that are held unpacked, of a layer with keys per channel, rotated where the
 * layer's are: those behind the last whole block of G positions, which nothing else has, and as
 * many before these as are there yet (kvc_cache_held_get: from `first` on).
 * @param k  receives [batch][kv_heads][2 · G][key_dim] of the layer's dtype, position p in row
 *           p mod 2 · G; no rows of an empty layer; owns a reference
 * @errors   KVC_E_INVALID layer; KVC_E_UNSUPPORTED keys that are not packed per channel
 * @lifetime until released; appends write into it */
KVC_API KVC_MUST_USE kvc_status kvc_cache_view_tail(const kvc_cache *cache, int64_t layer,
                                                    kvc_array *k);

/** Tells which position each row of a view holds: 0, 1, 2, … but for windows. O(rows).
 * @param positions  receives [count of rows of a view]; -1 where a row holds none of the sequence
 * @param room       rows that there is room for
 * @errors KVC_E_INVALID layer, sequence; KVC_E_RANGE room is too small; KVC_E_UNSUPPORTED blocks
 * @source the order of mlx-lm's RotatingKVCache */
KVC_API kvc_status kvc_cache_row_positions(const kvc_cache *cache, int64_t layer, int64_t sequence,
                                           int64_t *positions, int64_t room);

/** Drops the last n positions of every sequence and layer: all or none. O(layers · batch); memory
 * stays, but blocks go back to their pool.
 * @errors KVC_E_RANGE n is negative, a sequence has fewer in a layer, a window has overwritten what
 *         its queries would see from there on, or keys per channel are packed that would have to be
 *         unpacked ones again. The sentence says where. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_trim(kvc_cache *cache, int64_t n);

/** As kvc_cache_trim, of one sequence.
 * @errors KVC_E_INVALID sequence, and as kvc_cache_trim */
KVC_API KVC_MUST_USE kvc_status kvc_cache_trim_sequence(kvc_cache *cache, int64_t sequence,
                                                        int64_t n);

/** Returns the largest n that kvc_cache_trim takes; -1 when cache is NULL. O(layers · batch). */
KVC_API int64_t kvc_cache_trimmable(const kvc_cache *cache);

/** Makes every sequence empty; memory stays for the next ones, but blocks go back to their pool. */
KVC_API void kvc_cache_clear(kvc_cache *cache);

/** Makes one sequence empty: what leaves a batch, and makes room for another.
 * @errors KVC_E_INVALID cache is NULL, sequence */
KVC_API kvc_status kvc_cache_clear_sequence(kvc_cache *cache, int64_t sequence);

/** Makes a sequence hold what another does, in every layer. Both then go their own ways. Blocks are
 * shared, O(their number), and copied one at a time by whoever writes to one; otherwise every
 * position is copied.
 * @param to    what it held is dropped
 * @param from  may be to
 * @errors KVC_E_INVALID to, from. Nothing changed. KVC_E_UNSUPPORTED the device cannot copy: `to`
 *         is empty. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_fork(kvc_cache *cache, int64_t to, int64_t from);

/** Makes sequence b hold what sequence from[b] did, for all b at once: the step of a beam search.
 * Costs as forks do; a sequence that stays where it is costs nothing.
 * @param from  [batch]; one may come several times, or not at all
 * @errors KVC_E_INVALID a sequence; KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed. KVC_E_UNSUPPORTED
 *         the device cannot copy: those that were to change are empty. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_reorder(kvc_cache *cache, const int64_t *from);

/** Appends all that a cache holds to an empty one of the same layers and batch, whatever their
 * kinds: packed where `to` is, unpacked where it is not, into blocks and out of them. O(bytes).
 * @param to    empty. Its windows take their last positions (and those that they keep)
 * @param from  its windows must hold what those of `to` see
 * @errors KVC_E_INVALID a cache is NULL, to is not empty, both are the same or on two devices;
 *         KVC_E_SHAPE layers, batch, kv_heads or dims differ; KVC_E_RANGE positions that a window
 *         does not hold any more. Nothing changed. Those of kvc_cache_append: `to` is empty then,
 *         and keeps the room that it had got. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_copy(kvc_cache *to, const kvc_cache *from);

/** As kvc_cache_copy, of one layer: for a caller who wants to do something between two layers, such
 * as to tell how far it has come.
 * @param to     empty in that layer
 * @errors KVC_E_INVALID layer; those of kvc_cache_copy, after which all layers of `to` are empty
 *         where it says that `to` is */
KVC_API KVC_MUST_USE kvc_status kvc_cache_copy_layer(kvc_cache *to, const kvc_cache *from,
                                                     int64_t layer);

/** Tells what a layer holds of a sequence, and where. O(1).
 * @errors KVC_E_INVALID layer, sequence, out */
KVC_API kvc_status kvc_cache_held_get(const kvc_cache *cache, int64_t layer, int64_t sequence,
                                      kvc_cache_held *out);

/** Has an empty layer hold what `held` says, with rows of undefined contents: write these, through
 * views (or the blocks of kvc_cache_block_table) and for all layers, before anything else is done
 * with the cache. How positions come back that were saved. O(batch), plus what growth costs.
 * @param held  [batch], borrowed for the call
 * @errors KVC_E_INVALID layer, a layer that is not empty; KVC_E_RANGE what no such layer can hold,
 *         more than max_positions; KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed, but RESERVE keeps
 *         pages that it had got. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_restore(kvc_cache *cache, int64_t layer,
                                                  const kvc_cache_held *held);

/** As kvc_cache_restore, over rows in a file, of which nothing is read until it is touched, and
 * which all who map it share. A mapping a plane. What is written to the cache goes to private
 * copies of pages, and the file stays as it is. Mapped pages are not counted as resident, written
 * ones among them neither. Until there are more positions than the file has rows the layer's
 * capacity is that of the file; the first append beyond takes RESERVE's address space and moves the
 * pages there, O(batch · kv_heads) system calls, without a copy of what they hold but where heads
 * share a page (Linux before 5.13 copies all). Then growth is in place as ever.
 * @param file  borrowed for the call. Replacing it is no harm; cutting it short raises SIGBUS in
 *              whoever touches what was cut off
 * @errors as kvc_cache_restore; KVC_E_UNSUPPORTED growth other than RESERVE, a device that cannot
 *         map, offsets that are not aligned to the element; KVC_E_IO the system refused. Nothing
 *         changed: kvc_cache_restore is still possible. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_restore_mapped(kvc_cache *cache, int64_t layer,
                                                         const kvc_cache_held *held,
                                                         const kvc_cache_file *file);

/** Lends a sequence's block table, of a paged cache: block i has positions [i · B, (i + 1) · B) in
 * every layer. Where layers have different lengths, as between appends, that of the longest.
 * @param ids    receives [*count]
 * @errors KVC_E_INVALID cache is NULL, sequence; KVC_E_UNSUPPORTED the cache is not paged
 * @lifetime until a call that changes the cache, or fails to; the blocks are the cache's, retain
 *           what is to be kept */
KVC_API kvc_status kvc_cache_block_table(const kvc_cache *cache, int64_t sequence,
                                         const int32_t **ids, int64_t *count);

/** Begins an empty sequence of a paged cache with whole blocks that are there already, such as a
 * prefix tree's match: every layer then has n · B positions. O(n).
 * @param ids  [n], held by the caller, who keeps its references; the cache takes its own
 * @errors KVC_E_INVALID sequence, ids, a block that nobody holds; KVC_E_RANGE the sequence is not
 *         empty, n < 0 or more than max_positions; KVC_E_UNSUPPORTED the cache is not paged;
 *         KVC_E_NOMEM.
 *         Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_cache_adopt(kvc_cache *cache, int64_t sequence,
                                                const int32_t *ids, int64_t n);

/** Returns the positions of the longest sequence in a layer; -1 when there is no such layer. */
KVC_API int64_t kvc_cache_length(const kvc_cache *cache, int64_t layer);

/** Returns the positions of one sequence; -1 when there is no such layer or sequence. */
KVC_API int64_t kvc_cache_sequence_length(const kvc_cache *cache, int64_t layer, int64_t sequence);

/** Returns the positions between the starts of two heads: what the layer's buffers have room for
 * (RESERVE: address space for; PAGED: the positions of a block). -1 when there is no such layer. */
KVC_API int64_t kvc_cache_capacity(const kvc_cache *cache, int64_t layer);

/** Copies the description: spec_count is layers and specs points into the cache.
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set
 * @lifetime of specs: the cache's */
KVC_API kvc_status kvc_cache_desc_get(const kvc_cache *cache, kvc_cache_desc *out);

/** Adds up the bytes of all layers. O(layers · batch).
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_cache_nbytes_get(const kvc_cache *cache, kvc_cache_nbytes *out);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID cache is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_cache_stats *out);

/** Verifies every invariant of every layer. O(layers · batch), and by RESERVE O(live pages), by
 * PAGED O(blocks).
 * @errors KVC_E_CORRUPT the sentence says which one; KVC_E_INVALID cache is NULL */
KVC_API kvc_status kvc_cache_check(const kvc_cache *cache);

/** Returns "reserve", "chunk", "exact" or "paged"; "?" for another value. Static storage. */
KVC_API const char *kvc_growth_name(kvc_growth growth);

KVC_END_DECLS

#endif
