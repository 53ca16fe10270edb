#include "cache/cache.h"

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/pool.h"

const char *kvc_growth_name(kvc_growth growth) {
    switch (growth) {
    case KVC_GROW_RESERVE: return "reserve";
    case KVC_GROW_CHUNK: return "chunk";
    case KVC_GROW_EXACT: return "exact";
    }
    return "?";
}

static kvc_status check_positive(int64_t value, const char *field, int64_t index) {
    if (value > 0) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "desc.specs[%lld].%s: %lld given, more than 0 wanted",
                     (long long)index, field, (long long)value);
}

static kvc_status check_spec(const kvc_layer_spec *spec, int64_t index) {
    KVC_TRY(check_positive(spec->kv_heads, "kv_heads", index));
    KVC_TRY(check_positive(spec->key_dim, "key_dim", index));
    KVC_TRY(check_positive(spec->value_dim, "value_dim", index));
    if (spec->dtype != KVC_F32 && spec->dtype != KVC_F16 && spec->dtype != KVC_BF16)
        return kvc__fail(KVC_E_INVALID, "desc.specs[%lld].dtype: %s given, f32, f16 or bf16 wanted",
                         (long long)index, kvc_dtype_name(spec->dtype));
    return KVC_OK;
}

/* Brings a description into its full form: defaults filled, every field but the specs checked. */
static kvc_status complete(kvc_cache_desc *desc) {
    if (desc->batch == 0) desc->batch = 1;
    if (desc->chunk == 0) desc->chunk = KVC_CHUNK_DEFAULT;
    if (desc->batch < 0 || desc->layers <= 0 || desc->chunk < 0 || desc->max_positions < 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc: batch %lld, layers %lld, chunk %lld, max_positions %lld given; "
                         "layers more than 0 and the others at least 0 wanted",
                         (long long)desc->batch, (long long)desc->layers, (long long)desc->chunk,
                         (long long)desc->max_positions);
    if (!desc->specs || (desc->spec_count != 1 && desc->spec_count != desc->layers))
        return kvc__fail(KVC_E_INVALID,
                         "desc.specs: %lld given, 1 or one for each of %lld layers wanted",
                         desc->specs ? (long long)desc->spec_count : 0LL, (long long)desc->layers);
    if (desc->growth != KVC_GROW_RESERVE && desc->growth != KVC_GROW_CHUNK &&
        desc->growth != KVC_GROW_EXACT)
        return kvc__fail(KVC_E_INVALID, "desc.growth: %d given, a kvc_growth wanted",
                         (int)desc->growth);
    if (desc->growth == KVC_GROW_RESERVE && desc->max_positions == 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc.max_positions: 0 given; KVC_GROW_RESERVE wants the most positions "
                         "a sequence may reach: it costs address space, not memory");
    return KVC_OK;
}

/* place: of this side among all of the cache. Its phase is that share of a commit unit. */
static kvc_status init_side(kvc__side *side, const kvc_cache *cache, const kvc__layer *layer,
                            int64_t dim, int64_t place) {
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(cache->pool);
    side->dim = dim;
    if (!kvc__mul(&side->ranges, (size_t)cache->desc.batch, (size_t)layer->spec.kv_heads) ||
        !kvc__mul(&side->row_bytes, (size_t)dim, kvc_dtype_size_bytes(layer->spec.dtype)))
        return kvc__fail(KVC_E_RANGE, "desc: batch %lld × kv_heads %lld × dim %lld overflows",
                         (long long)cache->desc.batch, (long long)layer->spec.kv_heads,
                         (long long)dim);
    const int64_t places = 2 * cache->desc.layers;
    side->phase_bytes = (size_t)((double)unit_bytes * (double)place / (double)places);
    return KVC_OK;
}

static kvc_status init_layer(kvc_cache *cache, const kvc_layer_spec *spec, int64_t index) {
    kvc__layer *layer = &cache->layers[index];
    size_t one_position;
    layer->spec = *spec;
    if (layer->spec.value_dim == 0) layer->spec.value_dim = layer->spec.key_dim;
    KVC_TRY(check_spec(&layer->spec, index));
    cache->specs[index] = layer->spec;
    KVC_TRY(init_side(&layer->k, cache, layer, layer->spec.key_dim, 2 * index));
    KVC_TRY(init_side(&layer->v, cache, layer, layer->spec.value_dim, 2 * index + 1));
    KVC_TRY(kvc__side_bytes(&one_position, &layer->k, 1));
    KVC_TRY(kvc__side_bytes(&one_position, &layer->v, 1));
    if (cache->desc.growth == KVC_GROW_RESERVE) KVC_TRY(kvc__cache_reserve(cache, layer));
    return KVC_OK;
}

static kvc_status init(kvc_cache *cache) {
    const kvc_cache_desc *desc = &cache->desc;
    void *memory;
    KVC_TRY(kvc__calloc(&memory, (size_t)desc->layers, sizeof *cache->specs, "cache"));
    cache->specs = memory;
    KVC_TRY(kvc__calloc(&memory, (size_t)desc->layers, sizeof *cache->layers, "cache"));
    cache->layers = memory;
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
    KVC_TRY(complete(&full));
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_cache), "cache"));
    kvc_cache *cache = memory;
    cache->pool = pool;
    cache->desc = full;
    kvc__pool_hold(pool);
    const kvc_status status = init(cache);
    if (status == KVC_OK) *out = cache;
    else kvc_cache_free(cache);
    return status;
}

void kvc_cache_free(kvc_cache *cache) {
    if (!cache) return;
    /* Last first: the pool lends the newest first, and so the next cache's layers find their own.
     */
    for (int64_t i = cache->layers ? cache->desc.layers : 0; i-- > 0;) {
        kvc_buffer_release(cache->layers[i].v.buffer);
        kvc_buffer_release(cache->layers[i].k.buffer);
    }
    kvc__free(cache->layers, (size_t)cache->desc.layers, sizeof *cache->layers);
    kvc__free(cache->specs, (size_t)cache->desc.layers, sizeof *cache->specs);
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

int64_t kvc_cache_length(const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    return kvc__cache_layer(&layer, cache, index) == KVC_OK ? layer->length : -1;
}

int64_t kvc_cache_capacity(const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    return kvc__cache_layer(&layer, cache, index) == KVC_OK ? layer->capacity : -1;
}

kvc_status kvc_cache_desc_get(const kvc_cache *cache, kvc_cache_desc *out) {
    KVC_TRY(kvc__cache_given(cache));
    return kvc__struct_out(out, &cache->desc, sizeof cache->desc, "kvc_cache_desc");
}

static void add_side(kvc_cache_nbytes *sum, const kvc__side *side, int64_t length) {
    sum->used += side->ranges * side->row_bytes * (size_t)length;
    if (!side->buffer) return;
    sum->resident += kvc_buffer_resident_bytes(side->buffer);
    sum->reserved += kvc_buffer_capacity_bytes(side->buffer);
}

kvc_status kvc_cache_nbytes_get(const kvc_cache *cache, kvc_cache_nbytes *out) {
    KVC_TRY(kvc__cache_given(cache));
    kvc_cache_nbytes sum = {.struct_size = sizeof sum};
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        const kvc__layer *layer = &cache->layers[i];
        add_side(&sum, &layer->k, layer->length);
        add_side(&sum, &layer->v, layer->length);
    }
    return kvc__struct_out(out, &sum, sizeof sum, "kvc_cache_nbytes");
}

kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_cache_stats *out) {
    KVC_TRY(kvc__cache_given(cache));
    return kvc__struct_out(out, &cache->stats, sizeof cache->stats, "kvc_cache_stats");
}

static kvc_status check_side(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                             const char *name) {
    const int64_t index = layer - cache->layers;
    size_t bytes;
    KVC_TRY(kvc__side_bytes(&bytes, side, layer->capacity));
    if (!side->buffer != !layer->capacity ||
        (side->buffer && kvc_buffer_capacity_bytes(side->buffer) < bytes))
        return kvc__fail(KVC_E_CORRUPT,
                         "layer %lld: the buffer of its %s is less than %lld "
                         "positions need",
                         (long long)index, name, (long long)layer->capacity);
    const size_t live_bytes = (size_t)(layer->length + layer->prepared) * side->row_bytes;
    const size_t range_bytes = (size_t)layer->capacity * side->row_bytes;
    for (size_t r = 0; cache->desc.growth == KVC_GROW_RESERVE && r < side->ranges; r++)
        if (live_bytes && !kvc__buffer_is_committed(side->buffer, r * range_bytes, live_bytes))
            return kvc__fail(KVC_E_CORRUPT, "layer %lld: live %s of range %zu are not resident",
                             (long long)index, name, r);
    return KVC_OK;
}

kvc_status kvc_cache_check(const kvc_cache *cache) {
    KVC_TRY(kvc__cache_given(cache));
    const kvc_cache_desc *desc = &cache->desc;
    for (int64_t i = 0; i < desc->layers; i++) {
        const kvc__layer *layer = &cache->layers[i];
        const int64_t used = layer->length + layer->prepared;
        if (layer->length < 0 || layer->prepared < 0 || used > layer->capacity ||
            (desc->max_positions && used > desc->max_positions))
            return kvc__fail(KVC_E_CORRUPT,
                             "layer %lld: length %lld and %lld prepared in a capacity of %lld",
                             (long long)i, (long long)layer->length, (long long)layer->prepared,
                             (long long)layer->capacity);
        if (desc->growth != KVC_GROW_EXACT && layer->capacity % desc->chunk != 0)
            return kvc__fail(KVC_E_CORRUPT,
                             "layer %lld: capacity %lld is no multiple of the chunk, %lld",
                             (long long)i, (long long)layer->capacity, (long long)desc->chunk);
        KVC_TRY(check_side(cache, layer, &layer->k, "keys"));
        KVC_TRY(check_side(cache, layer, &layer->v, "values"));
    }
    return KVC_OK;
}
