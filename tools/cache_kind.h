/** @file
 * --cache and its like: kinds of cache by their text, the same in every command.
 *
 *     reserve | chunk | concat | paged[:BLOCK]    how a cache grows; reserve where not said
 *     window:W[:KEEP]                             which positions it keeps; all where not said
 *     qBITS[c][r][:GROUP]                         how its numbers are packed; not, where not said.
 * c: keys per channel, r: rotated before
 *
 * One of each may be joined by '+': "q8+paged:32", "q4:32+window:4096:4". */
#ifndef KVCACHE_TOOLS_CACHE_KIND_H
#define KVCACHE_TOOLS_CACHE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/dtype.h>
#include <kvcache/pool.h>

/** A kind of cache. Zeroed, it is "reserve". */
typedef struct cache_kind {
    int64_t window, keep;           /**< as in kvc_layer_spec; 0: all positions are kept */
    int64_t block;                  /**< positions of a block, by KVC_GROW_PAGED; else 0 */
    kvc_growth growth;              /**< as in kvc_cache_desc */
    int bits, group;                /**< as kv_bits and kv_group of kvc_layer_spec; 0: not packed */
    bool keys_per_channel, rotated; /**< as in kvc_layer_spec */
} cache_kind;

/** Room for a kind as text. */
enum { CACHE_KIND_ROOM = 64 };

/** The forms that a text may have, for helps. */
#define CACHE_KIND_FORMS                                                                           \
    "reserve, chunk, concat, paged[:BLOCK], window:W[:KEEP] or qBITS[c][r][:GROUP]"

/** Reads a kind, and tells nobody.
 * @return NULL, or what is wanted instead, to end a sentence: "... wanted"; *out is unchanged then
 */
const char *cache_kind_parse(const char *text, cache_kind *out);

/** Reads a kind.
 * @param name  the option, for the error: "--cache"
 * @return true, or false after telling what was given and what is wanted; *out is unchanged */
bool cache_kind_read(const char *name, const char *text, cache_kind *out);

/** Reads different kinds with commas between into out[room]. As cache_kind_read. */
bool cache_kind_list(const char *name, const char *text, cache_kind *out, size_t room,
                     size_t *count);

/** Writes the shortest text that cache_kind_read takes for the kind: "q8+paged". Returns out. */
const char *cache_kind_text(char out[CACHE_KIND_ROOM], const cache_kind *kind);

/** Tells whether rows of `dim` elements can be of the kind; if not, says so as cache_kind_read. */
bool cache_kind_fits(const char *name, const cache_kind *kind, int64_t dim);

/** Returns the description of a layer of the kind, keys and values alike. */
kvc_layer_spec cache_kind_spec(const cache_kind *kind, int64_t kv_heads, int64_t dim,
                               kvc_dtype dtype);

/** Returns the bytes of a position in a layer, keys and values, scales and biases. */
uint64_t cache_kind_position_bytes(const kvc_layer_spec *spec);

/** Makes the pool of blocks that a paged cache wants in its description.
 * @param out  receives NULL where the kind is not paged
 * @errors     those of kvc_blocks_new */
KVC_MUST_USE kvc_status cache_kind_blocks(kvc_blocks **out, kvc_pool *pool, const cache_kind *kind,
                                          const kvc_layer_spec *spec, int64_t layers);

#endif
