/* The library's cache as a strategy. A cache's layer holds keys and values, so there are half as
 * many layers as caches. */
#include "append_run.h"
#include "cli.h"

enum {
    GROWTH_SETS = 2, /* growth needs both sizes of a cache */
    PIECE = 1024     /* positions that are appended at once on the way to a start's length */
};

/* What a cache has room for at its end: whole chunks and blocks, or what RESERVE may commit. */
static int64_t room_of(const cache_kind *kind, const append_shape *shape, int64_t context) {
    const int64_t chunk = kind->growth == KVC_GROW_PAGED ? kind->block : shape->chunk;
    /* Rows of a ring: while it fills, those that the queries of a piece see. */
    const int64_t ring = kind->window + PIECE;
    const int64_t rows = kind->window && ring < context ? ring : context;
    switch (kind->growth) {
    case KVC_GROW_CHUNK:
    case KVC_GROW_PAGED: return (rows + chunk - 1) / chunk * chunk;
    case KVC_GROW_RESERVE: return rows + 2 * chunk;
    default: return rows;
    }
}

uint64_t append_cache_need_bytes(const append_strategy *strategy, const append_shape *shape,
                                 int64_t context) {
    const cache_kind *kind = &strategy->cache;
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->heads, shape->dim, shape->dtype);
    const uint64_t set = (uint64_t)(shape->caches / 2 * room_of(kind, shape, context)) *
                         cache_kind_position_bytes(&spec);
    uint64_t sets =
        kind->growth == KVC_GROW_CHUNK || kind->growth == KVC_GROW_EXACT ? GROWTH_SETS : 1;
    if (kind->window) sets++; /* a start copies windows from one that is filled */
    return sets * set;
}

static int fail(const append_run *run) {
    return cli_fail_library(run->strategy.name);
}

static int make_cache(append_run *run, kvc_cache **out) {
    const append_shape *shape = &run->shape;
    const cache_kind *kind = &run->strategy.cache;
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->heads, shape->dim, shape->dtype);
    if (!run->blocks &&
        cache_kind_blocks(&run->blocks, run->pool, kind, &spec, shape->caches / 2) != KVC_OK)
        return fail(run);
    const kvc_cache_desc desc = {
        .struct_size = sizeof desc,
        .layers = shape->caches / 2,
        .specs = &spec,
        .spec_count = 1,
        .growth = kind->growth,
        .chunk = shape->chunk,
        /* A server's caches may go on: room past the end, so that work done ahead is measured. */
        .max_positions = kind->growth == KVC_GROW_RESERVE ? run->context + 2 * shape->chunk : 0,
        .blocks = run->blocks};
    return kvc_cache_new(out, run->pool, &desc) == KVC_OK ? CLI_DONE : fail(run);
}

/* Makes positions live without writing them. */
static int skip_to(append_run *run, int64_t length) {
    for (int64_t layer = 0; layer < run->shape.caches / 2 && length > 0; layer++) {
        kvc_array k, v;
        if (kvc_cache_prepare(run->cache, layer, length, &k, &v) != KVC_OK) return fail(run);
        kvc_array_release(&k);
        kvc_array_release(&v);
        if (kvc_cache_commit(run->cache, layer, length) != KVC_OK) return fail(run);
    }
    return CLI_DONE;
}

/* Appends the run's position again and again. */
static int fill(append_run *run, kvc_cache *cache, int64_t length) {
    for (int64_t at = 0, n; at < length; at += n) {
        n = length - at < PIECE ? length - at : PIECE;
        kvc_array rows = run->row_array;
        rows.shape[2] = n;
        rows.strides[2] = 0;
        cli_progress("%s: filling, position %lld of %lld", run->strategy.name, (long long)at,
                     (long long)length);
        for (int64_t layer = 0; layer < run->shape.caches / 2; layer++)
            if (kvc_cache_append(cache, layer, &rows, &rows) != KVC_OK) return fail(run);
    }
    return CLI_DONE;
}

/* The way of a window to its length is longer than what it holds: it goes there once. */
static int copy_filled(append_run *run, int64_t length) {
    if (!run->filled || kvc_cache_length(run->filled, 0) != length) {
        kvc_cache_free(run->filled);
        run->filled = NULL;
        if (make_cache(run, &run->filled) != CLI_DONE || fill(run, run->filled, length) != CLI_DONE)
            return CLI_FAILED;
    }
    return kvc_cache_copy(run->cache, run->filled) == KVC_OK ? CLI_DONE : fail(run);
}

static int cache_start(append_run *run, int64_t length) {
    const cache_kind *kind = &run->strategy.cache;
    if (make_cache(run, &run->cache) != CLI_DONE) return CLI_FAILED;
    if (kind->window) return copy_filled(run, length);
    if (kind->bits || kind->growth == KVC_GROW_PAGED) return fill(run, run->cache, length);
    return skip_to(run, length);
}

static int cache_step(append_run *run) {
    const int64_t layers = run->shape.caches / 2;
    for (int64_t layer = 0; layer < layers; layer++)
        if (kvc_cache_append(run->cache, layer, &run->row_array, &run->row_array) != KVC_OK)
            return fail(run);
    return CLI_DONE;
}

kvc_cache_stats append_cache_stats(const append_run *run) {
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    if (run->cache) (void)kvc_cache_stats_get(run->cache, &stats);
    return stats;
}

uint64_t append_cache_resident_bytes(const append_run *run) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    if (run->cache) (void)kvc_cache_nbytes_get(run->cache, &nbytes);
    return nbytes.resident;
}

static void cache_stop(append_run *run) {
    const kvc_cache_stats stats = append_cache_stats(run);
    run->appended_bytes += stats.appended_bytes;
    run->copied_bytes += stats.copied_bytes;
    kvc_cache_free(run->cache);
    run->cache = NULL;
}

void append_cache_close(append_run *run) {
    kvc_cache_free(run->filled);
    kvc_blocks_free(run->blocks);
}

const append_calls append_cache_calls = {cache_start, cache_step, cache_stop};
