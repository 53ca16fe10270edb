#include "cache/view.h"

#include "base/error.h"
#include "cache/blocks.h"
#include "cache/cache.h"

kvc__map kvc__layer_map(const kvc_cache *cache, const kvc__layer *layer) {
    const kvc_blocks *blocks = cache->desc.blocks;
    if (!blocks) return (kvc__map){.rings = layer->rings};
    kvc__map map = kvc__blocks_map(blocks);
    map.tables = cache->tables;
    map.table_stride = cache->table_stride;
    return map;
}

kvc_status kvc__cache_layer_view(kvc__layer_view *out, const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    *out = (kvc__layer_view){0};
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    *out = (kvc__layer_view){
        .spec = layer->spec,
        .batch = cache->desc.batch,
        .length = layer->length,
        .lengths = layer->even ? NULL : layer->lengths,
        .held = layer->tails ? layer->lengths : NULL,
        .capacity = layer->capacity,
        .map = kvc__layer_map(cache, layer),
        .chunk = cache->desc.chunk,
        .max_positions = cache->desc.max_positions,
        .growth = cache->desc.growth,
        .device = kvc_pool_device(cache->pool),
    };
    for (int p = 0; p < layer->planes_used; p++) {
        const kvc__plane *plane = &layer->planes[p];
        out->rows[p] = plane->row;
        out->offset_bytes[p] = plane->offset_bytes;
        if (plane->buffer) out->planes[p] = kvc_buffer_data(plane->buffer);
    }
    if (layer->planes[KVC__KEYS].buffer) {
        out->k_buffer_bytes = kvc_buffer_capacity_bytes(layer->planes[KVC__KEYS].buffer);
        out->v_buffer_bytes = kvc_buffer_capacity_bytes(layer->planes[KVC__VALUES].buffer);
    }
    return KVC_OK;
}
