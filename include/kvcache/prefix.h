/** @file
 * The prefix tree: finds blocks whose keys and values were computed before, for the same tokens.
 *
 * A tree stores blocks of one pool (blocks.h) under the tokens that led to them: a block is a node
 * below the block before it, and is found by that and by its own B tokens, so that equal nodes mean
 * equal tokens from the first one on. Only full blocks are stored. A hash leads to a node, the
 * tokens themselves are compared: a hit is exact.
 *
 * A server's turn: match what a new prompt begins with, append the rest to blocks of its own, and
 * insert its table once those are written. What is inserted can be matched at once, so that a block
 * must not be inserted before its contents are there, nor written to afterwards. An append that is
 * given up is simply not inserted.
 *
 * Eviction. The tree holds a reference to each block. A block is idle when nobody else holds it or
 * a block behind it, and none of these is pinned. To keep below its limit, or when the pool of
 * blocks has no others to give, the tree evicts idle blocks: those of the lowest priority first, of
 * these the least recently used, and never a block before those behind it. A block is used by a
 * match, an insert and a pin, and until its last holder releases it. Its priority is the highest
 * that it, or a block behind it, was inserted with.
 *
 * A pool of blocks has one tree at most; namespaces keep tenants apart. What differs in layers or
 * dtype has another pool, hence another tree; what differs in weights has another namespace.
 *
 * Nodes and their table lie in host memory of the cpu device, in pieces of 2 MiB for huge pages;
 * names of namespaces come from the allocator of small objects.
 *
 * All calls are thread-safe; the tree shares the lock of its pool of blocks.
 * @source SGLang's RadixAttention (a tree of tokens, evicted leaf by leaf), vLLM's prefix caching
 *         (a block is known by its parent and its tokens). vLLM trusts the hash; here it does not
 *         decide. */
#ifndef KVCACHE_PREFIX_H
#define KVCACHE_PREFIX_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** Priorities go from 0, evicted first, to one less. */
#define KVC_PREFIX_PRIORITIES 8

/** Some bytes of the caller's; data may be NULL when there are none. */
typedef struct kvc_bytes {
    const void *data;  /**< [size_bytes], borrowed for the call */
    size_t size_bytes; /**< how many */
} kvc_bytes;

/** Whose tokens these are. Two namespaces are one only if each field has the same bytes: fields are
 * kept with their lengths, so that "ab" and "c" are not "a" and "bc". Zero it, then fill it. */
typedef struct kvc_prefix_namespace {
    size_t struct_size; /**< sizeof(kvc_prefix_namespace) */
    kvc_bytes tenant;   /**< who may share, such as a user, or a salt */
    kvc_bytes adapter;  /**< what else bends the model: its name and version */
    kvc_bytes model;    /**< what the weights and position coding are: a fingerprint */
} kvc_prefix_namespace;

/** What happened. */
typedef enum kvc_prefix_event_kind {
    KVC_PREFIX_STORED = 0,  /**< a block was stored */
    KVC_PREFIX_EVICTED = 1, /**< a block was taken out; its reference is dropped */
    KVC_PREFIX_HIT = 2      /**< a match found blocks; the event tells the last of them */
} kvc_prefix_event_kind;

/** One event. Pointers are good for the callback only. */
typedef struct kvc_prefix_event {
    kvc_prefix_event_kind kind; /**< what happened */
    int32_t block;              /**< to which block */
    int32_t parent;             /**< the block before it; KVC_BLOCK_NONE for the first */
    int64_t positions;          /**< of the prefix that ends with the block */
    const int32_t *tokens;      /**< [B] of the block */
} kvc_prefix_event;

/** Receives events in the order in which they happen, on the thread that caused them and with the
 * lock held; must not call the tree or its pool of blocks. */
typedef void (*kvc_prefix_event_fn)(void *context, const kvc_prefix_event *event);

/** Figures of a tree, always on. */
typedef struct kvc_prefix_stats {
    size_t struct_size;        /**< sizeof(kvc_prefix_stats), set by the caller */
    uint64_t lookups;          /**< matches asked for */
    uint64_t hits;             /**< that found one block at least */
    uint64_t lookup_positions; /**< tokens asked for, in full blocks */
    uint64_t hit_positions;    /**< tokens found */
    uint64_t stored;           /**< blocks taken in so far */
    uint64_t evicted;          /**< blocks taken out so far */
    uint64_t blocks;           /**< stored now */
    uint64_t block_bytes;      /**< their memory */
    uint64_t idle_blocks;      /**< of these: that eviction would give back, each counted once */
    uint64_t namespaces;       /**< with a block now */
    uint64_t limit_bytes;      /**< the limit in force; UINT64_MAX: none */
    uint64_t index_bytes;      /**< memory of the tree itself, tokens included */
} kvc_prefix_stats;

/** A prefix tree. */
typedef struct kvc_prefix kvc_prefix;

KVC_BEGIN_DECLS

/** Makes an empty tree over a pool of blocks, without a limit of its own.
 * @param blocks  kept alive by the tree
 * @errors KVC_E_INVALID blocks is NULL or has a tree; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_prefix_new(kvc_prefix **out, kvc_blocks *blocks);

/** Drops all that is stored, pins too, without events. Blocks that others hold stay theirs. No
 * other thread may be inside a call on the tree; on its blocks they may. NULL is allowed. */
KVC_API void kvc_prefix_free(kvc_prefix *tree);

/** Returns the pool of blocks that it is over; NULL when tree is NULL. O(1).
 * @lifetime as long as the tree */
KVC_API kvc_blocks *kvc_prefix_blocks(const kvc_prefix *tree);

/** Finds the longest stored prefix of a sequence: O(blocks found), each compared token by token.
 * An engine that wants logits of the last token gives all tokens but that one.
 * @param space   NULL for the namespace whose fields are all empty
 * @param tokens  [n], borrowed for the call; what follows the last full block is ignored
 * @param ids     receives [*count], room for n / B; each block is retained for the caller, who
 *                gives it to kvc_blocks_release. NULL: only counted, which is no use and no lookup
 * @param count   receives the blocks found, 0 when there is none
 * @errors KVC_E_INVALID n < 0 or a pointer is NULL; space->struct_size is not set */
KVC_API KVC_MUST_USE kvc_status kvc_prefix_match(kvc_prefix *tree,
                                                 const kvc_prefix_namespace *space,
                                                 const int32_t *tokens, int64_t n, int32_t *ids,
                                                 int64_t *count);

/** Publishes the full blocks of a sequence: O(blocks), amortized, with evictions where the limit
 * wants some. Under tokens that are stored already the stored block stays, the caller's is not
 * needed. Where the limit leaves no room, the blocks at the end are left out.
 * @param ids       [n / B], the sequence's table from its first position on; blocks that the caller
 *                  holds and has written, borrowed: the tree retains what it stores
 * @param priority  0 to KVC_PREFIX_PRIORITIES - 1
 * @param stored    receives the blocks that were taken in; may be NULL
 * @errors KVC_E_INVALID n < 0, a pointer is NULL, the priority; a block that the caller does not
 *         hold, that comes twice or is stored under other tokens; KVC_E_NOMEM. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_prefix_insert(kvc_prefix *tree,
                                                  const kvc_prefix_namespace *space,
                                                  const int32_t *tokens, int64_t n,
                                                  const int32_t *ids, int priority,
                                                  int64_t *stored);

/** Keeps the longest stored prefix of a sequence from eviction, such as a system prompt: O(blocks).
 * Pins are counted.
 * @param count  receives the blocks that are pinned now: unpin with as many
 * @errors as kvc_prefix_match */
KVC_API KVC_MUST_USE kvc_status kvc_prefix_pin(kvc_prefix *tree, const kvc_prefix_namespace *space,
                                               const int32_t *tokens, int64_t n, int64_t *count);

/** Takes back one pin of the same tokens.
 * @param n  count × B of the pin
 * @errors KVC_E_INVALID no such prefix is pinned, and as kvc_prefix_match. Nothing changed. */
KVC_API kvc_status kvc_prefix_unpin(kvc_prefix *tree, const kvc_prefix_namespace *space,
                                    const int32_t *tokens, int64_t n);

/** Evicts idle blocks until `bytes` of them are given back, or none is idle: O(blocks evicted).
 * UINT64_MAX empties the tree of all that is not in use. Returns the bytes given back. */
KVC_API uint64_t kvc_prefix_evict(kvc_prefix *tree, uint64_t bytes);

/** Sets the most bytes of blocks stored (UINT64_MAX: none; 0 stores nothing) and returns the
 * previous limit. Idle blocks are evicted until it holds; others stay until they are idle. */
KVC_API uint64_t kvc_prefix_limit_set(kvc_prefix *tree, uint64_t bytes);

/** Sends events to fn from now on; NULL sends none. */
KVC_API void kvc_prefix_event_set(kvc_prefix *tree, kvc_prefix_event_fn fn, void *context);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID tree is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_prefix_stats_get(kvc_prefix *tree, kvc_prefix_stats *out);

/** Verifies every invariant: O(blocks stored).
 * @errors KVC_E_CORRUPT the sentence says which one; KVC_E_NOMEM; KVC_E_INVALID tree is NULL */
KVC_API kvc_status kvc_prefix_check(kvc_prefix *tree);

KVC_END_DECLS

#endif
