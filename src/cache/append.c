#include <stdio.h>

#include "array/view.h"
#include "base/assert.h"
#include "base/error.h"
#include "cache/cache.h"

/* Verifies that an argument holds n positions of a side; n < 0: any count, which *n receives. */
static kvc_status check_positions(const kvc_cache *cache, const kvc__layer *layer, int64_t dim,
                                  const kvc_array *a, const char *name, int64_t *n) {
    KVC_TRY(kvc__array_check(a, name));
    const bool shaped = a->ndim == 4 && a->shape[0] == cache->desc.batch &&
                        a->shape[1] == layer->spec.kv_heads && a->shape[2] >= 0 &&
                        a->shape[3] == dim;
    if (!shaped || (*n >= 0 && a->shape[2] != *n)) {
        char text[KVC__SHAPE_TEXT], count[24] = "n";
        if (*n >= 0) (void)snprintf(count, sizeof count, "%lld", (long long)*n);
        return kvc__fail(KVC_E_SHAPE, "%s: %s given, [%lld, %lld, %s, %lld] wanted", name,
                         kvc__shape_text(text, a->ndim, a->shape), (long long)cache->desc.batch,
                         (long long)layer->spec.kv_heads, count, (long long)dim);
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

static kvc_status check_counts(const kvc_cache *cache, const int64_t *counts, int64_t n) {
    for (int64_t b = 0; b < cache->desc.batch; b++)
        if (counts[b] < 0 || counts[b] > n)
            return kvc__fail(KVC_E_RANGE,
                             "counts[%lld]: %lld given, 0 to the %lld positions of k wanted",
                             (long long)b, (long long)counts[b], (long long)n);
    return KVC_OK;
}

static bool is_nothing(const kvc_cache *cache, kvc__counts counts) {
    for (int64_t b = 0; b < cache->desc.batch; b++)
        if (kvc__count(counts, b) > 0) return false;
    return true;
}

static void count_append(kvc_cache *cache, const kvc__layer *layer, kvc__counts counts,
                         bool copied) {
    uint64_t positions = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) positions += (uint64_t)kvc__count(counts, b);
    const uint64_t bytes = kvc__positions_bytes(layer, (int64_t)positions);
    cache->stats.appends++;
    cache->stats.appended_bytes += bytes;
    if (copied) cache->stats.copied_bytes += bytes;
}

/* Makes written positions live, and counts them. */
static void finish(kvc_cache *cache, kvc__layer *layer, kvc__counts counts, bool copied) {
    count_append(cache, layer, counts, copied);
    kvc__advance(cache, layer, counts);
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
}

/* @param each  counts, or NULL: all of k and v for every sequence */
static kvc_status append(kvc_cache *cache, int64_t index, const kvc_array *k, const kvc_array *v,
                         const int64_t *each) {
    kvc__layer *layer;
    int64_t n = -1;
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(check_positions(cache, layer, layer->spec.key_dim, k, "k", &n));
    KVC_TRY(check_positions(cache, layer, layer->spec.value_dim, v, "v", &n));
    if (each) KVC_TRY(check_counts(cache, each, n));
    const kvc__counts counts = {each, n};
    if (is_nothing(cache, counts)) return KVC_OK;
    KVC_TRY(kvc__make_room(cache, layer, counts));
    layer->prepared = 0; /* from here on its room is written, even when a copy then fails */
    kvc_status status = kvc__write_side(cache, layer, KVC__KEYS, counts, k);
    if (status == KVC_OK) status = kvc__write_side(cache, layer, KVC__VALUES, counts, v);
    if (status == KVC_OK) finish(cache, layer, counts, true);
    else
        for (int64_t b = 0; cache->tables && b < cache->desc.batch; b++)
            kvc__pages_settle(cache, b);
    return status;
}

kvc_status kvc_cache_append(kvc_cache *cache, int64_t index, const kvc_array *k,
                            const kvc_array *v) {
    return append(cache, index, k, v, NULL);
}

kvc_status kvc_cache_append_ragged(kvc_cache *cache, int64_t index, const kvc_array *k,
                                   const kvc_array *v, const int64_t *counts) {
    if (!counts) return kvc__fail(KVC_E_INVALID, "counts: NULL given, one a sequence wanted");
    return append(cache, index, k, v, counts);
}

static kvc_status check_lendable(const kvc_cache *cache, const kvc__layer *layer) {
    const char *why = cache->tables         ? "its positions lie in blocks"
                      : layer->rings        ? "it is a window"
                      : layer->spec.kv_bits ? "its rows are packed"
                      : !layer->even        ? "its sequences have several lengths"
                                            : NULL;
    if (!why) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED,
                     "layer %lld: %s, so that there is no room to write to in place; "
                     "kvc_cache_append wanted",
                     (long long)(layer - cache->layers), why);
}

kvc_status kvc_cache_prepare(kvc_cache *cache, int64_t index, int64_t n, kvc_array *k,
                             kvc_array *v) {
    kvc__layer *layer;
    KVC_TRY(kvc__lend_begin(k, v));
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(check_lendable(cache, layer));
    if (n < 0) return kvc__fail(KVC_E_RANGE, "n: %lld given, at least 0 wanted", (long long)n);
    if (n > 0) KVC_TRY(kvc__make_room(cache, layer, (kvc__counts){NULL, n}));
    layer->prepared = n;
    *k = kvc__lend(cache, layer, KVC__KEYS, layer->length, n);
    *v = kvc__lend(cache, layer, KVC__VALUES, layer->length, n);
    return KVC_OK;
}

kvc_status kvc_cache_commit(kvc_cache *cache, int64_t index, int64_t n) {
    kvc__layer *layer;
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    if (n < 0 || n > layer->prepared)
        return kvc__fail(KVC_E_RANGE, "n: %lld given, 0 to the %lld prepared positions wanted",
                         (long long)n, (long long)layer->prepared);
    finish(cache, layer, (kvc__counts){NULL, n}, false);
    return KVC_OK;
}
