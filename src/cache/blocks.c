#include "cache/blocks.h"

#include "array/view.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/device.h"
#include "memory/pool.h"

enum { SLAB_BYTES = 2 << 20 }; /* a huge page: what one step may have to wait for */

/* A block keeps every position of every layer. */
static kvc_status check_spec(const kvc_layer_spec *spec, int64_t index) {
    if (spec->keys_per_channel)
        return kvc__fail(KVC_E_INVALID,
                         "desc.specs[%lld].keys_per_channel: given; a block keeps no unpacked keys "
                         "for those that share it, false wanted",
                         (long long)index);
    if (!spec->window) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.specs[%lld].window: %lld given; blocks keep all positions, 0 wanted "
                     "(kvc_attention_desc.window limits what queries see)",
                     (long long)index, (long long)spec->window);
}

/* Brings a description into its full form: defaults filled, every field but the specs checked. */
static kvc_status complete(kvc_blocks_desc *desc, const kvc_device *device) {
    if (desc->positions == 0) desc->positions = KVC_BLOCK_POSITIONS_DEFAULT;
    if (desc->slab_bytes == 0) desc->slab_bytes = SLAB_BYTES;
    if (desc->limit_bytes == 0) desc->limit_bytes = device->memory_bytes;
    if (desc->layers <= 0)
        return kvc__fail(KVC_E_INVALID, "desc.layers: %lld given, more than 0 wanted",
                         (long long)desc->layers);
    if (!desc->specs || (desc->spec_count != 1 && desc->spec_count != desc->layers))
        return kvc__fail(KVC_E_INVALID,
                         "desc.specs: %lld given, 1 or one for each of %lld layers wanted",
                         desc->specs ? (long long)desc->spec_count : 0LL, (long long)desc->layers);
    if (desc->positions < KVC_BLOCK_POSITIONS_MIN || desc->positions > KVC_BLOCK_POSITIONS_MAX)
        return kvc__fail(KVC_E_INVALID, "desc.positions: %lld given, %d to %d wanted",
                         (long long)desc->positions, KVC_BLOCK_POSITIONS_MIN,
                         KVC_BLOCK_POSITIONS_MAX);
    if (desc->limit_bytes == 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc.limit_bytes: 0 given; device '%s' does not say how much memory it "
                         "has, so that a limit is wanted",
                         device->name);
    return KVC_OK;
}

/* Places [kv_heads][positions][dim] behind what *end_bytes holds so far. */
static bool place(size_t *offset, size_t *end_bytes, const kvc_blocks *blocks, int64_t kv_heads,
                  const kvc__row_format *row) {
    size_t bytes;
    *offset = *end_bytes;
    return kvc__mul(&bytes, (size_t)kv_heads, row->bytes) &&
           kvc__mul(&bytes, bytes, (size_t)blocks->desc.positions) &&
           kvc__add(&bytes, bytes, *offset) &&
           kvc__round_up(end_bytes, bytes, KVC_ALIGNMENT_BYTES) && *end_bytes <= PTRDIFF_MAX;
}

static kvc_status place_layer(kvc_blocks *blocks, int64_t index) {
    const kvc_layer_spec *spec = &blocks->specs[index];
    kvc__block_layer *layer = &blocks->layers[index];
    KVC_TRY(kvc__spec_rows(layer->rows, &layer->planes_used, spec));
    for (int p = 0; p < layer->planes_used; p++)
        if (!place(&layer->offset_bytes[p], &blocks->block_bytes, blocks, spec->kv_heads,
                   &layer->rows[p]))
            return kvc__fail(KVC_E_RANGE,
                             "desc: a block of %lld positions, with layer %lld of kv_heads %lld, "
                             "dims %lld and %lld, has more bytes than a size can hold",
                             (long long)blocks->desc.positions, (long long)index,
                             (long long)spec->kv_heads, (long long)spec->key_dim,
                             (long long)spec->value_dim);
    return KVC_OK;
}

static kvc_status place_layers(kvc_blocks *blocks) {
    const kvc_blocks_desc *desc = &blocks->desc;
    for (int64_t i = 0; i < desc->layers; i++) {
        blocks->specs[i] = desc->specs[desc->spec_count == 1 ? 0 : i];
        KVC_TRY(kvc__spec_complete(&blocks->specs[i], i));
        KVC_TRY(check_spec(&blocks->specs[i], i));
        KVC_TRY(place_layer(blocks, i));
    }
    return KVC_OK;
}

/* Divides the limit into slabs of a power of two of blocks; the last may be short. */
static kvc_status divide(kvc_blocks *blocks) {
    const kvc_blocks_desc *desc = &blocks->desc;
    const uint64_t most = desc->limit_bytes / blocks->block_bytes;
    if (most == 0)
        return kvc__fail(KVC_E_INVALID, "desc.limit_bytes: %llu given, a block alone has %zu",
                         (unsigned long long)desc->limit_bytes, blocks->block_bytes);
    blocks->most_blocks = most < INT32_MAX ? (int64_t)most : INT32_MAX;
    while ((int64_t)1 << (blocks->slab_shift + 1) <= blocks->most_blocks &&
           blocks->block_bytes << (blocks->slab_shift + 1) <= desc->slab_bytes)
        blocks->slab_shift++;
    blocks->most_slabs = ((blocks->most_blocks - 1) >> blocks->slab_shift) + 1;
    return KVC_OK;
}

static kvc_status init(kvc_blocks *blocks) {
    const size_t layers = (size_t)blocks->desc.layers;
    void *memory;
    KVC_TRY(kvc__calloc(&memory, layers, sizeof *blocks->specs, "blocks"));
    blocks->specs = memory;
    KVC_TRY(kvc__calloc(&memory, layers, sizeof *blocks->layers, "blocks"));
    blocks->layers = memory;
    KVC_TRY(place_layers(blocks));
    blocks->desc.specs = blocks->specs;
    blocks->desc.spec_count = blocks->desc.layers;
    KVC_TRY(divide(blocks));
    KVC_TRY(kvc__calloc(&memory, (size_t)blocks->most_slabs, sizeof(void *), "slabs"));
    blocks->slabs = memory;
    KVC_TRY(kvc__calloc(&memory, (size_t)blocks->most_slabs, sizeof *blocks->bases, "slabs"));
    blocks->bases = memory;
    return KVC_OK;
}

kvc_status kvc_blocks_new(kvc_blocks **out, kvc_pool *pool, const kvc_blocks_desc *desc) {
    kvc_blocks_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    if (!pool) return kvc__fail(KVC_E_INVALID, "pool: NULL given, a pool wanted");
    KVC_TRY(kvc__struct_in(&full, sizeof full, desc, "kvc_blocks_desc"));
    KVC_TRY(complete(&full, kvc_pool_device(pool)));
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_blocks), "blocks"));
    kvc_blocks *blocks = memory;
    blocks->pool = pool;
    blocks->desc = full;
    blocks->holds = 1;
    (void)pthread_mutex_init(&blocks->lock, NULL); /* defaults: cannot fail on Linux */
    (void)pthread_cond_init(&blocks->arrival, NULL);
    kvc__pool_hold(pool);
    const kvc_status status = init(blocks);
    if (status == KVC_OK) *out = blocks;
    else kvc_blocks_free(blocks);
    return status;
}

static void destroy(kvc_blocks *blocks) {
    kvc__blocks_free_slabs(blocks);
    kvc__free(blocks->bases, (size_t)blocks->most_slabs, sizeof *blocks->bases);
    kvc__free(blocks->slabs, (size_t)blocks->most_slabs, sizeof(void *));
    kvc__free(blocks->layers, (size_t)blocks->desc.layers, sizeof *blocks->layers);
    kvc__free(blocks->specs, (size_t)blocks->desc.layers, sizeof *blocks->specs);
    (void)pthread_cond_destroy(&blocks->arrival);
    (void)pthread_mutex_destroy(&blocks->lock);
    kvc__pool_drop_hold(blocks->pool);
    kvc__free(blocks, 1, sizeof *blocks);
}

void kvc__blocks_hold(kvc_blocks *blocks) {
    kvc__blocks_lock(blocks);
    blocks->holds++;
    kvc__blocks_unlock(blocks);
}

void kvc__blocks_drop_hold(kvc_blocks *blocks) {
    kvc__blocks_lock(blocks);
    const bool last = --blocks->holds == 0;
    kvc__blocks_unlock(blocks);
    if (last) destroy(blocks);
}

void kvc_blocks_free(kvc_blocks *blocks) {
    if (blocks) kvc__blocks_drop_hold(blocks);
}

kvc_pool *kvc_blocks_pool(const kvc_blocks *blocks) {
    return blocks ? blocks->pool : NULL;
}

kvc_status kvc__blocks_given(const kvc_blocks *blocks) {
    if (blocks) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "blocks: NULL given, a pool of blocks wanted");
}

kvc_status kvc__blocks_layer(const kvc_blocks *blocks, int64_t layer) {
    KVC_TRY(kvc__blocks_given(blocks));
    if (layer < 0 || layer >= blocks->desc.layers)
        return kvc__fail(KVC_E_INVALID, "layer: %lld given, 0 to %lld wanted", (long long)layer,
                         (long long)blocks->desc.layers - 1);
    return KVC_OK;
}

kvc_status kvc_blocks_layout_get(const kvc_blocks *blocks, int64_t index, kvc_blocks_layout *out) {
    KVC_TRY(kvc__blocks_layer(blocks, index));
    const kvc__block_layer *layer = &blocks->layers[index];
    const size_t positions = (size_t)blocks->desc.positions;
    const kvc_blocks_layout layout = {.slabs = blocks->bases,
                                      .slab_shift = blocks->slab_shift,
                                      .positions = blocks->desc.positions,
                                      .block_bytes = blocks->block_bytes,
                                      .k_offset_bytes = layer->offset_bytes[KVC__KEYS],
                                      .v_offset_bytes = layer->offset_bytes[KVC__VALUES],
                                      .k_head_bytes = positions * layer->rows[KVC__KEYS].bytes,
                                      .v_head_bytes = positions * layer->rows[KVC__VALUES].bytes,
                                      .k_row_bytes = layer->rows[KVC__KEYS].bytes,
                                      .v_row_bytes = layer->rows[KVC__VALUES].bytes,
                                      .k_scales_offset_bytes = layer->offset_bytes[KVC__SCALES],
                                      .k_biases_offset_bytes = layer->offset_bytes[KVC__SCALES + 1],
                                      .v_scales_offset_bytes = layer->offset_bytes[KVC__SCALES + 2],
                                      .v_biases_offset_bytes = layer->offset_bytes[KVC__SCALES + 3],
                                      .k_scales_row_bytes = layer->rows[KVC__SCALES].bytes,
                                      .v_scales_row_bytes = layer->rows[KVC__SCALES + 2].bytes};
    return kvc__struct_out(out, &layout, sizeof layout, "kvc_blocks_layout");
}

kvc_status kvc_blocks_desc_get(const kvc_blocks *blocks, kvc_blocks_desc *out) {
    KVC_TRY(kvc__blocks_given(blocks));
    return kvc__struct_out(out, &blocks->desc, sizeof blocks->desc, "kvc_blocks_desc");
}

/* The memory of a block that is held. */
static char *memory_of(const kvc_blocks *blocks, int32_t id) {
    const int32_t place = id & (int32_t)(((int64_t)1 << blocks->slab_shift) - 1);
    return (char *)blocks->bases[id >> blocks->slab_shift] + (size_t)place * blocks->block_bytes;
}

/* A reference to the buffer of a block that a caller holds; NULL when none does. */
static kvc_buffer *retain_buffer(kvc_blocks *blocks, int32_t id) {
    kvc_buffer *buffer = NULL;
    kvc__blocks_lock(blocks);
    if (kvc__block_is_lent(kvc__blocks_find(blocks, id)))
        buffer = kvc_buffer_retain(blocks->slabs[id >> blocks->slab_shift]->buffer);
    kvc__blocks_unlock(blocks);
    return buffer;
}

/* Lends [kv_heads][B][dim] of a plane; the caller counts the reference. */
static kvc_status view_plane(kvc_array *out, const kvc_blocks *blocks, int32_t id, int64_t layer,
                             int plane, kvc_buffer *buffer) {
    const kvc__block_layer *at = &blocks->layers[layer];
    const int64_t shape[] = {blocks->specs[layer].kv_heads, blocks->desc.positions,
                             at->rows[plane].dim};
    size_t bytes;
    KVC_TRY(kvc__array_layout(out, &bytes, at->rows[plane].dtype, 3, shape));
    out->data = memory_of(blocks, id) + at->offset_bytes[plane];
    out->buffer = kvc_buffer_retain(buffer);
    return KVC_OK;
}

static kvc_status check_packed(const kvc_blocks *blocks, int64_t layer, bool packed) {
    KVC_TRY(kvc__blocks_layer(blocks, layer));
    if ((blocks->specs[layer].kv_bits > 0) == packed) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED, "layer %lld: its rows are %s; %s wanted", (long long)layer,
                     packed ? "not packed" : "packed",
                     packed ? "kvc_blocks_view" : "kvc_blocks_view_quantized");
}

/* Lends planes of a block: all of them, or none. */
static kvc_status view_planes(kvc_array *const *out, kvc_blocks *blocks, int32_t id, int64_t layer,
                              int planes) {
    kvc_buffer *buffer = retain_buffer(blocks, id);
    if (!buffer)
        return kvc__fail(KVC_E_INVALID, "id: %d given, a block that the caller holds wanted", id);
    kvc_status status = KVC_OK;
    for (int p = 0; status == KVC_OK && p < planes; p++)
        status = view_plane(out[p], blocks, id, layer, p, buffer);
    for (int p = 0; status != KVC_OK && p < planes; p++) kvc_array_release(out[p]);
    kvc_buffer_release(buffer);
    return status;
}

kvc_status kvc_blocks_view(kvc_blocks *blocks, int32_t id, int64_t layer, kvc_array *k,
                           kvc_array *v) {
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "%s: NULL given", k ? "v" : "k");
    *k = *v = (kvc_array){0};
    KVC_TRY(check_packed(blocks, layer, false));
    kvc_array *const planes[] = {k, v};
    return view_planes(planes, blocks, id, layer, 2);
}

kvc_status kvc_blocks_view_quantized(kvc_blocks *blocks, int32_t id, int64_t layer,
                                     kvc_quantized *k, kvc_quantized *v) {
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "%s: NULL given", k ? "v" : "k");
    *k = *v = (kvc_quantized){0};
    KVC_TRY(check_packed(blocks, layer, true));
    kvc_array *const planes[KVC__TAIL] = {&k->words,  &v->words,  &k->scales,
                                          &k->biases, &v->scales, &v->biases};
    KVC_TRY(view_planes(planes, blocks, id, layer, KVC__TAIL));
    k->struct_size = v->struct_size = sizeof(kvc_quantized);
    k->bits = v->bits = blocks->specs[layer].kv_bits;
    k->group = v->group = blocks->specs[layer].kv_group;
    return KVC_OK;
}

static kvc_status check_copy(const kvc_blocks *blocks, int32_t to, int32_t from) {
    const kvc__block *target = kvc__blocks_find(blocks, to);
    if (!kvc__block_is_lent(target) || target->references != 1)
        return kvc__fail(KVC_E_INVALID,
                         "to: block %d given, with %u references; one that the caller alone holds "
                         "wanted",
                         to, target ? target->references : 0);
    if (from == to || !kvc__block_is_lent(kvc__blocks_find(blocks, from)))
        return kvc__fail(KVC_E_INVALID,
                         "from: %d given, another block that the caller holds wanted", from);
    return KVC_OK;
}

kvc_status kvc_blocks_copy(kvc_blocks *blocks, int32_t to, int32_t from) {
    static const int64_t stride = 1;
    KVC_TRY(kvc__blocks_given(blocks));
    kvc__blocks_lock(blocks);
    const kvc_status status = check_copy(blocks, to, from);
    kvc__blocks_unlock(blocks);
    if (status != KVC_OK) return status;
    const int64_t bytes = (int64_t)blocks->block_bytes;
    const kvc_strided target = {memory_of(blocks, to), KVC_U8, &stride};
    const kvc_strided source = {memory_of(blocks, from), KVC_U8, &stride};
    return kvc__device_copy(kvc_pool_device(blocks->pool), &target, &source, 1, &bytes);
}

int64_t kvc_blocks_references(kvc_blocks *blocks, int32_t id) {
    if (!blocks) return 0;
    kvc__blocks_lock(blocks);
    const kvc__block *block = kvc__blocks_find(blocks, id);
    const int64_t references = block ? block->references : 0;
    kvc__blocks_unlock(blocks);
    return references;
}

kvc_status kvc_blocks_stats_get(kvc_blocks *blocks, kvc_blocks_stats *out) {
    KVC_TRY(kvc__blocks_given(blocks));
    kvc__blocks_lock(blocks);
    const kvc_blocks_stats stats = {.block_bytes = blocks->block_bytes,
                                    .most_blocks = (uint64_t)blocks->most_blocks,
                                    .used_blocks = (uint64_t)blocks->used_blocks,
                                    .idle_blocks = (uint64_t)blocks->tree.idle_blocks,
                                    .free_blocks = (uint64_t)blocks->free_blocks,
                                    .peak_blocks = (uint64_t)blocks->peak_blocks,
                                    .resident_bytes = blocks->resident_bytes};
    kvc__blocks_unlock(blocks);
    return kvc__struct_out(out, &stats, sizeof stats, "kvc_blocks_stats");
}

kvc_status kvc_blocks_check(kvc_blocks *blocks) {
    KVC_TRY(kvc__blocks_given(blocks));
    kvc__blocks_lock(blocks);
    const kvc_status status = kvc__blocks_check_slabs(blocks);
    kvc__blocks_unlock(blocks);
    return status;
}
