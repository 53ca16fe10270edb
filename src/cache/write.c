#include "array/pack.h"
#include "array/rotate.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/convert.h"
#include "memory/device.h"

kvc__place kvc__place_of(const kvc_cache *cache, const kvc__layer *layer, int index,
                         int64_t sequence, int64_t position) {
    const kvc__plane *plane = &layer->planes[index];
    const int64_t rows = kvc__rows_of(&plane->row, layer->capacity);
    const size_t bytes = plane->row.bytes, head_bytes = (size_t)rows * bytes;
    int64_t row = kvc__row_of(&plane->row, position), run = rows - row;
    char *first = NULL;
    if (cache->tables) {
        const kvc__map map = kvc__layer_map(cache, layer);
        row = position % layer->capacity;
        run = layer->capacity - row;
        first = kvc__map_block(&map, sequence, position) + plane->offset_bytes;
    } else {
        if (layer->rings) row = kvc__ring_row(&layer->rings[sequence], position, &run);
        first = kvc__plane_data(plane) + (size_t)(sequence * layer->spec.kv_heads) * head_bytes;
    }
    return (kvc__place){first + (size_t)row * bytes, (int64_t)head_bytes, run};
}

static kvc_status check_need(const kvc_cache *cache, const kvc__layer *layer, int64_t *need,
                             kvc__counts counts) {
    const int64_t most = cache->desc.max_positions;
    *need = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        int64_t after;
        if (!kvc__add_i64(&after, layer->lengths[b], kvc__count(counts, b)))
            return kvc__fail(KVC_E_RANGE, "%lld positions and %lld more overflow",
                             (long long)layer->lengths[b], (long long)kvc__count(counts, b));
        if (most && after > most)
            return kvc__fail(KVC_E_RANGE,
                             "layer %lld: %lld positions asked for, desc.max_positions is %lld",
                             (long long)(layer - cache->layers), (long long)after, (long long)most);
        if (after > *need) *need = after;
    }
    return KVC_OK;
}

kvc_status kvc__make_room(kvc_cache *cache, kvc__layer *layer, kvc__counts counts) {
    int64_t need;
    KVC_TRY(check_need(cache, layer, &need, counts));
    if (cache->tables) return kvc__pages_make_room(cache, layer, counts);
    if (layer->rings) return kvc__ring_make_room(cache, layer, counts);
    /* Prepared positions come along: their caller may have written them. */
    return kvc__linear_grow(cache, layer, layer->length + layer->prepared, need);
}

/* [sequences][kv_heads][n][dim]: several sequences where they are at the same position of a range.
 */
static kvc_status write_plain(const kvc_cache *cache, const kvc__layer *layer, int side,
                              const kvc__place *to, const kvc_array *rows) {
    const kvc__row_format *row = &layer->planes[side].row;
    const int64_t head = to->head_bytes / (int64_t)kvc_dtype_size_bytes(row->dtype);
    const int64_t strides[4] = {layer->spec.kv_heads * head, head, row->dim, 1};
    const kvc_strided dst = {to->data, row->dtype, strides};
    const kvc_strided src = {rows->data, rows->dtype, rows->strides};
    return kvc__device_copy(kvc_pool_device(cache->pool), &dst, &src, 4, rows->shape);
}

static const char *element_at(const kvc_array *a, int64_t h, int64_t i, int64_t d) {
    const int64_t at = h * a->strides[1] + i * a->strides[2] + d * a->strides[3];
    return (const char *)a->data + at * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

void kvc__load_piece(float *x, const kvc__layer *layer, const kvc_array *rows, int64_t h, int64_t i,
                     int64_t d, int64_t n) {
    const int64_t one = 1;
    const kvc_strided dst = {x, KVC_F32, &one};
    const kvc_strided src = {(void *)element_at(rows, h, i, d), rows->dtype, rows->strides + 3};
    kvc__convert_copy(&dst, &src, 1, &n);
    if (layer->spec.rotated) kvc__rotate(x, n);
}

/* Packs a row that is to be rotated, or whose elements do not follow each other. */
static void pack_pieces(const kvc__layer *layer, const kvc__packing *row, const kvc__packed *to,
                        const kvc_array *rows, int64_t h, int64_t i) {
    const int64_t dim = rows->shape[3], order = kvc__rotation_order(dim);
    const size_t scale = kvc_dtype_size_bytes(row->scaling);
    const size_t words = (size_t)row->group / 8 * (size_t)row->bits;
    kvc__packing piece = *row;
    piece.groups = order / row->group; /* groups are powers of two as well */
    piece.dtype = KVC_F32;
    for (int64_t d = 0; d < dim; d += order) {
        const size_t g = (size_t)(d / row->group);
        const kvc__packed at = {to->words + g * words, (char *)to->scales + g * scale,
                                (char *)to->biases + g * scale};
        float x[KVC__ROTATION_MOST];
        kvc__load_piece(x, layer, rows, h, i, d, order);
        kvc__pack_best()->pack(&piece, &at, x);
    }
}

/* Asks for the lines of a row that will be written: what is packed has few bytes, in many places.
 */
static void ask(const char *row, size_t bytes) {
    enum { LINE_BYTES = 64 };
    for (size_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(row + at, 1, 3);
}

enum { AHEAD = 2 }; /* heads */

static void write_packed(const kvc_cache *cache, const kvc__layer *layer, int side,
                         int64_t sequence, int64_t position, const kvc_array *rows) {
    const kvc_layer_spec *spec = &layer->spec;
    const int planes[3] = {side, KVC__SCALES + 2 * side, KVC__SCALES + 2 * side + 1};
    const kvc__packing packing = {spec->kv_bits, spec->kv_group, rows->shape[3] / spec->kv_group,
                                  rows->dtype, spec->dtype};
    const kvc__pack_ops *ops = kvc__pack_best();
    kvc__place to[3];
    for (int p = 0; p < 3; p++) to[p] = kvc__place_of(cache, layer, planes[p], sequence, position);
    for (int64_t h = 0; h < spec->kv_heads; h++) {
        for (int p = 0; p < 3 && h + AHEAD < spec->kv_heads; p++)
            ask(to[p].data + (h + AHEAD) * to[p].head_bytes, layer->planes[planes[p]].row.bytes);
        for (int64_t i = 0; i < rows->shape[2]; i++) {
            char *at[3];
            for (int p = 0; p < 3; p++)
                at[p] = to[p].data + h * to[p].head_bytes +
                        (size_t)i * layer->planes[planes[p]].row.bytes;
            const kvc__packed row = {(uint8_t *)at[0], at[1], at[2]};
            if (rows->strides[3] != 1 || spec->rotated)
                pack_pieces(layer, &packing, &row, rows, h, i);
            else ops->pack(&packing, &row, element_at(rows, h, i, 0));
        }
    }
}

kvc_status kvc__write_run(const kvc_cache *cache, const kvc__layer *layer, int side,
                          int64_t sequence, int64_t position, const kvc_array *rows) {
    if (side == KVC__KEYS && layer->tails)
        return kvc__channels_write(cache, layer, sequence, position, rows);
    if (layer->spec.kv_bits) {
        write_packed(cache, layer, side, sequence, position, rows);
        return KVC_OK;
    }
    const kvc__place to = kvc__place_of(cache, layer, side, sequence, position);
    return write_plain(cache, layer, side, &to, rows);
}

kvc_array kvc__some_positions(const kvc_array *rows, int64_t b, int64_t from, int64_t n) {
    kvc_array some = *rows;
    some.data = (char *)rows->data + (b * rows->strides[0] + from * rows->strides[2]) *
                                         (int64_t)kvc_dtype_size_bytes(rows->dtype);
    some.shape[0] = 1;
    some.shape[2] = n;
    return some;
}

/* n positions of one sequence, run by run. */
static kvc_status write_sequence(const kvc_cache *cache, const kvc__layer *layer, int side,
                                 int64_t sequence, int64_t n, const kvc_array *rows) {
    for (int64_t done = 0; done < n;) {
        const int64_t position = layer->lengths[sequence] + done;
        /* Runs are those of any plane that has a row for each position, as values have. */
        const int64_t most = kvc__place_of(cache, layer, KVC__VALUES, sequence, position).count;
        const int64_t run = most < n - done ? most : n - done;
        const kvc_array some = kvc__some_positions(rows, sequence, done, run);
        KVC_TRY(kvc__write_run(cache, layer, side, sequence, position, &some));
        done += run;
    }
    return KVC_OK;
}

kvc_status kvc__write_side(const kvc_cache *cache, const kvc__layer *layer, int side,
                           kvc__counts counts, const kvc_array *rows) {
    const bool at_once =
        layer->even && !counts.each && !cache->tables && !layer->rings && !layer->spec.kv_bits;
    if (at_once) {
        const kvc__place to = kvc__place_of(cache, layer, side, 0, layer->length);
        return write_plain(cache, layer, side, &to, rows);
    }
    for (int64_t b = 0; b < cache->desc.batch; b++)
        KVC_TRY(write_sequence(cache, layer, side, b, kvc__count(counts, b), rows));
    return KVC_OK;
}

void kvc__advance(kvc_cache *cache, kvc__layer *layer, kvc__counts counts) {
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const int64_t n = kvc__count(counts, b);
        if (layer->rings) kvc__ring_advance(layer, b, n);
        if (layer->tails) kvc__channels_advance(layer, b, n);
        layer->lengths[b] += n;
    }
    kvc__layer_settle(cache, layer);
}
