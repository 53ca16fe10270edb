#include "base/error.h"
#include "cache/cache.h"
#include "memory/pool.h"

/* Rows of every range that the layer may read or write. */
static int64_t rows_in_use(const kvc_cache *cache, const kvc__layer *layer) {
    int64_t rows = 0;
    if (!layer->rings) return layer->length + layer->prepared;
    for (int64_t b = 0; b < cache->desc.batch; b++)
        if (kvc__ring_rows_used(layer, b) > rows) rows = kvc__ring_rows_used(layer, b);
    return rows;
}

static kvc_status check_plane(const kvc_cache *cache, const kvc__layer *layer,
                              const kvc__plane *plane) {
    static const char *const names[KVC__PLANES] = {
        "keys",           "values",           "scales of keys",
        "biases of keys", "scales of values", "biases of values",
        "unpacked keys"};
    const char *name = names[plane - layer->planes];
    const long long index = layer - cache->layers;
    size_t bytes;
    KVC_TRY(kvc__plane_bytes(&bytes, plane, layer->capacity));
    if (!plane->buffer != !layer->capacity ||
        (plane->buffer && kvc_buffer_capacity_bytes(plane->buffer) < bytes))
        return kvc__fail(KVC_E_CORRUPT,
                         "layer %lld: the buffer of its %s is less than %lld positions need", index,
                         name, (long long)layer->capacity);
    const kvc__row_format *row = &plane->row;
    const size_t live_bytes = (size_t)kvc__rows_of(row, rows_in_use(cache, layer)) * row->bytes;
    const size_t range_bytes = (size_t)kvc__rows_of(row, layer->capacity) * row->bytes;
    for (size_t r = 0; cache->desc.growth == KVC_GROW_RESERVE && r < plane->ranges; r++)
        if (live_bytes && !kvc__buffer_is_committed(plane->buffer, r * range_bytes, live_bytes))
            return kvc__fail(KVC_E_CORRUPT, "layer %lld: live %s of range %zu are not resident",
                             index, name, r);
    return KVC_OK;
}

static kvc_status check_lengths(const kvc_cache *cache, const kvc__layer *layer) {
    const kvc_cache_desc *desc = &cache->desc;
    bool even = true;
    int64_t longest = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        const int64_t length = layer->lengths[b];
        if (length < 0 || (desc->max_positions && length > desc->max_positions))
            return kvc__fail(KVC_E_CORRUPT, "layer %lld: sequence %lld has a length of %lld",
                             (long long)(layer - cache->layers), (long long)b, (long long)length);
        even = even && length == layer->lengths[0];
        if (length > longest) longest = length;
    }
    if (longest == layer->length && even == layer->even) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "layer %lld: length %lld noted, %lld is the longest",
                     (long long)(layer - cache->layers), (long long)layer->length,
                     (long long)longest);
}

static kvc_status check_rows(const kvc_cache *cache, const kvc__layer *layer) {
    const kvc_cache_desc *desc = &cache->desc;
    const int64_t used = rows_in_use(cache, layer);
    if (layer->prepared < 0 || used > layer->capacity ||
        (desc->max_positions && !layer->rings && used > desc->max_positions))
        return kvc__fail(KVC_E_CORRUPT,
                         "layer %lld: length %lld and %lld prepared in a capacity of %lld",
                         (long long)(layer - cache->layers), (long long)layer->length,
                         (long long)layer->prepared, (long long)layer->capacity);
    if (layer->capacity % layer->chunk != 0)
        return kvc__fail(KVC_E_CORRUPT,
                         "layer %lld: capacity %lld is no multiple of the chunk, %lld",
                         (long long)(layer - cache->layers), (long long)layer->capacity,
                         (long long)layer->chunk);
    for (int p = 0; p < layer->planes_used; p++)
        KVC_TRY(check_plane(cache, layer, &layer->planes[p]));
    return KVC_OK;
}

kvc_status kvc_cache_check(const kvc_cache *cache) {
    KVC_TRY(kvc__cache_given(cache));
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        const kvc__layer *layer = &cache->layers[i];
        KVC_TRY(check_lengths(cache, layer));
        if (!cache->tables) KVC_TRY(check_rows(cache, layer));
        for (int64_t b = 0; layer->rings && b < cache->desc.batch; b++)
            KVC_TRY(kvc__ring_check(cache, layer, b));
        for (int64_t b = 0; layer->tails && b < cache->desc.batch; b++)
            KVC_TRY(kvc__channels_check(cache, layer, b));
    }
    for (int64_t b = 0; cache->tables && b < cache->desc.batch; b++)
        KVC_TRY(kvc__pages_check(cache, b));
    return KVC_OK;
}
