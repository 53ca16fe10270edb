/** @file
 * A process with a pool of blocks, a tree and a spill. Blocks are computed from all that their
 * bytes should depend on, so that whatever is found can be verified. */
#ifndef KVC_TEST_SPILL_FIXTURE_H
#define KVC_TEST_SPILL_FIXTURE_H

#include <kvcache/spill.h>

enum { SPILL_B = 16 /**< positions of a block, of 128 bytes */ };

/** One process; several of them may share tiers. */
typedef struct spill_machine {
    kvc_pool *pool;
    kvc_blocks *blocks;
    kvc_prefix *tree;
    kvc_spill *spill;
} spill_machine;

/** Starts one whose pool has so many blocks. */
void spill_machine_init(spill_machine *m, uint64_t most_blocks, kvc_tier *const *tiers,
                        int64_t tier_count);

/** Ends it, after waiting for its puts and checking everything. */
void spill_machine_deinit(spill_machine *m);

/** The block's bytes, [128]. */
void *spill_memory(const spill_machine *m, int32_t id);

/** Writes the bytes that the last block of tokens [n] has; NULL tenant: no namespace. */
void spill_expected(void *out, const char *tenant, const int32_t *tokens, int64_t n);

/** Matches and verifies: [*count] blocks are the caller's. Returns their count. */
int64_t spill_match_held(const spill_machine *m, const char *tenant, const int32_t *tokens,
                         int64_t n, int32_t *ids);

/** The same, and lets go of them. */
int64_t spill_find(const spill_machine *m, const char *tenant, const int32_t *tokens, int64_t n);

/** A turn of an engine: matches, computes the rest, as far as the pool has blocks for it, publishes
 * and lets go. Returns the blocks found; *published receives how many there were at the end. */
int64_t spill_turn(const spill_machine *m, const char *tenant, const int32_t *tokens, int64_t n,
                   int64_t *published);

/** Waits for puts, and empties the tree. */
void spill_forget(const spill_machine *m);

/** The figures. */
kvc_spill_stats spill_stats(const spill_machine *m);

#endif
