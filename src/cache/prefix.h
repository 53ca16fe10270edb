/** @file
 * The insides of the prefix tree: prefix.c (what callers ask), prefix_tree.c (what is held, idle,
 * evicted), prefix_table.c (nodes and how they are found), prefix_check.c.
 *
 * All of it runs with the lock of the pool of blocks held. */
#ifndef KVC_CACHE_PREFIX_H
#define KVC_CACHE_PREFIX_H

#include <kvcache/prefix.h>

#include "cache/blocks.h"

/** A stored block, or the root of a namespace. Its tokens, or its name, lie behind it.
 *
 * `holds` counts what keeps a node from being idle: callers who hold its block (1 for all of them),
 * pins, and children that are held themselves. So a node with no holds has an idle subtree. The
 * idle ones are listed, newest last. A child is idle before its parent can be, and a use of the
 * child is one of the parent too: so the oldest of a list has no children there, and as no child
 * has a higher priority, none at all. Eviction takes it, whatever the tree looks like.
 *
 * A node that comes to be held stays in its list until eviction meets it or it is idle again: a
 * match then does not touch its neighbours, which lie anywhere. */
typedef struct kvc__prefix_node {
    uint32_t hash;
    int32_t parent; /* -1: a root. Of a node that is free: the next free one */
    int32_t block;  /* -1: a root */
    int32_t depth;  /* blocks from the root to here */
    int32_t children;
    int32_t holds;
    int32_t pins;
    int32_t newer, older; /* while it is listed */
    uint8_t priority;
    bool listed; /* in the list of its priority: all that are idle, and some that were */
    bool lent;   /* callers hold the block */
} kvc__prefix_node;

/** The name of a root: its fields, each with its length before it. */
typedef struct kvc__prefix_name {
    unsigned char *bytes;
    size_t size_bytes;
} kvc__prefix_name;

/** A place of the table. */
typedef struct kvc__prefix_slot {
    uint32_t hash;
    int32_t node;  /* one more than the node; 0: free */
    int32_t block; /* of the node: so that its references are on their way while tokens compare */
} kvc__prefix_slot;

/** Listed nodes of one priority; -1 each when there are none. */
typedef struct kvc__prefix_list {
    int32_t oldest, newest;
} kvc__prefix_list;

struct kvc_prefix {
    kvc_blocks *blocks; /* held */
    int64_t positions;  /* of a block */
    uint64_t seed;      /* of the hashes: unknown outside, so that nobody can make them collide */

    const kvc_device *host; /* where nodes and table lie: on huge pages, as each step of a walk
                               leads to another page */
    char **segments;        /* [segment_room] of 2^segment_shift nodes each, which never move */
    size_t node_bytes, segment_room;
    int segment_shift;
    int32_t made, spare, first_spare; /* nodes in segments, of these free, the first of those */

    kvc__prefix_slot *slots; /* [slot_room], a power of two, half of it free */
    size_t slot_room, slots_used;

    kvc__prefix_list idle[KVC_PREFIX_PRIORITIES];
    int64_t stored, roots, limit_blocks;
    uint64_t limit_bytes;
    size_t name_bytes;
    kvc_prefix_event_fn event;
    void *event_context;
    kvc_prefix_stats stats; /* the figures that only grow */
};

static inline kvc__prefix_node *kvc__prefix_at(const kvc_prefix *tree, int32_t node) {
    const int32_t place = node & (((int32_t)1 << tree->segment_shift) - 1);
    return (kvc__prefix_node *)(void *)(tree->segments[node >> tree->segment_shift] +
                                        (size_t)place * tree->node_bytes);
}

static inline int32_t *kvc__prefix_tokens(kvc__prefix_node *node) {
    return (int32_t *)(void *)(node + 1);
}

static inline kvc__prefix_name *kvc__prefix_name_of(kvc__prefix_node *root) {
    return (kvc__prefix_name *)(void *)(root + 1);
}

/* prefix_table.c */

/** Lays out nodes for tree->positions; takes no memory yet. */
void kvc__prefix_table_init(kvc_prefix *tree);

/** The hash of a block's tokens below a parent. */
uint32_t kvc__prefix_hash(const kvc_prefix *tree, int32_t parent, const int32_t *tokens);

/** Finds the child of a node with exactly these tokens; -1 when there is none. */
int32_t kvc__prefix_find(const kvc_prefix *tree, int32_t parent, const int32_t *tokens);

/** Finds the root of exactly this namespace; -1 when there is none. */
int32_t kvc__prefix_find_root(const kvc_prefix *tree, const kvc_prefix_namespace *space);

/** Sees to memory for n more nodes. O(1) amortized: where the table doubles, it is filled anew.
 * @errors KVC_E_NOMEM, KVC_E_RANGE. Nothing changed but memory that waits. */
kvc_status kvc__prefix_reserve(kvc_prefix *tree, int64_t n);

/** Makes the node of a block; there is memory for it. Not held, not listed, the parent untouched.
 */
int32_t kvc__prefix_add(kvc_prefix *tree, int32_t parent, const int32_t *tokens, int32_t block);

/** Makes the root of a namespace; there is memory for the node.
 * @errors KVC_E_NOMEM, KVC_E_RANGE for its name. Nothing changed. */
kvc_status kvc__prefix_add_root(kvc_prefix *tree, const kvc_prefix_namespace *space, int32_t *out);

/** Takes a node out of the table and keeps its memory for another. */
void kvc__prefix_remove(kvc_prefix *tree, int32_t index);

/** Frees all memory of nodes and table. */
void kvc__prefix_table_deinit(kvc_prefix *tree);

/* prefix_tree.c */

/** Adds a hold to a node; those before it are held by it. O(nodes that were idle). */
void kvc__prefix_hold(kvc_prefix *tree, int32_t index);

/** Drops a hold. What is idle by that becomes the newest, children first. */
void kvc__prefix_drop(kvc_prefix *tree, int32_t index);

/** Gives a node, and so those before it, at least this priority; it must be held. */
void kvc__prefix_raise(kvc_prefix *tree, int32_t index, uint8_t priority);

/** Sends an event about a node. */
void kvc__prefix_tell(const kvc_prefix *tree, kvc_prefix_event_kind kind, int32_t index);

/** Takes a root out if it has lost its last child. */
void kvc__prefix_remove_root(kvc_prefix *tree, int32_t root);

/** Evicts the oldest idle node of the lowest priority; false when none is idle. O(1) amortized:
 * what matches left in the lists is taken off here. */
bool kvc__prefix_evict_one(kvc_prefix *tree);

/** Evicts until `more` blocks fit under the limit, as far as blocks are idle. */
void kvc__prefix_evict_for(kvc_prefix *tree, int64_t more);

/* prefix_check.c */

/** Verifies every invariant.
 * @errors KVC_E_CORRUPT, KVC_E_NOMEM */
kvc_status kvc__prefix_check_all(const kvc_prefix *tree);

#endif
