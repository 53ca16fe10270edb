/** @file
 * The insides of a pool of blocks: blocks.c (life, geometry, figures), block_slabs.c (memory and
 * references). The prefix tree shares its lock: see kvc__blocks_tree. */
#ifndef KVC_CACHE_BLOCKS_H
#define KVC_CACHE_BLOCKS_H

#include <pthread.h>
#include <stdbool.h>

#include <kvcache/blocks.h>

#include "cache/map.h"
#include "cache/spec.h"

/** A block as the pool sees it. */
typedef struct kvc__block {
    uint32_t references; /* 0: free */
    union {
        int32_t next_free; /* of a free block: another of its slab, by its place there; -1: none */
        int32_t node;      /* of a held one: where the prefix tree stores it; -1: it does not */
    };
} kvc__block;

/** Blocks that came as one buffer. When that goes back, the slab waits, empty, for another. */
typedef struct kvc__slab {
    kvc_buffer *buffer; /* NULL: retired */
    int32_t index, count, used, first_free;
    struct kvc__slab **list; /* of the pool's lists the one it is in; NULL: full */
    struct kvc__slab *prev, *next;
    kvc__block blocks[]; /* [count] */
} kvc__slab;

/** What the pool asks of the one prefix tree that stores its blocks. Each is called with the pool's
 * lock held, which is the tree's lock too: a block's last reference and its eviction then cannot
 * cross, and no order of two locks has to be kept. */
typedef struct kvc__blocks_tree {
    void *tree;                             /* NULL: none */
    void (*idle)(void *tree, int32_t node); /* all holders but the tree have let go */
    bool (*evict)(void *tree);              /* gives one idle block back; false: none is idle */
    int64_t idle_blocks;                    /* that evict would give, one by one */
} kvc__blocks_tree;

/** Where the planes of a layer lie in a block: each is [kv_heads][B][dim]. */
typedef struct kvc__block_layer {
    int planes_used;
    kvc__row_format rows[KVC__PLANES];
    size_t offset_bytes[KVC__PLANES];
} kvc__block_layer;

struct kvc_blocks {
    kvc_pool *pool; /* held */
    kvc_blocks_desc desc;
    kvc_layer_spec *specs;    /* [layers], behind desc.specs */
    kvc__block_layer *layers; /* [layers] */
    size_t block_bytes;
    int64_t most_blocks, most_slabs;
    int slab_shift;

    pthread_mutex_t lock;   /* over all below, and over the tree */
    pthread_cond_t arrival; /* a slab's memory has come, or has not */
    int64_t coming;         /* slabs that threads get memory for, in no list meanwhile */
    size_t holds;           /* owner, tree and caches: the last one ends it */
    kvc__slab **slabs;      /* [most_slabs], the first `made` are there */
    void **bases;           /* [most_slabs] their memory, for kernels */
    int64_t made;
    kvc__slab *open, *empty, *retired; /* lists: some blocks free, all of them, no memory */
    int64_t empties, free_blocks, used_blocks, peak_blocks;
    size_t resident_bytes;
    kvc__blocks_tree tree;
};

/** Verifies that a call was given a pool of blocks.
 * @errors KVC_E_INVALID it is NULL */
kvc_status kvc__blocks_given(const kvc_blocks *blocks);

/** Verifies that there is such a layer.
 * @errors KVC_E_INVALID blocks is NULL, layer */
kvc_status kvc__blocks_layer(const kvc_blocks *blocks, int64_t layer);

/** Tells where blocks lie, without a table. */
kvc__map kvc__blocks_map(const kvc_blocks *blocks);

void kvc__blocks_lock(kvc_blocks *blocks);

/** Gives back to the buffer pool what is empty beyond one slab, and unlocks. */
void kvc__blocks_unlock(kvc_blocks *blocks);

/** Keeps the pool alive until kvc__blocks_drop_hold. */
void kvc__blocks_hold(kvc_blocks *blocks);

/** Ends one hold, the lock not held. The last one ends the pool. */
void kvc__blocks_drop_hold(kvc_blocks *blocks);

/** Returns the block of an id, or NULL when there is none in memory. With the lock held. */
kvc__block *kvc__blocks_find(const kvc_blocks *blocks, int32_t id);

/** Drops a reference of a block that has one; the last frees it. With the lock held. */
void kvc__blocks_drop(kvc_blocks *blocks, int32_t id);

/** Tells whether a caller, not the tree alone, holds a block. */
static inline bool kvc__block_is_lent(const kvc__block *block) {
    if (!block || block->references == 0) return false;
    return block->references > (block->node >= 0 ? 1u : 0u);
}

/** Frees all slabs of a pool that ends. */
void kvc__blocks_free_slabs(kvc_blocks *blocks);

/** Verifies slabs, lists and counts, with the lock held.
 * @errors KVC_E_CORRUPT */
kvc_status kvc__blocks_check_slabs(const kvc_blocks *blocks);

#endif
