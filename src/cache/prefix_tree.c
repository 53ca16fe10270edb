#include "cache/prefix.h"

static void list(kvc_prefix *tree, int32_t index) {
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    kvc__prefix_list *list = &tree->idle[node->priority];
    node->older = list->newest;
    node->newer = -1;
    if (list->newest >= 0) kvc__prefix_at(tree, list->newest)->newer = index;
    else list->oldest = index;
    list->newest = index;
    node->listed = true;
}

static void unlist(kvc_prefix *tree, kvc__prefix_node *node) {
    kvc__prefix_list *list = &tree->idle[node->priority];
    if (!node->listed) return;
    if (node->older >= 0) kvc__prefix_at(tree, node->older)->newer = node->newer;
    else list->oldest = node->newer;
    if (node->newer >= 0) kvc__prefix_at(tree, node->newer)->older = node->older;
    else list->newest = node->older;
    node->listed = false;
}

void kvc__prefix_hold(kvc_prefix *tree, int32_t index) {
    while (index >= 0) {
        kvc__prefix_node *node = kvc__prefix_at(tree, index);
        if (node->holds++ > 0) return;
        if (node->block >= 0) tree->blocks->tree.idle_blocks--;
        index = node->parent;
    }
}

void kvc__prefix_drop(kvc_prefix *tree, int32_t index) {
    while (index >= 0) {
        kvc__prefix_node *node = kvc__prefix_at(tree, index);
        if (--node->holds > 0) return;
        if (node->block >= 0) {
            tree->blocks->tree.idle_blocks++;
            unlist(tree, node);
            list(tree, index);
        }
        index = node->parent;
    }
}

void kvc__prefix_raise(kvc_prefix *tree, int32_t index, uint8_t priority) {
    for (; index >= 0; index = kvc__prefix_at(tree, index)->parent) {
        kvc__prefix_node *node = kvc__prefix_at(tree, index);
        if (node->priority >= priority) return; /* and so have those before it */
        unlist(tree, node);
        node->priority = priority;
    }
}

void kvc__prefix_tell(const kvc_prefix *tree, kvc_prefix_event_kind kind, int32_t index) {
    if (!tree->event) return;
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    const kvc_prefix_event event = {.kind = kind,
                                    .block = node->block,
                                    .parent = kvc__prefix_at(tree, node->parent)->block,
                                    .positions = node->depth * tree->positions,
                                    .tokens = kvc__prefix_tokens(node)};
    tree->event(tree->event_context, &event);
}

void kvc__prefix_remove_root(kvc_prefix *tree, int32_t root) {
    const kvc__prefix_node *node = kvc__prefix_at(tree, root);
    if (node->children == 0 && node->holds == 0) kvc__prefix_remove(tree, root);
}

/* Takes an idle node without children out. */
static void evict(kvc_prefix *tree, int32_t index) {
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    const int32_t block = node->block, parent = node->parent;
    unlist(tree, node);
    tree->blocks->tree.idle_blocks--;
    tree->stored--;
    tree->stats.evicted++;
    kvc__prefix_tell(tree, KVC_PREFIX_EVICTED, index);
    kvc__prefix_remove(tree, index);
    kvc__blocks_find(tree->blocks, block)->node = -1;
    kvc__blocks_drop(tree->blocks, block);
    kvc__prefix_at(tree, parent)->children--;
    if (kvc__prefix_at(tree, parent)->parent < 0) kvc__prefix_remove_root(tree, parent);
}

/* The oldest idle node of a list; takes off the list what is held before it. */
static int32_t find_idle(kvc_prefix *tree, const kvc__prefix_list *list) {
    while (list->oldest >= 0 && kvc__prefix_at(tree, list->oldest)->holds > 0)
        unlist(tree, kvc__prefix_at(tree, list->oldest));
    return list->oldest;
}

bool kvc__prefix_evict_one(kvc_prefix *tree) {
    for (int i = 0; i < KVC_PREFIX_PRIORITIES; i++) {
        const int32_t index = find_idle(tree, &tree->idle[i]);
        if (index < 0) continue;
        evict(tree, index);
        return true;
    }
    return false;
}

void kvc__prefix_evict_for(kvc_prefix *tree, int64_t more) {
    while (tree->stored > tree->limit_blocks - more && kvc__prefix_evict_one(tree)) continue;
}
