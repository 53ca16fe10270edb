/** @file
 * What random operations on caches of random kinds work on. The caches of a model are of one
 * geometry, so that each can be copied to each; the paged ones share a pool of blocks. */
#ifndef KVC_TEST_CACHE_KINDS_MODEL_H
#define KVC_TEST_CACHE_KINDS_MODEL_H

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/naive_batch.h"
#include "support/support.h"
#include "support/test_device.h"

enum {
    CACHES = 3,
    MAX_LAYERS = 3,
    MAX_BATCH = 4,
    HELD_BLOCKS = 6,
    VIEWS = 4,
    LONGEST = 200,
    MOST_BLOCKS = 400
};

/** A block that the test holds a reference to, and what it must go on to hold. */
typedef struct held_block {
    int32_t id;                   /* KVC_BLOCK_NONE: none */
    int64_t count[MAX_LAYERS];    /* positions of it that were live */
    uint8_t *records[MAX_LAYERS]; /* [count] */
} held_block;

/** A view of a layer without a window, and how much of it must still be there. */
typedef struct kept_view {
    int cache; /* -1: none, or nothing is written there any more */
    int64_t layer, stable[MAX_BATCH];
    kvc_array k, v;
    naive_batch seen;
} kept_view;

/** All of it. */
typedef struct model {
    uint64_t random;
    size_t allocated; /* objects of the allocator before */
    test_device device;
    kvc_pool *pool;
    bool plain;                       /* on the test device: neither windows nor packed rows */
    int64_t layers, batch, positions; /* positions: of a block */
    kvc_layer_spec geometry[MAX_LAYERS], paged[MAX_LAYERS];
    kvc_layer_spec usual[MAX_LAYERS]; /* that several caches have: copied as they lie */
    kvc_blocks *blocks;
    int32_t hoard[MOST_BLOCKS]; /* blocks that nobody is to get for now */
    int64_t hoarded;
    kvc_cache *caches[CACHES];
    kvc_cache_desc descs[CACHES];
    naive_batch naives[CACHES];
    held_block held[HELD_BLOCKS];
    kept_view views[VIEWS];
    uint64_t steps, failures, refusals, copies, forks, trims; /* that happened */
} model;

#define FOR_EACH_CACHE for (int c = 0; c < CACHES; c++)

static inline int64_t between(model *m, int64_t low, int64_t high) {
    return low + test_below(&m->random, high - low + 1);
}

static inline bool one_in(model *m, int64_t n) {
    return between(m, 1, n) == 1;
}

/** Returns f32, f16 or bf16. */
kvc_dtype random_dtype(model *m);

/** Makes a model of a seed, and ends one: nothing is left. */
void model_init(model *m, uint64_t seed);
void model_deinit(model *m);

/** Ends a cache, and makes one of another kind in its place. */
void renew_cache(model *m, int c);

/** Lets the next call fail at a random point, of the allocator or the test device, or run into the
 * limit of the pool or of the blocks; or not at all. */
void fail_somewhere(model *m);

/** Ends that; tells whether the call failed of it. */
bool struck(model *m, kvc_status status);

/** Keeps any block of any sequence of a paged cache, the last, half full one among them. */
void hold_block(model *m, int c);

/** Keeps a view of a layer, where it can be viewed. */
void keep_view(model *m, int c, int64_t layer);

/** Notes that positions of a sequence from its length on, or all, may be written again. */
void unsettle_views(model *m, int c, int64_t sequence, bool rewritten);

/** Fails the test unless every cache, view and block is as it must be. */
void assert_model(model *m);

#endif
