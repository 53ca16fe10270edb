/* Rows to be saved: where they lie in a cache, whatever its kind. */
#include <string.h>

#include "base/error.h"
#include "store/snapshot.h"

/* What each array of a layer's planes is in a view, words as a file has them. */
static void as_file_has_it(kvc_array *words) {
    words->dtype = KVC_U32;
    words->shape[3] /= 4;
    for (int i = 0; i < 3; i++) words->strides[i] /= 4;
}

/* A block of keys per channel is one row: [key_dim][…] become one dimension. */
static void join_channels(kvc_array *block) {
    if (block->ndim != 5) return;
    block->ndim = 4;
    block->shape[3] *= block->shape[4];
    block->strides[3] = 1;
}

kvc_status kvc__snapshot_view(const kvc_cache *cache, int64_t layer, const kvc_layer_spec *spec,
                              kvc_array planes[KVC__SNAPSHOT_PLANES]) {
    kvc_quantized k, v;
    if (!spec->kv_bits) return kvc_cache_view(cache, layer, &planes[0], &planes[1]);
    KVC_TRY(kvc_cache_view_quantized(cache, layer, &k, &v));
    const kvc_array all[KVC__SNAPSHOT_TAIL] = {k.words,  v.words,  k.scales,
                                               k.biases, v.scales, v.biases};
    memcpy(planes, all, sizeof all);
    for (int p = 0; p < KVC__SNAPSHOT_TAIL; p++) join_channels(&planes[p]);
    for (int side = 0; side < 2; side++) as_file_has_it(&planes[side]);
    if (!spec->keys_per_channel) return KVC_OK;
    return kvc_cache_view_tail(cache, layer, &planes[KVC__SNAPSHOT_TAIL]);
}

void kvc__snapshot_block_planes(const kvc_blocks_layout *layout, size_t out[KVC__SNAPSHOT_PLANES]) {
    const size_t all[KVC__SNAPSHOT_PLANES] = {
        layout->k_offset_bytes,        layout->v_offset_bytes,
        layout->k_scales_offset_bytes, layout->k_biases_offset_bytes,
        layout->v_scales_offset_bytes, layout->v_biases_offset_bytes};
    memcpy(out, all, sizeof all);
}

int64_t kvc__source_rows(const kvc_cache_held *held, int64_t keep, bool window) {
    return window && held->first > keep ? keep + held->length - held->first : held->length;
}

/* Where it is paged, kvc_cache_view has nothing to show. */
static kvc_status find_blocks(kvc__source *s, const kvc_cache_desc *desc, int plane) {
    size_t offsets[KVC__SNAPSHOT_PLANES];
    s->layout = (kvc_blocks_layout){.struct_size = sizeof s->layout};
    KVC_TRY(kvc_blocks_layout_get(desc->blocks, s->layer, &s->layout));
    kvc__snapshot_block_planes(&s->layout, offsets);
    const kvc_blocks_layout *l = &s->layout;
    const size_t rows[KVC__SNAPSHOT_PLANES] = {l->k_row_bytes,        l->v_row_bytes,
                                               l->k_scales_row_bytes, l->k_scales_row_bytes,
                                               l->v_scales_row_bytes, l->v_scales_row_bytes};
    s->offset_bytes = offsets[plane];
    s->row_bytes = rows[plane];
    return KVC_OK;
}

kvc_status kvc__source_init(kvc__source *s, const kvc_cache *cache, int64_t layer, int plane) {
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    kvc_array planes[KVC__SNAPSHOT_PLANES] = {{0}};
    KVC_TRY(kvc_cache_desc_get(cache, &desc));
    const kvc_layer_spec *spec = &desc.specs[layer];
    s->cache = cache;
    s->layer = layer;
    s->heads = spec->kv_heads;
    s->keep = spec->keep;
    s->window = spec->window > 0;
    s->turn = plane == KVC__SNAPSHOT_TAIL ? kvc__snapshot_rows(spec, plane, 1) : 0;
    s->positions = kvc__snapshot_row_positions(spec, plane);
    if (desc.growth == KVC_GROW_PAGED) return find_blocks(s, &desc, plane);
    KVC_TRY(kvc__snapshot_view(cache, layer, spec, planes));
    for (int p = 0; p < KVC__SNAPSHOT_PLANES; p++)
        if (p != plane) kvc_array_release(&planes[p]);
    s->view = planes[plane];
    s->row_bytes = (size_t)s->view.shape[3] * kvc_dtype_size_bytes(s->view.dtype);
    return KVC_OK;
}

void kvc__source_deinit(kvc__source *s) {
    kvc_array_release(&s->view);
}

/* How many rows from row i on hold something of a sequence. */
static int64_t run_of(const kvc__source *s, const kvc_cache_held *held, int64_t i) {
    if (s->turn) { /* the last position that is or was in that row */
        const int64_t past = (held->length - 1 - i) % s->turn;
        return held->length - 1 - (past < 0 ? past + s->turn : past) >= held->first;
    }
    const int64_t rows = kvc__source_rows(held, s->keep, s->window) / s->positions;
    return i < rows ? rows - i : 0;
}

/* Finds row i of a sequence in the order of positions, and how many of those that follow it lie
 * behind it. */
static const char *find_held(const kvc__source *s, const kvc_cache_held *held, int64_t sequence,
                             int64_t head, int64_t i, int64_t *run) {
    int64_t row = i;
    if (s->layout.slabs) {
        const int64_t size = s->layout.positions, block = i / size;
        const int32_t *ids;
        int64_t count;
        if (kvc_cache_block_table(s->cache, sequence, &ids, &count) != KVC_OK) return NULL;
        const int64_t place = ids[block] & (((int64_t)1 << s->layout.slab_shift) - 1);
        if (*run > size - i % size) *run = size - i % size;
        return (const char *)s->layout.slabs[ids[block] >> s->layout.slab_shift] +
               (size_t)place * s->layout.block_bytes + s->offset_bytes +
               (size_t)(head * size + i % size) * s->row_bytes;
    }
    if (s->window && !s->as_it_lies) {
        const int64_t turn = held->row - s->keep, turning = held->rows - s->keep;
        if (i < s->keep) {
            if (*run > s->keep - i) *run = s->keep - i;
        } else if (held->first > s->keep) {
            const int64_t past = (turn + i - s->keep) % turning;
            row = s->keep + past;
            if (*run > turning - past) *run = turning - past;
        }
    }
    const int64_t at =
        sequence * s->view.strides[0] + head * s->view.strides[1] + row * s->view.strides[2];
    return (const char *)s->view.data + at * (int64_t)kvc_dtype_size_bytes(s->view.dtype);
}

kvc_status kvc__source_fill(void *context, void *out, size_t offset, size_t bytes) {
    const kvc__source *s = context;
    for (size_t done = 0; done < bytes;) {
        const size_t at = offset + done, past = at % s->row_bytes;
        const int64_t n = (int64_t)(at / s->row_bytes), i = n % s->rows;
        const int64_t head = n / s->rows % s->heads, b = n / s->rows / s->heads;
        int64_t run = run_of(s, &s->held[b], i);
        const char *row = NULL; /* where a sequence has nothing lie zeros */
        if (run) row = find_held(s, &s->held[b], s->first_sequence + b, head, i, &run);
        else run = s->turn ? 1 : s->rows - i;
        size_t some = (size_t)run * s->row_bytes - past;
        if (some > bytes - done) some = bytes - done;
        if (row) memcpy((char *)out + done, row + past, some);
        else memset((char *)out + done, 0, some);
        done += some;
    }
    return KVC_OK;
}
