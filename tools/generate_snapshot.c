#include "generate_snapshot.h"

#include <stdio.h>

#include "cli.h"

#ifdef KVC_TOOLS_STORE

#include <kvcache/snapshot.h>

#include "generate_model.h"
#include "load.h"
#include "progress_bar.h"

static bool is_same(const kvc_layer_spec *a, const kvc_layer_spec *b) {
    return a->kv_heads == b->kv_heads && a->key_dim == b->key_dim && a->value_dim == b->value_dim &&
           a->dtype == b->dtype && a->window == b->window && a->keep == b->keep &&
           a->kv_bits == b->kv_bits && a->kv_group == b->kv_group &&
           a->keys_per_channel == b->keys_per_channel && a->rotated == b->rotated;
}

/* Whether a file holds one sequence of a cache as the engine's is. */
static bool fits(const kvc_snapshot_contents *c, const kvc_cache_desc *desc) {
    bool same = c->batch == 1 && c->layers == desc->layers;
    for (int64_t i = 0; same && i < c->layers; i++)
        same = is_same(&c->layer[i].spec, &desc->specs[i]);
    return same;
}

/* What the file holds must fit before it is cut. */
static int64_t positions_for(const kvc_cache_desc *desc, const kvc_snapshot_contents *c) {
    int64_t most = desc->max_positions;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].held[0].length > most) most = c->layer[i].held[0].length;
    return most;
}

static int64_t in_common(const session *s, const kvc_snapshot_contents *c) {
    int64_t n = 0;
    while (n < c->token_count && n + 1 < s->prompt_count && n + 1 < s->steps &&
           c->tokens[n] == s->prompt[n])
        n++;
    return n;
}

/* Drops what the file has beyond the prompt; all of it, where a window cannot go back so far. */
static void keep_common(session *s, const kvc_snapshot_contents *c) {
    kvc_cache *cache = s->transformer.cache;
    s->ready = in_common(s, c);
    if (kvc_cache_trim(cache, kvc_cache_length(cache, 0) - s->ready) == KVC_OK) return;
    kvc_cache_clear(cache);
    s->ready = 0;
}

/* @return  false after telling why */
static bool restore(session *s, const kvc_snapshot *snapshot) {
    char model[MODEL_NAME_ROOM];
    const kvc_fingerprint expected = {.model = model, .rope = MODEL_ROPE};
    const kvc_snapshot_contents *c = kvc_snapshot_contents_of(snapshot);
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    kvc_cache *cache;
    if (model_name(model, &s->model) != CLI_DONE ||
        kvc_cache_desc_get(s->transformer.cache, &desc) != KVC_OK)
        return false;
    if (!fits(c, &desc)) {
        (void)cli_fail("--load-cache: %s holds another kind of cache than --cache and --kv-dtype "
                       "ask for: kvcache inspect tells which, kvcache convert makes another",
                       s->wanted->load_cache);
        return false;
    }
    const kvc_snapshot_options options = {.struct_size = sizeof options,
                                          .flags = s->wanted->map ? KVC_LOAD_MAP : 0,
                                          .growth = desc.growth,
                                          .chunk = desc.chunk,
                                          .max_positions = positions_for(&desc, c),
                                          .blocks = desc.blocks,
                                          .slack = desc.slack,
                                          .expected = &expected,
                                          .progress = progress_bar_loading};
    cli_progress_begin();
    const kvc_status status = load_snapshot(&cache, s->pool, snapshot, options);
    cli_progress_end();
    if (status != KVC_OK) {
        (void)cli_fail_library("--load-cache");
        return false;
    }
    kvc_cache_free(s->transformer.cache);
    s->transformer.cache = cache;
    keep_common(s, c);
    return true;
}

int snapshot_load(session *s) {
    kvc_snapshot *snapshot;
    if (kvc_snapshot_open(&snapshot, s->wanted->load_cache) != KVC_OK)
        return cli_fail_library("--load-cache");
    const bool done = restore(s, snapshot);
    kvc_snapshot_close(snapshot);
    return done ? CLI_DONE : CLI_FAILED;
}

int snapshot_save(const session *s) {
    char model[MODEL_NAME_ROOM];
    if (model_name(model, &s->model) != CLI_DONE) return CLI_FAILED;
    const kvc_snapshot_info info = {.struct_size = sizeof info,
                                    .fingerprint = {.model = model, .rope = MODEL_ROPE},
                                    .tokens = s->ids,
                                    .token_count = kvc_cache_length(s->transformer.cache, 0),
                                    .progress = progress_bar_saving};
    cli_progress_begin();
    const kvc_status status = kvc_snapshot_save(s->wanted->save_cache, s->transformer.cache, &info);
    cli_progress_end();
    return status == KVC_OK ? CLI_DONE : cli_fail_library("--save-cache");
}

#else

static const char without[] =
    "%s: this program was built without libkvcache-store (cmake -DKVC_STORE=ON)";

int snapshot_load(session *s) {
    (void)s;
    return cli_fail(without, "--load-cache");
}

int snapshot_save(const session *s) {
    (void)s;
    return cli_fail(without, "--save-cache");
}

#endif
