#include "transformer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops.h"

/* Making one. */

static bool make_blocks(transformer *t, kvc_pool *pool, const kvc_layer_spec *spec, int64_t block,
                        failure *error) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = t->model->layers,
                                  .specs = spec,
                                  .spec_count = 1,
                                  .positions = block};
    if (kvc_blocks_new(&t->blocks, pool, &desc) == KVC_OK) return true;
    return failure_set_library(error, "the blocks");
}

static bool make_cache(transformer *t, kvc_pool *pool, const transformer_options *options,
                       failure *error) {
    const checkpoint *m = t->model;
    const kvc_layer_spec spec = {.kv_heads = m->kv_heads,
                                 .key_dim = m->head_dim,
                                 .dtype = options->kv_dtype,
                                 .window = options->window,
                                 .keep = options->keep,
                                 .kv_bits = options->kv_bits,
                                 .kv_group = options->kv_group,
                                 .keys_per_channel = options->keys_per_channel,
                                 .rotated = options->rotated};
    if (options->growth == KVC_GROW_PAGED && !make_blocks(t, pool, &spec, options->block, error))
        return false;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = t->sequences,
                                 .layers = m->layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = options->growth,
                                 .chunk = options->chunk,
                                 .max_positions = options->max_positions,
                                 .blocks = t->blocks,
                                 .slack = options->slack};
    if (kvc_cache_new(&t->cache, pool, &desc) == KVC_OK) return true;
    return failure_set_library(error, "the cache");
}

static bool make_plan(kvc_attention **out, const transformer *t, int64_t batch, int64_t queries,
                      bool strict, failure *error) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    if (kvc_attention_desc_for(&desc, t->cache, 0) != KVC_OK)
        return failure_set_library(error, "attention");
    desc.batch = batch;
    desc.q_heads = t->model->heads;
    desc.max_q_len = queries;
    desc.strict = strict;
    if (kvc_attention_plan(out, &desc) == KVC_OK) return true;
    return failure_set_library(error, "attention");
}

static bool make_attention(transformer *t, bool strict, failure *error) {
    if (!make_plan(&t->attention, t, 1, TRANSFORMER_MOST, strict, error)) return false;
    return t->sequences == 1 || make_plan(&t->step, t, t->sequences, 1, strict, error);
}

/* Lays the activations one after another. Sizes are int32 each, so their sum fits easily. */
static bool make_activations(transformer *t, failure *error) {
    const checkpoint *m = t->model;
    const int64_t n = TRANSFORMER_MOST;
    const struct {
        float **out;
        int64_t count;
    } parts[] = {{&t->x, n * m->dim},           {&t->normed, n * m->dim},
                 {&t->q, n * m->dim},           {&t->k, n * m->kv_dim},
                 {&t->v, n * m->kv_dim},        {&t->mixed, n * m->dim},
                 {&t->gate, n * m->hidden_dim}, {&t->up, n * m->hidden_dim},
                 {&t->turns, n * m->head_dim},  {&t->logits, n * m->vocab_size}};
    const size_t part_count = sizeof parts / sizeof *parts;
    int64_t total = 0;
    for (size_t i = 0; i < part_count; i++) total += parts[i].count;
    t->memory = calloc((size_t)total, sizeof *t->memory);
    if (!t->memory) return failure_set(error, "no memory for %lld activations", (long long)total);
    float *at = t->memory;
    for (size_t i = 0; i < part_count; at += parts[i].count, i++) *parts[i].out = at;
    return true;
}

bool transformer_init(transformer *out, const checkpoint *model, kvc_pool *pool,
                      const transformer_options *options, failure *error) {
    *out = (transformer){.model = model, .sequences = options->sequences ? options->sequences : 1};
    if (options->max_positions < 1 || options->max_positions > model->seq_len)
        return failure_set(error, "max_positions: %lld given, 1 to the model's %lld wanted",
                           (long long)options->max_positions, (long long)model->seq_len);
    if (out->sequences < 1 || out->sequences > TRANSFORMER_MOST ||
        (out->sequences > 1 && options->growth != KVC_GROW_PAGED))
        return failure_set(error,
                           "sequences: %lld given with growth %s; 1 wanted, or up to %d that "
                           "share the blocks of a paged cache",
                           (long long)out->sequences, kvc_growth_name(options->growth),
                           TRANSFORMER_MOST);
    if (make_activations(out, error) && make_cache(out, pool, options, error) &&
        make_attention(out, options->strict, error))
        return true;
    transformer_deinit(out);
    return false;
}

void transformer_deinit(transformer *t) {
    kvc_attention_free(t->step);
    kvc_attention_free(t->attention);
    kvc_cache_free(t->cache);
    kvc_blocks_free(t->blocks);
    free(t->memory);
    *t = (transformer){0};
}

/* Running it. */

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The rows of a forward: n positions of the first sequence, or one of each sequence. */
typedef struct rows {
    int64_t n;
    const int64_t *counts;  /* [sequences] what each gets */
    const int64_t *lengths; /* [sequences] what each then attends to; NULL: the first is at work */
} rows;

/* Describes rows of heads, [n][heads][dim] in memory, in the order that the library takes:
 * [sequences][heads][n][dim]. No element moves: rows of the first sequence stand for those of the
 * others, which take none of them. */
static kvc_status borrow_heads(kvc_array *out, const float *data, const rows *r, int64_t sequences,
                               int64_t heads, int64_t dim) {
    const int64_t row = heads * dim;
    const int64_t shape[] = {sequences, heads, r->lengths ? 1 : r->n, dim};
    const int64_t strides[] = {r->lengths ? row : 0, dim, row, 1};
    return kvc_array_borrow(out, KVC_F32, 4, shape, strides, data);
}

/* mixed = attention of q over what the sequences at work hold. */
static kvc_status run_attention(transformer *t, int64_t layer, const rows *r) {
    const checkpoint *m = t->model;
    const int64_t sequences = r->lengths ? t->sequences : 1;
    kvc_array q, mixed;
    kvc_status status = borrow_heads(&q, t->q, r, sequences, m->heads, m->head_dim);
    if (status == KVC_OK)
        status = borrow_heads(&mixed, t->mixed, r, sequences, m->heads, m->head_dim);
    if (status != KVC_OK) return status;
    if (r->lengths) {
        const kvc_attention_extras extras = {.struct_size = sizeof extras, .lengths = r->lengths};
        return kvc_attention_run(t->step, t->cache, layer, &q, &mixed, &extras);
    }
    if (t->sequences == 1)
        return kvc_attention_run(t->attention, t->cache, layer, &q, &mixed, NULL);
    const int32_t *table;
    int64_t blocks;
    const int64_t length = kvc_cache_sequence_length(t->cache, layer, 0);
    status = kvc_cache_block_table(t->cache, 0, &table, &blocks);
    if (status != KVC_OK) return status;
    return kvc_attention_run_blocks(t->attention, t->blocks, layer, table, blocks, &length, &q,
                                    &mixed, NULL);
}

/* Appends k and v, then attends. */
static bool attend(transformer *t, int64_t layer, const rows *r, failure *error) {
    const checkpoint *m = t->model;
    kvc_array k, v;
    if (borrow_heads(&k, t->k, r, t->sequences, m->kv_heads, m->head_dim) != KVC_OK ||
        borrow_heads(&v, t->v, r, t->sequences, m->kv_heads, m->head_dim) != KVC_OK)
        return failure_set_library(error, "attention");
    const uint64_t start = now_ns();
    if (kvc_cache_append_ragged(t->cache, layer, &k, &v, r->counts) != KVC_OK)
        return failure_set_library(error, "the cache");
    const uint64_t appended = now_ns();
    if (run_attention(t, layer, r) != KVC_OK) return failure_set_library(error, "attention");
    t->append_ns += appended - start;
    t->attention_ns += now_ns() - appended;
    return true;
}

static bool attention_block(transformer *t, int64_t layer, const rows *r, failure *error) {
    const checkpoint *m = t->model;
    const int64_t square = m->dim * m->dim, narrow = m->kv_dim * m->dim, n = r->n;
    rms_norm(t->normed, t->x, m->attention_norm + layer * m->dim, n, m->dim);
    matmul(t->q, t->normed, m->wq + layer * square, n, m->dim, m->dim);
    matmul(t->k, t->normed, m->wk + layer * narrow, n, m->dim, m->kv_dim);
    matmul(t->v, t->normed, m->wv + layer * narrow, n, m->dim, m->kv_dim);
    rope(t->q, t->turns, n, m->heads, m->head_dim);
    rope(t->k, t->turns, n, m->kv_heads, m->head_dim);
    if (!attend(t, layer, r, error)) return false;
    matmul(t->normed, t->mixed, m->wo + layer * square, n, m->dim, m->dim);
    add(t->x, t->normed, n * m->dim);
    return true;
}

static void feed_forward_block(transformer *t, int64_t layer, int64_t n) {
    const checkpoint *m = t->model;
    const int64_t wide = m->hidden_dim * m->dim;
    rms_norm(t->normed, t->x, m->ffn_norm + layer * m->dim, n, m->dim);
    matmul(t->gate, t->normed, m->w1 + layer * wide, n, m->dim, m->hidden_dim);
    matmul(t->up, t->normed, m->w3 + layer * wide, n, m->dim, m->hidden_dim);
    swiglu(t->gate, t->up, n * m->hidden_dim);
    matmul(t->normed, t->gate, m->w2 + layer * wide, n, m->hidden_dim, m->dim);
    add(t->x, t->normed, n * m->dim);
}

/* From tokens to logits of the last `told` rows; their turns are written. */
static bool forward(transformer *t, const int32_t *tokens, const rows *r, int64_t told,
                    failure *error) {
    const checkpoint *m = t->model;
    for (int64_t p = 0; p < r->n; p++)
        memcpy(t->x + p * m->dim, m->embedding + tokens[p] * m->dim, (size_t)m->dim * sizeof *t->x);
    for (int64_t layer = 0; layer < m->layers; layer++) {
        if (!attention_block(t, layer, r, error)) return false;
        feed_forward_block(t, layer, r->n);
    }
    rms_norm(t->normed, t->x + (r->n - told) * m->dim, m->final_norm, told, m->dim);
    matmul(t->logits, t->normed, m->classifier, told, m->dim, m->vocab_size);
    return true;
}

bool transformer_forward(transformer *t, const int32_t *tokens, int64_t n, int64_t told,
                         failure *error) {
    const int64_t counts[TRANSFORMER_MOST] = {n}; /* the others take none */
    const rows r = {.n = n, .counts = counts};
    rope_turns(t->turns, kvc_cache_sequence_length(t->cache, 0, 0), n, t->model->head_dim);
    return forward(t, tokens, &r, told, error);
}

bool transformer_fork(transformer *t, failure *error) {
    for (int64_t b = 1; b < t->sequences; b++)
        if (kvc_cache_fork(t->cache, b, 0) != KVC_OK)
            return failure_set_library(error, "the cache");
    return true;
}

bool transformer_step(transformer *t, const int32_t *tokens, const bool *goes_on, failure *error) {
    int64_t counts[TRANSFORMER_MOST], lengths[TRANSFORMER_MOST];
    const rows r = {.n = t->sequences, .counts = counts, .lengths = lengths};
    for (int64_t b = 0; b < t->sequences; b++) {
        const int64_t position = kvc_cache_sequence_length(t->cache, 0, b);
        counts[b] = goes_on[b];
        lengths[b] = goes_on[b] ? position + 1 : 0; /* nothing is read for those that rest */
        rope_turns(t->turns + b * t->model->head_dim, position, 1, t->model->head_dim);
    }
    return forward(t, tokens, &r, r.n, error);
}
