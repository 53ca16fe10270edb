#include "support/naive_batch.h"

#include <stdlib.h>
#include <string.h>

#include "support/naive_record.h"
#include "support/support.h"

void naive_batch_init(naive_batch *naive, const kvc_cache *cache) {
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_cache_desc_get(cache, &desc));
    *naive = (naive_batch){
        .layers = desc.layers, .batch = desc.batch, .slack = desc.slack, .blocks = desc.blocks};
    naive->specs = calloc((size_t)desc.layers, sizeof *naive->specs);
    naive->lists = calloc((size_t)(desc.layers * desc.batch), sizeof *naive->lists);
    assert_true(naive->specs && naive->lists);
    for (int64_t i = 0; i < desc.layers; i++) {
        naive->specs[i] = desc.specs[i];
        for (int64_t b = 0; b < desc.batch; b++)
            naive_batch_list(naive, i, b)->record_bytes = record_bytes(&desc.specs[i]);
    }
}

void naive_batch_deinit(naive_batch *naive) {
    for (int64_t i = 0; i < naive->layers * naive->batch; i++) {
        free(naive->lists[i].bytes);
        free(naive->lists[i].blocks);
    }
    free(naive->specs);
    free(naive->lists);
    *naive = (naive_batch){0};
}

naive_list *naive_batch_list(const naive_batch *naive, int64_t layer, int64_t sequence) {
    return &naive->lists[layer * naive->batch + sequence];
}

static uint8_t *extend(naive_list *list, int64_t n) {
    const size_t before = (size_t)list->length * list->record_bytes;
    const size_t more = (size_t)n * list->record_bytes;
    list->bytes = realloc(list->bytes, before + more + 1);
    assert_non_null(list->bytes);
    list->length += n;
    return list->bytes + before;
}

void naive_list_append(naive_list *list, const uint8_t *bytes, int64_t n) {
    uint8_t *to = extend(list, n);
    if (n > 0) memcpy(to, bytes, (size_t)n * list->record_bytes);
}

/* The packed block that a position's key is in, [kv_heads]; NULL: in none. */
static const record_block *block_of(naive_list *list, const kvc_layer_spec *spec,
                                    int64_t position) {
    const int64_t group = spec->kv_group, heads = spec->kv_heads;
    if (!spec->keys_per_channel || position >= list->length / group * group) return NULL;
    for (; list->block_count <= position / group; list->block_count++) {
        const size_t before = (size_t)(list->block_count * heads);
        list->blocks = realloc(list->blocks, (before + (size_t)heads) * sizeof *list->blocks);
        assert_non_null(list->blocks);
        for (int64_t h = 0; h < heads; h++)
            record_pack_block(&list->blocks[before + (size_t)h], spec, h,
                              list->bytes +
                                  (size_t)(list->block_count * group) * list->record_bytes);
    }
    return &list->blocks[position / group * heads];
}

/* Element [b][h][p][d]. */
static const char *element_at(const kvc_array *a, int64_t b, int64_t h, int64_t p, int64_t d) {
    const int64_t at =
        b * a->strides[0] + h * a->strides[1] + p * a->strides[2] + d * a->strides[3];
    return (const char *)a->data + at * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

static void append_side(uint8_t *record, const kvc_layer_spec *spec, int side, const kvc_array *a,
                        int64_t sequence, int64_t position) {
    _Alignas(64) char row[RECORD_ROW_BYTES];
    const size_t size = kvc_dtype_size_bytes(a->dtype);
    for (int64_t h = 0; h < spec->kv_heads; h++) {
        for (int64_t d = 0; d < a->shape[3]; d++)
            memcpy(row + (size_t)d * size, element_at(a, sequence, h, position, d), size);
        record_store_row(record + record_row_offset(spec, side, h), spec, side, a->dtype, row);
    }
}

static void note_tail(naive_list *list, const kvc_layer_spec *spec) {
    const int64_t from = list->length - (int64_t)2 * spec->kv_group;
    if (spec->keys_per_channel && from > list->tail_from) list->tail_from = from;
}

/* A window then holds what the first of the new queries sees, and can go back by its slack, or as
 * far as before and over the new positions. Keys per channel are held unpacked for two blocks. */
static void note_append(naive_list *list, const naive_batch *naive, const kvc_layer_spec *spec,
                        int64_t n) {
    const int64_t back = list->trimmable + n, length = list->length;
    if (n == 0) return;
    list->trimmable = back < naive->slack ? back : naive->slack;
    list->sees_from = length - n + 1 - (spec->window - spec->keep);
    note_tail(list, spec);
}

void naive_batch_append(naive_batch *naive, int64_t layer, const kvc_array *k, const kvc_array *v,
                        const int64_t *counts) {
    const kvc_layer_spec *spec = &naive->specs[layer];
    for (int64_t b = 0; b < naive->batch; b++) {
        naive_list *list = naive_batch_list(naive, layer, b);
        const int64_t n = counts ? counts[b] : k->shape[2];
        uint8_t *record = extend(list, n);
        for (int64_t p = 0; p < n; p++, record += list->record_bytes) {
            append_side(record, spec, 0, k, b, p);
            append_side(record, spec, 1, v, b, p);
        }
        note_append(list, naive, spec, n);
    }
}

void naive_batch_trim(naive_batch *naive, int64_t sequence, int64_t n) {
    for (int64_t i = 0; i < naive->layers; i++) {
        naive_list *list = naive_batch_list(naive, i, sequence);
        const int64_t sees = list->length - n - (naive->specs[i].window - naive->specs[i].keep);
        list->length -= n;
        list->trimmable = list->trimmable > n ? list->trimmable - n : 0;
        if (sees < list->sees_from) list->sees_from = sees;
        if (list->block_count * naive->specs[i].kv_group > list->length)
            list->block_count = list->length / naive->specs[i].kv_group;
    }
}

void naive_batch_clear(naive_batch *naive, int64_t sequence) {
    for (int64_t i = 0; i < naive->layers; i++) {
        naive_list *list = naive_batch_list(naive, i, sequence);
        list->length = list->trimmable = list->sees_from = list->tail_from = 0;
        list->block_count = 0;
    }
}

static void replace(naive_list *to, const naive_list *from) {
    to->length = 0;
    naive_list_append(to, from->bytes, from->length);
    to->sees_from = from->sees_from;
    to->trimmable = from->trimmable;
    to->tail_from = from->tail_from;
    to->block_count = 0;
}

void naive_batch_reorder(naive_batch *naive, const int64_t *from) {
    naive_list *old = calloc((size_t)naive->batch, sizeof *old);
    assert_non_null(old);
    for (int64_t i = 0; i < naive->layers; i++) {
        for (int64_t b = 0; b < naive->batch; b++) {
            const naive_list *list = naive_batch_list(naive, i, b);
            old[b] = (naive_list){.record_bytes = list->record_bytes};
            replace(&old[b], list);
        }
        for (int64_t b = 0; b < naive->batch; b++)
            replace(naive_batch_list(naive, i, b), &old[from[b]]);
        for (int64_t b = 0; b < naive->batch; b++) free(old[b].bytes);
    }
    free(old);
}

void naive_batch_copy(naive_batch *to, const naive_batch *from) {
    for (int64_t i = 0; i < to->layers; i++)
        for (int64_t b = 0; b < to->batch; b++) {
            naive_list *source = naive_batch_list(from, i, b);
            const kvc_layer_spec *spec = &to->specs[i], *given = &from->specs[i];
            naive_list *list = naive_batch_list(to, i, b);
            uint8_t *record = extend(list, source->length);
            for (int64_t p = 0; p < source->length; p++)
                record_convert(record + (size_t)p * list->record_bytes, spec,
                               source->bytes + (size_t)p * source->record_bytes, given,
                               block_of(source, given, p), p);
            list->trimmable = 0;
            list->sees_from = list->length - (spec->window - spec->keep);
            if (record_is_alike(spec, given)) list->tail_from = source->tail_from;
            else note_tail(list, spec);
        }
}

/* -- The real one -- */

/* A side of a layer: rows of [kv_heads][rows][piece], of one sequence or block. Keys per channel:
 * [kv_heads][blocks][piece]. */
typedef struct side_view {
    const char *data[RECORD_PIECES];
    int64_t head_bytes[RECORD_PIECES], row_bytes[RECORD_PIECES];
} side_view;

static side_view side_of(const kvc_array *const pieces[RECORD_PIECES], int64_t sequence) {
    side_view side = {0};
    for (int i = 0; i < RECORD_PIECES && pieces[i]; i++) {
        const kvc_array *a = pieces[i];
        const int head = a->ndim == 3 ? 0 : 1;
        const int64_t size = (int64_t)kvc_dtype_size_bytes(a->dtype);
        side.head_bytes[i] = a->strides[head] * size;
        side.row_bytes[i] = a->strides[head + 1] * size;
        side.data[i] = a->data;
        if (head == 1 && a->data) side.data[i] += sequence * a->strides[0] * size;
    }
    return side;
}

/* A row of a head, whose pieces follow each other in what is wanted. */
static bool pieces_equal(const side_view *side, int64_t head, int64_t row, const size_t *bytes,
                         int count, const uint8_t *wanted) {
    for (int i = 0; i < count; wanted += bytes[i], i++)
        if (memcmp(side->data[i] + head * side->head_bytes[i] + row * side->row_bytes[i], wanted,
                   bytes[i]) != 0)
            return false;
    return true;
}

static bool side_equal(const side_view sides[2], int side, int64_t row, const kvc_layer_spec *spec,
                       const uint8_t *record) {
    size_t bytes[RECORD_PIECES];
    const int count = record_pieces(bytes, spec, side);
    for (int64_t h = 0; h < spec->kv_heads; h++)
        if (!pieces_equal(&sides[side], h, row, bytes, count,
                          record + record_row_offset(spec, side, h)))
            return false;
    return true;
}

static bool row_equal(const side_view sides[2], int64_t row, const kvc_layer_spec *spec,
                      const uint8_t *record) {
    return side_equal(sides, 0, row, spec, record) && side_equal(sides, 1, row, spec, record);
}

/* As row_equal, but keys per channel are those of the tail, as far as it reaches back. */
static bool position_equal(const side_view sides[2], int64_t row, const kvc_layer_spec *spec,
                           const naive_list *list, int64_t position) {
    const uint8_t *record = list->bytes + (size_t)position * list->record_bytes;
    if (!spec->keys_per_channel) return row_equal(sides, row, spec, record);
    const int64_t turn = (int64_t)2 * spec->kv_group;
    return side_equal(sides, 1, row, spec, record) &&
           (position < list->tail_from || side_equal(sides, 0, position % turn, spec, record));
}

/* The arrays of a view, packed or not. Of keys per channel, k are those of the tail. */
typedef struct layer_arrays {
    kvc_array k, v;
    kvc_quantized kq, vq;
    bool packed, per_channel;
} layer_arrays;

static void sides_of(side_view sides[2], const layer_arrays *a, int64_t sequence) {
    const kvc_array *const k[RECORD_PIECES] = {&a->k}, *const v[RECORD_PIECES] = {&a->v};
    const kvc_array *const kq[RECORD_PIECES] = {&a->kq.words, &a->kq.scales, &a->kq.biases};
    const kvc_array *const vq[RECORD_PIECES] = {&a->vq.words, &a->vq.scales, &a->vq.biases};
    sides[0] = side_of(a->packed && !a->per_channel ? kq : k, sequence);
    sides[1] = side_of(a->packed ? vq : v, sequence);
}

static void release_arrays(layer_arrays *a) {
    kvc_array *const all[] = {&a->k,         &a->v,        &a->kq.words,  &a->kq.scales,
                              &a->kq.biases, &a->vq.words, &a->vq.scales, &a->vq.biases};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kvc_array_release(all[i]);
}

int64_t block_differs(kvc_blocks *blocks, int32_t id, int64_t layer, const kvc_layer_spec *spec,
                      const uint8_t *bytes, int64_t count) {
    layer_arrays a = {.packed = spec->kv_bits > 0};
    side_view sides[2];
    int64_t differs = -1;
    if (a.packed) assert_ok(kvc_blocks_view_quantized(blocks, id, layer, &a.kq, &a.vq));
    else assert_ok(kvc_blocks_view(blocks, id, layer, &a.k, &a.v));
    sides_of(sides, &a, 0);
    for (int64_t r = 0; differs < 0 && r < count; r++, bytes += record_bytes(spec))
        if (!row_equal(sides, r, spec, bytes)) differs = r;
    release_arrays(&a);
    return differs;
}

static void assert_blocks_equal(const naive_batch *naive, const kvc_cache *cache) {
    kvc_blocks_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_blocks_desc_get(naive->blocks, &desc));
    for (int64_t b = 0; b < naive->batch; b++) {
        const int32_t *ids;
        int64_t count, longest = 0;
        assert_ok(kvc_cache_block_table(cache, b, &ids, &count));
        for (int64_t i = 0; i < naive->layers; i++) {
            const naive_list *list = naive_batch_list(naive, i, b);
            if (list->length > longest) longest = list->length;
            for (int64_t at = 0; at < list->length; at += desc.positions) {
                const int64_t left = list->length - at;
                const int64_t differs =
                    block_differs(naive->blocks, ids[at / desc.positions], i, &naive->specs[i],
                                  list->bytes + (size_t)at * list->record_bytes,
                                  left < desc.positions ? left : desc.positions);
                if (differs >= 0)
                    fail_msg("layer %lld, sequence %lld: position %lld differs", (long long)i,
                             (long long)b, (long long)(at + differs));
            }
        }
        assert_int_equal(count, (longest + desc.positions - 1) / desc.positions);
    }
}

static int64_t view(layer_arrays *a, const kvc_cache *cache, int64_t layer,
                    const kvc_layer_spec *spec) {
    *a = (layer_arrays){.packed = spec->kv_bits > 0, .per_channel = spec->keys_per_channel};
    if (a->packed) assert_ok(kvc_cache_view_quantized(cache, layer, &a->kq, &a->vq));
    else assert_ok(kvc_cache_view(cache, layer, &a->k, &a->v));
    if (a->per_channel) assert_ok(kvc_cache_view_tail(cache, layer, &a->k));
    return a->packed ? a->vq.words.shape[2] : a->v.shape[2];
}

/* Every block of keys that is complete is packed as it is alone, and the tail reaches as far back
 * as it has rows. */
static void assert_channels_equal(naive_list *wanted, const kvc_cache *cache, const layer_arrays *a,
                                  int64_t layer, int64_t sequence, const kvc_layer_spec *spec) {
    const kvc_array *const pieces[RECORD_PIECES] = {&a->kq.words, &a->kq.scales, &a->kq.biases};
    const side_view side = side_of(pieces, sequence);
    size_t bytes[RECORD_PIECES];
    kvc_cache_held held;
    record_block_pieces(bytes, spec);
    assert_ok(kvc_cache_held_get(cache, layer, sequence, &held));
    assert_int_equal(held.first, wanted->tail_from);
    assert_int_equal(a->kq.words.shape[2], kvc_cache_length(cache, layer) / spec->kv_group);
    for (int64_t p = 0; p + spec->kv_group <= wanted->length; p += spec->kv_group)
        for (int64_t h = 0; h < spec->kv_heads; h++)
            if (!pieces_equal(&side, h, p / spec->kv_group, bytes, RECORD_PIECES,
                              block_of(wanted, spec, p)[h].bytes))
                fail_msg("layer %lld, sequence %lld of length %lld: head %lld of the packed keys "
                         "from position %lld on differs",
                         (long long)layer, (long long)sequence, (long long)wanted->length,
                         (long long)h, (long long)p);
}

/* Every row holds the position that it says, and no two the same. */
static void assert_sequence_equal(const naive_batch *naive, const kvc_cache *cache,
                                  const layer_arrays *a, int64_t layer, int64_t sequence,
                                  int64_t count) {
    const kvc_layer_spec *spec = &naive->specs[layer];
    naive_list *wanted = naive_batch_list(naive, layer, sequence);
    int64_t *positions = malloc((size_t)(count + 1) * sizeof *positions);
    bool *found = calloc((size_t)wanted->length + 1, sizeof *found);
    side_view sides[2];
    assert_true(positions && found);
    sides_of(sides, a, sequence);
    if (spec->keys_per_channel) assert_channels_equal(wanted, cache, a, layer, sequence, spec);
    assert_ok(kvc_cache_row_positions(cache, layer, sequence, positions, count));
    for (int64_t r = 0; r < count; r++) {
        const int64_t p = positions[r];
        if (p < 0) continue;
        assert_true(p < wanted->length && !found[p]);
        found[p] = true;
        if (!position_equal(sides, r, spec, wanted, p))
            fail_msg("layer %lld, sequence %lld: position %lld, in row %lld, differs",
                     (long long)layer, (long long)sequence, (long long)p, (long long)r);
    }
    for (int64_t p = 0; p < wanted->length; p++)
        if (!found[p] && (spec->window == 0 || p < spec->keep || p >= wanted->sees_from))
            fail_msg("layer %lld, sequence %lld of length %lld: position %lld is lost",
                     (long long)layer, (long long)sequence, (long long)wanted->length,
                     (long long)p);
    free(found);
    free(positions);
}

void assert_rows_equal(const naive_batch *naive, int64_t layer, int64_t sequence,
                       const kvc_array *k, const kvc_array *v, int64_t count) {
    const layer_arrays a = {.k = *k, .v = *v};
    const naive_list *wanted = naive_batch_list(naive, layer, sequence);
    side_view sides[2];
    sides_of(sides, &a, sequence);
    assert_true(count <= wanted->length);
    for (int64_t p = 0; p < count; p++)
        if (!row_equal(sides, p, &naive->specs[layer],
                       wanted->bytes + (size_t)p * wanted->record_bytes))
            fail_msg("view of layer %lld, sequence %lld: position %lld differs", (long long)layer,
                     (long long)sequence, (long long)p);
}

static void assert_layer_equal(const naive_batch *naive, const kvc_cache *cache, int64_t layer) {
    int64_t longest = 0;
    for (int64_t b = 0; b < naive->batch; b++) {
        const int64_t length = naive_batch_list(naive, layer, b)->length;
        assert_int_equal(kvc_cache_sequence_length(cache, layer, b), length);
        if (length > longest) longest = length;
    }
    assert_int_equal(kvc_cache_length(cache, layer), longest);
    if (naive->blocks) return;
    layer_arrays a;
    const int64_t count = view(&a, cache, layer, &naive->specs[layer]);
    if (naive->specs[layer].window == 0) assert_int_equal(count, longest);
    for (int64_t b = 0; b < naive->batch; b++)
        assert_sequence_equal(naive, cache, &a, layer, b, count);
    release_arrays(&a);
}

void assert_batch_equal(const naive_batch *naive, const kvc_cache *cache) {
    assert_ok(kvc_cache_check(cache));
    for (int64_t i = 0; i < naive->layers; i++) assert_layer_equal(naive, cache, i);
    if (naive->blocks) assert_blocks_equal(naive, cache);
    int64_t least = INT64_MAX;
    for (int64_t i = 0; i < naive->layers; i++)
        for (int64_t b = 0; b < naive->batch; b++) {
            const int64_t n = naive_trimmable(naive, cache, i, b);
            if (n < least) least = n;
        }
    assert_int_equal(kvc_cache_trimmable(cache), least);
}

void cache_held(bool *held, const kvc_cache *cache, int64_t layer, int64_t sequence) {
    const int64_t length = kvc_cache_sequence_length(cache, layer, sequence);
    const int64_t room = kvc_cache_capacity(cache, layer);
    int64_t *positions = malloc((size_t)(room + 1) * sizeof *positions);
    assert_non_null(positions);
    for (int64_t r = 0; r < room; r++) positions[r] = -1;
    const kvc_status status = kvc_cache_row_positions(cache, layer, sequence, positions, room);
    for (int64_t p = 0; p < length; p++) held[p] = status == KVC_E_UNSUPPORTED; /* blocks */
    for (int64_t r = 0; status == KVC_OK && r < room; r++)
        if (positions[r] >= 0) held[positions[r]] = true;
    free(positions);
}

int64_t naive_trimmable(const naive_batch *naive, const kvc_cache *cache, int64_t layer,
                        int64_t sequence) {
    const naive_list *list = naive_batch_list(naive, layer, sequence);
    const kvc_layer_spec *spec = &naive->specs[layer];
    if (spec->keys_per_channel) { /* only what is in whole blocks may be packed */
        const int64_t G = spec->kv_group;
        return list->length - (list->tail_from + G - 1) / G * G;
    }
    bool *held = calloc((size_t)list->length + 1, sizeof *held);
    assert_non_null(held);
    cache_held(held, cache, layer, sequence);
    int64_t first = list->length;
    while (first > 0 && held[first - 1]) first--;
    free(held);
    if (first == 0) return list->length;
    const int64_t n = list->length - first - (spec->window - spec->keep);
    assert_true(spec->window > 0 && n >= list->trimmable);
    return n;
}

bool cache_holds_window(const kvc_cache *cache, int64_t layer, int64_t sequence,
                        const kvc_layer_spec *seen_by) {
    const int64_t length = kvc_cache_sequence_length(cache, layer, sequence);
    const int64_t recent = length - (seen_by->window - seen_by->keep);
    bool holds = true, *held = calloc((size_t)length + 1, sizeof *held);
    assert_non_null(held);
    cache_held(held, cache, layer, sequence);
    for (int64_t p = 0; p < length; p++)
        if (seen_by->window == 0 || p < seen_by->keep || p >= recent) holds = holds && held[p];
    free(held);
    return holds;
}
