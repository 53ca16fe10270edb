/** @file
 * A cache of any kind as simple as one can be: per layer and sequence a list of positions, each a
 * record of the bytes that the real cache is to hold for it. It never forgets: what a window may
 * have dropped is not compared. The real cache is read through public calls alone. */
#ifndef KVC_TEST_NAIVE_BATCH_H
#define KVC_TEST_NAIVE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/naive_record.h"

/** A sequence in a layer. */
typedef struct naive_list {
    uint8_t *bytes; /* [length][record_bytes] */
    int64_t length;
    size_t record_bytes;  /* naive_record.h */
    int64_t sees_from;    /* of a window: held from here on, with what it keeps */
    int64_t trimmable;    /* of a window: at least so many can be trimmed */
    int64_t tail_from;    /* of keys per channel: held unpacked from here on */
    record_block *blocks; /* [block_count][kv_heads], the first of those that are packed */
    int64_t block_count;
} naive_list;

/** All of a cache. */
typedef struct naive_batch {
    int64_t layers, batch, slack;
    kvc_layer_spec *specs; /* [layers] */
    naive_list *lists;     /* [layers][batch] */
    kvc_blocks *blocks;    /* of a paged cache; else NULL */
} naive_batch;

/** Makes an empty cache of the real one's kind. */
void naive_batch_init(naive_batch *naive, const kvc_cache *cache);
void naive_batch_deinit(naive_batch *naive);

/** Returns one list. */
naive_list *naive_batch_list(const naive_batch *naive, int64_t layer, int64_t sequence);

/** Appends the first counts[b] positions of k and v to sequence b; counts NULL: all. */
void naive_batch_append(naive_batch *naive, int64_t layer, const kvc_array *k, const kvc_array *v,
                        const int64_t *counts);

void naive_batch_trim(naive_batch *naive, int64_t sequence, int64_t n);
void naive_batch_clear(naive_batch *naive, int64_t sequence);

/** Sequence b becomes what from[b] was. */
void naive_batch_reorder(naive_batch *naive, const int64_t *from);

/** Appends n records of the same layer kind. */
void naive_list_append(naive_list *list, const uint8_t *bytes, int64_t n);

/** Fills an empty cache with what another holds, as far as it may have been forgotten there. */
void naive_batch_copy(naive_batch *to, const naive_batch *from);

/** Tells for each position of a sequence in a layer of the real cache whether it is held.
 * @param held  receives [length] */
void cache_held(bool *held, const kvc_cache *cache, int64_t layer, int64_t sequence);

/** Returns how many positions a layer must be able to trim from a sequence; a window, given what it
 * holds. */
int64_t naive_trimmable(const naive_batch *naive, const kvc_cache *cache, int64_t layer,
                        int64_t sequence);

/** Tells whether a sequence of a layer holds what a query at its end sees, with another window. */
bool cache_holds_window(const kvc_cache *cache, int64_t layer, int64_t sequence,
                        const kvc_layer_spec *seen_by);

/** Returns the first row at which a block's layer is not what `count` records say; -1: none. */
int64_t block_differs(kvc_blocks *blocks, int32_t id, int64_t layer, const kvc_layer_spec *spec,
                      const uint8_t *bytes, int64_t count);

/** Fails the test unless the first `count` positions of a sequence, in a view of a layer that is
 * neither packed nor a window, are those of the naive one. */
void assert_rows_equal(const naive_batch *naive, int64_t layer, int64_t sequence,
                       const kvc_array *k, const kvc_array *v, int64_t count);

/** Fails the test unless a cache holds what the naive one does, to the bit, windows hold what they
 * must, and kvc_cache_check has nothing to say. */
void assert_batch_equal(const naive_batch *naive, const kvc_cache *cache);

#endif
