/* From one cache to another, whatever the kinds of either. */
#include <string.h>

#include "array/pack.h"
#include "array/rotate.h"
#include "base/alloc.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/device.h"

enum { UNPACKED = 64 }; /* positions that are unpacked at a time */

/* A layer's part of a copy, and what all parts share. */
typedef struct transfer {
    kvc_cache *to;
    const kvc_cache *from;
    int64_t *counts; /* [batch] zeros, but for the sequence at work */
    float *unpacked; /* [kv_heads][UNPACKED][dim] of the largest layer; NULL where not needed */
} transfer;

static bool is_alike(const kvc__layer *to, const kvc__layer *from) {
    return to->spec.dtype == from->spec.dtype && to->spec.kv_bits == from->spec.kv_bits &&
           to->spec.kv_group == from->spec.kv_group &&
           to->spec.keys_per_channel == from->spec.keys_per_channel &&
           to->spec.rotated == from->spec.rotated;
}

static bool is_unpacked(const kvc__layer *to, const kvc__layer *from) {
    return from->spec.kv_bits && !is_alike(to, from);
}

/* n rows of every head, from one plane to another of the same format. */
static kvc_status copy_rows(const kvc_cache *cache, const kvc__layer *layer,
                            const kvc__row_format *row, const kvc__place *to,
                            const kvc__place *from, int64_t n) {
    const int64_t element = (int64_t)kvc_dtype_size_bytes(row->dtype);
    const int64_t shape[3] = {layer->spec.kv_heads, n, row->dim};
    const int64_t to_strides[3] = {to->head_bytes / element, row->dim, 1};
    const int64_t from_strides[3] = {from->head_bytes / element, row->dim, 1};
    const kvc_strided dst = {to->data, row->dtype, to_strides};
    const kvc_strided src = {from->data, row->dtype, from_strides};
    return kvc__device_copy(kvc_pool_device(cache->pool), &dst, &src, 3, shape);
}

static void rotate_all(const kvc__layer *layer, float *rows, int64_t n, int64_t dim) {
    for (int64_t i = 0; layer->spec.rotated && i < n; i++) kvc__rotate(rows + i * dim, dim);
}

/* The rows of a side, as an array: where they lie, or unpacked. */
static kvc_array rows_of(const transfer *t, const kvc__layer *layer, int side, int64_t sequence,
                         int64_t position, int64_t n) {
    const kvc_layer_spec *spec = &layer->spec;
    const int64_t dim = side == KVC__KEYS ? spec->key_dim : spec->value_dim;
    const kvc__place at = kvc__place_of(t->from, layer, side, sequence, position);
    kvc_array rows = {
        .data = at.data,
        .dtype = spec->dtype,
        .ndim = 4,
        .shape = {1, spec->kv_heads, n, dim},
        .strides = {0, at.head_bytes / (int64_t)kvc_dtype_size_bytes(spec->dtype), dim, 1}};
    if (!spec->kv_bits) return rows;
    rows.data = t->unpacked;
    rows.dtype = KVC_F32;
    rows.strides[1] = n * dim;
    if (side == KVC__KEYS && layer->tails) {
        kvc__channels_read(t->from, layer, sequence, position, n, t->unpacked);
        rotate_all(layer, t->unpacked, spec->kv_heads * n, dim);
        return rows;
    }
    const int scaling = KVC__SCALES + 2 * side;
    const kvc__place scales = kvc__place_of(t->from, layer, scaling, sequence, position);
    const kvc__place biases = kvc__place_of(t->from, layer, scaling + 1, sequence, position);
    const kvc__packing packing = {spec->kv_bits, spec->kv_group, dim / spec->kv_group, KVC_F32,
                                  spec->dtype};
    for (int64_t h = 0; h < spec->kv_heads; h++)
        for (int64_t i = 0; i < n; i++) {
            const kvc__packed row = {
                (uint8_t *)at.data + h * at.head_bytes + (size_t)i * layer->planes[side].row.bytes,
                scales.data + h * scales.head_bytes + (size_t)i * layer->planes[scaling].row.bytes,
                biases.data + h * biases.head_bytes + (size_t)i * layer->planes[scaling].row.bytes};
            kvc__pack_best()->unpack(&packing, t->unpacked + (h * n + i) * dim, &row);
        }
    rotate_all(layer, t->unpacked, spec->kv_heads * n, dim);
    return rows;
}

/* Writes positions [at, at + n), of which the next `run` follow each other in both caches. */
static kvc_status copy_run(const transfer *t, const kvc__layer *to, const kvc__layer *from,
                           int64_t sequence, int64_t at, int64_t run) {
    if (is_alike(to, from)) {
        for (int p = 0; p < to->planes_used; p++) {
            const kvc__place dst = kvc__place_of(t->to, to, p, sequence, at);
            const kvc__place src = kvc__place_of(t->from, from, p, sequence, at);
            const kvc__row_format *row = &to->planes[p].row;
            KVC_TRY(copy_rows(t->to, to, row, &dst, &src, kvc__rows_of(row, run)));
        }
        return KVC_OK;
    }
    for (int side = 0; side < KVC__SCALES; side++) {
        const kvc_array rows = rows_of(t, from, side, sequence, at, run);
        KVC_TRY(kvc__write_run(t->to, to, side, sequence, at, &rows));
    }
    return KVC_OK;
}

/* Appends positions [length of to, end) of a sequence. */
static kvc_status copy_up_to(const transfer *t, kvc__layer *to, const kvc__layer *from,
                             int64_t sequence, int64_t end) {
    const int64_t begin = to->lengths[sequence];
    const kvc__counts counts = {t->counts, 0};
    kvc_status status;
    const int64_t packed = from->tails ? kvc__channels_packed(from, sequence) : 0;
    if (end == begin) return KVC_OK; /* EXACT would shrink, to a buffer of nothing */
    t->counts[sequence] = end - begin;
    status = kvc__make_room(t->to, to, counts);
    for (int64_t at = begin; status == KVC_OK && at < end;) {
        const kvc__place dst = kvc__place_of(t->to, to, KVC__VALUES, sequence, at);
        const kvc__place src = kvc__place_of(t->from, from, KVC__VALUES, sequence, at);
        int64_t run = dst.count < src.count ? dst.count : src.count;
        if (run > end - at) run = end - at;
        if (is_unpacked(to, from) && run > UNPACKED) run = UNPACKED;
        if (is_unpacked(to, from) && from->tails && at < packed && run > packed - at)
            run = packed - at;
        status = copy_run(t, to, from, sequence, at, run);
        at += run;
    }
    if (status == KVC_OK) kvc__advance(t->to, to, counts);
    if (status == KVC_OK && to->tails && from->tails && is_alike(to, from))
        to->tails[sequence] = from->tails[sequence];
    t->counts[sequence] = 0;
    return status;
}

/* Returns the first position behind the kept ones that `to` takes: what its ring has room for, as
 * far as `from` holds it. */
static int64_t recent(const kvc__layer *to, const kvc__layer *from, int64_t sequence) {
    const int64_t keep = to->spec.keep;
    int64_t first = keep;
    if (to->rings) {
        const int64_t oldest = from->lengths[sequence] - (to->rings[sequence].rows - keep);
        if (oldest > first) first = oldest;
    }
    if (!from->rings || from->rings[sequence].first == from->spec.keep) return first;
    return from->rings[sequence].first > first ? from->rings[sequence].first : first;
}

/* Windows take what they keep and what is recent; what lies between is passed over. */
static kvc_status copy_sequence(const transfer *t, kvc__layer *to, const kvc__layer *from,
                                int64_t sequence) {
    const int64_t first = recent(to, from, sequence);
    if (first > to->spec.keep) {
        KVC_TRY(copy_up_to(t, to, from, sequence, to->spec.keep));
        kvc__ring_pass(to, sequence, first);
    }
    return copy_up_to(t, to, from, sequence, from->lengths[sequence]);
}

static kvc_status check_held(const kvc__layer *to, const kvc__layer *from, int64_t index,
                             int64_t sequence) {
    if (!from->rings || from->rings[sequence].first == from->spec.keep) return KVC_OK;
    const int64_t held = from->lengths[sequence] - recent(to, from, sequence);
    if (to->rings && held >= to->spec.window - to->spec.keep && to->spec.keep <= from->spec.keep)
        return KVC_OK;
    return kvc__fail(
        KVC_E_RANGE,
        "from: layer %lld, sequence %lld: its window has dropped positions %lld to %lld, "
        "of which to wants some",
        (long long)index, (long long)sequence, (long long)from->spec.keep,
        (long long)from->rings[sequence].first - 1);
}

static kvc_status check_layer(const kvc_cache *to, const kvc_cache *from, int64_t index) {
    const kvc__layer *a = &to->layers[index], *b = &from->layers[index];
    if (a->spec.kv_heads != b->spec.kv_heads || a->spec.key_dim != b->spec.key_dim ||
        a->spec.value_dim != b->spec.value_dim)
        return kvc__fail(KVC_E_SHAPE,
                         "layer %lld: kv_heads %lld, dims %lld and %lld copied to %lld, %lld and "
                         "%lld; the same wanted",
                         (long long)index, (long long)b->spec.kv_heads, (long long)b->spec.key_dim,
                         (long long)b->spec.value_dim, (long long)a->spec.kv_heads,
                         (long long)a->spec.key_dim, (long long)a->spec.value_dim);
    if (a->length > 0)
        return kvc__fail(KVC_E_INVALID, "to: layer %lld has %lld positions, an empty cache wanted",
                         (long long)index, (long long)a->length);
    for (int64_t s = 0; s < from->desc.batch; s++) KVC_TRY(check_held(a, b, index, s));
    return KVC_OK;
}

static kvc_status check_caches(const kvc_cache *to, const kvc_cache *from) {
    KVC_TRY(kvc__cache_given(to));
    KVC_TRY(kvc__cache_given(from));
    if (to == from) return kvc__fail(KVC_E_INVALID, "to: from given, another cache wanted");
    if (kvc_pool_device(to->pool) != kvc_pool_device(from->pool))
        return kvc__fail(KVC_E_INVALID, "to: on device '%s', from is on '%s'; the same wanted",
                         kvc_pool_device(to->pool)->name, kvc_pool_device(from->pool)->name);
    if (to->desc.layers != from->desc.layers || to->desc.batch != from->desc.batch)
        return kvc__fail(KVC_E_SHAPE,
                         "to: %lld layers, batch %lld given; %lld and %lld, those of from, wanted",
                         (long long)to->desc.layers, (long long)to->desc.batch,
                         (long long)from->desc.layers, (long long)from->desc.batch);
    return KVC_OK;
}

/* Floats of one side of a layer as it is unpacked; 0 where none is. */
static size_t unpacked_floats(const kvc__layer *to, const kvc__layer *from) {
    const kvc_layer_spec *spec = &from->spec;
    const int64_t dim = spec->key_dim > spec->value_dim ? spec->key_dim : spec->value_dim;
    return is_unpacked(to, from) ? (size_t)(spec->kv_heads * dim) * UNPACKED : 0;
}

/* Copies a layer that may be copied. After an error `to` is empty. */
static kvc_status copy_layer(kvc_cache *to, const kvc_cache *from, int64_t index) {
    kvc__layer *a = &to->layers[index];
    const kvc__layer *b = &from->layers[index];
    const size_t batch = (size_t)to->desc.batch, floats = unpacked_floats(a, b);
    void *counts = NULL, *unpacked = NULL;
    kvc_status status = kvc__calloc(&counts, batch, sizeof(int64_t), "counts");
    if (status == KVC_OK && floats)
        status = kvc__calloc(&unpacked, floats, sizeof(float), "unpacked rows");
    const transfer t = {to, from, counts, unpacked};
    for (int64_t s = 0; status == KVC_OK && s < to->desc.batch; s++)
        status = copy_sequence(&t, a, b, s);
    if (status != KVC_OK) kvc_cache_clear(to);
    if (unpacked) kvc__free(unpacked, floats, sizeof(float));
    if (counts) kvc__free(counts, batch, sizeof(int64_t));
    return status;
}

kvc_status kvc_cache_copy(kvc_cache *to, const kvc_cache *from) {
    KVC_TRY(check_caches(to, from));
    for (int64_t i = 0; i < to->desc.layers; i++) KVC_TRY(check_layer(to, from, i));
    for (int64_t i = 0; i < to->desc.layers; i++) KVC_TRY(copy_layer(to, from, i));
    return KVC_OK;
}

kvc_status kvc_cache_copy_layer(kvc_cache *to, const kvc_cache *from, int64_t layer) {
    kvc__layer *found;
    KVC_TRY(check_caches(to, from));
    KVC_TRY(kvc__cache_layer(&found, to, layer));
    KVC_TRY(check_layer(to, from, layer));
    return copy_layer(to, from, layer);
}
