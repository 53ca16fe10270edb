#include <stdio.h>

#include "array/view.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/device.h"

/* Verifies that an argument holds n positions of a side; n < 0: any count, which *n receives. */
static kvc_status check_positions(const kvc_cache *cache, const kvc__layer *layer,
                                  const kvc__side *side, const kvc_array *a, const char *name,
                                  int64_t *n) {
    KVC_TRY(kvc__array_check(a, name));
    const bool shaped = a->ndim == 4 && a->shape[0] == cache->desc.batch &&
                        a->shape[1] == layer->spec.kv_heads && a->shape[2] >= 0 &&
                        a->shape[3] == side->dim;
    if (!shaped || (*n >= 0 && a->shape[2] != *n)) {
        char text[KVC__SHAPE_TEXT], count[24] = "n";
        if (*n >= 0) (void)snprintf(count, sizeof count, "%lld", (long long)*n);
        return kvc__fail(KVC_E_SHAPE, "%s: %s given, [%lld, %lld, %s, %lld] wanted", name,
                         kvc__shape_text(text, a->ndim, a->shape), (long long)cache->desc.batch,
                         (long long)layer->spec.kv_heads, count, (long long)side->dim);
    }
    if (a->dtype != KVC_F32 && a->dtype != KVC_F16 && a->dtype != KVC_BF16)
        return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32, f16 or bf16 wanted", name,
                         kvc_dtype_name(a->dtype));
    if (a->buffer && kvc__array_device(a) != kvc_pool_device(cache->pool))
        return kvc__fail(KVC_E_SHAPE, "%s: an array of device '%s' given, the cache is on '%s'",
                         name, kvc__array_device(a)->name, kvc_pool_device(cache->pool)->name);
    *n = a->shape[2];
    return KVC_OK;
}

kvc_array kvc__side_array(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                          int64_t first, int64_t count) {
    const int64_t head = layer->capacity * side->dim;
    kvc_array a = {.dtype = layer->spec.dtype,
                   .ndim = 4,
                   .shape = {cache->desc.batch, layer->spec.kv_heads, count, side->dim},
                   .strides = {layer->spec.kv_heads * head, head, side->dim, 1}};
    if (side->buffer)
        a.data = (char *)kvc_buffer_data(side->buffer) + (size_t)first * side->row_bytes;
    return a;
}

kvc_status kvc__side_write(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                           kvc_buffer *buffer, int64_t capacity, int64_t first,
                           const kvc_array *rows) {
    const int64_t head = capacity * side->dim;
    const int64_t strides[4] = {layer->spec.kv_heads * head, head, side->dim, 1};
    char *to = (char *)kvc_buffer_data(buffer) + (size_t)first * side->row_bytes;
    const kvc_strided dst = {to, layer->spec.dtype, strides};
    const kvc_strided src = {rows->data, rows->dtype, rows->strides};
    return kvc__device_copy(kvc_pool_device(cache->pool), &dst, &src, 4, rows->shape);
}

/* Makes room for n positions behind the live ones. */
static kvc_status make_room(kvc_cache *cache, kvc__layer *layer, int64_t n) {
    int64_t need;
    if (n == 0) return KVC_OK;
    if (!kvc__add_i64(&need, layer->length, n))
        return kvc__fail(KVC_E_RANGE, "%lld positions and %lld more overflow",
                         (long long)layer->length, (long long)n);
    return kvc__cache_grow(cache, layer, need);
}

/* Makes n positions behind the live ones live. */
static void advance(kvc_cache *cache, kvc__layer *layer, int64_t n, bool copied) {
    const size_t bytes =
        (size_t)n * (layer->k.ranges * layer->k.row_bytes + layer->v.ranges * layer->v.row_bytes);
    layer->length += n;
    layer->prepared = 0;
    cache->stats.appends++;
    cache->stats.appended_bytes += bytes;
    if (copied) cache->stats.copied_bytes += bytes;
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
}

kvc_status kvc_cache_append(kvc_cache *cache, int64_t index, const kvc_array *k,
                            const kvc_array *v) {
    kvc__layer *layer;
    int64_t n = -1;
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(check_positions(cache, layer, &layer->k, k, "k", &n));
    KVC_TRY(check_positions(cache, layer, &layer->v, v, "v", &n));
    if (n == 0) return KVC_OK;
    KVC_TRY(make_room(cache, layer, n));
    layer->prepared = 0; /* from here on its room is written, even when a copy then fails */
    const int64_t capacity = layer->capacity, length = layer->length;
    KVC_TRY(kvc__side_write(cache, layer, &layer->k, layer->k.buffer, capacity, length, k));
    KVC_TRY(kvc__side_write(cache, layer, &layer->v, layer->v.buffer, capacity, length, v));
    advance(cache, layer, n, true);
    return KVC_OK;
}

/* Hands out positions of a side with a reference of their own. */
static kvc_array lend(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                      int64_t first, int64_t count) {
    kvc_array a = kvc__side_array(cache, layer, side, first, count);
    a.buffer = kvc_buffer_retain(side->buffer);
    return a;
}

static kvc_status lend_both(kvc_array *k, kvc_array *v, const kvc_cache *cache,
                            const kvc__layer *layer, int64_t first, int64_t count) {
    *k = lend(cache, layer, &layer->k, first, count);
    *v = lend(cache, layer, &layer->v, first, count);
    return KVC_OK;
}

static kvc_status clear_outputs(kvc_array *k, kvc_array *v) {
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "k, v: NULL given, two arrays wanted");
    *k = *v = (kvc_array){0};
    return KVC_OK;
}

kvc_status kvc_cache_prepare(kvc_cache *cache, int64_t index, int64_t n, kvc_array *k,
                             kvc_array *v) {
    kvc__layer *layer;
    KVC_TRY(clear_outputs(k, v));
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    if (n < 0) return kvc__fail(KVC_E_RANGE, "n: %lld given, at least 0 wanted", (long long)n);
    KVC_TRY(make_room(cache, layer, n));
    layer->prepared = n;
    return lend_both(k, v, cache, layer, layer->length, n);
}

kvc_status kvc_cache_commit(kvc_cache *cache, int64_t index, int64_t n) {
    kvc__layer *layer;
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    if (n < 0 || n > layer->prepared)
        return kvc__fail(KVC_E_RANGE, "n: %lld given, 0 to the %lld prepared positions wanted",
                         (long long)n, (long long)layer->prepared);
    advance(cache, layer, n, false);
    return KVC_OK;
}

kvc_status kvc_cache_view(const kvc_cache *cache, int64_t index, kvc_array *k, kvc_array *v) {
    kvc__layer *layer;
    KVC_TRY(clear_outputs(k, v));
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    return lend_both(k, v, cache, layer, 0, layer->length);
}

kvc_status kvc_cache_trim(kvc_cache *cache, int64_t n) {
    KVC_TRY(kvc__cache_given(cache));
    if (n < 0) return kvc__fail(KVC_E_RANGE, "n: %lld given, at least 0 wanted", (long long)n);
    for (int64_t i = 0; i < cache->desc.layers; i++)
        if (cache->layers[i].length < n)
            return kvc__fail(KVC_E_RANGE, "n: %lld given, layer %lld holds %lld positions",
                             (long long)n, (long long)i, (long long)cache->layers[i].length);
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        cache->layers[i].length -= n;
        cache->layers[i].prepared = 0;
    }
    return KVC_OK;
}

void kvc_cache_clear(kvc_cache *cache) {
    for (int64_t i = 0; i < cache->desc.layers; i++)
        cache->layers[i].length = cache->layers[i].prepared = 0;
}
