#include "base/error.h"
#include "cache/cache.h"

kvc_status kvc__lend_begin(kvc_array *k, kvc_array *v) {
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "k, v: NULL given, two arrays wanted");
    *k = *v = (kvc_array){0};
    return KVC_OK;
}

kvc_array kvc__lend(const kvc_cache *cache, const kvc__layer *layer, int plane, int64_t first,
                    int64_t count) {
    kvc_array a = kvc__plane_array(cache, layer, &layer->planes[plane], first, count);
    a.buffer = kvc_buffer_retain(layer->planes[plane].buffer);
    return a;
}

/* Rows of every range that hold something. */
static int64_t rows_of(const kvc_cache *cache, const kvc__layer *layer) {
    int64_t rows = 0;
    if (!layer->rings) return layer->length;
    for (int64_t b = 0; b < cache->desc.batch; b++)
        if (kvc__ring_rows_used(layer, b) > rows) rows = kvc__ring_rows_used(layer, b);
    return rows;
}

static kvc_status check_viewable(const kvc_cache *cache, const kvc__layer *layer, bool packed) {
    const long long index = layer - cache->layers;
    if (cache->tables)
        return kvc__fail(KVC_E_UNSUPPORTED,
                         "layer %lld: its positions lie in blocks; kvc_cache_block_table wanted",
                         index);
    if (packed == (layer->spec.kv_bits > 0)) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED, "layer %lld: its rows are %s; %s wanted", index,
                     packed ? "not packed" : "packed",
                     packed ? "kvc_cache_view" : "kvc_cache_view_quantized");
}

kvc_status kvc_cache_view(const kvc_cache *cache, int64_t index, kvc_array *k, kvc_array *v) {
    kvc__layer *layer;
    KVC_TRY(kvc__lend_begin(k, v));
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(check_viewable(cache, layer, false));
    const int64_t rows = rows_of(cache, layer);
    *k = kvc__lend(cache, layer, KVC__KEYS, 0, rows);
    *v = kvc__lend(cache, layer, KVC__VALUES, 0, rows);
    return KVC_OK;
}

/* Cuts rows of blocks of positions into those of their elements. */
static void cut_channels(kvc_array *rows, int64_t channels) {
    rows->ndim = 5;
    rows->shape[4] = rows->shape[3] / channels;
    rows->shape[3] = channels;
    rows->strides[3] = rows->shape[4];
    rows->strides[4] = 1;
}

static kvc_quantized lend_packed(const kvc_cache *cache, const kvc__layer *layer, int side,
                                 int64_t positions) {
    const int scales = KVC__SCALES + 2 * side;
    const int64_t rows = kvc__rows_of(&layer->planes[side].row, positions);
    return (kvc_quantized){.struct_size = sizeof(kvc_quantized),
                           .bits = layer->spec.kv_bits,
                           .group = layer->spec.kv_group,
                           .words = kvc__lend(cache, layer, side, 0, rows),
                           .scales = kvc__lend(cache, layer, scales, 0, rows),
                           .biases = kvc__lend(cache, layer, scales + 1, 0, rows)};
}

kvc_status kvc_cache_view_quantized(const kvc_cache *cache, int64_t index, kvc_quantized *k,
                                    kvc_quantized *v) {
    kvc__layer *layer;
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "k, v: NULL given, two packed arrays wanted");
    *k = *v = (kvc_quantized){0};
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(check_viewable(cache, layer, true));
    const int64_t rows = rows_of(cache, layer);
    *k = lend_packed(cache, layer, KVC__KEYS, rows);
    *v = lend_packed(cache, layer, KVC__VALUES, rows);
    if (!layer->tails) return KVC_OK;
    cut_channels(&k->words, layer->spec.key_dim);
    cut_channels(&k->scales, layer->spec.key_dim);
    cut_channels(&k->biases, layer->spec.key_dim);
    return KVC_OK;
}

kvc_status kvc_cache_view_tail(const kvc_cache *cache, int64_t index, kvc_array *k) {
    kvc__layer *layer;
    if (!k) return kvc__fail(KVC_E_INVALID, "k: NULL given, an array wanted");
    *k = (kvc_array){0};
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    if (!layer->tails)
        return kvc__fail(KVC_E_UNSUPPORTED,
                         "layer %lld: its keys are not packed per channel; "
                         "desc.specs.keys_per_channel wanted",
                         (long long)index);
    *k = kvc__lend(cache, layer, KVC__TAIL, 0,
                   kvc__rows_of(&layer->planes[KVC__TAIL].row, layer->length));
    return KVC_OK;
}

kvc_status kvc_cache_row_positions(const kvc_cache *cache, int64_t index, int64_t sequence,
                                   int64_t *positions, int64_t room) {
    kvc__layer *layer;
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(kvc__cache_sequence(cache, sequence, "sequence"));
    KVC_TRY(check_viewable(cache, layer, layer->spec.kv_bits > 0));
    const int64_t rows = rows_of(cache, layer), length = layer->lengths[sequence];
    if (room < rows || (rows > 0 && !positions))
        return kvc__fail(KVC_E_RANGE, "positions: room for %lld given, for %lld rows wanted",
                         positions ? (long long)room : 0LL, (long long)rows);
    for (int64_t i = 0; i < rows; i++) positions[i] = layer->rings || i >= length ? -1 : i;
    if (!layer->rings) return KVC_OK;
    const kvc__ring *ring = &layer->rings[sequence];
    int64_t run;
    for (int64_t p = 0; p < length; p++) {
        if (p == ring->keep) p = ring->first;
        if (p < length) positions[kvc__ring_row(ring, p, &run)] = p;
    }
    return KVC_OK;
}
