#include "tier_prompt.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/spill.h>

#include "cli.h"
#include "generate_tiers.h"
#include "scratch.h"
#include "tier_option.h"

enum { BLOCK = TRANSFORMER_MOST };

/* An engine and the tier below it. */
typedef struct engine {
    kvc_pool *pool;
    transformer transformer;
    kvc_prefix *tree;
    kvc_tier *tier;
    kvc_spill *spill;
} engine;

typedef struct bench {
    const checkpoint *model;
    char folder[PATH_MAX - 64], text[PATH_MAX]; /* the tier's */
    kvc_tier_desc desc;
    int64_t count;
    int32_t *prompt; /* [count] */
    float *logits;   /* [vocab_size] behind it, computed */
    stats_samples computed_ns, restored_ns;
} bench;

static void engine_end(engine *e) {
    kvc_spill_free(e->spill);
    kvc_prefix_free(e->tree);
    kvc_tier_free(e->tier);
    transformer_deinit(&e->transformer);
    kvc_pool_free(e->pool);
}

static int engine_begin(engine *e, const bench *b) {
    const transformer_options options = {.growth = KVC_GROW_PAGED,
                                         .kv_dtype = KVC_F32,
                                         .block = BLOCK,
                                         .max_positions = b->model->seq_len};
    failure error;
    if (kvc_pool_new(&e->pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("pool");
    if (!transformer_init(&e->transformer, b->model, e->pool, &options, &error))
        return cli_fail("%s", error.sentence);
    if (kvc_prefix_new(&e->tree, e->transformer.blocks) != KVC_OK)
        return cli_fail_library("the prefix tree");
    if (tier_option_open(&e->tier, b->text, &b->desc, 60) != CLI_DONE) return CLI_FAILED;
    kvc_spill_desc spill = {.struct_size = sizeof spill,
                            .tree = e->tree,
                            .tiers = &e->tier,
                            .tier_count = 1,
                            .most_in_flight = b->count};
    memcpy(spill.fingerprint, b->desc.fingerprint, sizeof spill.fingerprint);
    return kvc_spill_new(&e->spill, &spill) == KVC_OK ? CLI_DONE : cli_fail_library("--tier");
}

/* Computes the prompt from a position on, in forwards that end where blocks do. */
static int compute(engine *e, const bench *b, int64_t from) {
    failure error;
    for (int64_t at = from, n; at < b->count; at += n) {
        n = b->count - at < BLOCK ? b->count - at : BLOCK;
        if (!transformer_forward(&e->transformer, b->prompt + at, n, 1, &error))
            return cli_fail("%s", error.sentence);
    }
    return CLI_DONE;
}

static int note(stats_samples *samples, uint64_t start_ns) {
    return stats_add(samples, (double)(stats_now_ns() - start_ns))
               ? CLI_DONE
               : cli_fail("no memory for the samples");
}

/* Computes all, and puts it to the tier. */
static int take_computed(bench *b) {
    engine e = {0};
    const int32_t *table;
    int64_t count;
    int status = engine_begin(&e, b);
    const uint64_t start_ns = stats_now_ns();
    if (status == CLI_DONE) status = compute(&e, b, 0);
    if (status == CLI_DONE) status = note(&b->computed_ns, start_ns);
    if (status == CLI_DONE) {
        memcpy(b->logits, e.transformer.logits, (size_t)b->model->vocab_size * sizeof *b->logits);
        if (kvc_cache_block_table(e.transformer.cache, 0, &table, &count) != KVC_OK ||
            kvc_spill_publish(e.spill, NULL, b->prompt, b->count, table, 0) != KVC_OK)
            status = cli_fail_library("--tier");
        else (void)kvc_spill_wait(e.spill, UINT64_MAX);
    }
    engine_end(&e);
    return status;
}

static int take_restored(bench *b, tier_prompt *out) {
    engine e = {0};
    int status = engine_begin(&e, b);
    const uint64_t start_ns = stats_now_ns();
    if (status == CLI_DONE) /* the last token is computed: the next is drawn from that */
        status =
            generate_tiers_adopt(&out->found, e.spill, &e.transformer, b->prompt, b->count - 1);
    if (status == CLI_DONE) status = compute(&e, b, out->found);
    if (status == CLI_DONE) status = note(&b->restored_ns, start_ns);
    if (status == CLI_DONE && memcmp(b->logits, e.transformer.logits,
                                     (size_t)b->model->vocab_size * sizeof *b->logits) != 0)
        status = cli_fail("--tier: the logits behind a prompt that came from it are not those that "
                          "were computed");
    engine_end(&e);
    return status;
}

/* Any tokens take as long; nobody else has these blocks. */
static int begin(bench *b) {
    const uint64_t seed = stats_now_ns();
    uint32_t state = 1;
    b->prompt = calloc((size_t)b->count, sizeof *b->prompt);
    b->logits = calloc((size_t)b->model->vocab_size, sizeof *b->logits);
    if (!b->prompt || !b->logits) return cli_fail("no memory for the prompt");
    for (int64_t i = 0; i < b->count; i++) {
        state = state * 1664525u + 1013904223u;
        b->prompt[i] = (int32_t)((state >> 8) % (uint32_t)b->model->vocab_size);
    }
    b->desc = (kvc_tier_desc){.struct_size = sizeof b->desc};
    memcpy(b->desc.fingerprint, &seed, sizeof seed);
    return CLI_DONE;
}

int tier_prompt_measure(tier_prompt *out, const char *text, const checkpoint *model,
                        int64_t passes) {
    bench b = {.model = model, .count = model->seq_len - 1};
    if (b.count < 1) return cli_fail("--model: a context of 1 given, at least 2 wanted");
    int status = tier_option_scratch(b.text, b.folder, sizeof b.folder, text);
    if (status == CLI_DONE) status = begin(&b);
    for (int64_t i = 0; i < passes && status == CLI_DONE; i++) {
        status = take_computed(&b);
        if (status == CLI_DONE) status = take_restored(&b, out);
    }
    out->positions = b.count;
    out->bytes = (uint64_t)(out->found * model->layers * model->kv_dim) * 2 * sizeof(float);
    out->computed_ns = stats_summarise(&b.computed_ns);
    out->restored_ns = stats_summarise(&b.restored_ns);
    scratch_remove(b.folder);
    stats_free(&b.computed_ns);
    stats_free(&b.restored_ns);
    free(b.prompt);
    free(b.logits);
    return status;
}
