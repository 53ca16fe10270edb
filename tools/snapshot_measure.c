#include "snapshot_measure.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <kvcache/attention.h>
#include <kvcache/device.h>
#include <kvcache/executor.h>
#include <kvcache/snapshot.h>

#include "cli.h"
#include "scratch.h"
#include "snapshot_plain.h"

enum {
    PIECE = 256, /* positions that are appended at once */
    SPREAD = 61  /* pieces begin at so many different rows of those that there are */
};

/* A measurement under way. */
typedef struct bench {
    const snapshot_shape *shape;
    snapshot_row *row;
    int64_t pass;                               /* 0: not measured */
    char folder[PATH_MAX - 64], path[PATH_MAX]; /* of its own; of the cache's file */
    kvc_pool *pool, *reading;                   /* for what is saved; what is loaded */
    kvc_blocks *blocks, *read_blocks;           /* likewise, where they are paged */
    kvc_threads *threads;
    kvc_cache *cache;
    float *rows; /* [kv_heads][PIECE + SPREAD][dim], what is appended */
    kvc_attention *plan;
    kvc_array q, slopes, out; /* out: [layers][q_heads][1][dim] */
    float *wanted[2];         /* what out is to be: of a cache as the saved one, and of one that
                                 was mapped, after its steps */
    size_t out_bytes;
    char *data, *buffer; /* [row->bytes] the file's bytes; what is read through */
    stats_samples samples[SNAPSHOT_FIGURES];
} bench;

uint64_t snapshot_cache_bytes(const snapshot_shape *shape, const cache_kind *cache) {
    const kvc_layer_spec spec = cache_kind_spec(cache, shape->kv_heads, shape->dim, shape->dtype);
    const bool cut = cache->window && cache->window < shape->positions;
    const int64_t positions = cut ? cache->window : shape->positions;
    return (uint64_t)(shape->layers * positions) * cache_kind_position_bytes(&spec);
}

/* The cache. */

/* Small numbers of both signs, the same on every machine. */
static void fill_random(float *out, size_t count) {
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        out[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
}

/* Appends n positions to a layer, from `at` on. */
static kvc_status append(const bench *b, kvc_cache *cache, int64_t layer, int64_t at, int64_t n) {
    const snapshot_shape *shape = b->shape;
    const int64_t extents[] = {1, shape->kv_heads, n, shape->dim};
    const int64_t strides[] = {0, (PIECE + SPREAD) * shape->dim, shape->dim, 1};
    const int64_t from = (at / PIECE + 7 * layer) % SPREAD;
    kvc_array kv[2];
    for (int64_t i = 0; i < 2; i++) {
        const float *first = b->rows + (from + 29 * i) % SPREAD * shape->dim;
        const kvc_status status = kvc_array_borrow(&kv[i], KVC_F32, 4, extents, strides, first);
        if (status != KVC_OK) return status;
    }
    return kvc_cache_append(cache, layer, &kv[0], &kv[1]);
}

static int fill_cache(bench *b) {
    const snapshot_shape *shape = b->shape;
    const size_t count = (size_t)(shape->kv_heads * (PIECE + SPREAD) * shape->dim);
    b->rows = malloc(count * sizeof *b->rows);
    if (!b->rows) return cli_fail("no memory for the positions of a piece");
    fill_random(b->rows, count);
    kvc_status status = KVC_OK;
    for (int64_t at = 0; at < shape->positions && status == KVC_OK; at += PIECE) {
        const int64_t left = shape->positions - at, n = left < PIECE ? left : PIECE;
        for (int64_t layer = 0; layer < shape->layers && status == KVC_OK; layer++)
            status = append(b, b->cache, layer, at, n);
    }
    return status == KVC_OK ? CLI_DONE : cli_fail_library("cache");
}

static int make_cache(bench *b) {
    const snapshot_shape *shape = b->shape;
    const cache_kind *kind = b->row->cache;
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->kv_heads, shape->dim, shape->dtype);
    if (kvc_threads_new(&b->threads, (int)shape->threads) != KVC_OK)
        return cli_fail_library("--threads");
    if (kvc_pool_new(&b->pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("pool");
    if (cache_kind_blocks(&b->blocks, b->pool, kind, &spec, shape->layers) != KVC_OK)
        return cli_fail_library("blocks");
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = shape->layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = kind->growth,
                                 .max_positions = shape->positions,
                                 .blocks = b->blocks};
    if (kvc_cache_new(&b->cache, b->pool, &desc) != KVC_OK) return cli_fail_library("cache");
    return fill_cache(b);
}

/* Attention. */

/* Attends with the query over each layer. */
static kvc_status attend(const bench *b, const kvc_cache *cache,
                         const kvc_attention_extras *extras) {
    const size_t layer_bytes = b->out_bytes / (size_t)b->shape->layers;
    kvc_array out = b->out;
    kvc_status status = KVC_OK;
    out.shape[0] = 1;
    for (int64_t layer = 0; layer < b->shape->layers && status == KVC_OK; layer++) {
        out.data = (char *)b->out.data + (size_t)layer * layer_bytes;
        status = kvc_attention_run(b->plan, cache, layer, &b->q, &out, extras);
    }
    return status;
}

/* A step of decoding, as far as the cache has a part in it: a position is appended to each layer,
 * then all are attended over. */
static kvc_status decode(const bench *b, kvc_cache *cache) {
    kvc_status status = KVC_OK;
    for (int64_t layer = 0; layer < b->shape->layers && status == KVC_OK; layer++)
        status = append(b, cache, layer, b->shape->positions, 1);
    return status == KVC_OK ? attend(b, cache, NULL) : status;
}

/* Attends where it matters which position lies where: slopes make scores depend on that. */
static kvc_status attend_by_position(const bench *b, const kvc_cache *cache) {
    const kvc_attention_extras extras = {.struct_size = sizeof extras, .slopes = &b->slopes};
    memset(b->out.data, 0xff, b->out_bytes);
    return attend(b, cache, &extras);
}

static int make_attention(bench *b) {
    const snapshot_shape *shape = b->shape;
    const int64_t query[] = {1, shape->q_heads, 1, shape->dim};
    const int64_t outs[] = {shape->layers, shape->q_heads, 1, shape->dim};
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    if (kvc_attention_desc_for(&desc, b->cache, 0) != KVC_OK) return cli_fail_library("attention");
    desc.q_heads = shape->q_heads;
    if (kvc_attention_plan(&b->plan, &desc) != KVC_OK ||
        kvc_array_empty(&b->q, b->pool, KVC_F32, 4, query) != KVC_OK ||
        kvc_array_empty(&b->slopes, b->pool, KVC_F32, 1, &shape->q_heads) != KVC_OK ||
        kvc_array_empty(&b->out, b->pool, KVC_F32, 4, outs) != KVC_OK)
        return cli_fail_library("attention");
    fill_random(b->q.data, (size_t)kvc_array_size(&b->q));
    for (int64_t h = 0; h < shape->q_heads; h++) /* the oldest keys weigh 1 / e of the newest */
        ((float *)b->slopes.data)[h] = 1 / (float)shape->positions;
    b->out_bytes = (size_t)kvc_array_size(&b->out) * sizeof(float);
    return CLI_DONE;
}

/* Notes what attention over a cache gives. */
static int make_wanted(bench *b, float **out, const kvc_cache *cache) {
    *out = malloc(b->out_bytes);
    if (!*out) return cli_fail("no memory for the outputs of a step");
    if (attend_by_position(b, cache) != KVC_OK) return cli_fail_library("attention");
    memcpy(*out, b->out.data, b->out_bytes);
    return CLI_DONE;
}

/* Whether attention over a cache gives what is wanted. */
static int check(const bench *b, const kvc_cache *cache, const float *wanted, const char *what) {
    if (attend_by_position(b, cache) != KVC_OK) return cli_fail_library("attention");
    if (memcmp(b->out.data, wanted, b->out_bytes) == 0) return CLI_DONE;
    return cli_fail("what was %s is not what was saved: attention over it differs", what);
}

/* Measuring. */

/* Says what comes, and returns when it began. */
static uint64_t begin_figure(const bench *b, const char *what) {
    char kind[CACHE_KIND_ROOM];
    (void)cache_kind_text(kind, b->row->cache);
    if (b->pass == 0) cli_progress("%s: warming up: %s", kind, what);
    else
        cli_progress("%s: pass %" PRId64 " of %" PRId64 ": %s", kind, b->pass, b->shape->passes,
                     what);
    return stats_now_ns();
}

static int keep(bench *b, snapshot_figure figure, uint64_t start_ns) {
    const double ns = (double)(stats_now_ns() - start_ns);
    if (b->pass == 0 || stats_add(&b->samples[figure], ns)) return CLI_DONE;
    return cli_fail("no memory for the samples");
}

static int keep_plain(bench *b, snapshot_figure figure, uint64_t start_ns, bool good) {
    if (!good) return cli_fail("--dir: %s: %s", b->folder, strerror(errno));
    return keep(b, figure, start_ns);
}

static int keep_library(bench *b, snapshot_figure figure, uint64_t start_ns, kvc_status status) {
    return status == KVC_OK ? keep(b, figure, start_ns) : cli_fail_library("snapshot");
}

static int take_writes(bench *b) {
    uint64_t start_ns = begin_figure(b, "writing");
    const bool good = snapshot_plain_write(b->folder, "plain", b->data, b->row->bytes);
    const int status = keep_plain(b, SNAPSHOT_PLAIN_WRITE, start_ns, good);
    if (status != CLI_DONE) return status;
    start_ns = begin_figure(b, "saving");
    return keep_library(b, SNAPSHOT_SAVE, start_ns, kvc_snapshot_save(b->path, b->cache, NULL));
}

static void *map_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int take_plain_reads(bench *b) {
    const size_t bytes = b->row->bytes;
    uint64_t start_ns = begin_figure(b, "reading");
    char *into = b->shape->fresh ? map_memory(bytes) : b->data;
    const bool good = into && snapshot_plain_read(b->path, into, bytes);
    const int status = keep_plain(b, SNAPSHOT_PLAIN_READ, start_ns, good);
    if (into && b->shape->fresh) (void)munmap(into, bytes);
    if (status != CLI_DONE) return status;
    start_ns = begin_figure(b, "reading through a buffer");
    return keep_plain(b, SNAPSHOT_BUFFER_READ, start_ns,
                      snapshot_plain_read_through(b->path, b->buffer, bytes));
}

/* Memory for what is loaded; it is kept for the next load, or not. */
static int open_reading(bench *b) {
    const snapshot_shape *shape = b->shape;
    const cache_kind *kind = b->row->cache;
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->kv_heads, shape->dim, shape->dtype);
    if (b->reading) return CLI_DONE;
    if (kvc_pool_new(&b->reading, kvc_device_cpu()) != KVC_OK ||
        cache_kind_blocks(&b->read_blocks, b->reading, kind, &spec, shape->layers) != KVC_OK)
        return cli_fail_library("pool");
    return CLI_DONE;
}

static void close_reading(bench *b) {
    kvc_blocks_free(b->read_blocks);
    kvc_pool_free(b->reading);
    b->read_blocks = NULL;
    b->reading = NULL;
}

static int take_load(bench *b) {
    kvc_cache *cache = NULL;
    int status = open_reading(b);
    if (status != CLI_DONE) return status;
    const kvc_executor executor = kvc_threads_executor(b->threads);
    const kvc_snapshot_options options = {.struct_size = sizeof options,
                                          .growth = b->row->cache->growth,
                                          .blocks = b->read_blocks,
                                          .executor = &executor};
    const uint64_t start_ns = begin_figure(b, "loading");
    status = keep_library(b, SNAPSHOT_LOAD, start_ns,
                          kvc_snapshot_load(&cache, b->reading, b->path, &options));
    if (status == CLI_DONE) status = check(b, cache, b->wanted[0], "loaded");
    kvc_cache_free(cache);
    if (b->shape->fresh) close_reading(b);
    return status;
}

static int take_steps(bench *b, kvc_cache *cache) {
    uint64_t start_ns = begin_figure(b, "first step");
    const int status = keep_library(b, SNAPSHOT_FIRST_STEP, start_ns, decode(b, cache));
    if (status != CLI_DONE) return status;
    start_ns = begin_figure(b, "second step");
    return keep_library(b, SNAPSHOT_SECOND_STEP, start_ns, decode(b, cache));
}

static int take_map(bench *b) {
    kvc_cache *cache = NULL;
    const kvc_snapshot_options options = {.struct_size = sizeof options,
                                          .flags = KVC_LOAD_MAP |
                                                   (b->shape->verify ? KVC_LOAD_VERIFY : 0u),
                                          .mapped_layers = &b->row->mapped};
    const uint64_t start_ns = begin_figure(b, "mapping");
    int status = keep_library(b, SNAPSHOT_MAP, start_ns,
                              kvc_snapshot_load(&cache, b->pool, b->path, &options));
    if (status == CLI_DONE) status = take_steps(b, cache);
    if (status == CLI_DONE) status = check(b, cache, b->wanted[1], "mapped");
    kvc_cache_free(cache);
    return status;
}

static int take_reads(bench *b) {
    int status = take_plain_reads(b);
    if (status == CLI_DONE) status = take_load(b);
    if (status == CLI_DONE) status = take_map(b);
    return status;
}

/* What is compared goes by turns, so that what disturbs the machine disturbs all of it; what was
 * written keeps the system busy for some time, and does not come between reads. */
static int take_passes(bench *b) {
    int (*const takes[])(bench *) = {take_writes, take_reads};
    int status = CLI_DONE;
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++)
        for (b->pass = 0; b->pass <= b->shape->passes && status == CLI_DONE; b->pass++)
            status = takes[i](b);
    return status;
}

/* What attention gives over the saved cache, and over one that was loaded in order, with checksums
 * verified, after two steps. */
static int make_wanted_outputs(bench *b) {
    kvc_cache *loaded = NULL;
    int status = make_wanted(b, &b->wanted[0], b->cache);
    if (status == CLI_DONE && (kvc_snapshot_load(&loaded, b->pool, b->path, NULL) != KVC_OK ||
                               decode(b, loaded) != KVC_OK || decode(b, loaded) != KVC_OK))
        status = cli_fail_library("snapshot");
    if (status == CLI_DONE) status = make_wanted(b, &b->wanted[1], loaded);
    kvc_cache_free(loaded);
    kvc_pool_clear(b->pool); /* of what growth left, too */
    return status;
}

/* Saves once, so that there are bytes to be written plainly. */
static int make_files(bench *b) {
    struct stat about;
    const int status = scratch_make(b->folder, sizeof b->folder, "--dir", b->shape->folder);
    if (status != CLI_DONE) return status;
    (void)snprintf(b->path, sizeof b->path, "%s/cache.safetensors", b->folder);
    (void)begin_figure(b, "saving");
    if (kvc_snapshot_save(b->path, b->cache, NULL) != KVC_OK) return cli_fail_library("snapshot");
    if (stat(b->path, &about) != 0) return cli_fail("--dir: %s: %s", b->path, strerror(errno));
    b->row->bytes = (uint64_t)about.st_size;
    b->data = map_memory(b->row->bytes);
    b->buffer = aligned_alloc(KVC_ALIGNMENT_BYTES, SNAPSHOT_PLAIN_BUFFER); /* slow elsewhere */
    if (!b->data || !b->buffer)
        return cli_fail("no memory for the %" PRIu64 " bytes of the file", b->row->bytes);
    if (snapshot_plain_read(b->path, b->data, b->row->bytes)) return CLI_DONE;
    return cli_fail("--dir: %s: %s", b->path, strerror(errno));
}

static void tear_down(bench *b) {
    scratch_remove(b->folder);
    close_reading(b);
    kvc_attention_free(b->plan);
    kvc_array_release(&b->q);
    kvc_array_release(&b->slopes);
    kvc_array_release(&b->out);
    kvc_cache_free(b->cache);
    kvc_blocks_free(b->blocks);
    kvc_pool_free(b->pool);
    kvc_threads_free(b->threads);
    free(b->rows);
    free(b->wanted[0]);
    free(b->wanted[1]);
    free(b->buffer);
    if (b->data) (void)munmap(b->data, b->row->bytes);
    for (int i = 0; i < SNAPSHOT_FIGURES; i++) stats_free(&b->samples[i]);
}

int snapshot_measure(snapshot_row *row, const snapshot_shape *shape) {
    bench b = {.shape = shape, .row = row};
    (void)begin_figure(&b, "filling the cache");
    int status = make_cache(&b);
    if (status == CLI_DONE) status = make_attention(&b);
    if (status == CLI_DONE) status = make_files(&b);
    if (status == CLI_DONE) status = make_wanted_outputs(&b);
    if (status == CLI_DONE) status = take_passes(&b);
    for (int i = 0; i < SNAPSHOT_FIGURES; i++) row->ns[i] = stats_summarise(&b.samples[i]);
    tear_down(&b);
    return status;
}
