#include "append_strategy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvcache/cache.h>
#include <kvcache/device.h>

#include "cli.h"
#include "trace.h"

const char *const append_names[APPEND_KINDS] = {"concat",  "chunk",  "assign",
                                                "reserve", "memcpy", "memcpy-fresh"};

/* A pool may hold, what is in use included, this many times the caches: growth needs both sizes of
 * a cache, and no memory is so large that it could keep one buffer of every size that concatenation
 * goes through. */
enum { POOL_SETS = 2 };
#define POOL_SLACK_BYTES ((uint64_t)16 << 20)

typedef struct strategy {
    int (*start)(append_run *run, int64_t length);
    int (*step)(append_run *run);
    void (*stop)(append_run *run);
} strategy;

struct append_run {
    const strategy *calls;
    append_kind kind;
    append_shape shape;
    int64_t context, length;
    kvc_pool *pool;
    unsigned char *row; /* [heads][dim]: the position that every step appends, in the CPU's cache */
    kvc_array row_array;                            /* [1][heads][1][dim] over it */
    uint64_t appended_bytes, copied_bytes, growths; /* of strategies that count for themselves */

    kvc_cache *cache;       /* concat, chunk, reserve */
    kvc_array *arrays;      /* assign: [caches] */
    kvc_buffer **buffers;   /* memcpy: [caches], of [heads][context][dim] */
    unsigned char **places; /* memcpy: [caches], their memory */
};

static size_t row_bytes(const append_shape *shape) {
    return (size_t)shape->dim * kvc_dtype_size_bytes(shape->dtype);
}

uint64_t append_set_bytes(const append_shape *shape, int64_t positions) {
    return (uint64_t)(shape->caches * shape->heads * positions) * row_bytes(shape);
}

/* What the caches hold at their end: whole chunks, or what RESERVE may commit. */
static int64_t room_of(append_kind kind, const append_shape *shape, int64_t context) {
    switch (kind) {
    case APPEND_CHUNK:
    case APPEND_ASSIGN: return (context + shape->chunk - 1) / shape->chunk * shape->chunk;
    case APPEND_RESERVE: return context + 2 * shape->chunk;
    default: return context;
    }
}

uint64_t append_need_bytes(append_kind kind, const append_shape *shape, int64_t context) {
    const bool grows = kind <= APPEND_ASSIGN;
    const uint64_t set = append_set_bytes(shape, room_of(kind, shape, context));
    return (grows ? POOL_SETS : 1) * set + POOL_SLACK_BYTES;
}

/* The library's cache: concat, chunk, reserve. A cache's layer holds keys and values, so there are
 * half as many layers as caches. */

static kvc_growth growth_of(append_kind kind) {
    switch (kind) {
    case APPEND_CONCAT: return KVC_GROW_EXACT;
    case APPEND_CHUNK: return KVC_GROW_CHUNK;
    default: return KVC_GROW_RESERVE;
    }
}

static int cache_start(append_run *run, int64_t length) {
    const append_shape *shape = &run->shape;
    const kvc_layer_spec spec = {
        .kv_heads = shape->heads, .key_dim = shape->dim, .dtype = shape->dtype};
    const kvc_cache_desc desc = {
        .struct_size = sizeof desc,
        .layers = shape->caches / 2,
        .specs = &spec,
        .spec_count = 1,
        .growth = growth_of(run->kind),
        .chunk = shape->chunk,
        /* A server's caches may go on: room past the end, so that work done ahead is measured. */
        .max_positions = run->kind == APPEND_RESERVE ? room_of(run->kind, shape, run->context) : 0,
    };
    if (kvc_cache_new(&run->cache, run->pool, &desc) != KVC_OK)
        return cli_fail_library(append_names[run->kind]);
    for (int64_t layer = 0; layer < desc.layers && length > 0; layer++) {
        kvc_array k, v;
        if (kvc_cache_prepare(run->cache, layer, length, &k, &v) != KVC_OK)
            return cli_fail_library(append_names[run->kind]);
        kvc_array_release(&k);
        kvc_array_release(&v);
        if (kvc_cache_commit(run->cache, layer, length) != KVC_OK)
            return cli_fail_library(append_names[run->kind]);
    }
    return CLI_DONE;
}

static int cache_step(append_run *run) {
    const int64_t layers = run->shape.caches / 2;
    for (int64_t layer = 0; layer < layers; layer++)
        if (kvc_cache_append(run->cache, layer, &run->row_array, &run->row_array) != KVC_OK)
            return cli_fail_library(append_names[run->kind]);
    return CLI_DONE;
}

static kvc_cache_stats cache_stats(const append_run *run) {
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    if (run->cache) (void)kvc_cache_stats_get(run->cache, &stats);
    return stats;
}

static void cache_stop(append_run *run) {
    const kvc_cache_stats stats = cache_stats(run);
    run->appended_bytes += stats.appended_bytes;
    run->copied_bytes += stats.copied_bytes;
    kvc_cache_free(run->cache);
    run->cache = NULL;
}

/* The seed's loop, word for word:
 *     if offset == cache.shape[1]: cache = concatenate([cache, zeros(chunk)])
 *     cache[:, :, offset : offset + 1, :] = x */

static int assign_start(append_run *run, int64_t length) {
    const append_shape *shape = &run->shape;
    int64_t chunks = (length + shape->chunk - 1) / shape->chunk;
    if (chunks == 0) chunks = 1;
    const int64_t extents[] = {1, shape->heads, chunks * shape->chunk, shape->dim};
    for (int64_t i = 0; i < shape->caches; i++)
        if (kvc_array_empty(&run->arrays[i], run->pool, shape->dtype, 4, extents) != KVC_OK)
            return cli_fail_library("assign");
    return CLI_DONE;
}

/* cache = concatenate([cache, zeros((1, heads, chunk, dim))], axis=2) */
static kvc_status assign_grow(append_run *run, kvc_array *cache) {
    const int64_t extents[] = {1, run->shape.heads, run->shape.chunk, run->shape.dim};
    kvc_array parts[2] = {*cache, {0}}, grown;
    kvc_status status = kvc_array_zeros(&parts[1], run->pool, run->shape.dtype, 4, extents);
    if (status != KVC_OK) return status;
    status = kvc_array_concatenate(&grown, run->pool, parts, 2, 2);
    kvc_array_release(&parts[1]);
    if (status != KVC_OK) return status;
    kvc_array_release(cache);
    *cache = grown;
    run->growths++;
    run->copied_bytes += kvc_array_nbytes(cache);
    return KVC_OK;
}

static int assign_step(append_run *run) {
    const int64_t start[] = {0, 0, run->length, 0};
    const int64_t stop[] = {1, run->shape.heads, run->length + 1, run->shape.dim};
    const size_t bytes = kvc_array_nbytes(&run->row_array);
    for (int64_t i = 0; i < run->shape.caches; i++) {
        kvc_array *cache = &run->arrays[i];
        kvc_update how;
        if (run->length == cache->shape[2] && assign_grow(run, cache) != KVC_OK)
            return cli_fail_library("assign");
        if (kvc_array_assign(cache, &run->row_array, start, stop, NULL, &how) != KVC_OK)
            return cli_fail_library("assign");
        run->appended_bytes += bytes;
        run->copied_bytes += bytes + (how == KVC_UPDATE_COPIED ? kvc_array_nbytes(cache) : 0);
    }
    return CLI_DONE;
}

static void assign_stop(append_run *run) {
    for (int64_t i = 0; i < run->shape.caches; i++) kvc_array_release(&run->arrays[i]);
}

/* The floors: one memcpy a head. */

/* Untouched memory, except below `length`: what is there was written, in theory. */
static unsigned char *map_fresh(const append_run *run, int64_t length, size_t bytes) {
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    const size_t row = row_bytes(&run->shape), head = row * (size_t)run->context;
    for (size_t at = 0; at < bytes; at += head) memset(memory + at, 0, row * (size_t)length);
    return memory;
}

static int memcpy_start(append_run *run, int64_t length) {
    const size_t bytes = row_bytes(&run->shape) * (size_t)(run->shape.heads * run->context);
    for (int64_t i = 0; i < run->shape.caches; i++) {
        if (run->kind == APPEND_MEMCPY) {
            if (kvc_buffer_new(&run->buffers[i], run->pool, bytes) != KVC_OK)
                return cli_fail_library("memcpy");
            run->places[i] = kvc_buffer_data(run->buffers[i]);
        } else if (!(run->places[i] = map_fresh(run, length, bytes)))
            return cli_fail("memcpy-fresh: no memory for %zu bytes", bytes);
    }
    return CLI_DONE;
}

static int memcpy_step(append_run *run) {
    const size_t row = row_bytes(&run->shape), head = row * (size_t)run->context;
    const size_t heads = (size_t)run->shape.heads, at = row * (size_t)run->length;
    const uint64_t bytes = (uint64_t)run->shape.caches * heads * row;
    const uint64_t start_ns = trace_span_begin();
    for (int64_t i = 0; i < run->shape.caches; i++)
        for (size_t h = 0; h < heads; h++)
            memcpy(run->places[i] + h * head + at, run->row + h * row, row);
    trace_span_end(start_ns, KVC_SPAN_COPY, "memcpy", bytes);
    run->appended_bytes += bytes;
    run->copied_bytes = run->appended_bytes;
    return CLI_DONE;
}

static void memcpy_stop(append_run *run) {
    const size_t bytes = row_bytes(&run->shape) * (size_t)(run->shape.heads * run->context);
    for (int64_t i = 0; i < run->shape.caches; i++) {
        kvc_buffer_release(run->buffers[i]);
        if (run->places[i] && !run->buffers[i]) (void)munmap(run->places[i], bytes);
        run->buffers[i] = NULL;
        run->places[i] = NULL;
    }
}

/* Runs. */

static const strategy *calls_of(append_kind kind) {
    static const strategy cache = {cache_start, cache_step, cache_stop};
    static const strategy assign = {assign_start, assign_step, assign_stop};
    static const strategy floor = {memcpy_start, memcpy_step, memcpy_stop};
    switch (kind) {
    case APPEND_ASSIGN: return &assign;
    case APPEND_MEMCPY:
    case APPEND_MEMCPY_FRESH: return &floor;
    default: return &cache;
    }
}

/* One position of normal numbers, the same for every cache and strategy. */
static int make_row(append_run *run) {
    const int64_t extents[] = {1, run->shape.heads, 1, run->shape.dim};
    const size_t bytes = (size_t)run->shape.heads * row_bytes(&run->shape);
    run->row = malloc(bytes);
    if (!run->row) return cli_fail("no memory for a position of %zu bytes", bytes);
    memset(run->row, 0x3c, bytes);
    if (kvc_array_borrow(&run->row_array, run->shape.dtype, 4, extents, NULL, run->row) != KVC_OK)
        return cli_fail_library("position");
    return CLI_DONE;
}

static int fill_run(append_run *run) {
    const size_t caches = (size_t)run->shape.caches;
    run->arrays = calloc(caches, sizeof *run->arrays);
    run->buffers = calloc(caches, sizeof(kvc_buffer *));
    run->places = calloc(caches, sizeof *run->places);
    if (!run->arrays || !run->buffers || !run->places)
        return cli_fail("no memory for %zu caches", caches);
    if (kvc_pool_new(&run->pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("pool");
    (void)kvc_pool_memory_limit_set(run->pool,
                                    append_need_bytes(run->kind, &run->shape, run->context));
    return make_row(run);
}

int append_open(append_run **out, append_kind kind, const append_shape *shape, int64_t context) {
    append_run *run = calloc(1, sizeof *run);
    *out = NULL;
    if (!run) return cli_fail("no memory for a run");
    run->calls = calls_of(kind);
    run->kind = kind;
    run->shape = *shape;
    run->context = context;
    if (fill_run(run) != CLI_DONE) {
        append_close(run);
        return CLI_FAILED;
    }
    *out = run;
    return CLI_DONE;
}

int append_start(append_run *run, int64_t length) {
    run->length = length;
    run->growths = 0;
    return run->calls->start(run, length);
}

int append_step(append_run *run) {
    const int status = run->calls->step(run);
    if (status == CLI_DONE) run->length++;
    return status;
}

void append_forget(append_run *run) {
    kvc_pool_clear(run->pool);
}

void append_stop(append_run *run) {
    run->calls->stop(run);
}

void append_close(append_run *run) {
    if (!run) return;
    if (run->arrays && run->buffers && run->places) append_stop(run);
    kvc_pool_free(run->pool);
    free(run->places);
    free(run->buffers);
    free(run->arrays);
    free(run->row);
    free(run);
}

append_figures append_figures_get(const append_run *run) {
    const kvc_cache_stats stats = cache_stats(run);
    kvc_pool_stats pool = {.struct_size = sizeof pool};
    (void)kvc_pool_stats_get(run->pool, &pool);
    return (append_figures){
        .appended_bytes = run->appended_bytes + stats.appended_bytes,
        .copied_bytes = run->copied_bytes + stats.copied_bytes,
        .pool_hits = pool.hits,
        .pool_misses = pool.misses,
        .driver_calls = pool.driver_calls,
        .driver_ns = pool.driver_ns,
    };
}

uint64_t append_growths(const append_run *run) {
    return run->cache ? cache_stats(run).growths : run->growths;
}
