/* Nodes lie in segments that never move, and are found by an open table of (hash, node): linear
 * probing at most half full, so that a hit costs a line of the table and those of the node. The
 * hash alone tells a slot's home, so that neither growth nor removal looks at nodes. */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/prefix.h"

enum { FIRST_SLOTS = 64, SEGMENT_BYTES = 2 << 20 /* a huge page */ };

__extension__ typedef unsigned __int128 uint128;

/* Both halves of a product: every bit of the result depends on every bit of both factors.
 * Source: the mixing step of wyhash. */
static uint64_t mix(uint64_t a, uint64_t b) {
    const uint128 product = (uint128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t load(const unsigned char *bytes, size_t size_bytes) {
    uint64_t word = 0;
    memcpy(&word, bytes, size_bytes);
    return word;
}

static uint64_t hash_bytes(uint64_t h, const void *data, size_t size_bytes) {
    const uint64_t odd = 0x9e3779b97f4a7c15u, other = 0xd1342543de82ef95u;
    const unsigned char *at = data;
    h = mix(h ^ odd, size_bytes ^ other);
    for (; size_bytes >= 16; at += 16, size_bytes -= 16)
        h = mix(load(at, 8) ^ odd, load(at + 8, 8) ^ h);
    if (size_bytes > 8) h = mix(load(at, 8) ^ odd, load(at + 8, size_bytes - 8) ^ h);
    else if (size_bytes) h = mix(load(at, size_bytes) ^ odd, h ^ other);
    return h;
}

static uint32_t fold(uint64_t h) {
    return (uint32_t)(h ^ h >> 32);
}

void kvc__prefix_table_init(kvc_prefix *tree) {
    const size_t bytes = sizeof(kvc__prefix_node) + (size_t)tree->positions * sizeof(int32_t);
    tree->host = kvc_device_cpu();
    tree->node_bytes = (bytes + KVC_ALIGNMENT_BYTES - 1) & ~(size_t)(KVC_ALIGNMENT_BYTES - 1);
    while (tree->node_bytes << (tree->segment_shift + 1) <= SEGMENT_BYTES) tree->segment_shift++;
    tree->first_spare = -1;
}

static size_t tokens_bytes(const kvc_prefix *tree) {
    return (size_t)tree->positions * sizeof(int32_t);
}

uint32_t kvc__prefix_hash(const kvc_prefix *tree, int32_t parent, const int32_t *tokens) {
    return fold(hash_bytes(tree->seed ^ (uint64_t)parent, tokens, tokens_bytes(tree)));
}

int32_t kvc__prefix_find(const kvc_prefix *tree, int32_t parent, const int32_t *tokens) {
    if (!tree->slots_used) return -1;
    const uint32_t hash = kvc__prefix_hash(tree, parent, tokens);
    const size_t mask = tree->slot_room - 1;
    for (size_t i = hash & mask; tree->slots[i].node; i = (i + 1) & mask) {
        if (tree->slots[i].hash != hash) continue;
        __builtin_prefetch(kvc__blocks_find(tree->blocks, tree->slots[i].block), 1);
        kvc__prefix_node *node = kvc__prefix_at(tree, tree->slots[i].node - 1);
        if (node->parent == parent &&
            memcmp(kvc__prefix_tokens(node), tokens, tokens_bytes(tree)) == 0)
            return tree->slots[i].node - 1;
    }
    return -1;
}

/* The fields of a namespace in the order of its name. */
enum { FIELDS = 3 };

static void fields_of(kvc_bytes out[FIELDS], const kvc_prefix_namespace *space) {
    out[0] = space->tenant;
    out[1] = space->adapter;
    out[2] = space->model;
}

static uint32_t hash_name(const kvc_prefix *tree, const kvc_bytes fields[FIELDS]) {
    uint64_t h = ~tree->seed;
    for (int i = 0; i < FIELDS; i++) h = hash_bytes(h, fields[i].data, fields[i].size_bytes);
    return fold(h);
}

/* Takes bytes off the front of a name; false when they differ. */
static bool skip_equal(kvc__prefix_name *name, const void *bytes, size_t size_bytes) {
    if (name->size_bytes < size_bytes) return false;
    if (size_bytes && memcmp(name->bytes, bytes, size_bytes) != 0) return false;
    name->bytes += size_bytes;
    name->size_bytes -= size_bytes;
    return true;
}

static bool is_named(kvc__prefix_name name, const kvc_bytes fields[FIELDS]) {
    for (int i = 0; i < FIELDS; i++) {
        const size_t size = fields[i].size_bytes;
        if (!skip_equal(&name, &size, sizeof size) || !skip_equal(&name, fields[i].data, size))
            return false;
    }
    return name.size_bytes == 0;
}

int32_t kvc__prefix_find_root(const kvc_prefix *tree, const kvc_prefix_namespace *space) {
    if (!tree->slots_used) return -1;
    kvc_bytes fields[FIELDS];
    fields_of(fields, space);
    const uint32_t hash = hash_name(tree, fields);
    const size_t mask = tree->slot_room - 1;
    for (size_t i = hash & mask; tree->slots[i].node; i = (i + 1) & mask) {
        if (tree->slots[i].hash != hash) continue;
        kvc__prefix_node *node = kvc__prefix_at(tree, tree->slots[i].node - 1);
        if (node->parent < 0 && is_named(*kvc__prefix_name_of(node), fields))
            return tree->slots[i].node - 1;
    }
    return -1;
}

static void put(kvc__prefix_slot *slots, size_t room, kvc__prefix_slot slot) {
    size_t i = slot.hash & (room - 1);
    while (slots[i].node) i = (i + 1) & (room - 1);
    slots[i] = slot;
}

static kvc_status allocate(const kvc_prefix *tree, void **out, size_t count, size_t bytes) {
    size_t total;
    *out = NULL;
    if (!kvc__mul(&total, count, bytes))
        return kvc__fail(KVC_E_RANGE, "prefix: %zu of %zu bytes is more than a size can hold",
                         count, bytes);
    if (tree->host->allocate(tree->host->context, out, total) == KVC_OK) return KVC_OK;
    return kvc__fail(KVC_E_NOMEM, "prefix: no memory for %zu bytes of its index", total);
}

static void deallocate(const kvc_prefix *tree, void *memory, size_t bytes) {
    if (memory) tree->host->deallocate(tree->host->context, memory, bytes);
}

static kvc_status grow_table(kvc_prefix *tree, size_t wanted) {
    size_t room = tree->slot_room ? tree->slot_room : FIRST_SLOTS;
    void *slots;
    while (room / 2 < wanted)
        if (!kvc__mul(&room, room, 2))
            return kvc__fail(KVC_E_RANGE, "prefix: %zu blocks are more than a table can hold",
                             wanted);
    if (room == tree->slot_room) return KVC_OK;
    KVC_TRY(allocate(tree, &slots, room, sizeof *tree->slots));
    memset(slots, 0, room * sizeof *tree->slots);
    for (size_t i = 0; i < tree->slot_room; i++)
        if (tree->slots[i].node) put(slots, room, tree->slots[i]);
    deallocate(tree, tree->slots, tree->slot_room * sizeof *tree->slots);
    tree->slots = slots;
    tree->slot_room = room;
    return KVC_OK;
}

static kvc_status grow_segment_table(kvc_prefix *tree) {
    const size_t room = tree->segment_room ? 2 * tree->segment_room : 16;
    void *segments;
    KVC_TRY(kvc__calloc(&segments, room, sizeof *tree->segments, "prefix segments"));
    if (tree->segments)
        memcpy(segments, tree->segments, tree->segment_room * sizeof *tree->segments);
    kvc__free(tree->segments, tree->segment_room, sizeof *tree->segments);
    tree->segments = segments;
    tree->segment_room = room;
    return KVC_OK;
}

static void spare(kvc_prefix *tree, int32_t node) {
    kvc__prefix_at(tree, node)->parent = tree->first_spare;
    tree->first_spare = node;
    tree->spare++;
}

static kvc_status grow_nodes(kvc_prefix *tree) {
    const int32_t count = (int32_t)1 << tree->segment_shift;
    const size_t index = (size_t)tree->made >> tree->segment_shift;
    void *segment;
    if (tree->made > INT32_MAX - count)
        return kvc__fail(KVC_E_RANGE, "prefix: %d blocks are the most", tree->made);
    if (index == tree->segment_room) KVC_TRY(grow_segment_table(tree));
    KVC_TRY(allocate(tree, &segment, (size_t)count, tree->node_bytes));
    tree->segments[index] = segment;
    tree->made += count;
    for (int32_t i = 1; i <= count; i++) spare(tree, tree->made - i);
    return KVC_OK;
}

kvc_status kvc__prefix_reserve(kvc_prefix *tree, int64_t n) {
    while (tree->spare < n) KVC_TRY(grow_nodes(tree));
    return grow_table(tree, tree->slots_used + (size_t)n);
}

static int32_t add(kvc_prefix *tree, int32_t parent, uint32_t hash, int32_t block) {
    const int32_t index = tree->first_spare;
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    tree->first_spare = node->parent;
    tree->spare--;
    *node = (kvc__prefix_node){
        .hash = hash, .parent = parent, .block = block, .newer = -1, .older = -1};
    put(tree->slots, tree->slot_room, (kvc__prefix_slot){hash, index + 1, block});
    tree->slots_used++;
    return index;
}

int32_t kvc__prefix_add(kvc_prefix *tree, int32_t parent, const int32_t *tokens, int32_t block) {
    const int32_t index = add(tree, parent, kvc__prefix_hash(tree, parent, tokens), block);
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    node->depth = kvc__prefix_at(tree, parent)->depth + 1;
    memcpy(kvc__prefix_tokens(node), tokens, tokens_bytes(tree));
    return index;
}

kvc_status kvc__prefix_add_root(kvc_prefix *tree, const kvc_prefix_namespace *space, int32_t *out) {
    kvc_bytes fields[FIELDS];
    size_t size = FIELDS * sizeof size;
    void *bytes;
    fields_of(fields, space);
    for (int i = 0; i < FIELDS; i++)
        if (!kvc__add(&size, size, fields[i].size_bytes))
            return kvc__fail(KVC_E_RANGE, "space: its fields have more bytes than a size can hold");
    KVC_TRY(kvc__calloc(&bytes, 1, size, "prefix namespace"));
    unsigned char *at = bytes;
    for (int i = 0; i < FIELDS; i++) {
        memcpy(at, &fields[i].size_bytes, sizeof size);
        at += sizeof size;
        if (fields[i].size_bytes) memcpy(at, fields[i].data, fields[i].size_bytes);
        at += fields[i].size_bytes;
    }
    *out = add(tree, -1, hash_name(tree, fields), KVC_BLOCK_NONE);
    *kvc__prefix_name_of(kvc__prefix_at(tree, *out)) = (kvc__prefix_name){bytes, size};
    tree->name_bytes += size;
    tree->roots++;
    return KVC_OK;
}

/* Frees a slot, and moves into it what probing would no longer reach behind it. */
static void clear_slot(kvc_prefix *tree, size_t hole) {
    const size_t mask = tree->slot_room - 1;
    for (size_t i = (hole + 1) & mask; tree->slots[i].node; i = (i + 1) & mask) {
        const size_t home = tree->slots[i].hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue; /* its home lies behind the hole */
        tree->slots[hole] = tree->slots[i];
        hole = i;
    }
    tree->slots[hole] = (kvc__prefix_slot){0};
}

void kvc__prefix_remove(kvc_prefix *tree, int32_t index) {
    kvc__prefix_node *node = kvc__prefix_at(tree, index);
    const size_t mask = tree->slot_room - 1;
    size_t i = node->hash & mask;
    while (tree->slots[i].node != index + 1) i = (i + 1) & mask;
    clear_slot(tree, i);
    tree->slots_used--;
    if (node->parent < 0) {
        kvc__prefix_name *name = kvc__prefix_name_of(node);
        tree->name_bytes -= name->size_bytes;
        tree->roots--;
        kvc__free(name->bytes, 1, name->size_bytes);
    }
    spare(tree, index);
}

void kvc__prefix_table_deinit(kvc_prefix *tree) {
    for (int32_t i = 0; i < tree->made >> tree->segment_shift; i++)
        deallocate(tree, tree->segments[i], tree->node_bytes << tree->segment_shift);
    kvc__free(tree->segments, tree->segment_room, sizeof *tree->segments);
    deallocate(tree, tree->slots, tree->slot_room * sizeof *tree->slots);
}
