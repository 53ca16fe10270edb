/* What tree and tiers have of a sequence, and what they are given. */
#include "store/spill.h"

#include <string.h>

#include "base/client.h"

/* Blocks read at once: taken from the pool before it is known that their bytes are good. */
enum { WINDOW = 32 };

/* A search of the tiers. One allocation for its lists. */
typedef struct search {
    kvc_spill *spill;
    int64_t blocks;                       /* of the sequence */
    uint8_t (*keys)[KVC_BLOCK_KEY_BYTES]; /* [blocks] */
    kvc_tier_item *items;                 /* [blocks] of the batch at hand */
    int8_t *seen;                         /* [blocks] the first tier that says it has it; or NONE */
    int8_t *from;                         /* [blocks] the tier that gave it; or NONE */
    void *memory;
    size_t bytes;
} search;

enum { NONE = -1 };

void *kvc__spill_memory(const kvc_spill *spill, int32_t id) {
    const kvc_blocks_layout *l = &spill->layout;
    const int32_t in_slab = id & (int32_t)((INT64_C(1) << l->slab_shift) - 1);
    return (char *)l->slabs[id >> l->slab_shift] + (size_t)in_slab * l->block_bytes;
}

static kvc_status search_init(search *s, kvc_spill *spill, const kvc_prefix_namespace *space,
                              const int32_t *tokens, int64_t blocks) {
    const size_t n = (size_t)blocks, each = sizeof *s->items + sizeof *s->keys + 2;
    *s = (search){.spill = spill, .blocks = blocks, .bytes = n * each}; /* tokens are larger */
    KVC_TRY(kvc__client_calloc(&s->memory, n, each, "search of tiers"));
    s->items = s->memory;
    s->keys = (uint8_t(*)[KVC_BLOCK_KEY_BYTES])(s->items + n);
    s->seen = (int8_t *)(s->keys + n);
    s->from = s->seen + n;
    memset(s->seen, NONE, 2 * n);
    const int64_t positions = spill->layout.positions;
    return kvc_block_keys(s->keys, space, spill->fingerprint, positions, tokens,
                          blocks * positions);
}

static void search_deinit(search *s) {
    kvc__client_free(s->memory, 1, s->bytes);
}

/* Asks tier after tier for blocks [first, blocks) that those before it lack. Returns the end of
 * those that are somewhere, one behind the other. */
static int64_t locate(search *s, int64_t first) {
    int64_t end = first;
    for (int64_t t = 0; t < s->spill->tier_count; t++) {
        int64_t count = 0;
        for (int64_t i = first; i < s->blocks; i++)
            if (s->seen[i] == NONE) s->items[count++] = (kvc_tier_item){.key = s->keys[i]};
        (void)!kvc_tier_exists_many(s->spill->tiers[t], s->items, count);
        count = 0;
        for (int64_t i = first; i < s->blocks; i++)
            if (s->seen[i] == NONE && s->items[count++].result == KVC_TIER_HIT)
                s->seen[i] = (int8_t)t;
    }
    while (end < s->blocks && s->seen[end] != NONE) end++;
    return end;
}

/* Reads blocks [first, end) into memory: each from the first tier that says it has it, and where
 * that fails from those after it. Returns the end of those that are right. */
static int64_t read_blocks(search *s, int64_t first, int64_t end, const int32_t *ids) {
    uint64_t asked[KVC_SPILL_TIERS_MAX] = {0};
    int64_t good = first;
    for (int64_t t = 0; t < s->spill->tier_count; t++) {
        int64_t count = 0;
        for (int64_t i = first; i < end; i++)
            if (s->from[i] == NONE && s->seen[i] <= t)
                s->items[count++] = (kvc_tier_item){.key = s->keys[i],
                                                    .data = kvc__spill_memory(s->spill, ids[i]),
                                                    .size_bytes = s->spill->layout.block_bytes};
        (void)!kvc_tier_get_into_many(s->spill->tiers[t], s->items, count);
        asked[t] = (uint64_t)count;
        count = 0;
        for (int64_t i = first; i < end; i++)
            if (s->from[i] == NONE && s->seen[i] <= t && s->items[count++].result == KVC_TIER_HIT)
                s->from[i] = (int8_t)t;
    }
    while (good < end && s->from[good] != NONE) good++;
    (void)pthread_mutex_lock(&s->spill->lock);
    for (int64_t t = 0; t < s->spill->tier_count; t++)
        s->spill->stats.tiers[t].asked_blocks += asked[t];
    for (int64_t i = first; i < good; i++) s->spill->stats.tiers[s->from[i]].found_blocks++;
    (void)pthread_mutex_unlock(&s->spill->lock);
    return good;
}

/* Takes up to n blocks: fewer where the pool has no more to give. */
static int64_t take_blocks(kvc_spill *spill, int64_t n, int32_t *ids) {
    while (n > 0 && kvc_blocks_take(spill->blocks, n, ids) != KVC_OK) n /= 2;
    return n;
}

/* Brings blocks [first, end) back, window after window, until one fails. Returns the end of those
 * that the caller now holds. */
static int64_t bring_back(search *s, int64_t first, int64_t end, int32_t *ids) {
    while (first < end) {
        const int64_t left = end - first;
        const int64_t taken = take_blocks(s->spill, left < WINDOW ? left : WINDOW, ids + first);
        const int64_t good = taken ? read_blocks(s, first, first + taken, ids) : first;
        (void)kvc_blocks_release(s->spill->blocks, ids + good, first + taken - good);
        if (taken == 0 || good < first + taken) return good;
        first = good;
    }
    return end;
}

/* Has blocks put to the tiers before the one that gave them; all tiers are asked what they lack. */
static void put_where_missing(search *s, int64_t first, int64_t end, const int32_t *ids) {
    while (first < end && s->from[first] == 0) first++;
    kvc__spill_put(s->spill, s->keys + first, ids + first, end - first);
}

/* Extends what the tree has, *count blocks, by what the tiers have. No memory to search is a miss
 * like any other. */
static void extend(kvc_spill *spill, const kvc_prefix_namespace *space, const int32_t *tokens,
                   int64_t blocks, int32_t *ids, int64_t *count) {
    const int64_t found = *count;
    search s;
    if (search_init(&s, spill, space, tokens, blocks) == KVC_OK)
        *count = bring_back(&s, found, locate(&s, found), ids);
    if (*count > found) {
        const int64_t n = *count * spill->layout.positions;
        /* Where it fails, for memory, the blocks are the caller's alone. */
        (void)!kvc_prefix_insert(spill->tree, space, tokens, n, ids, 0, NULL);
        put_where_missing(&s, found, *count, ids);
    }
    search_deinit(&s);
}

kvc_status kvc_spill_match(kvc_spill *spill, const kvc_prefix_namespace *space,
                           const int32_t *tokens, int64_t n, int32_t *ids, int64_t *count) {
    if (!count) return kvc__fail(KVC_E_INVALID, "count: NULL given");
    *count = 0;
    if (!spill) return kvc__fail(KVC_E_INVALID, "spill: NULL given, a spill wanted");
    const int64_t blocks = n / spill->layout.positions;
    if (blocks > 0 && !ids) return kvc__fail(KVC_E_INVALID, "ids: NULL given, room for ids wanted");
    KVC_TRY(kvc_prefix_match(spill->tree, space, tokens, n, ids, count));
    (void)pthread_mutex_lock(&spill->lock);
    spill->stats.lookups++;
    spill->stats.lookup_blocks += (uint64_t)blocks;
    spill->stats.tree_blocks += (uint64_t)*count;
    (void)pthread_mutex_unlock(&spill->lock);
    if (*count < blocks) extend(spill, space, tokens, blocks, ids, count);
    return KVC_OK;
}

kvc_status kvc_spill_publish(kvc_spill *spill, const kvc_prefix_namespace *space,
                             const int32_t *tokens, int64_t n, const int32_t *ids, int priority) {
    search s;
    int64_t known;
    if (!spill) return kvc__fail(KVC_E_INVALID, "spill: NULL given, a spill wanted");
    const int64_t blocks = n / spill->layout.positions;
    KVC_TRY(kvc_prefix_match(spill->tree, space, tokens, n, NULL, &known));
    KVC_TRY(kvc_prefix_insert(spill->tree, space, tokens, n, ids, priority, NULL));
    if (known == blocks) return KVC_OK;
    if (search_init(&s, spill, space, tokens, blocks) == KVC_OK) {
        kvc__spill_put(spill, s.keys + known, ids + known, blocks - known);
    } else {
        (void)pthread_mutex_lock(&spill->lock);
        spill->stats.skipped_blocks += (uint64_t)(blocks - known);
        (void)pthread_mutex_unlock(&spill->lock);
    }
    search_deinit(&s);
    return KVC_OK;
}

/* By default a small pool keeps most of its blocks for others. */
static uint64_t default_in_flight(kvc_blocks *blocks) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    (void)kvc_blocks_stats_get(blocks, &stats);
    const uint64_t quarter = stats.most_blocks / 4 ? stats.most_blocks / 4 : 1;
    return quarter < KVC_SPILL_IN_FLIGHT_DEFAULT ? quarter : KVC_SPILL_IN_FLIGHT_DEFAULT;
}

static kvc_status check_desc(const kvc_spill_desc *desc) {
    if (!desc->tree) return kvc__fail(KVC_E_INVALID, "desc.tree: NULL given, a tree wanted");
    if (desc->tier_count < 1 || desc->tier_count > KVC_SPILL_TIERS_MAX)
        return kvc__fail(KVC_E_INVALID, "desc.tier_count: %lld given, 1 to %d wanted",
                         (long long)desc->tier_count, KVC_SPILL_TIERS_MAX);
    for (int64_t t = 0; t < desc->tier_count; t++)
        if (!desc->tiers || !desc->tiers[t])
            return kvc__fail(KVC_E_INVALID, "desc.tiers[%lld]: NULL given, a tier wanted",
                             (long long)t);
    if (desc->most_in_flight < 0)
        return kvc__fail(KVC_E_INVALID, "desc.most_in_flight: %lld given, at least 0 wanted",
                         (long long)desc->most_in_flight);
    const kvc_device *device = kvc_pool_device(kvc_blocks_pool(kvc_prefix_blocks(desc->tree)));
    if (device == kvc_device_cpu()) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED, "desc.tree: blocks of the device %s given, of cpu wanted",
                     device->name);
}

kvc_status kvc_spill_new(kvc_spill **out, const kvc_spill_desc *desc) {
    kvc_spill_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__client_struct_in(&full, sizeof full, desc, "kvc_spill_desc"));
    KVC_TRY(check_desc(&full));
    KVC_TRY(kvc__client_calloc(&memory, 1, sizeof(kvc_spill), "spill"));
    kvc_spill *spill = memory;
    spill->tree = full.tree;
    spill->blocks = kvc_prefix_blocks(full.tree);
    spill->tier_count = full.tier_count;
    for (int64_t t = 0; t < full.tier_count; t++) spill->tiers[t] = full.tiers[t];
    memcpy(spill->fingerprint, full.fingerprint, sizeof spill->fingerprint);
    spill->most_in_flight =
        full.most_in_flight ? (uint64_t)full.most_in_flight : default_in_flight(spill->blocks);
    spill->layout.struct_size = sizeof spill->layout;
    spill->stats.struct_size = sizeof spill->stats;
    kvc_status status = kvc_blocks_layout_get(spill->blocks, 0, &spill->layout);
    if (status == KVC_OK) status = kvc__spill_start(spill);
    if (status == KVC_OK) *out = spill;
    else kvc__client_free(spill, 1, sizeof *spill);
    return status;
}

void kvc_spill_free(kvc_spill *spill) {
    if (!spill) return;
    kvc__spill_stop(spill);
    kvc__client_free(spill, 1, sizeof *spill);
}

kvc_status kvc_spill_stats_get(kvc_spill *spill, kvc_spill_stats *out) {
    if (!spill) return kvc__fail(KVC_E_INVALID, "spill: NULL given, a spill wanted");
    (void)pthread_mutex_lock(&spill->lock);
    const kvc_spill_stats stats = spill->stats;
    (void)pthread_mutex_unlock(&spill->lock);
    return kvc__client_struct_out(out, &stats, sizeof stats, "kvc_spill_stats");
}
