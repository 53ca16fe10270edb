/* From a verified file to a cache. */
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/file.h"
#include "store/opened.h"
#include "store/snapshot.h"

enum { SPARE_POSITIONS = 4096 };

/* A load under way. */
typedef struct load {
    const kvc_snapshot *s;
    const kvc_snapshot_options *options;
    kvc_cache *cache;
    int64_t mapped;
} load;

static kvc_status check_field(const kvc_snapshot *s, const char *name, const char *expected,
                              const char *found) {
    char a[KVC__SHOWN], b[KVC__SHOWN];
    if (!expected || (found && strcmp(expected, found) == 0)) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "%s: fingerprint: %s: \"%s\" expected, %s%s%s found",
                     kvc__safetensors_name(s->file), name, kvc__shown(a, expected),
                     found ? "\"" : "", found ? kvc__shown(b, found) : "none", found ? "\"" : "");
}

static kvc_status check_fingerprint(const kvc_snapshot *s, const kvc_fingerprint *expected) {
    if (!expected) return KVC_OK;
#define CHECK_FIELD(field)                                                                         \
    KVC_TRY(check_field(s, #field, expected->field, s->contents.fingerprint.field));
    KVC__FINGERPRINT_LIST(CHECK_FIELD)
#undef CHECK_FIELD
    return KVC_OK;
}

static int64_t longest(const kvc_snapshot *s) {
    int64_t most = 0;
    for (int64_t i = 0; i < s->contents.layers * s->contents.batch; i++)
        if (s->held[i].length > most) most = s->held[i].length;
    return most;
}

static size_t row_bytes(const kvc_safetensors_tensor *t) {
    return (size_t)t->shape[3] * kvc_dtype_size_bytes(t->dtype);
}

/* Reads rows [first, first + n) of a sequence's head to memory where they follow each other. */
static kvc_status read_rows(const kvc_snapshot *s, const kvc_safetensors_tensor *t, void *into,
                            int64_t sequence, int64_t head, int64_t first, int64_t n) {
    const int64_t row = (sequence * t->shape[1] + head) * t->shape[2] + first;
    return kvc_safetensors_read(s->file, t, into, (size_t)row * row_bytes(t),
                                (size_t)n * row_bytes(t));
}

static kvc_status verify(const kvc_snapshot *s, const kvc_safetensors_tensor *t) {
    return kvc_safetensors_has_checksums(s->file) ? kvc_safetensors_verify(s->file, t) : KVC_OK;
}

/* Reads a plane of a layer that views show. The file may have rows to spare. */
static kvc_status read_plane(const kvc_snapshot *s, const kvc_safetensors_tensor *t,
                             const kvc_array *view) {
    if (view->shape[2] == t->shape[2]) return kvc_safetensors_load(s->file, t, view);
    KVC_TRY(verify(s, t));
    for (int64_t b = 0; b < view->shape[0]; b++)
        for (int64_t h = 0; view->shape[2] > 0 && h < view->shape[1]; h++) {
            const int64_t at = b * view->strides[0] + h * view->strides[1];
            void *into = (char *)view->data + at * (int64_t)kvc_dtype_size_bytes(view->dtype);
            KVC_TRY(read_rows(s, t, into, b, h, 0, view->shape[2]));
        }
    return KVC_OK;
}

static kvc_status read_linear(const load *l, int64_t layer) {
    const kvc__snapshot_tensors *tensors = &l->s->tensors[layer];
    kvc_array planes[KVC__SNAPSHOT_PLANES] = {{0}};
    kvc_status status = kvc__snapshot_view(l->cache, layer, tensors->count > 2, planes);
    for (int p = 0; status == KVC_OK && p < tensors->count; p++)
        status = read_plane(l->s, tensors->planes[p], &planes[p]);
    for (int p = 0; p < KVC__SNAPSHOT_PLANES; p++) kvc_array_release(&planes[p]);
    return status;
}

/* Reads a plane into the blocks of a sequence. */
static kvc_status read_blocks(const load *l, const kvc_blocks_layout *layout, size_t offset_bytes,
                              const kvc_safetensors_tensor *t, int64_t sequence, int64_t length) {
    const int64_t size = layout->positions;
    const int32_t *ids;
    int64_t count;
    KVC_TRY(kvc_cache_block_table(l->cache, sequence, &ids, &count));
    for (int64_t i = 0; i * size < length; i++) {
        const int64_t n = length - i * size < size ? length - i * size : size;
        const int64_t place = ids[i] & (((int64_t)1 << layout->slab_shift) - 1);
        char *plane = (char *)layout->slabs[ids[i] >> layout->slab_shift] +
                      (size_t)place * layout->block_bytes + offset_bytes;
        for (int64_t h = 0; h < t->shape[1]; h++)
            KVC_TRY(read_rows(l->s, t, plane + (size_t)(h * size) * row_bytes(t), sequence, h,
                              i * size, n));
    }
    return KVC_OK;
}

static kvc_status read_paged(const load *l, int64_t layer) {
    const kvc__snapshot_tensors *tensors = &l->s->tensors[layer];
    const kvc_snapshot_layer *from = &l->s->layers[layer];
    kvc_blocks_layout layout = {.struct_size = sizeof layout};
    size_t offsets[KVC__SNAPSHOT_PLANES];
    KVC_TRY(kvc_blocks_layout_get(l->options->blocks, layer, &layout));
    kvc__snapshot_block_planes(&layout, offsets);
    for (int p = 0; p < tensors->count; p++) {
        KVC_TRY(verify(l->s, tensors->planes[p]));
        for (int64_t b = 0; b < l->s->contents.batch; b++)
            KVC_TRY(
                read_blocks(l, &layout, offsets[p], tensors->planes[p], b, from->held[b].length));
    }
    return KVC_OK;
}

static kvc_status map_layer(const load *l, int64_t layer) {
    const kvc__snapshot_tensors *tensors = &l->s->tensors[layer];
    const kvc_snapshot_layer *from = &l->s->layers[layer];
    kvc_cache_file file = {.fd = kvc__safetensors_fd(l->s->file), .rows = from->rows};
    for (int p = 0; p < tensors->count; p++) {
        if (l->options->flags & KVC_LOAD_VERIFY) KVC_TRY(verify(l->s, tensors->planes[p]));
        file.offsets[p] = tensors->planes[p]->offset;
    }
    return kvc_cache_restore_mapped(l->cache, layer, from->held, &file);
}

static kvc_status load_layer(load *l, int64_t layer) {
    const kvc_snapshot_layer *from = &l->s->layers[layer];
    if ((l->options->flags & KVC_LOAD_MAP) && from->rows > 0) {
        const kvc_status status = map_layer(l, layer);
        if (status == KVC_OK) l->mapped++;
        if (status != KVC_E_UNSUPPORTED && status != KVC_E_IO && status != KVC_E_LIMIT)
            return status;
        /* What cannot be mapped can be read. */
    }
    KVC_TRY(kvc_cache_restore(l->cache, layer, from->held));
    return l->options->growth == KVC_GROW_PAGED ? read_paged(l, layer) : read_linear(l, layer);
}

static kvc_status new_cache(load *l, kvc_pool *pool) {
    const kvc_snapshot_contents *c = &l->s->contents;
    const kvc_snapshot_options *o = l->options;
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = c->batch,
                           .layers = c->layers,
                           .spec_count = c->layers,
                           .growth = o->growth,
                           .chunk = o->chunk,
                           .max_positions = o->max_positions,
                           .blocks = o->blocks,
                           .slack = o->slack};
    kvc_layer_spec *specs;
    if (desc.growth == KVC_GROW_RESERVE && desc.max_positions == 0 &&
        __builtin_add_overflow(longest(l->s), SPARE_POSITIONS, &desc.max_positions))
        return kvc__fail(KVC_E_RANGE, "%s: %lld positions overflow",
                         kvc__safetensors_name(l->s->file), (long long)longest(l->s));
    KVC_TRY(kvc__store_calloc((void **)&specs, (size_t)c->layers, sizeof *specs, "specs"));
    for (int64_t i = 0; i < c->layers; i++) specs[i] = c->layer[i].spec;
    desc.specs = specs;
    const kvc_status status = kvc_cache_new(&l->cache, pool, &desc);
    kvc__store_free(specs, (size_t)c->layers, sizeof *specs);
    return status;
}

static uint64_t layer_bytes(const kvc_snapshot *s, int64_t layer) {
    const kvc__snapshot_tensors *tensors = &s->tensors[layer];
    uint64_t bytes = 0;
    for (int p = 0; p < tensors->count; p++) bytes += tensors->planes[p]->bytes;
    return bytes;
}

static kvc_status load_all(load *l, kvc_pool *pool) {
    const kvc_snapshot_options *o = l->options;
    uint64_t done = 0, total = 0;
    KVC_TRY(check_fingerprint(l->s, o->expected));
    KVC_TRY(new_cache(l, pool));
    for (int64_t i = 0; i < l->s->contents.layers; i++) total += layer_bytes(l->s, i);
    for (int64_t i = 0; i < l->s->contents.layers; i++) {
        if (o->progress) KVC_TRY(o->progress(o->progress_context, done, total));
        KVC_TRY(load_layer(l, i));
        done += layer_bytes(l->s, i);
    }
    return o->progress ? o->progress(o->progress_context, done, total) : KVC_OK;
}

static kvc_status check_options(const kvc_snapshot_options *o, const kvc_pool *pool) {
    if (!pool || kvc_pool_device(pool) != kvc_device_cpu())
        return kvc__fail(KVC_E_UNSUPPORTED, "pool: %s given, one of the cpu device wanted",
                         pool ? kvc_pool_device(pool)->name : "NULL");
    if (o->flags & ~(unsigned)(KVC_LOAD_MAP | KVC_LOAD_VERIFY))
        return kvc__fail(KVC_E_INVALID, "options.flags: %#x given, of kvc_load_flag wanted",
                         o->flags);
    if ((o->flags & KVC_LOAD_MAP) && o->growth != KVC_GROW_RESERVE)
        return kvc__fail(KVC_E_INVALID,
                         "options.growth: %s given with KVC_LOAD_MAP, KVC_GROW_RESERVE wanted",
                         kvc_growth_name(o->growth));
    return KVC_OK;
}

kvc_status kvc_snapshot_restore(kvc_cache **out, kvc_pool *pool, const kvc_snapshot *s,
                                const kvc_snapshot_options *options) {
    kvc_snapshot_options full = {.struct_size = sizeof full};
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    if (!s) return kvc__fail(KVC_E_INVALID, "snapshot: NULL given, an open one wanted");
    if (options)
        KVC_TRY(kvc__snapshot_struct_in(&full, sizeof full, options, options->struct_size));
    KVC_TRY(check_options(&full, pool));
    load l = {.s = s, .options = &full};
    const kvc_status status = load_all(&l, pool);
    if (status == KVC_OK) *out = l.cache;
    else kvc_cache_free(l.cache);
    if (full.mapped_layers) *full.mapped_layers = status == KVC_OK ? l.mapped : 0;
    return status;
}

kvc_status kvc_snapshot_load(kvc_cache **out, kvc_pool *pool, const char *path,
                             const kvc_snapshot_options *options) {
    kvc_snapshot *s;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc_snapshot_open(&s, path));
    const kvc_status status = kvc_snapshot_restore(out, pool, s, options);
    kvc_snapshot_close(s);
    return status;
}
