#include "fork_measure.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/device.h>

#include "cli.h"

enum {
    PIECE = 256, /* positions that are appended at once */
    PAGE_BYTES = 4096,
    FORKS = 16,      /* of a round */
    REORDERS = 4,    /* of a round, in blocks */
    LEAST_ROUNDS = 5 /* and one before, which warms up */
};

/* With rounds enough no other begins after this. */
#define BUDGET_NS ((uint64_t)1500000000)

/* A row at work. */
typedef struct bench {
    const fork_shape *shape;
    fork_row *row;
    kvc_pool *pool;
    kvc_blocks *blocks;
    kvc_cache *paged, *linear; /* of `beams` sequences, the first of which is there */
    unsigned char *from, *to;  /* [bytes] each */
    uint16_t *numbers;         /* [heads][dim]: the position that is appended */
    int64_t *counts, *parents; /* [beams] */
    stats_samples fork, copy, whole, release, first, append, block, reorder, reorder_copy;
} bench;

void fork_row_init(fork_row *row, const fork_shape *shape, const cache_kind *cache,
                   int64_t context) {
    const kvc_layer_spec spec = cache_kind_spec(cache, shape->heads, shape->dim, shape->dtype);
    *row = (fork_row){.cache = cache, .context = context, .length = context};
    if (context % cache->block == 0) row->length += cache->block / 2;
    row->bytes = (uint64_t)(row->length * shape->layers) * cache_kind_position_bytes(&spec);
}

uint64_t fork_need_bytes(const fork_row *row, const fork_shape *shape) {
    /* Blocks, the linear cache with what it commits ahead, and what memcpy goes from and to. */
    const double bytes = (double)row->bytes * (double)(3 + shape->beams) * 17 / 16;
    return bytes < 0x1p62 ? (uint64_t)bytes : (uint64_t)1 << 62;
}

/* Setting up. */

static int make_cache(kvc_cache **out, kvc_blocks **blocks, kvc_pool *pool, const fork_shape *shape,
                      const cache_kind *kind, int64_t layers, int64_t batch, int64_t longest) {
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->heads, shape->dim, shape->dtype);
    if (cache_kind_blocks(blocks, pool, kind, &spec, layers) != KVC_OK)
        return cli_fail_library("blocks");
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .layers = layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = kind->growth,
                                 .max_positions = longest + (int64_t)2 * KVC_CHUNK_DEFAULT,
                                 .blocks = *blocks};
    return kvc_cache_new(out, pool, &desc) == KVC_OK ? CLI_DONE : cli_fail_library("cache");
}

/* Halves that are normal numbers below 2 in every dtype, as they are and in pairs. */
static uint16_t *new_numbers(const fork_shape *shape) {
    const size_t halves = 2 * (size_t)(shape->heads * shape->dim);
    uint16_t *numbers = malloc(halves * sizeof *numbers);
    uint32_t state = 1;
    for (size_t i = 0; numbers && i < halves; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (uint16_t)(0x3c00u | state >> 22);
    }
    return numbers;
}

/* Appends the same position n times to every layer, counts[b] of them to sequence b. */
static int append(kvc_cache *cache, const fork_shape *shape, const uint16_t *numbers,
                  int64_t layers, int64_t batch, int64_t n, const int64_t *counts) {
    const int64_t extents[] = {batch, shape->heads, n, shape->dim};
    const int64_t strides[] = {0, shape->dim, 0, 1};
    kvc_array kv;
    if (kvc_array_borrow(&kv, shape->dtype, 4, extents, strides, numbers) != KVC_OK)
        return cli_fail_library("position");
    for (int64_t layer = 0; layer < layers; layer++)
        if (kvc_cache_append_ragged(cache, layer, &kv, &kv, counts) != KVC_OK)
            return cli_fail_library("cache");
    return CLI_DONE;
}

/* Appends up to the length of the first sequence. */
static int fill_first(const bench *b, kvc_cache *cache) {
    for (int64_t at = 0; at < b->row->length; at += PIECE) {
        const int64_t left = b->row->length - at, n = left < PIECE ? left : PIECE;
        b->counts[0] = n;
        if (append(cache, b->shape, b->numbers, b->shape->layers, b->shape->beams, n, b->counts) !=
            CLI_DONE)
            return CLI_FAILED;
    }
    b->counts[0] = 0;
    return CLI_DONE;
}

static int set_up(bench *b) {
    const fork_shape *shape = b->shape;
    const int64_t beams = shape->beams;
    cache_kind linear = *b->row->cache;
    kvc_blocks *none;
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    linear.growth = KVC_GROW_RESERVE;
    linear.block = 0;
    b->counts = calloc((size_t)beams, sizeof *b->counts);
    b->parents = calloc((size_t)beams, sizeof *b->parents);
    b->numbers = new_numbers(shape);
    /* Where the two are 16 bytes apart in their pages, as malloc may place them, rep movsb takes
     * 14 times as long on Zen 3. */
    const size_t bytes = ((size_t)b->row->bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    b->from = aligned_alloc(PAGE_BYTES, bytes);
    b->to = aligned_alloc(PAGE_BYTES, bytes);
    if (!b->counts || !b->parents || !b->numbers || !b->from || !b->to)
        return cli_fail("no memory for %" PRIu64 " bytes twice", b->row->bytes);
    memset(b->from, 1, b->row->bytes);
    if (kvc_pool_new(&b->pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("pool");
    if (make_cache(&b->paged, &b->blocks, b->pool, shape, b->row->cache, shape->layers, beams,
                   b->row->length) != CLI_DONE ||
        make_cache(&b->linear, &none, b->pool, shape, &linear, shape->layers, beams,
                   b->row->length) != CLI_DONE)
        return CLI_FAILED;
    if (fill_first(b, b->paged) != CLI_DONE || fill_first(b, b->linear) != CLI_DONE)
        return CLI_FAILED;
    if (kvc_blocks_stats_get(b->blocks, &stats) != KVC_OK) return cli_fail_library("blocks");
    b->row->block_bytes = stats.block_bytes;
    for (int64_t i = 0; i < beams; i++) b->parents[i] = i / 2;
    return CLI_DONE;
}

static void tear_down(bench *b) {
    stats_samples *const samples[] = {&b->fork,         &b->copy,   &b->whole, &b->release,
                                      &b->first,        &b->append, &b->block, &b->reorder,
                                      &b->reorder_copy, NULL};
    for (size_t i = 0; samples[i]; i++) stats_free(samples[i]);
    kvc_cache_free(b->paged);
    kvc_cache_free(b->linear);
    kvc_blocks_free(b->blocks);
    kvc_pool_free(b->pool);
    free(b->from);
    free(b->to);
    free(b->numbers);
    free(b->counts);
    free(b->parents);
}

/* Measuring. */

/* Keeps what has passed since start_ns; status is that of what was timed. */
static int keep(stats_samples *samples, uint64_t start_ns, kvc_status status) {
    const uint64_t ns = stats_now_ns() - start_ns;
    if (status != KVC_OK) return cli_fail_library("cache");
    return stats_add(samples, 1e-3 * (double)ns) ? CLI_DONE : cli_fail("no memory for the samples");
}

static int fork_once(kvc_cache *cache, stats_samples *samples) {
    const uint64_t start_ns = stats_now_ns();
    return keep(samples, start_ns, kvc_cache_fork(cache, 1, 0));
}

/* One position to the forked sequence. */
static int append_once(bench *b, stats_samples *samples) {
    const uint64_t start_ns = stats_now_ns();
    const int status =
        append(b->paged, b->shape, b->numbers, b->shape->layers, b->shape->beams, 1, b->counts);
    return status == CLI_DONE ? keep(samples, start_ns, KVC_OK) : status;
}

static int release_once(bench *b) {
    const uint64_t start_ns = stats_now_ns();
    return keep(&b->release, start_ns, kvc_cache_clear_sequence(b->paged, 1));
}

static int reorder_once(bench *b, kvc_cache *cache, stats_samples *samples) {
    const uint64_t start_ns = stats_now_ns();
    return keep(samples, start_ns, kvc_cache_reorder(cache, b->parents));
}

static int memcpy_once(bench *b, stats_samples *samples, uint64_t n) {
    const uint64_t start_ns = stats_now_ns();
    memcpy(b->to, b->from, n);
    return keep(samples, start_ns, KVC_OK);
}

/* Forks, appends twice, of which the first copies the block that both hold, and gives up. Between
 * them the bytes of a block are copied, which are as warm as that one: both were just written. */
static int take_forks(bench *b) {
    const uint64_t n = b->row->block_bytes < b->row->bytes ? b->row->block_bytes : b->row->bytes;
    int status = CLI_DONE;
    b->counts[1] = 1;
    for (int i = 0; i < FORKS && status == CLI_DONE; i++) {
        status = fork_once(b->paged, &b->fork);
        if (status == CLI_DONE) status = append_once(b, &b->first);
        if (status == CLI_DONE) status = append_once(b, &b->append);
        if (status == CLI_DONE) status = release_once(b);
        if (status == CLI_DONE) status = memcpy_once(b, &b->block, n);
    }
    b->counts[1] = 0;
    return status;
}

/* Makes all beams what the first is, reorders, and leaves it alone again. */
static int take_reorders(bench *b, kvc_cache *cache, stats_samples *samples, int count) {
    int status = CLI_DONE;
    for (int64_t i = 1; i < b->shape->beams; i++)
        if (kvc_cache_fork(cache, i, 0) != KVC_OK) return cli_fail_library("cache");
    for (int i = 0; i < count && status == CLI_DONE; i++) status = reorder_once(b, cache, samples);
    for (int64_t i = 1; i < b->shape->beams; i++) (void)kvc_cache_clear_sequence(cache, i);
    return status;
}

static int take_round(bench *b) {
    int status = take_forks(b);
    if (status == CLI_DONE) status = fork_once(b->linear, &b->copy);
    if (status == CLI_DONE) status = memcpy_once(b, &b->whole, b->row->bytes);
    if (status == CLI_DONE) status = take_reorders(b, b->paged, &b->reorder, REORDERS);
    if (status == CLI_DONE) status = take_reorders(b, b->linear, &b->reorder_copy, 1);
    return status;
}

static void forget(bench *b) {
    b->fork.count = b->copy.count = b->whole.count = b->release.count = b->first.count = 0;
    b->append.count = b->block.count = b->reorder.count = b->reorder_copy.count = 0;
}

static int take_rounds(bench *b) {
    const uint64_t begin_ns = stats_now_ns();
    int status = CLI_DONE;
    for (uint64_t round = 0; status == CLI_DONE; round++) {
        if (round > LEAST_ROUNDS && stats_now_ns() - begin_ns > BUDGET_NS) break;
        cli_progress("context %" PRId64 ": round %" PRIu64, b->row->context, round);
        status = take_round(b);
        if (round == 0) forget(b);
    }
    return status;
}

static void sum_up(bench *b) {
    fork_row *row = b->row;
    row->fork_us = stats_summarise(&b->fork);
    row->copy_us = stats_summarise(&b->copy);
    row->memcpy_us = stats_summarise(&b->whole);
    row->release_us = stats_summarise(&b->release);
    row->first_us = stats_summarise(&b->first);
    row->append_us = stats_summarise(&b->append);
    row->block_us = stats_summarise(&b->block);
    row->reorder_us = stats_summarise(&b->reorder);
    row->reorder_copy_us = stats_summarise(&b->reorder_copy);
}

int fork_measure(fork_row *row, const fork_shape *shape) {
    bench b = {.shape = shape, .row = row};
    cli_progress("context %" PRId64 ": filling", row->context);
    int status = set_up(&b);
    if (status == CLI_DONE) status = take_rounds(&b);
    if (status == CLI_DONE) sum_up(&b);
    tear_down(&b);
    return status;
}

/* Waste. */

static int64_t mixed_length(int64_t rank) {
    return FORK_SHORTEST + (FORK_LONGEST - FORK_SHORTEST) * rank / (FORK_MIXED - 1);
}

uint64_t fork_waste_need_bytes(const fork_waste *waste, const fork_shape *shape) {
    const kvc_layer_spec spec =
        cache_kind_spec(&waste->cache, shape->heads, shape->dim, shape->dtype);
    return (uint64_t)(FORK_MIXED * (FORK_LONGEST + 2 * KVC_CHUNK_DEFAULT)) *
           cache_kind_position_bytes(&spec);
}

static int fill_mixed(kvc_cache *cache, const fork_shape *shape, const uint16_t *numbers) {
    for (int64_t at = 0; at < FORK_LONGEST; at += PIECE) {
        int64_t counts[FORK_MIXED];
        for (int64_t i = 0; i < FORK_MIXED; i++) {
            const int64_t left = mixed_length(i) - at;
            counts[i] = left < 0 ? 0 : left < PIECE ? left : PIECE;
        }
        if (append(cache, shape, numbers, 1, FORK_MIXED, counts[FORK_MIXED - 1], counts) !=
            CLI_DONE)
            return CLI_FAILED;
    }
    return CLI_DONE;
}

/* Memory that is held: of blocks, their slabs, free blocks among them. */
static int tell(fork_waste *waste, const kvc_cache *cache, kvc_blocks *blocks) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    if (kvc_cache_nbytes_get(cache, &nbytes) != KVC_OK ||
        (blocks && kvc_blocks_stats_get(blocks, &stats) != KVC_OK))
        return cli_fail_library("cache");
    waste->used_bytes = nbytes.used;
    waste->resident_bytes = blocks ? stats.resident_bytes : nbytes.resident;
    return CLI_DONE;
}

int fork_waste_measure(fork_waste *waste, const fork_shape *shape) {
    kvc_pool *pool = NULL;
    kvc_blocks *blocks = NULL;
    kvc_cache *cache = NULL;
    uint16_t *numbers = new_numbers(shape);
    int status = numbers ? CLI_DONE : cli_fail("no memory for a position");
    if (status == CLI_DONE && kvc_pool_new(&pool, kvc_device_cpu()) != KVC_OK)
        status = cli_fail_library("pool");
    if (status == CLI_DONE)
        status =
            make_cache(&cache, &blocks, pool, shape, &waste->cache, 1, FORK_MIXED, FORK_LONGEST);
    if (status == CLI_DONE) status = fill_mixed(cache, shape, numbers);
    if (status == CLI_DONE) status = tell(waste, cache, blocks);
    kvc_cache_free(cache);
    kvc_blocks_free(blocks);
    kvc_pool_free(pool);
    free(numbers);
    return status;
}
