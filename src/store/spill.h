/** @file
 * What a spill holds, and its two halves: spill.c finds and publishes, spill_put.c puts to the
 * tiers on a thread of its own. */
#ifndef KVC_STORE_SPILL_H
#define KVC_STORE_SPILL_H

#include <pthread.h>

#include <kvcache/spill.h>

/** Blocks on their way to the tiers, retained. One allocation with its lists. */
typedef struct kvc__spill_job {
    struct kvc__spill_job *behind; /* the next that waits */
    size_t bytes;                  /* of this allocation */
    int64_t count;
    uint8_t (*keys)[KVC_BLOCK_KEY_BYTES]; /* [count] */
    int32_t *ids;                         /* [count] */
} kvc__spill_job;

struct kvc_spill {
    kvc_prefix *tree;
    kvc_blocks *blocks;
    kvc_tier *tiers[KVC_SPILL_TIERS_MAX];
    int64_t tier_count;
    uint8_t fingerprint[KVC_BLOCK_KEY_BYTES];
    uint64_t most_in_flight;
    kvc_blocks_layout layout; /* of any layer: where a block begins, how long it is */

    pthread_t thread;
    pthread_mutex_t lock; /* of what follows; held around no call to tree, blocks or tiers */
    pthread_cond_t work;  /* the thread: a job waits, or it shall end */
    pthread_cond_t done;  /* callers: nothing is in flight any more */
    kvc__spill_job *first, *last;
    bool stop;
    kvc_spill_stats stats;
};

/** The memory of a block that somebody holds. */
void *kvc__spill_memory(const kvc_spill *spill, int32_t id);

/** Starts the thread.
 * @errors KVC_E_NOMEM */
kvc_status kvc__spill_start(kvc_spill *spill);

/** Ends it, when all jobs are done. */
void kvc__spill_stop(kvc_spill *spill);

/** Hands blocks to the thread: as many from the first on as there is room for in flight. Those are
 * retained, and the lists copied; what is left out is counted. Never waits.
 * @param keys  [count]
 * @param ids   [count], held by the caller */
void kvc__spill_put(kvc_spill *spill, uint8_t (*keys)[KVC_BLOCK_KEY_BYTES], const int32_t *ids,
                    int64_t count);

#endif
