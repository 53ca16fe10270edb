#include "base/alloc.h"
#include "base/error.h"
#include "cache/prefix.h"

/* What nodes should count of their children, added up node by node. */
typedef struct kvc__prefix_sum {
    int32_t children, held;
} kvc__prefix_sum;

static kvc_status corrupt(int32_t node, const char *what) {
    return kvc__fail(KVC_E_CORRUPT, "prefix node %d: %s", node, what);
}

/* A slot's node can be found, and is where its tokens say. */
static kvc_status check_slot(const kvc_prefix *tree, size_t slot) {
    const int32_t index = tree->slots[slot].node - 1;
    if (index < 0 || index >= tree->made) return corrupt(index, "a slot has no such node");
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    if (node->hash != tree->slots[slot].hash) return corrupt(index, "its slot has another hash");
    if (node->block != tree->slots[slot].block) return corrupt(index, "its slot has another block");
    if (node->parent < 0) return KVC_OK; /* compared by name: kvc__prefix_find cannot */
    if (kvc__prefix_find(tree, node->parent, kvc__prefix_tokens(node)) != index)
        return corrupt(index, "is not found by its tokens");
    return KVC_OK;
}

static kvc_status check_node(const kvc_prefix *tree, int32_t index, kvc__prefix_sum *sums) {
    const kvc__prefix_node *node = kvc__prefix_at(tree, index);
    if (node->parent < 0)
        return node->block == -1 && node->depth == 0 && !node->lent
                   ? KVC_OK
                   : corrupt(index, "a root has a block");
    const kvc__prefix_node *parent = kvc__prefix_at(tree, node->parent);
    const kvc__block *block = kvc__blocks_find(tree->blocks, node->block);
    if (!block || block->references == 0 || block->node != index)
        return corrupt(index, "its block is not held for it");
    if (node->lent != (block->references > 1))
        return corrupt(index, "its block is lent, or is not, against what it says");
    if (node->depth != parent->depth + 1) return corrupt(index, "its depth is wrong");
    if (node->priority > parent->priority && parent->block >= 0)
        return corrupt(index, "has a higher priority than the block before it");
    sums[node->parent].children++;
    sums[node->parent].held += node->holds > 0;
    return KVC_OK;
}

static kvc_status check_counts(const kvc_prefix *tree, int32_t index, const kvc__prefix_sum *sum) {
    const kvc__prefix_node *node = kvc__prefix_at(tree, index);
    if (node->children != sum->children) return corrupt(index, "counts its children wrong");
    if (node->holds != sum->held + node->pins + node->lent)
        return corrupt(index, "counts its holds wrong");
    if (node->parent < 0 && node->children == 0) return corrupt(index, "a root without a block");
    return KVC_OK;
}

/* The lists have every idle node once, among some that are held, and none twice. */
static kvc_status check_lists(const kvc_prefix *tree, int64_t idle) {
    int64_t listed = 0, held = 0;
    for (int i = 0; i < KVC_PREFIX_PRIORITIES; i++) {
        int32_t older = -1;
        for (int32_t n = tree->idle[i].oldest; n >= 0; n = kvc__prefix_at(tree, n)->newer) {
            const kvc__prefix_node *node = kvc__prefix_at(tree, n);
            if (!node->listed || node->priority != i || node->older != older ||
                listed + held > tree->stored)
                return corrupt(n, "is in a list in which it should not be");
            listed += node->holds == 0;
            held += node->holds > 0;
            older = n;
        }
        if (tree->idle[i].newest != older) return corrupt(older, "a list does not end with it");
    }
    if (listed != idle || tree->blocks->tree.idle_blocks != idle)
        return kvc__fail(KVC_E_CORRUPT, "prefix: %lld idle blocks, %lld listed, %lld counted",
                         (long long)idle, (long long)listed,
                         (long long)tree->blocks->tree.idle_blocks);
    return KVC_OK;
}

static kvc_status check_table(const kvc_prefix *tree, kvc__prefix_sum *sums) {
    int64_t blocks = 0, roots = 0, idle = 0;
    for (size_t i = 0; i < tree->slot_room; i++) {
        if (!tree->slots[i].node) continue;
        const int32_t index = tree->slots[i].node - 1;
        KVC_TRY(check_slot(tree, i));
        KVC_TRY(check_node(tree, index, sums));
        const bool is_root = kvc__prefix_at(tree, index)->parent < 0;
        roots += is_root;
        blocks += !is_root;
        idle += !is_root && kvc__prefix_at(tree, index)->holds == 0;
    }
    for (size_t i = 0; i < tree->slot_room; i++)
        if (tree->slots[i].node)
            KVC_TRY(check_counts(tree, tree->slots[i].node - 1, &sums[tree->slots[i].node - 1]));
    if (blocks != tree->stored || roots != tree->roots ||
        blocks + roots != (int64_t)tree->slots_used || blocks + roots + tree->spare != tree->made ||
        (uint64_t)blocks != tree->stats.stored - tree->stats.evicted)
        return kvc__fail(
            KVC_E_CORRUPT, "prefix: %lld blocks and %lld roots found, %lld and %lld counted",
            (long long)blocks, (long long)roots, (long long)tree->stored, (long long)tree->roots);
    return check_lists(tree, idle);
}

/* Blocks that say they are stored: as many as are. A block that does without a node would never be
 * given back. */
static kvc_status check_marks(const kvc_prefix *tree) {
    int64_t marks = 0;
    for (int64_t i = 0; i < tree->blocks->made; i++) {
        const kvc__slab *slab = tree->blocks->slabs[i];
        for (int32_t j = 0; j < slab->count; j++)
            marks += slab->blocks[j].references > 0 && slab->blocks[j].node != -1;
    }
    if (marks == tree->stored) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "prefix: %lld blocks say they are stored, %lld are",
                     (long long)marks, (long long)tree->stored);
}

/* Above its limit a tree has nothing left to evict. */
static kvc_status check_limit(const kvc_prefix *tree) {
    if (tree->stored <= tree->limit_blocks || tree->blocks->tree.idle_blocks == 0) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "prefix: %lld blocks stored, the limit is %lld",
                     (long long)tree->stored, (long long)tree->limit_blocks);
}

/* Room for every node that is in use, and for one at least. */
static size_t count_nodes(const kvc_prefix *tree) {
    int32_t last = 1;
    for (size_t i = 0; i < tree->slot_room; i++)
        if (tree->slots[i].node > last) last = tree->slots[i].node;
    return (size_t)(last < tree->made ? last : tree->made) + 1;
}

kvc_status kvc__prefix_check_all(const kvc_prefix *tree) {
    void *sums;
    if (tree->blocks->tree.tree != tree)
        return kvc__fail(KVC_E_CORRUPT, "prefix: its blocks have another tree");
    const size_t count = count_nodes(tree);
    KVC_TRY(kvc__calloc(&sums, count, sizeof(kvc__prefix_sum), "prefix check"));
    kvc_status status = check_table(tree, sums);
    if (status == KVC_OK) status = check_marks(tree);
    if (status == KVC_OK) status = check_limit(tree);
    kvc__free(sums, count, sizeof(kvc__prefix_sum));
    return status;
}
