#include "tier_measure.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/tier.h>

#include "cli.h"
#include "scratch.h"
#include "tier_option.h"
#include "tier_plain.h"

/* A measurement under way. */
typedef struct bench {
    char folder[PATH_MAX - 64]; /* of its own, for files; "": Redis */
    char text[PATH_MAX];        /* its tier */
    tier_plain *plain;
    kvc_tier *tier;
    int64_t bytes, count; /* of a value; values */
    char *data, *back;    /* [count][bytes] */
    uint8_t (*keys)[KVC_BLOCK_KEY_BYTES];
    kvc_tier_item *items;
    stats_samples plain_put, put, plain_get, get; /* bytes a second */
} bench;

/* Bytes that no page of which is like another; keys that no other run has. */
static void fill(bench *b) {
    uint64_t state = stats_now_ns() | 1;
    uint64_t *words = (uint64_t *)(void *)b->data;
    for (int64_t i = 0; i < b->count * b->bytes / 8; i++)
        words[i] = state = state * 6364136223846793005u + 1442695040888963407u;
    for (int64_t i = 0; i < b->count; i++) {
        memcpy(b->keys[i], words + i * b->bytes / 8, sizeof b->keys[i]);
        b->items[i].key = b->keys[i];
        b->items[i].size_bytes = (size_t)b->bytes;
    }
}

static int begin(bench *b, const char *text) {
    const kvc_tier_desc desc = {.struct_size = sizeof desc};
    const size_t count = (size_t)b->count, total = count * (size_t)b->bytes;
    const size_t pages = (total + 4095) / 4096 * 4096;
    b->data = aligned_alloc(4096, pages);
    b->back = aligned_alloc(4096, pages);
    b->keys = calloc(count, sizeof *b->keys);
    b->items = calloc(count, sizeof *b->items);
    if (!b->data || !b->back || !b->keys || !b->items)
        return cli_fail("no memory for twice %zu bytes", total);
    memset(b->back, 0, total);
    fill(b);
    int status = tier_option_scratch(b->text, b->folder, sizeof b->folder, text);
    if (status == CLI_DONE)
        status = tier_plain_open(&b->plain, text, b->folder[0] ? b->folder : NULL);
    if (status == CLI_DONE) status = tier_option_open(&b->tier, b->text, &desc, 60);
    return status;
}

static void end(bench *b) {
    kvc_tier_free(b->tier);
    tier_plain_close(b->plain);
    scratch_remove(b->folder);
    free(b->items);
    free(b->keys);
    free(b->back);
    free(b->data);
    stats_free(&b->plain_put);
    stats_free(&b->put);
    stats_free(&b->plain_get);
    stats_free(&b->get);
}

/* Through the tier; false when a value was lost. */
static bool move(bench *b, kvc_tier_op op) {
    char *memory = op == KVC_TIER_PUT ? b->data : b->back;
    kvc_tier_batch batch = {
        .struct_size = sizeof batch, .op = op, .items = b->items, .count = b->count};
    for (int64_t i = 0; i < b->count; i++) b->items[i].data = memory + i * b->bytes;
    if (kvc_tier_submit(b->tier, &batch) != KVC_OK) return false;
    (void)kvc_tier_wait(b->tier, &batch, UINT64_MAX);
    for (int64_t i = 0; i < b->count; i++)
        if (b->items[i].result != KVC_TIER_HIT) return false;
    return true;
}

static bool note(const bench *b, stats_samples *samples, uint64_t start_ns) {
    const double ns = (double)(stats_now_ns() - start_ns);
    return stats_add(samples, 1e9 * (double)b->count * (double)b->bytes / ns);
}

static bool came_back(bench *b) {
    const size_t total = (size_t)b->count * (size_t)b->bytes;
    const bool right = memcmp(b->data, b->back, total) == 0;
    memset(b->back, 0, total);
    return right;
}

/* Plain and through the tier by turns, so that what disturbs the machine disturbs both. */
static bool pass(bench *b) {
    uint64_t start_ns = stats_now_ns();
    bool good =
        tier_plain_put(b->plain, b->data, b->count, b->bytes) && note(b, &b->plain_put, start_ns);
    start_ns = stats_now_ns();
    good = good && move(b, KVC_TIER_PUT) && note(b, &b->put, start_ns);
    start_ns = stats_now_ns();
    good = good && tier_plain_get(b->plain, b->back, b->count, b->bytes) &&
           note(b, &b->plain_get, start_ns) && came_back(b);
    start_ns = stats_now_ns();
    return good && move(b, KVC_TIER_GET) && note(b, &b->get, start_ns) && came_back(b);
}

int tier_measure(tier_speeds *out, const char *text, int64_t value_bytes, int64_t values,
                 int64_t passes) {
    bench b = {.bytes = value_bytes, .count = values};
    int status = begin(&b, text);
    for (int64_t i = 0; i < passes && status == CLI_DONE; i++)
        if (!pass(&b))
            status = cli_fail("--tier: a value of %lld bytes was not kept, or did not come back",
                              (long long)value_bytes);
    out->plain_put = stats_summarise(&b.plain_put);
    out->put = stats_summarise(&b.put);
    out->plain_get = stats_summarise(&b.plain_get);
    out->get = stats_summarise(&b.get);
    end(&b);
    return status;
}
