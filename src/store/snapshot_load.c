/* From a verified file to a cache. */
#include <stdio.h>
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
    kvc_executor executor; /* parallel_for is NULL where there is none */
    kvc_cache *cache;
    int64_t mapped;
} load;

enum { SENTENCE = 512 };

/* A layer whose planes are read, maybe several at once. */
typedef struct reading {
    const load *l;
    int64_t layer;
    bool paged;
    kvc_array views[KVC__SNAPSHOT_PLANES]; /* where it lies, in order; */
    kvc_blocks_layout layout;              /* or, where it is paged, in blocks, */
    size_t offsets[KVC__SNAPSHOT_PLANES];  /* in each of which planes begin here */
    kvc_status statuses[KVC__SNAPSHOT_PLANES];
    char sentences[KVC__SNAPSHOT_PLANES][SENTENCE];
} reading;

/* One of its planes. */
typedef struct plane {
    const reading *r;
    int index;
    const kvc_safetensors_tensor *tensor;
    size_t row_bytes;
} plane;

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

static kvc_status verify(const kvc_snapshot *s, const kvc_safetensors_tensor *t) {
    return kvc_safetensors_has_checksums(s->file) ? kvc_safetensors_verify(s->file, t) : KVC_OK;
}

/* Where row i of a sequence's head goes in blocks. size: positions of a block */
static char *find_in_blocks(const plane *p, int64_t sequence, int64_t head, int64_t i,
                            int64_t size) {
    const kvc_blocks_layout *layout = &p->r->layout;
    const int32_t *ids;
    int64_t count;
    if (kvc_cache_block_table(p->r->l->cache, sequence, &ids, &count) != KVC_OK) return NULL;
    const int32_t id = ids[i / size];
    const int64_t place = id & (((int64_t)1 << layout->slab_shift) - 1);
    return (char *)layout->slabs[id >> layout->slab_shift] + (size_t)place * layout->block_bytes +
           p->r->offsets[p->index] + (size_t)(head * size + i % size) * p->row_bytes;
}

/* Finds where row i of a sequence's head goes, and how many of those that follow it go behind it.
 * NULL: nowhere. A file may have rows to spare. */
static char *find_row(const plane *p, int64_t sequence, int64_t head, int64_t i, int64_t *run) {
    const reading *r = p->r;
    const kvc_array *view = &r->views[p->index];
    const int64_t size = r->layout.positions;
    const int64_t rows =
        r->paged ? r->l->s->layers[r->layer].held[sequence].length : view->shape[2];
    *run = i < rows ? rows - i : p->tensor->shape[2] - i;
    if (i >= rows) return NULL;
    if (r->paged && *run > size - i % size) *run = size - i % size;
    if (r->paged) return find_in_blocks(p, sequence, head, i, size);
    const int64_t at = sequence * view->strides[0] + head * view->strides[1] + i * view->strides[2];
    return (char *)view->data + at * (int64_t)kvc_dtype_size_bytes(view->dtype);
}

/* Finds where bytes of a plane's tensor go. */
static char *find_bytes(void *context, size_t offset, size_t *bytes) {
    const plane *p = context;
    const int64_t heads = p->tensor->shape[1], rows = p->tensor->shape[2];
    const size_t past = offset % p->row_bytes;
    const int64_t n = (int64_t)(offset / p->row_bytes);
    int64_t run;
    char *row = find_row(p, n / rows / heads, n / rows % heads, n % rows, &run);
    *bytes = (size_t)run * p->row_bytes - past;
    return row ? row + past : NULL;
}

static kvc_status read_plane(const reading *r, int index) {
    const kvc_snapshot *s = r->l->s;
    const kvc_safetensors_tensor *t = s->tensors[r->layer].planes[index];
    plane p = {.r = r, .index = index, .tensor = t};
    if (!r->paged && r->views[index].shape[2] == t->shape[2])
        return kvc_safetensors_load(s->file, t, &r->views[index]);
    p.row_bytes = (size_t)t->shape[3] * kvc_dtype_size_bytes(t->dtype);
    return kvc__safetensors_scatter(s->file, t, find_bytes, &p);
}

static void read_task(void *argument, int64_t index, int thread) {
    reading *r = argument;
    (void)thread;
    r->statuses[index] = read_plane(r, (int)index);
    /* The sentence is this thread's; that of the load is to be the caller's. */
    if (r->statuses[index] != KVC_OK)
        (void)snprintf(r->sentences[index], SENTENCE, "%s", kvc_last_error());
}

/* Reads all planes of a layer, at once where there is an executor. */
static kvc_status read_planes(reading *r) {
    const int count = r->l->s->tensors[r->layer].count;
    const kvc_executor *executor = &r->l->executor;
    if (!executor->parallel_for) {
        for (int p = 0; p < count; p++) KVC_TRY(read_plane(r, p));
        return KVC_OK;
    }
    executor->parallel_for(executor->context, count, read_task, r);
    for (int p = 0; p < count; p++)
        if (r->statuses[p] != KVC_OK) return kvc__fail(r->statuses[p], "%s", r->sentences[p]);
    return KVC_OK;
}

static kvc_status read_linear(const load *l, int64_t layer) {
    reading r = {.l = l, .layer = layer};
    kvc_status status =
        kvc__snapshot_view(l->cache, layer, &l->s->contents.layer[layer].spec, r.views);
    if (status == KVC_OK) status = read_planes(&r);
    for (int p = 0; p < KVC__SNAPSHOT_PLANES; p++) kvc_array_release(&r.views[p]);
    return status;
}

static kvc_status read_paged(const load *l, int64_t layer) {
    reading r = {.l = l, .layer = layer, .paged = true};
    r.layout.struct_size = sizeof r.layout;
    KVC_TRY(kvc_blocks_layout_get(l->options->blocks, layer, &r.layout));
    kvc__snapshot_block_planes(&r.layout, r.offsets);
    return read_planes(&r);
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

static kvc_status check_executor(kvc_executor *out, const kvc_executor *given) {
    if (!given) return KVC_OK;
    KVC_TRY(kvc__snapshot_struct_in(out, sizeof *out, given, given->struct_size));
    if (out->parallel_for && out->threads >= 1) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "options.executor: %d threads and parallel_for %s given, at least 1 thread "
                     "and a function wanted",
                     out->threads, out->parallel_for ? "set" : "NULL");
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
    KVC_TRY(check_executor(&l.executor, full.executor));
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
