#include "cache/cache.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/blocks.h"
#include "memory/pool.h"

const char *kvc_growth_name(kvc_growth growth) {
    switch (growth) {
    case KVC_GROW_RESERVE: return "reserve";
    case KVC_GROW_CHUNK: return "chunk";
    case KVC_GROW_EXACT: return "exact";
    case KVC_GROW_PAGED: return "paged";
    }
    return "?";
}

/* Structs have gaps, which nobody fills: field by field. */
static bool is_same(const kvc_layer_spec *a, const kvc_layer_spec *b) {
    return a->kv_heads == b->kv_heads && a->key_dim == b->key_dim && a->value_dim == b->value_dim &&
           a->dtype == b->dtype && a->window == b->window && a->keep == b->keep &&
           a->kv_bits == b->kv_bits && a->kv_group == b->kv_group &&
           a->keys_per_channel == b->keys_per_channel && a->rotated == b->rotated;
}

/* PAGED: layers and specs are those of the blocks. */
static kvc_status complete_paged(kvc_cache_desc *desc, const kvc_pool *pool) {
    const kvc_blocks *blocks = desc->blocks;
    if (!blocks || blocks->pool != pool)
        return kvc__fail(KVC_E_INVALID,
                         "desc.blocks: %s given; KVC_GROW_PAGED wants a pool of blocks over the "
                         "same buffer pool",
                         blocks ? "one over another pool" : "NULL");
    const kvc_cache_desc own = *desc;
    desc->layers = blocks->desc.layers;
    desc->specs = blocks->specs;
    desc->spec_count = desc->layers;
    bool same = own.specs ? own.layers == desc->layers &&
                                (own.spec_count == 1 || own.spec_count == own.layers)
                          : own.layers == 0 || own.layers == desc->layers;
    for (int64_t i = 0; same && own.specs && i < desc->layers; i++) {
        kvc_layer_spec spec = own.specs[own.spec_count == 1 ? 0 : i];
        KVC_TRY(kvc__spec_complete(&spec, i));
        same = is_same(&spec, &desc->specs[i]);
    }
    if (same) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.layers, desc.specs: not those of desc.blocks, which has %lld layers; "
                     "the same wanted, or layers 0 and specs NULL",
                     (long long)desc->layers);
}

/* Brings a description into its full form: defaults filled, every field but the specs checked. */
static kvc_status complete(kvc_cache_desc *desc, const kvc_pool *pool) {
    if (desc->growth < KVC_GROW_RESERVE || desc->growth > KVC_GROW_PAGED)
        return kvc__fail(KVC_E_INVALID, "desc.growth: %d given, a kvc_growth wanted",
                         (int)desc->growth);
    if (desc->batch == 0) desc->batch = 1;
    if (desc->chunk == 0) desc->chunk = KVC_CHUNK_DEFAULT;
    if (desc->growth == KVC_GROW_PAGED) KVC_TRY(complete_paged(desc, pool));
    else if (desc->blocks)
        return kvc__fail(KVC_E_INVALID, "desc.blocks: given with growth %s; KVC_GROW_PAGED wanted",
                         kvc_growth_name(desc->growth));
    if (desc->batch < 0 || desc->layers <= 0 || desc->chunk < 0 || desc->max_positions < 0 ||
        desc->slack < 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc: batch %lld, layers %lld, chunk %lld, max_positions %lld, slack "
                         "%lld given; layers more than 0 and the others at least 0 wanted",
                         (long long)desc->batch, (long long)desc->layers, (long long)desc->chunk,
                         (long long)desc->max_positions, (long long)desc->slack);
    if (!desc->specs || (desc->spec_count != 1 && desc->spec_count != desc->layers))
        return kvc__fail(KVC_E_INVALID,
                         "desc.specs: %lld given, 1 or one for each of %lld layers wanted",
                         desc->specs ? (long long)desc->spec_count : 0LL, (long long)desc->layers);
    if (desc->growth == KVC_GROW_RESERVE && desc->max_positions == 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc.max_positions: 0 given; KVC_GROW_RESERVE wants the most positions "
                         "a sequence may reach: it costs address space, not memory");
    return KVC_OK;
}

/* place: of this plane among all of the cache. Its phase is that share of a commit unit. */
static kvc_status init_plane(kvc__plane *plane, const kvc_cache *cache, const kvc__layer *layer,
                             const kvc__row_format *row, int64_t place) {
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(cache->pool);
    size_t one_row;
    plane->row = *row;
    if (!kvc__mul(&plane->ranges, (size_t)cache->desc.batch, (size_t)layer->spec.kv_heads))
        return kvc__fail(KVC_E_RANGE, "desc: batch %lld × kv_heads %lld overflows",
                         (long long)cache->desc.batch, (long long)layer->spec.kv_heads);
    const int64_t places = KVC__PLANES * cache->desc.layers;
    plane->phase_bytes = (size_t)((double)unit_bytes * (double)place / (double)places);
    return kvc__plane_bytes(&one_row, plane, row->positions);
}

/* Packing, and turning a ring, go through host pointers. */
static kvc_status check_device(const kvc_cache *cache, const kvc_layer_spec *spec, int64_t index) {
    const kvc_device *device = kvc_pool_device(cache->pool);
    if ((!spec->window && !spec->kv_bits) || device == kvc_device_cpu()) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED,
                     "desc.specs[%lld]: a window or packed rows on device %s; the cpu wanted",
                     (long long)index, device->name);
}

static kvc_status check_ring(const kvc_cache *cache, const kvc_layer_spec *spec, int64_t index) {
    int64_t rows;
    if (kvc__add_i64(&rows, spec->window, cache->desc.slack)) return KVC_OK;
    return kvc__fail(KVC_E_RANGE, "desc.specs[%lld].window: %lld and desc.slack, %lld, overflow",
                     (long long)index, (long long)spec->window, (long long)cache->desc.slack);
}

/* Capacity comes in chunks of so many positions. */
static kvc_status set_chunk(kvc__layer *layer, const kvc_cache_desc *desc) {
    const int64_t whole = layer->spec.keys_per_channel ? layer->spec.kv_group : 1;
    const int64_t chunk = desc->growth == KVC_GROW_EXACT ? 1 : desc->chunk;
    if (!kvc__add_i64(&layer->chunk, chunk, whole - 1))
        return kvc__fail(KVC_E_RANGE,
                         "desc.chunk: %lld given, in whole groups of %lld it overflows",
                         (long long)chunk, (long long)whole);
    layer->chunk -= layer->chunk % whole;
    return KVC_OK;
}

static kvc_status init_layer(kvc_cache *cache, const kvc_layer_spec *spec, int64_t index) {
    kvc__layer *layer = &cache->layers[index];
    kvc__row_format rows[KVC__PLANES];
    layer->spec = *spec;
    layer->even = true;
    layer->lengths = cache->lengths + index * cache->desc.batch;
    KVC_TRY(kvc__spec_complete(&layer->spec, index));
    KVC_TRY(check_device(cache, &layer->spec, index));
    KVC_TRY(check_ring(cache, &layer->spec, index));
    KVC_TRY(kvc__spec_rows(rows, &layer->planes_used, &layer->spec));
    KVC_TRY(set_chunk(layer, &cache->desc));
    cache->specs[index] = layer->spec;
    for (int p = 0; p < layer->planes_used; p++)
        KVC_TRY(init_plane(&layer->planes[p], cache, layer, &rows[p], KVC__PLANES * index + p));
    if (layer->spec.window) {
        layer->rings = cache->rings + index * cache->desc.batch;
        for (int64_t b = 0; b < cache->desc.batch; b++) kvc__ring_clear(cache, layer, b);
    }
    if (layer->spec.keys_per_channel) layer->tails = cache->tails + index * cache->desc.batch;
    if (cache->desc.growth == KVC_GROW_RESERVE) return kvc__linear_reserve(cache, layer);
    if (cache->desc.growth == KVC_GROW_PAGED) kvc__pages_place(cache, layer);
    return KVC_OK;
}

static kvc_status allocate(void *out, int64_t count, size_t bytes) {
    return kvc__calloc(out, (size_t)count, bytes, "cache");
}

static kvc_status init(kvc_cache *cache) {
    const kvc_cache_desc *desc = &cache->desc;
    void *memory;
    int64_t states;
    bool windows = false, channels = false;
    if (!kvc__mul_i64(&states, desc->layers, desc->batch) ||
        states > PTRDIFF_MAX / (int64_t)sizeof *cache->rings)
        return kvc__fail(KVC_E_RANGE, "desc: %lld layers × batch %lld overflows",
                         (long long)desc->layers, (long long)desc->batch);
    KVC_TRY(allocate(&memory, desc->layers, sizeof *cache->specs));
    cache->specs = memory;
    KVC_TRY(allocate(&memory, desc->layers, sizeof *cache->layers));
    cache->layers = memory;
    KVC_TRY(allocate(&memory, states, sizeof *cache->lengths));
    cache->lengths = memory;
    for (int64_t i = 0; i < desc->spec_count; i++) {
        windows = windows || desc->specs[i].window;
        channels = channels || desc->specs[i].keys_per_channel;
    }
    if (channels) {
        KVC_TRY(allocate(&memory, states, sizeof *cache->tails));
        cache->tails = memory;
    }
    if (windows) {
        KVC_TRY(allocate(&memory, states, sizeof *cache->rings));
        cache->rings = memory;
    }
    if (desc->growth == KVC_GROW_PAGED) KVC_TRY(kvc__pages_init(cache));
    for (int64_t i = 0; i < desc->layers; i++)
        KVC_TRY(init_layer(cache, &desc->specs[desc->spec_count == 1 ? 0 : i], i));
    cache->desc.specs = cache->specs;
    cache->desc.spec_count = desc->layers;
    return KVC_OK;
}

kvc_status kvc_cache_new(kvc_cache **out, kvc_pool *pool, const kvc_cache_desc *desc) {
    kvc_cache_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    if (!pool) return kvc__fail(KVC_E_INVALID, "pool: NULL given, a pool wanted");
    KVC_TRY(kvc__struct_in(&full, sizeof full, desc, "kvc_cache_desc"));
    KVC_TRY(complete(&full, pool));
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_cache), "cache"));
    kvc_cache *cache = memory;
    cache->pool = pool;
    cache->desc = full;
    kvc__pool_hold(pool);
    if (full.blocks) kvc__blocks_hold(full.blocks);
    const kvc_status status = init(cache);
    if (status == KVC_OK) *out = cache;
    else kvc_cache_free(cache);
    return status;
}

void kvc_cache_free(kvc_cache *cache) {
    if (!cache) return;
    const int64_t layers = cache->desc.layers, states = layers * cache->desc.batch;
    /* Last first: the pool lends the newest first, and so the next cache's layers find their own.
     */
    for (int64_t i = cache->layers ? layers : 0; i-- > 0;)
        for (int p = KVC__PLANES; p-- > 0;) kvc_buffer_release(cache->layers[i].planes[p].buffer);
    kvc__pages_deinit(cache);
    kvc__free(cache->rings, (size_t)states, sizeof *cache->rings);
    kvc__free(cache->tails, (size_t)states, sizeof *cache->tails);
    kvc__free(cache->lengths, (size_t)states, sizeof *cache->lengths);
    kvc__free(cache->layers, (size_t)layers, sizeof *cache->layers);
    kvc__free(cache->specs, (size_t)layers, sizeof *cache->specs);
    if (cache->desc.blocks) kvc__blocks_drop_hold(cache->desc.blocks);
    kvc__pool_drop_hold(cache->pool);
    kvc__free(cache, 1, sizeof *cache);
}

kvc_status kvc__cache_given(const kvc_cache *cache) {
    if (cache) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "cache: NULL given, a cache wanted");
}

kvc_status kvc__cache_layer(kvc__layer **out, const kvc_cache *cache, int64_t layer) {
    KVC_TRY(kvc__cache_given(cache));
    if (layer < 0 || layer >= cache->desc.layers)
        return kvc__fail(KVC_E_INVALID, "layer: %lld given, 0 to %lld wanted", (long long)layer,
                         (long long)cache->desc.layers - 1);
    *out = &cache->layers[layer];
    return KVC_OK;
}

kvc_status kvc__cache_sequence(const kvc_cache *cache, int64_t sequence, const char *name) {
    KVC_TRY(kvc__cache_given(cache));
    if (sequence >= 0 && sequence < cache->desc.batch) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "%s: %lld given, 0 to %lld wanted", name, (long long)sequence,
                     (long long)cache->desc.batch - 1);
}

void kvc__layer_settle(const kvc_cache *cache, kvc__layer *layer) {
    int64_t longest = layer->lengths[0], shortest = longest;
    for (int64_t b = 1; b < cache->desc.batch; b++) {
        if (layer->lengths[b] > longest) longest = layer->lengths[b];
        if (layer->lengths[b] < shortest) shortest = layer->lengths[b];
    }
    layer->length = longest;
    layer->even = shortest == longest;
    layer->prepared = 0;
}

int64_t kvc__layer_held(const kvc__layer *layer, int64_t sequence) {
    const int64_t length = layer->lengths[sequence];
    if (!layer->rings || layer->rings[sequence].first >= length) return length;
    return length - (layer->rings[sequence].first - layer->rings[sequence].keep);
}

size_t kvc__positions_bytes(const kvc__layer *layer, int64_t n) {
    size_t bytes = 0;
    for (int p = 0; p < layer->planes_used && p != KVC__TAIL; p++) {
        const kvc__row_format *row = &layer->planes[p].row;
        bytes += (size_t)n * row->bytes / (size_t)row->positions;
    }
    return bytes * (size_t)layer->spec.kv_heads;
}

/* Those of a sequence, its unpacked keys as they are. */
static size_t held_bytes(const kvc__layer *layer, int64_t sequence) {
    const int64_t held = kvc__layer_held(layer, sequence);
    const size_t heads = (size_t)layer->spec.kv_heads;
    size_t bytes = kvc__positions_bytes(layer, held);
    if (!layer->tails) return bytes;
    const int64_t unpacked = held - kvc__channels_packed(layer, sequence);
    for (int p = 0; p < KVC__TAIL; p++) {
        const kvc__row_format *row = &layer->planes[p].row;
        if (row->positions > 1)
            bytes -= heads * (size_t)unpacked * row->bytes / (size_t)row->positions;
    }
    return bytes + heads * (size_t)unpacked * layer->planes[KVC__TAIL].row.bytes;
}

int64_t kvc_cache_length(const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    return kvc__cache_layer(&layer, cache, index) == KVC_OK ? layer->length : -1;
}

int64_t kvc_cache_sequence_length(const kvc_cache *cache, int64_t index, int64_t sequence) {
    kvc__layer *layer;
    if (kvc__cache_layer(&layer, cache, index) != KVC_OK ||
        kvc__cache_sequence(cache, sequence, "sequence") != KVC_OK)
        return -1;
    return layer->lengths[sequence];
}

int64_t kvc_cache_capacity(const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    return kvc__cache_layer(&layer, cache, index) == KVC_OK ? layer->capacity : -1;
}

kvc_status kvc_cache_desc_get(const kvc_cache *cache, kvc_cache_desc *out) {
    KVC_TRY(kvc__cache_given(cache));
    return kvc__struct_out(out, &cache->desc, sizeof cache->desc, "kvc_cache_desc");
}

static void add_layer(kvc_cache_nbytes *sum, const kvc_cache *cache, const kvc__layer *layer) {
    for (int64_t b = 0; b < cache->desc.batch; b++) sum->used += held_bytes(layer, b);
    for (int p = 0; p < layer->planes_used; p++) {
        const kvc_buffer *buffer = layer->planes[p].buffer;
        if (!buffer) continue;
        sum->resident += kvc_buffer_resident_bytes(buffer);
        sum->reserved += kvc_buffer_capacity_bytes(buffer);
    }
}

kvc_status kvc_cache_nbytes_get(const kvc_cache *cache, kvc_cache_nbytes *out) {
    KVC_TRY(kvc__cache_given(cache));
    kvc_cache_nbytes sum = {.struct_size = sizeof sum};
    for (int64_t i = 0; i < cache->desc.layers; i++) add_layer(&sum, cache, &cache->layers[i]);
    if (cache->desc.growth == KVC_GROW_PAGED) {
        for (int64_t b = 0; b < cache->desc.batch; b++)
            sum.resident += (uint64_t)cache->table_used[b] * cache->desc.blocks->block_bytes;
        sum.reserved = sum.resident;
    }
    return kvc__struct_out(out, &sum, sizeof sum, "kvc_cache_nbytes");
}

kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_cache_stats *out) {
    KVC_TRY(kvc__cache_given(cache));
    return kvc__struct_out(out, &cache->stats, sizeof cache->stats, "kvc_cache_stats");
}
