#include "cache/view.h"

#include "base/error.h"
#include "cache/cache.h"

kvc_status kvc__cache_layer_view(kvc__layer_view *out, const kvc_cache *cache, int64_t index) {
    kvc__layer *layer;
    *out = (kvc__layer_view){0};
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    *out = (kvc__layer_view){
        .dtype = layer->spec.dtype,
        .batch = cache->desc.batch,
        .kv_heads = layer->spec.kv_heads,
        .key_dim = layer->spec.key_dim,
        .value_dim = layer->spec.value_dim,
        .length = layer->length,
        .capacity = layer->capacity,
        .chunk = cache->desc.chunk,
        .max_positions = cache->desc.max_positions,
        .growth = cache->desc.growth,
        .device = kvc_pool_device(cache->pool),
    };
    if (layer->k.buffer) {
        out->k = kvc_buffer_data(layer->k.buffer);
        out->v = kvc_buffer_data(layer->v.buffer);
        out->k_buffer_bytes = kvc_buffer_capacity_bytes(layer->k.buffer);
        out->v_buffer_bytes = kvc_buffer_capacity_bytes(layer->v.buffer);
    }
    return KVC_OK;
}
