#include "transformer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops.h"

/* Making one. */

static bool make_cache(transformer *t, kvc_pool *pool, const transformer_options *options,
                       failure *error) {
    const checkpoint *m = t->model;
    const kvc_layer_spec spec = {
        .kv_heads = m->kv_heads, .key_dim = m->head_dim, .dtype = options->kv_dtype};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = m->layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = options->growth,
                                 .chunk = options->chunk,
                                 .max_positions = options->max_positions};
    if (kvc_cache_new(&t->cache, pool, &desc) == KVC_OK) return true;
    return failure_set_library(error, "the cache");
}

static bool make_attention(transformer *t, bool strict, failure *error) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    if (kvc_attention_desc_for(&desc, t->cache, 0) != KVC_OK)
        return failure_set_library(error, "attention");
    desc.q_heads = t->model->heads;
    desc.max_q_len = TRANSFORMER_MOST;
    desc.strict = strict;
    if (kvc_attention_plan(&t->attention, &desc) == KVC_OK) return true;
    return failure_set_library(error, "attention");
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
    *out = (transformer){.model = model};
    if (options->max_positions < 1 || options->max_positions > model->seq_len)
        return failure_set(error, "max_positions: %lld given, 1 to the model's %lld wanted",
                           (long long)options->max_positions, (long long)model->seq_len);
    if (make_activations(out, error) && make_cache(out, pool, options, error) &&
        make_attention(out, options->strict, error))
        return true;
    transformer_deinit(out);
    return false;
}

void transformer_deinit(transformer *t) {
    kvc_attention_free(t->attention);
    kvc_cache_free(t->cache);
    free(t->memory);
    *t = (transformer){0};
}

/* Running it. */

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Describes rows of heads, [n][heads][dim] in memory, in the order that the library takes:
 * [1][heads][n][dim]. No element moves. */
static kvc_status borrow_heads(kvc_array *out, const float *rows, int64_t n, int64_t heads,
                               int64_t dim) {
    const int64_t shape[] = {1, heads, n, dim}, strides[] = {n * heads * dim, dim, heads * dim, 1};
    return kvc_array_borrow(out, KVC_F32, 4, shape, strides, rows);
}

/* mixed = attention of q over the cache, with k and v appended first. */
static bool attend(transformer *t, int64_t layer, int64_t n, failure *error) {
    const checkpoint *m = t->model;
    kvc_array q, k, v, mixed;
    if (borrow_heads(&q, t->q, n, m->heads, m->head_dim) != KVC_OK ||
        borrow_heads(&k, t->k, n, m->kv_heads, m->head_dim) != KVC_OK ||
        borrow_heads(&v, t->v, n, m->kv_heads, m->head_dim) != KVC_OK ||
        borrow_heads(&mixed, t->mixed, n, m->heads, m->head_dim) != KVC_OK)
        return failure_set_library(error, "attention");
    const uint64_t start = now_ns();
    if (kvc_cache_append(t->cache, layer, &k, &v) != KVC_OK)
        return failure_set_library(error, "the cache");
    const uint64_t appended = now_ns();
    if (kvc_attention_run(t->attention, t->cache, layer, &q, &mixed, NULL) != KVC_OK)
        return failure_set_library(error, "attention");
    t->append_ns += appended - start;
    t->attention_ns += now_ns() - appended;
    return true;
}

static bool attention_block(transformer *t, int64_t layer, int64_t n, failure *error) {
    const checkpoint *m = t->model;
    const int64_t square = m->dim * m->dim, narrow = m->kv_dim * m->dim;
    rms_norm(t->normed, t->x, m->attention_norm + layer * m->dim, n, m->dim);
    matmul(t->q, t->normed, m->wq + layer * square, n, m->dim, m->dim);
    matmul(t->k, t->normed, m->wk + layer * narrow, n, m->dim, m->kv_dim);
    matmul(t->v, t->normed, m->wv + layer * narrow, n, m->dim, m->kv_dim);
    rope(t->q, t->turns, n, m->heads, m->head_dim);
    rope(t->k, t->turns, n, m->kv_heads, m->head_dim);
    if (!attend(t, layer, n, error)) return false;
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

bool transformer_forward(transformer *t, const int32_t *tokens, int64_t n, int64_t told,
                         failure *error) {
    const checkpoint *m = t->model;
    for (int64_t p = 0; p < n; p++)
        memcpy(t->x + p * m->dim, m->embedding + tokens[p] * m->dim, (size_t)m->dim * sizeof *t->x);
    rope_turns(t->turns, kvc_cache_length(t->cache, 0), n, m->head_dim);
    for (int64_t layer = 0; layer < m->layers; layer++) {
        if (!attention_block(t, layer, n, error)) return false;
        feed_forward_block(t, layer, n);
    }
    rms_norm(t->normed, t->x + (n - told) * m->dim, m->final_norm, told, m->dim);
    matmul(t->logits, t->normed, m->classifier, told, m->dim, m->vocab_size);
    return true;
}
