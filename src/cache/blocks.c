#include "cache/blocks.h"

#include "array/view.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/device.h"
#include "memory/pool.h"

enum { SLAB_BYTES = 2 << 20 }; /* a huge page: what one step may have to wait for */

static kvc_status check_spec(const kvc_layer_spec *spec, int64_t index) {
    if (spec->kv_heads <= 0 || spec->key_dim <= 0 || spec->value_dim <= 0)
        return kvc__fail(
            KVC_E_INVALID,
            "desc.specs[%lld]: kv_heads %lld, key_dim %lld, value_dim %lld given, more "
            "than 0 wanted",
            (long long)index, (long long)spec->kv_heads, (long long)spec->key_dim,
            (long long)spec->value_dim);
    if (spec->dtype != KVC_F32 && spec->dtype != KVC_F16 && spec->dtype != KVC_BF16)
        return kvc__fail(KVC_E_INVALID, "desc.specs[%lld].dtype: %s given, f32, f16 or bf16 wanted",
                         (long long)index, kvc_dtype_name(spec->dtype));
    return KVC_OK;
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
static bool place(size_t *offset, size_t *end_bytes, const kvc_blocks *blocks,
                  const kvc_layer_spec *spec, int64_t dim) {
    size_t bytes;
    *offset = *end_bytes;
    return kvc__mul(&bytes, (size_t)spec->kv_heads, (size_t)dim) &&
           kvc__mul(&bytes, bytes, (size_t)blocks->desc.positions) &&
           kvc__mul(&bytes, bytes, kvc_dtype_size_bytes(spec->dtype)) &&
           kvc__add(&bytes, bytes, *offset) &&
           kvc__round_up(end_bytes, bytes, KVC_ALIGNMENT_BYTES) && *end_bytes <= PTRDIFF_MAX;
}

static kvc_status place_layers(kvc_blocks *blocks) {
    const kvc_blocks_desc *desc = &blocks->desc;
    for (int64_t i = 0; i < desc->layers; i++) {
        kvc_layer_spec *spec = &blocks->specs[i];
        kvc__block_layer *layer = &blocks->layers[i];
        *spec = desc->specs[desc->spec_count == 1 ? 0 : i];
        if (spec->value_dim == 0) spec->value_dim = spec->key_dim;
        KVC_TRY(check_spec(spec, i));
        if (!place(&layer->k_offset_bytes, &blocks->block_bytes, blocks, spec, spec->key_dim) ||
            !place(&layer->v_offset_bytes, &blocks->block_bytes, blocks, spec, spec->value_dim))
            return kvc__fail(KVC_E_RANGE,
                             "desc: a block of %lld positions, with layer %lld of kv_heads %lld, "
                             "dims %lld and %lld, has more bytes than a size can hold",
                             (long long)desc->positions, (long long)i, (long long)spec->kv_heads,
                             (long long)spec->key_dim, (long long)spec->value_dim);
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

void kvc__blocks_drop_hold(kvc_blocks *blocks) {
    kvc__blocks_lock(blocks);
    const bool last = --blocks->holds == 0;
    kvc__blocks_unlock(blocks);
    if (last) destroy(blocks);
}

void kvc_blocks_free(kvc_blocks *blocks) {
    if (blocks) kvc__blocks_drop_hold(blocks);
}

kvc_status kvc__blocks_given(const kvc_blocks *blocks) {
    if (blocks) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "blocks: NULL given, a pool of blocks wanted");
}

static kvc_status find_layer(const kvc_blocks *blocks, int64_t layer) {
    KVC_TRY(kvc__blocks_given(blocks));
    if (layer < 0 || layer >= blocks->desc.layers)
        return kvc__fail(KVC_E_INVALID, "layer: %lld given, 0 to %lld wanted", (long long)layer,
                         (long long)blocks->desc.layers - 1);
    return KVC_OK;
}

kvc_status kvc_blocks_layout_get(const kvc_blocks *blocks, int64_t index, kvc_blocks_layout *out) {
    KVC_TRY(find_layer(blocks, index));
    const kvc_layer_spec *spec = &blocks->specs[index];
    const kvc__block_layer *layer = &blocks->layers[index];
    const size_t positions = (size_t)blocks->desc.positions;
    const size_t element_bytes = kvc_dtype_size_bytes(spec->dtype);
    const kvc_blocks_layout layout = {
        .slabs = blocks->bases,
        .slab_shift = blocks->slab_shift,
        .positions = blocks->desc.positions,
        .block_bytes = blocks->block_bytes,
        .k_offset_bytes = layer->k_offset_bytes,
        .v_offset_bytes = layer->v_offset_bytes,
        .k_head_bytes = positions * (size_t)spec->key_dim * element_bytes,
        .v_head_bytes = positions * (size_t)spec->value_dim * element_bytes,
        .k_row_bytes = (size_t)spec->key_dim * element_bytes,
        .v_row_bytes = (size_t)spec->value_dim * element_bytes};
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

static kvc_status view_side(kvc_array *out, const kvc_blocks *blocks, const kvc_layer_spec *spec,
                            int64_t dim, char *data) {
    const int64_t shape[] = {spec->kv_heads, blocks->desc.positions, dim};
    size_t bytes;
    KVC_TRY(kvc__array_layout(out, &bytes, spec->dtype, 3, shape));
    out->data = data;
    return KVC_OK;
}

kvc_status kvc_blocks_view(kvc_blocks *blocks, int32_t id, int64_t layer, kvc_array *k,
                           kvc_array *v) {
    if (!k || !v) return kvc__fail(KVC_E_INVALID, "%s: NULL given", k ? "v" : "k");
    *k = *v = (kvc_array){0};
    KVC_TRY(find_layer(blocks, layer));
    const kvc_layer_spec *spec = &blocks->specs[layer];
    kvc_buffer *buffer = retain_buffer(blocks, id);
    if (!buffer)
        return kvc__fail(KVC_E_INVALID, "id: %d given, a block that the caller holds wanted", id);
    kvc_array keys, values;
    char *block = memory_of(blocks, id);
    KVC_TRY(view_side(&keys, blocks, spec, spec->key_dim,
                      block + blocks->layers[layer].k_offset_bytes));
    KVC_TRY(view_side(&values, blocks, spec, spec->value_dim,
                      block + blocks->layers[layer].v_offset_bytes));
    keys.buffer = buffer;
    values.buffer = kvc_buffer_retain(buffer);
    *k = keys;
    *v = values;
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
