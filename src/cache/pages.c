/* Blocks of a shared pool: each sequence has a table of those that hold its positions, in every
 * layer alike. A block that someone else holds too is copied before it is written to. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/blocks.h"
#include "cache/cache.h"

enum { STRIDE = 16 }; /* blocks of a table at first, where nobody says how many there may be */

static int64_t blocks_for(const kvc_cache *cache, int64_t positions) {
    const int64_t size = cache->desc.blocks->desc.positions;
    return positions / size + (positions % size != 0);
}

static int32_t *table_of(const kvc_cache *cache, int64_t sequence) {
    return cache->tables + sequence * cache->table_stride;
}

/* Adds a reference to blocks of the cache's own: that cannot fail. */
static void share(const kvc_cache *cache, const int32_t *ids, int64_t n) {
    const kvc_status status = kvc_blocks_retain(cache->desc.blocks, ids, n);
    KVC_ASSERT(status == KVC_OK);
    (void)status;
}

/* Empty tables. */
static kvc_status new_tables(int32_t **out, const kvc_cache *cache, int64_t stride) {
    int64_t count;
    void *memory;
    if (!kvc__mul_i64(&count, cache->desc.batch, stride))
        return kvc__fail(KVC_E_RANGE, "%lld tables of %lld blocks overflow",
                         (long long)cache->desc.batch, (long long)stride);
    KVC_TRY(kvc__calloc(&memory, (size_t)count, sizeof **out, "block tables"));
    *out = memory;
    return KVC_OK;
}

static void set_tables(kvc_cache *cache, int32_t *tables, int64_t stride) {
    kvc__free(cache->tables, (size_t)(cache->desc.batch * cache->table_stride), sizeof *tables);
    cache->tables = tables;
    cache->table_stride = stride;
}

kvc_status kvc__pages_init(kvc_cache *cache) {
    const int64_t most = cache->desc.max_positions;
    int32_t *tables;
    void *memory;
    KVC_TRY(kvc__calloc(&memory, (size_t)cache->desc.batch, sizeof *cache->table_used, "cache"));
    cache->table_used = memory;
    const int64_t stride = most ? blocks_for(cache, most) : STRIDE;
    KVC_TRY(new_tables(&tables, cache, stride));
    set_tables(cache, tables, stride);
    return KVC_OK;
}

void kvc__pages_deinit(kvc_cache *cache) {
    for (int64_t b = 0; cache->tables && b < cache->desc.batch; b++)
        (void)kvc_blocks_release(cache->desc.blocks, table_of(cache, b), cache->table_used[b]);
    set_tables(cache, NULL, 0);
    kvc__free(cache->table_used, (size_t)cache->desc.batch, sizeof *cache->table_used);
}

void kvc__pages_place(const kvc_cache *cache, kvc__layer *layer) {
    const kvc_blocks *blocks = cache->desc.blocks;
    const kvc__block_layer *place = &blocks->layers[layer - cache->layers];
    for (int p = 0; p < layer->planes_used; p++)
        layer->planes[p].offset_bytes = place->offset_bytes[p];
    layer->capacity = blocks->desc.positions;
}

static kvc_status lengthen(kvc_cache *cache, int64_t blocks) {
    int64_t stride = cache->table_stride;
    int32_t *tables;
    while (stride < blocks)
        if (!kvc__mul_i64(&stride, stride, 2)) stride = blocks;
    if (stride == cache->table_stride) return KVC_OK;
    KVC_TRY(new_tables(&tables, cache, stride));
    for (int64_t b = 0; b < cache->desc.batch; b++)
        memcpy(tables + b * stride, table_of(cache, b),
               (size_t)cache->table_used[b] * sizeof *tables);
    set_tables(cache, tables, stride);
    return KVC_OK;
}

/* Puts a copy in the place of a block that someone else holds too. */
static kvc_status make_own(kvc_cache *cache, int32_t *id) {
    kvc_blocks *blocks = cache->desc.blocks;
    int32_t copy;
    if (kvc_blocks_references(blocks, *id) == 1) return KVC_OK;
    KVC_TRY(kvc_blocks_take(blocks, 1, &copy));
    const kvc_status status = kvc_blocks_copy(blocks, copy, *id);
    (void)kvc_blocks_release(blocks, status == KVC_OK ? id : &copy, 1);
    if (status != KVC_OK) return status;
    *id = copy;
    cache->stats.copied_bytes += blocks->block_bytes;
    return KVC_OK;
}

kvc_status kvc__pages_make_room_of(kvc_cache *cache, int64_t sequence, int64_t length, int64_t n) {
    const int64_t held = cache->table_used[sequence], needed = blocks_for(cache, length + n);
    if (n == 0) return KVC_OK;
    KVC_TRY(lengthen(cache, needed));
    int32_t *table = table_of(cache, sequence);
    for (int64_t i = length / cache->desc.blocks->desc.positions; i < held && i < needed; i++)
        KVC_TRY(make_own(cache, &table[i]));
    if (needed <= held) return KVC_OK;
    KVC_TRY(kvc_blocks_take(cache->desc.blocks, needed - held, table + held));
    cache->table_used[sequence] = needed;
    cache->stats.growths++;
    return KVC_OK;
}

kvc_status kvc__pages_make_room(kvc_cache *cache, const kvc__layer *layer, kvc__counts counts) {
    kvc_status status = KVC_OK;
    for (int64_t b = 0; status == KVC_OK && b < cache->desc.batch; b++)
        status = kvc__pages_make_room_of(cache, b, layer->lengths[b], kvc__count(counts, b));
    for (int64_t b = 0; status != KVC_OK && b < cache->desc.batch; b++) kvc__pages_settle(cache, b);
    return status;
}

static int64_t longest(const kvc_cache *cache, int64_t sequence) {
    int64_t length = 0;
    for (int64_t i = 0; i < cache->desc.layers; i++)
        if (cache->layers[i].lengths[sequence] > length)
            length = cache->layers[i].lengths[sequence];
    return length;
}

void kvc__pages_settle(kvc_cache *cache, int64_t sequence) {
    const int64_t needed = blocks_for(cache, longest(cache, sequence));
    int64_t *used = &cache->table_used[sequence];
    if (*used <= needed) return;
    (void)kvc_blocks_release(cache->desc.blocks, table_of(cache, sequence) + needed,
                             *used - needed);
    *used = needed;
}

/* Retains all new blocks, then drops all old ones: whatever moves where, none becomes free. */
kvc_status kvc__pages_reorder(kvc_cache *cache, const int64_t *from) {
    const int64_t batch = cache->desc.batch, stride = cache->table_stride;
    int32_t *tables;
    void *memory;
    KVC_TRY(kvc__calloc(&memory, (size_t)batch, sizeof(int64_t), "block tables"));
    int64_t *used = memory;
    const kvc_status status = new_tables(&tables, cache, stride);
    if (status != KVC_OK) {
        kvc__free(used, (size_t)batch, sizeof *used);
        return status;
    }
    for (int64_t b = 0; b < batch; b++) {
        used[b] = cache->table_used[from[b]];
        memcpy(tables + b * stride, table_of(cache, from[b]), (size_t)used[b] * sizeof *tables);
        share(cache, tables + b * stride, used[b]);
    }
    for (int64_t b = 0; b < batch; b++)
        (void)kvc_blocks_release(cache->desc.blocks, table_of(cache, b), cache->table_used[b]);
    memcpy(cache->table_used, used, (size_t)batch * sizeof *used);
    kvc__free(used, (size_t)batch, sizeof *used);
    set_tables(cache, tables, stride);
    return KVC_OK;
}

void kvc__pages_fork(kvc_cache *cache, int64_t to, int64_t from) {
    const int64_t used = cache->table_used[from];
    share(cache, table_of(cache, from), used);
    (void)kvc_blocks_release(cache->desc.blocks, table_of(cache, to), cache->table_used[to]);
    memcpy(table_of(cache, to), table_of(cache, from), (size_t)used * sizeof(int32_t));
    cache->table_used[to] = used;
}

kvc_status kvc__pages_check(const kvc_cache *cache, int64_t sequence) {
    const int64_t used = cache->table_used[sequence];
    if (used != blocks_for(cache, longest(cache, sequence)) || used > cache->table_stride)
        return kvc__fail(KVC_E_CORRUPT, "sequence %lld: %lld blocks for %lld positions",
                         (long long)sequence, (long long)used, (long long)longest(cache, sequence));
    for (int64_t i = 0; i < used; i++)
        if (kvc_blocks_references(cache->desc.blocks, table_of(cache, sequence)[i]) < 1)
            return kvc__fail(KVC_E_CORRUPT, "sequence %lld: block %d, %lld of its table, is free",
                             (long long)sequence, table_of(cache, sequence)[i], (long long)i);
    return KVC_OK;
}

static kvc_status check_paged(const kvc_cache *cache, int64_t sequence) {
    KVC_TRY(kvc__cache_sequence(cache, sequence, "sequence"));
    if (cache->desc.growth == KVC_GROW_PAGED) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED,
                     "cache: of growth %s given, one of blocks (KVC_GROW_PAGED) wanted",
                     kvc_growth_name(cache->desc.growth));
}

kvc_status kvc_cache_block_table(const kvc_cache *cache, int64_t sequence, const int32_t **ids,
                                 int64_t *count) {
    if (!ids || !count) return kvc__fail(KVC_E_INVALID, "%s: NULL given", ids ? "count" : "ids");
    *ids = NULL;
    *count = 0;
    KVC_TRY(check_paged(cache, sequence));
    *ids = table_of(cache, sequence);
    *count = cache->table_used[sequence];
    return KVC_OK;
}

kvc_status kvc_cache_adopt(kvc_cache *cache, int64_t sequence, const int32_t *ids, int64_t n) {
    KVC_TRY(check_paged(cache, sequence));
    int64_t positions;
    if (n < 0) return kvc__fail(KVC_E_RANGE, "n: %lld given, at least 0 wanted", (long long)n);
    if (n > 0 && !ids)
        return kvc__fail(KVC_E_INVALID, "ids: NULL given, %lld blocks wanted", (long long)n);
    if (longest(cache, sequence) > 0)
        return kvc__fail(KVC_E_RANGE, "sequence: %lld has %lld positions, an empty one wanted",
                         (long long)sequence, (long long)longest(cache, sequence));
    if (!kvc__mul_i64(&positions, n, cache->desc.blocks->desc.positions) ||
        (cache->desc.max_positions && positions > cache->desc.max_positions))
        return kvc__fail(KVC_E_RANGE, "%lld blocks given, desc.max_positions is %lld", (long long)n,
                         (long long)cache->desc.max_positions);
    KVC_TRY(lengthen(cache, n));
    KVC_TRY(kvc_blocks_retain(cache->desc.blocks, ids, n));
    if (n > 0) memcpy(table_of(cache, sequence), ids, (size_t)n * sizeof *ids);
    cache->table_used[sequence] = n;
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        cache->layers[i].lengths[sequence] = positions;
        kvc__layer_settle(cache, &cache->layers[i]);
    }
    return KVC_OK;
}
