#include "cache/prefix.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/trace.h"

enum { PENDING = -2 }; /* of a block: about to be stored */

static void on_idle(void *context, int32_t node) {
    kvc_prefix *tree = context;
    kvc__prefix_at(tree, node)->lent = false;
    kvc__prefix_drop(tree, node);
    kvc__prefix_evict_for(tree, 0);
}

static bool on_evict(void *context) {
    return kvc__prefix_evict_one(context);
}

/* Makes the tree that of its pool of blocks, if that has none. */
static kvc_status attach(kvc_prefix *tree) {
    kvc_blocks *blocks = tree->blocks;
    kvc__blocks_lock(blocks);
    const bool is_free = !blocks->tree.tree;
    if (is_free) {
        blocks->tree = (kvc__blocks_tree){.tree = tree, .idle = on_idle, .evict = on_evict};
        blocks->holds++;
    }
    kvc__blocks_unlock(blocks);
    if (is_free) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "blocks: has a prefix tree, one without wanted");
}

kvc_status kvc_prefix_new(kvc_prefix **out, kvc_blocks *blocks) {
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__blocks_given(blocks));
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_prefix), "prefix"));
    kvc_prefix *tree = memory;
    tree->blocks = blocks;
    tree->positions = blocks->desc.positions;
    tree->seed = kvc__now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)tree;
    kvc__prefix_table_init(tree);
    tree->limit_blocks = INT64_MAX;
    tree->limit_bytes = UINT64_MAX;
    for (int i = 0; i < KVC_PREFIX_PRIORITIES; i++) tree->idle[i] = (kvc__prefix_list){-1, -1};
    const kvc_status status = attach(tree);
    if (status == KVC_OK) *out = tree;
    else kvc__free(tree, 1, sizeof *tree);
    return status;
}

kvc_blocks *kvc_prefix_blocks(const kvc_prefix *tree) {
    return tree ? tree->blocks : NULL;
}

void kvc_prefix_free(kvc_prefix *tree) {
    if (!tree) return;
    kvc_blocks *blocks = tree->blocks;
    kvc__blocks_lock(blocks);
    blocks->tree = (kvc__blocks_tree){0};
    for (size_t i = 0; i < tree->slot_room; i++) {
        if (!tree->slots[i].node) continue;
        kvc__prefix_node *node = kvc__prefix_at(tree, tree->slots[i].node - 1);
        if (node->parent < 0) {
            const kvc__prefix_name *name = kvc__prefix_name_of(node);
            kvc__free(name->bytes, 1, name->size_bytes);
        } else {
            kvc__blocks_find(blocks, node->block)->node = -1;
            kvc__blocks_drop(blocks, node->block);
        }
    }
    kvc__blocks_unlock(blocks);
    kvc__prefix_table_deinit(tree);
    kvc__free(tree, 1, sizeof *tree);
    kvc__blocks_drop_hold(blocks);
}

static kvc_status given(const kvc_prefix *tree) {
    if (tree) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "tree: NULL given, a prefix tree wanted");
}

/* Verifies what every call on tokens is given, and tells how many full blocks they have. */
static kvc_status check_call(const kvc_prefix *tree, const kvc_prefix_namespace *space,
                             kvc_prefix_namespace *full, const int32_t *tokens, int64_t n,
                             int64_t *blocks) {
    KVC_TRY(given(tree));
    *full = (kvc_prefix_namespace){.struct_size = sizeof *full};
    if (space) KVC_TRY(kvc__struct_in(full, sizeof *full, space, "kvc_prefix_namespace"));
    const kvc_bytes *fields[] = {&full->tenant, &full->adapter, &full->model};
    for (int i = 0; i < 3; i++)
        if (fields[i]->size_bytes && !fields[i]->data)
            return kvc__fail(KVC_E_INVALID, "space: a field of %zu bytes has no data",
                             fields[i]->size_bytes);
    if (n < 0 || (n > 0 && !tokens))
        return kvc__fail(KVC_E_INVALID, "%s given, at least 0 and as many tokens wanted",
                         n < 0 ? "n: less than 0" : "tokens: NULL");
    *blocks = n / tree->positions;
    return KVC_OK;
}

/* The node of the longest stored prefix of so many blocks, or its root; -1 when there is none. */
static int32_t find_longest(const kvc_prefix *tree, const kvc_prefix_namespace *space,
                            const int32_t *tokens, int64_t blocks) {
    int32_t last = kvc__prefix_find_root(tree, space);
    for (int64_t i = 0; i < blocks && last >= 0; i++) {
        const int32_t next = kvc__prefix_find(tree, last, tokens + i * tree->positions);
        if (next < 0) break;
        last = next;
    }
    return last;
}

static int64_t depth_of(const kvc_prefix *tree, int32_t node) {
    return node < 0 ? 0 : kvc__prefix_at(tree, node)->depth;
}

/* Retains the blocks from the first one to a node's, into ids[depth]. */
static void lend(kvc_prefix *tree, int32_t last, int32_t *ids) {
    for (int32_t index = last; depth_of(tree, index) > 0;) {
        kvc__prefix_node *node = kvc__prefix_at(tree, index);
        ids[node->depth - 1] = node->block;
        kvc__blocks_find(tree->blocks, node->block)->references++;
        if (!node->lent) {
            node->lent = true;
            kvc__prefix_hold(tree, index);
        }
        index = node->parent;
    }
}

kvc_status kvc_prefix_match(kvc_prefix *tree, const kvc_prefix_namespace *space,
                            const int32_t *tokens, int64_t n, int32_t *ids, int64_t *count) {
    kvc_prefix_namespace full;
    int64_t blocks;
    if (!count) return kvc__fail(KVC_E_INVALID, "count: NULL given");
    *count = 0;
    KVC_TRY(check_call(tree, space, &full, tokens, n, &blocks));
    kvc__blocks_lock(tree->blocks);
    const int32_t last = find_longest(tree, &full, tokens, blocks);
    *count = depth_of(tree, last);
    if (ids) {
        tree->stats.lookups++;
        tree->stats.hits += *count > 0;
        tree->stats.lookup_positions += (uint64_t)(blocks * tree->positions);
        tree->stats.hit_positions += (uint64_t)(*count * tree->positions);
        if (*count) lend(tree, last, ids);
        if (*count) kvc__prefix_tell(tree, KVC_PREFIX_HIT, last);
    }
    kvc__blocks_unlock(tree->blocks);
    return KVC_OK;
}

/* Marks blocks as about to be stored, after all are seen to be free for it; or none. */
static kvc_status mark_pending(const kvc_prefix *tree, const int32_t *ids, int64_t first,
                               int64_t end) {
    int64_t i = first;
    kvc_status status = KVC_OK;
    for (; i < end && status == KVC_OK; i++) {
        kvc__block *block = kvc__blocks_find(tree->blocks, ids[i]);
        if (!kvc__block_is_lent(block))
            status = kvc__fail(KVC_E_INVALID,
                               "ids[%lld]: %d given, a block that the caller holds wanted",
                               (long long)i, ids[i]);
        else if (block->node != -1)
            status = kvc__fail(
                KVC_E_INVALID, "ids[%lld]: block %d %s; each block is stored under one prefix",
                (long long)i, ids[i],
                block->node == PENDING ? "comes twice" : "is stored under other tokens");
        else block->node = PENDING;
    }
    if (status == KVC_OK) return KVC_OK;
    for (i--; i-- > first;) kvc__blocks_find(tree->blocks, ids[i])->node = -1;
    return status;
}

/* Stores a block below a node, held by the caller who gave it. */
static int32_t store(kvc_prefix *tree, int32_t parent, const int32_t *tokens, int32_t id,
                     uint8_t priority) {
    const int32_t index = kvc__prefix_add(tree, parent, tokens, id);
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    kvc__block *block = kvc__blocks_find(tree->blocks, id);
    node->priority = priority;
    node->lent = true;
    node->holds = 1;
    block->node = index;
    block->references++;
    kvc__prefix_at(tree, parent)->children++;
    kvc__prefix_hold(tree, parent);
    tree->stored++;
    tree->stats.stored++;
    kvc__prefix_tell(tree, KVC_PREFIX_STORED, index);
    return index;
}

/* Publishes blocks [first, end) of a table behind a node; as many as fit. Cannot fail. */
static int64_t publish(kvc_prefix *tree, int32_t last, const int32_t *tokens, const int32_t *ids,
                       int64_t first, int64_t end, uint8_t priority) {
    const int32_t found = last;
    kvc__prefix_hold(tree, found); /* so that what is evicted does not lie on the way */
    kvc__prefix_raise(tree, found, priority);
    kvc__prefix_evict_for(tree, end - first);
    int64_t i = first;
    for (; i < end && tree->stored < tree->limit_blocks; i++)
        last = store(tree, last, tokens + i * tree->positions, ids[i], priority);
    const int64_t stored = i - first;
    for (; i < end; i++) kvc__blocks_find(tree->blocks, ids[i])->node = -1;
    kvc__prefix_drop(tree, found);
    return stored;
}

static kvc_status insert(kvc_prefix *tree, const kvc_prefix_namespace *space, const int32_t *tokens,
                         const int32_t *ids, int64_t blocks, uint8_t priority, int64_t *stored) {
    int32_t last = find_longest(tree, space, tokens, blocks);
    const int64_t first = depth_of(tree, last);
    KVC_TRY(kvc__prefix_reserve(tree, blocks - first + 1));
    KVC_TRY(mark_pending(tree, ids, first, blocks));
    const bool is_new = last < 0;
    if (is_new) {
        const kvc_status status = kvc__prefix_add_root(tree, space, &last);
        for (int64_t i = first; status != KVC_OK && i < blocks; i++)
            kvc__blocks_find(tree->blocks, ids[i])->node = -1;
        if (status != KVC_OK) return status;
    }
    *stored = publish(tree, last, tokens, ids, first, blocks, priority);
    if (first == 0) kvc__prefix_remove_root(tree, last); /* if nothing fitted */
    return KVC_OK;
}

kvc_status kvc_prefix_insert(kvc_prefix *tree, const kvc_prefix_namespace *space,
                             const int32_t *tokens, int64_t n, const int32_t *ids, int priority,
                             int64_t *stored) {
    kvc_prefix_namespace full;
    int64_t blocks, count = 0;
    if (stored) *stored = 0;
    KVC_TRY(check_call(tree, space, &full, tokens, n, &blocks));
    if (priority < 0 || priority >= KVC_PREFIX_PRIORITIES)
        return kvc__fail(KVC_E_INVALID, "priority: %d given, 0 to %d wanted", priority,
                         KVC_PREFIX_PRIORITIES - 1);
    if (blocks == 0) return KVC_OK;
    if (!ids) return kvc__fail(KVC_E_INVALID, "ids: NULL given, the table of blocks wanted");
    kvc__blocks_lock(tree->blocks);
    const kvc_status status = insert(tree, &full, tokens, ids, blocks, (uint8_t)priority, &count);
    kvc__blocks_unlock(tree->blocks);
    if (stored) *stored = count;
    return status;
}

kvc_status kvc_prefix_pin(kvc_prefix *tree, const kvc_prefix_namespace *space,
                          const int32_t *tokens, int64_t n, int64_t *count) {
    kvc_prefix_namespace full;
    int64_t blocks;
    if (!count) return kvc__fail(KVC_E_INVALID, "count: NULL given");
    *count = 0;
    KVC_TRY(check_call(tree, space, &full, tokens, n, &blocks));
    kvc__blocks_lock(tree->blocks);
    const int32_t last = find_longest(tree, &full, tokens, blocks);
    *count = depth_of(tree, last);
    if (*count) {
        kvc__prefix_at(tree, last)->pins++;
        kvc__prefix_hold(tree, last);
    }
    kvc__blocks_unlock(tree->blocks);
    return KVC_OK;
}

kvc_status kvc_prefix_unpin(kvc_prefix *tree, const kvc_prefix_namespace *space,
                            const int32_t *tokens, int64_t n) {
    kvc_prefix_namespace full;
    int64_t blocks;
    KVC_TRY(check_call(tree, space, &full, tokens, n, &blocks));
    kvc__blocks_lock(tree->blocks);
    const int32_t last = find_longest(tree, &full, tokens, blocks);
    const bool pinned =
        blocks > 0 && depth_of(tree, last) == blocks && kvc__prefix_at(tree, last)->pins > 0;
    if (pinned) {
        kvc__prefix_at(tree, last)->pins--;
        kvc__prefix_drop(tree, last);
        kvc__prefix_evict_for(tree, 0);
    }
    kvc__blocks_unlock(tree->blocks);
    if (pinned) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "tokens: no prefix of exactly %lld blocks is pinned",
                     (long long)blocks);
}

uint64_t kvc_prefix_evict(kvc_prefix *tree, uint64_t bytes) {
    uint64_t given_back = 0;
    if (!tree) return 0;
    kvc__blocks_lock(tree->blocks);
    while (given_back < bytes && kvc__prefix_evict_one(tree))
        given_back += tree->blocks->block_bytes;
    kvc__blocks_unlock(tree->blocks);
    return given_back;
}

uint64_t kvc_prefix_limit_set(kvc_prefix *tree, uint64_t bytes) {
    if (!tree) return 0;
    kvc__blocks_lock(tree->blocks);
    const uint64_t previous = tree->limit_bytes, blocks = bytes / tree->blocks->block_bytes;
    tree->limit_bytes = bytes;
    tree->limit_blocks = blocks < INT64_MAX ? (int64_t)blocks : INT64_MAX;
    kvc__prefix_evict_for(tree, 0);
    kvc__blocks_unlock(tree->blocks);
    return previous;
}

void kvc_prefix_event_set(kvc_prefix *tree, kvc_prefix_event_fn fn, void *context) {
    if (!tree) return;
    kvc__blocks_lock(tree->blocks);
    tree->event = fn;
    tree->event_context = context;
    kvc__blocks_unlock(tree->blocks);
}

kvc_status kvc_prefix_stats_get(kvc_prefix *tree, kvc_prefix_stats *out) {
    KVC_TRY(given(tree));
    kvc__blocks_lock(tree->blocks);
    kvc_prefix_stats stats = tree->stats;
    stats.blocks = (uint64_t)tree->stored;
    stats.block_bytes = stats.blocks * tree->blocks->block_bytes;
    stats.idle_blocks = (uint64_t)tree->blocks->tree.idle_blocks;
    stats.namespaces = (uint64_t)tree->roots;
    stats.limit_bytes = tree->limit_bytes;
    stats.index_bytes = (size_t)tree->made * tree->node_bytes + tree->name_bytes +
                        tree->segment_room * sizeof *tree->segments +
                        tree->slot_room * sizeof *tree->slots;
    kvc__blocks_unlock(tree->blocks);
    return kvc__struct_out(out, &stats, sizeof stats, "kvc_prefix_stats");
}

kvc_status kvc_prefix_check(kvc_prefix *tree) {
    KVC_TRY(given(tree));
    kvc__blocks_lock(tree->blocks);
    const kvc_status status = kvc__prefix_check_all(tree);
    kvc__blocks_unlock(tree->blocks);
    return status;
}
