#include "append_strategy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvcache/device.h>

#include "append_run.h"
#include "cli.h"
#include "trace.h"

/* A pool may hold, what is in use included, this many times what growing caches hold: growth needs
 * both sizes of a cache, and no memory is so large that it could keep one buffer of every size that
 * concatenation goes through. */
enum { ASSIGN_SETS = 2 };
#define POOL_SLACK_BYTES ((uint64_t)16 << 20)

/* Choosing strategies. */

static const char *const way_names[] = {
    [APPEND_ASSIGN] = "assign", [APPEND_MEMCPY] = "memcpy", [APPEND_MEMCPY_FRESH] = "memcpy-fresh"};

static append_strategy strategy_of(append_way way) {
    append_strategy strategy = {.way = way};
    (void)snprintf(strategy.name, sizeof strategy.name, "%s", way_names[way]);
    return strategy;
}

static bool read_one(const char *name, const char *text, append_strategy *out) {
    append_strategy strategy = {.way = APPEND_CACHE};
    for (append_way way = APPEND_ASSIGN; way <= APPEND_MEMCPY; way++)
        if (strcmp(text, way_names[way]) == 0) return *out = strategy_of(way), true;
    const char *wanted = cache_kind_parse(text, &strategy.cache);
    if (wanted) {
        (void)cli_usage("%s: '%s' given, assign, memcpy, or %s", name, text, wanted);
        return false;
    }
    (void)cache_kind_text(strategy.name, &strategy.cache);
    *out = strategy;
    return true;
}

bool append_read(const char *name, const char *text, append_strategy *out, size_t *count) {
    append_strategy strategies[APPEND_MOST];
    char part[CACHE_KIND_ROOM];
    size_t n = 0;
    for (const char *at = text; cli_list_part(&at, part, sizeof part); n++) {
        if (n == APPEND_MOST) {
            (void)cli_usage("%s: '%s' given, up to %d strategies wanted", name, text, APPEND_MOST);
            return false;
        }
        if (!read_one(name, part, &strategies[n])) return false;
        for (size_t i = 0; i < n; i++) {
            if (strcmp(strategies[i].name, strategies[n].name) != 0) continue;
            (void)cli_usage("%s: '%s' given twice, different strategies wanted", name, part);
            return false;
        }
    }
    memcpy(out, strategies, n * sizeof *strategies);
    *count = n;
    return true;
}

append_strategy append_fresh(const append_strategy *strategy) {
    return strategy->way == APPEND_MEMCPY ? strategy_of(APPEND_MEMCPY_FRESH) : *strategy;
}

bool append_is_slow(const append_strategy *strategy) {
    return strategy->way == APPEND_CACHE && strategy->cache.growth == KVC_GROW_EXACT &&
           !strategy->cache.window;
}

static size_t row_bytes(const append_shape *shape) {
    return (size_t)shape->dim * kvc_dtype_size_bytes(shape->dtype);
}

uint64_t append_set_bytes(const append_shape *shape, int64_t positions) {
    return (uint64_t)(shape->caches * shape->heads * positions) * row_bytes(shape);
}

uint64_t append_need_bytes(const append_strategy *strategy, const append_shape *shape,
                           int64_t context) {
    const int64_t whole_chunks = (context + shape->chunk - 1) / shape->chunk * shape->chunk;
    uint64_t bytes;
    switch (strategy->way) {
    case APPEND_CACHE: bytes = append_cache_need_bytes(strategy, shape, context); break;
    case APPEND_ASSIGN: bytes = ASSIGN_SETS * append_set_bytes(shape, whole_chunks); break;
    default: bytes = append_set_bytes(shape, context); break;
    }
    return bytes + POOL_SLACK_BYTES;
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
    const size_t bytes = (size_t)run->shape.heads * row_bytes(&run->shape);
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
        if (run->strategy.way == APPEND_MEMCPY) {
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

static const append_calls *calls_of(append_way way) {
    static const append_calls assign = {assign_start, assign_step, assign_stop};
    static const append_calls floor = {memcpy_start, memcpy_step, memcpy_stop};
    switch (way) {
    case APPEND_CACHE: return &append_cache_calls;
    case APPEND_ASSIGN: return &assign;
    default: return &floor;
    }
}

/* One position, the same for every cache and strategy: of halves from 0x3c00 to 0x3fff, which are
 * normal numbers below 2, as they are and in pairs, in every dtype. */
static int make_row(append_run *run) {
    const append_shape *shape = &run->shape;
    const int64_t extents[] = {1, shape->heads, 1, shape->dim};
    const size_t halves = 2 * (size_t)(shape->heads * shape->dim); /* enough for f32 */
    uint32_t state = 1;
    uint16_t *row = malloc(halves * sizeof *row);
    if (!row) return cli_fail("no memory for a position of %zu bytes", halves * sizeof *row);
    for (size_t i = 0; i < halves; i++) {
        state = state * 1664525u + 1013904223u;
        row[i] = (uint16_t)(0x3c00u | state >> 22);
    }
    run->row = (unsigned char *)row;
    return kvc_array_borrow(&run->row_array, shape->from, 4, extents, NULL, row) == KVC_OK
               ? CLI_DONE
               : cli_fail_library("position");
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
                                    append_need_bytes(&run->strategy, &run->shape, run->context));
    return make_row(run);
}

int append_open(append_run **out, const append_strategy *strategy, const append_shape *shape,
                int64_t context) {
    append_run *run = calloc(1, sizeof *run);
    *out = NULL;
    if (!run) return cli_fail("no memory for a run");
    run->calls = calls_of(strategy->way);
    run->strategy = *strategy;
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
    append_cache_close(run);
    kvc_pool_free(run->pool);
    free(run->places);
    free(run->buffers);
    free(run->arrays);
    free(run->row);
    free(run);
}

/* Memory of the caches of a strategy that are arrays. */
static uint64_t array_bytes(const append_run *run) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < run->shape.caches; i++) bytes += kvc_array_nbytes(&run->arrays[i]);
    return bytes;
}

static uint64_t resident_bytes(const append_run *run) {
    switch (run->strategy.way) {
    case APPEND_CACHE: return append_cache_resident_bytes(run);
    case APPEND_ASSIGN: return array_bytes(run);
    default: return append_set_bytes(&run->shape, run->context);
    }
}

append_figures append_figures_get(const append_run *run) {
    const kvc_cache_stats stats = append_cache_stats(run);
    kvc_pool_stats pool = {.struct_size = sizeof pool};
    (void)kvc_pool_stats_get(run->pool, &pool);
    return (append_figures){
        .appended_bytes = run->appended_bytes + stats.appended_bytes,
        .copied_bytes = run->copied_bytes + stats.copied_bytes,
        .pool_hits = pool.hits,
        .pool_misses = pool.misses,
        .driver_calls = pool.driver_calls,
        .driver_ns = pool.driver_ns,
        .resident_bytes = resident_bytes(run),
    };
}

uint64_t append_growths(const append_run *run) {
    return run->cache ? append_cache_stats(run).growths : run->growths;
}
