/** @file
 * A prefix tree with tiers below it: blocks outlive their eviction and the process, and are found
 * again by whoever has the same tokens, model and namespace.
 *
 * What is published goes into the tree at once and to every tier soon (write-through): a block that
 * the tree evicts later is below already, and so is one whose process is killed. A match asks the
 * tree, then the tiers for what is behind that, in order; what a tier has is read into blocks of
 * the pool, inserted into the tree, and put to those tiers that did not have it.
 *
 * Tiers never make a call fail: what they lack, refuse, garble or have no memory for is a miss, and
 * is computed again. What they give is verified before it is used (tier.h): its key, which the
 * namespace seeds, its fingerprint, its checksum.
 *
 * Puts are made by one thread of the spill's. A block is retained until its puts have ended, so
 * that nobody reuses it under them; at most so many blocks are. A publish never waits for a tier:
 * what finds no room stays in the tree alone.
 *
 * All calls are thread-safe, but for kvc_spill_free. Of libkvcache-store. */
#ifndef KVCACHE_SPILL_H
#define KVCACHE_SPILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/block_key.h>
#include <kvcache/export.h>
#include <kvcache/prefix.h>
#include <kvcache/status.h>
#include <kvcache/tier.h>

/** The most tiers of a spill. */
#define KVC_SPILL_TIERS_MAX 8

/** Blocks on their way to the tiers at once, where a description says 0; or a quarter of what the
 * pool of blocks may have, if that is less. */
#define KVC_SPILL_IN_FLIGHT_DEFAULT 256

/** What a spill joins. Zero it, then fill it. */
typedef struct kvc_spill_desc {
    size_t struct_size;                       /**< sizeof(kvc_spill_desc) */
    kvc_prefix *tree;                         /**< of blocks in host memory (the cpu device) */
    kvc_tier *const *tiers;                   /**< [tier_count], in the order of asking */
    int64_t tier_count;                       /**< 1 to KVC_SPILL_TIERS_MAX */
    uint8_t fingerprint[KVC_BLOCK_KEY_BYTES]; /**< of the tree's blocks: kvc_block_fingerprint, the
                                                   same that the tiers were made with */
    int64_t most_in_flight; /**< blocks retained for puts at once; 0: the default */
} kvc_spill_desc;

/** Figures of one tier below a tree. */
typedef struct kvc_spill_tier_stats {
    uint64_t asked_blocks; /**< asked for, by matches */
    uint64_t found_blocks; /**< of these: brought back, and given to a caller */
    uint64_t put_blocks;   /**< kept by it */
    uint64_t had_blocks;   /**< to be put, but there already */
    uint64_t fault_blocks; /**< to be put, and not kept */
} kvc_spill_tier_stats;

/** Figures of a spill, always on. */
typedef struct kvc_spill_stats {
    size_t struct_size;     /**< sizeof(kvc_spill_stats), set by the caller */
    uint64_t lookups;       /**< matches */
    uint64_t lookup_blocks; /**< full blocks that these were asked for */
    uint64_t tree_blocks;   /**< of these: found in the tree */
    kvc_spill_tier_stats tiers[KVC_SPILL_TIERS_MAX]; /**< in their order */
    uint64_t skipped_blocks;                         /**< not put to any tier: no room in flight, or
                                                          no memory */
    uint64_t in_flight_blocks;                       /**< retained for puts now */
} kvc_spill_stats;

/** A spill. */
typedef struct kvc_spill kvc_spill;

KVC_BEGIN_DECLS

/** Starts a spill, with its thread.
 * @param desc  tree and tiers are borrowed until kvc_spill_free; the list is not
 * @errors KVC_E_INVALID a description; KVC_E_UNSUPPORTED blocks of another device than cpu;
 *         KVC_E_NOMEM no memory or no thread */
KVC_API KVC_MUST_USE kvc_status kvc_spill_new(kvc_spill **out, const kvc_spill_desc *desc);

/** Waits for the puts under way, which end within the tiers' times, and ends the thread. No other
 * thread may be inside a call. NULL is allowed. */
KVC_API void kvc_spill_free(kvc_spill *spill);

/** Finds the longest prefix of a sequence that tree and tiers have, block after block: as
 * kvc_prefix_match, and where the tree ends O(n) to hash the tokens, a round trip to each tier and
 * the reads. Waits for tiers, for as long as their times allow. Blocks come from the pool, which
 * may evict idle ones for them; a pool that has no more to give ends the prefix.
 * What came from a tier is stored with priority 0, until it is published with a higher one. Two
 * threads that bring the same block back at once each have their own, and one is stored.
 * @param ids    receives [*count], room for n / B; each retained for the caller
 * @param count  receives the blocks found
 * @errors as kvc_prefix_match, and KVC_E_INVALID ids is NULL with a full block to find */
KVC_API KVC_MUST_USE kvc_status kvc_spill_match(kvc_spill *spill, const kvc_prefix_namespace *space,
                                                const int32_t *tokens, int64_t n, int32_t *ids,
                                                int64_t *count);

/** Publishes the full blocks of a sequence in the tree, as kvc_prefix_insert, and starts to put to
 * the tiers those that the tree did not have: O(n) to hash the tokens. The blocks must not be
 * written to from now on.
 * @param ids  [n / B], blocks that the caller holds and has written; borrowed
 * @errors as kvc_prefix_insert. Nothing changed. */
KVC_API KVC_MUST_USE kvc_status kvc_spill_publish(kvc_spill *spill,
                                                  const kvc_prefix_namespace *space,
                                                  const int32_t *tokens, int64_t n,
                                                  const int32_t *ids, int priority);

/** Waits until nothing is on its way to the tiers, for at most so long; UINT64_MAX waits for the
 * end. True when nothing is. */
KVC_API bool kvc_spill_wait(kvc_spill *spill, uint64_t timeout_ns);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID spill is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_spill_stats_get(kvc_spill *spill, kvc_spill_stats *out);

KVC_END_DECLS

#endif
