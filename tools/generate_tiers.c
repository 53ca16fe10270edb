#include "generate_tiers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "generate_model.h"
#include "generate_session.h"
#include "report.h"

struct generate_tiers {
    kvc_prefix *tree;
    kvc_tier *tiers[KVC_SPILL_TIERS_MAX];
    kvc_spill *spill;
    int64_t positions; /* of a block */
    uint64_t found_ns; /* the time that the search took */
};

/* A tier's first fault of a kind, on a thread of the tier's. */
static void tell(void *context, kvc_tier_fault fault, const char *sentence) {
    (void)context;
    (void)fault;
    (void)fprintf(stderr, "kvcache generate: --tier: %s\n", sentence);
}

/* What the blocks are worth outside of this process. */
static int fingerprint(uint8_t *out, const session *s, const kvc_blocks_desc *blocks) {
    static const char rope[] = MODEL_ROPE;
    char model[MODEL_NAME_ROOM];
    if (model_name(model, &s->model) != CLI_DONE) return CLI_FAILED;
    return kvc_block_fingerprint(out, (kvc_bytes){model, strlen(model)},
                                 (kvc_bytes){rope, sizeof rope - 1}, blocks) == KVC_OK
               ? CLI_DONE
               : cli_fail_library("--tier");
}

static int open_spill(session *s, const kvc_blocks_desc *blocks) {
    generate_tiers *t = s->tiers;
    const tier_options *wanted = &s->wanted->tiers;
    kvc_tier_desc tier = {.struct_size = sizeof tier, .log = s->wanted->quiet ? NULL : tell};
    kvc_spill_desc spill = {.struct_size = sizeof spill,
                            .tiers = t->tiers,
                            .tier_count = wanted->count,
                            .most_in_flight = s->steps}; /* whatever the text has */
    if (fingerprint(tier.fingerprint, s, blocks) != CLI_DONE) return CLI_FAILED;
    memcpy(spill.fingerprint, tier.fingerprint, sizeof spill.fingerprint);
    for (int64_t i = 0; i < wanted->count; i++) {
        const int status = tier_option_open(&t->tiers[i], wanted->texts[i], &tier, 0);
        if (status != CLI_DONE) return status;
    }
    if (kvc_prefix_new(&t->tree, s->transformer.blocks) != KVC_OK)
        return cli_fail_library("the prefix tree");
    spill.tree = t->tree;
    return kvc_spill_new(&t->spill, &spill) == KVC_OK ? CLI_DONE : cli_fail_library("--tier");
}

int generate_tiers_open(session *s) {
    kvc_blocks_desc blocks = {.struct_size = sizeof blocks};
    if (s->wanted->tiers.count == 0) return CLI_DONE;
    s->tiers = calloc(1, sizeof *s->tiers);
    if (!s->tiers) return cli_fail("no memory for tiers");
    if (kvc_blocks_desc_get(s->transformer.blocks, &blocks) != KVC_OK)
        return cli_fail_library("the blocks");
    s->tiers->positions = blocks.positions;
    return open_spill(s, &blocks);
}

int generate_tiers_adopt(int64_t *ready, kvc_spill *spill, transformer *t, const int32_t *tokens,
                         int64_t n) {
    kvc_blocks_desc blocks = {.struct_size = sizeof blocks};
    int64_t count = 0;
    if (kvc_blocks_desc_get(t->blocks, &blocks) != KVC_OK) return cli_fail_library("the blocks");
    int32_t *ids = calloc((size_t)(n / blocks.positions) + 1, sizeof *ids);
    if (!ids) return cli_fail("no memory for the table of %lld blocks", (long long)n);
    kvc_status status = kvc_spill_match(spill, NULL, tokens, n, ids, &count);
    if (status == KVC_OK) status = kvc_cache_adopt(t->cache, 0, ids, count);
    if (status == KVC_OK) status = kvc_blocks_release(t->blocks, ids, count);
    free(ids);
    *ready = count * blocks.positions;
    return status == KVC_OK ? CLI_DONE : cli_fail_library("--tier");
}

int generate_tiers_restore(session *s) {
    generate_tiers *t = s->tiers;
    if (!t) return CLI_DONE;
    const int64_t n = (s->prompt_count < s->steps ? s->prompt_count : s->steps) - 1;
    const uint64_t start_ns = stats_now_ns();
    const int status = generate_tiers_adopt(&s->ready, t->spill, &s->transformer, s->prompt, n);
    t->found_ns = stats_now_ns() - start_ns;
    return status;
}

void generate_tiers_publish(session *s, const int32_t *ids, int64_t n) {
    const int32_t *table;
    int64_t count;
    if (!s->tiers || kvc_cache_block_table(s->transformer.cache, 0, &table, &count) != KVC_OK)
        return;
    /* No memory for it is a fault like those of tiers: the text goes on. */
    (void)!kvc_spill_publish(s->tiers->spill, NULL, ids, n, table, 0);
}

void generate_tiers_print(const session *s) {
    kvc_spill_stats stats = {.struct_size = sizeof stats};
    char ms[REPORT_ROOM];
    if (!s->tiers) return;
    (void)kvc_spill_wait(s->tiers->spill, UINT64_MAX);
    if (kvc_spill_stats_get(s->tiers->spill, &stats) != KVC_OK) return;
    (void)fprintf(stderr,
                  "%-12s%lld of the prompt's %lld positions found in %s ms, %lld computed\n",
                  "tiers", (long long)s->ready, (long long)s->prompt_count,
                  report_number(ms, 1e-6 * (double)s->tiers->found_ns),
                  (long long)(s->prompt_count - s->ready));
    for (int64_t i = 0; i < s->wanted->tiers.count; i++) {
        const kvc_spill_tier_stats *tier = &stats.tiers[i];
        (void)fprintf(
            stderr, "%-12s%llu positions found; %llu blocks kept, %llu were there, %llu faults\n",
            tier_option_kind(s->wanted->tiers.texts[i]),
            (unsigned long long)tier->found_blocks * (unsigned long long)s->tiers->positions,
            (unsigned long long)tier->put_blocks, (unsigned long long)tier->had_blocks,
            (unsigned long long)tier->fault_blocks);
    }
}

void generate_tiers_close(session *s) {
    if (!s->tiers) return;
    kvc_spill_free(s->tiers->spill);
    kvc_prefix_free(s->tiers->tree);
    for (int i = 0; i < KVC_SPILL_TIERS_MAX; i++) kvc_tier_free(s->tiers->tiers[i]);
    free(s->tiers);
}
