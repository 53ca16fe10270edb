#include "support/stories.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>

#include "support/attend.h"
#include "support/support.h"

static void *must_calloc(int64_t count, size_t bytes) {
    void *memory = calloc(count ? (size_t)count : 1, bytes);
    assert_non_null(memory);
    return memory;
}

void stories_init(stories *s, kvc_cache *cache) {
    *s = (stories){.cache = cache, .desc = {.struct_size = sizeof s->desc}};
    assert_ok(kvc_cache_desc_get(cache, &s->desc));
    s->each = must_calloc(s->desc.batch, sizeof *s->each);
}

void stories_deinit(stories *s) {
    for (int64_t b = 0; b < s->desc.batch; b++) free(s->each[b].tags);
    free(s->each);
    *s = (stories){0};
}

/* A number of eight bits, in sixteenths. */
double story_element(uint32_t tag, int64_t layer, int side, int64_t head, int64_t d) {
    uint64_t x =
        (((uint64_t)tag * 64 + (uint64_t)layer) * 2 + (uint64_t)side) * 64 + (uint64_t)head;
    x = x * 4096 + (uint64_t)d;
    return ((double)(test_random(&x) >> 56) - 128) / 16;
}

static int64_t dim_of(const kvc_layer_spec *spec, int side) {
    return side ? spec->value_dim : spec->key_dim;
}

/* The last tag names a step; its positions have tags of their own. */
static uint32_t tag_of(const stories *s, int64_t sequence, int64_t i) {
    return s->last_tag + (uint32_t)(i * s->desc.batch + sequence);
}

static int64_t most_of(const stories *s, const int64_t *counts) {
    int64_t most = 0;
    for (int64_t b = 0; b < s->desc.batch; b++)
        if (counts[b] > most) most = counts[b];
    return most;
}

/* [batch][heads][n][dim], position-major as engines have it. What is not counted is NaN. */
static float *new_rows(kvc_array *out, const stories *s, int64_t layer, int side,
                       const int64_t *counts, int64_t n) {
    const kvc_layer_spec *spec = &s->desc.specs[layer];
    const int64_t batch = s->desc.batch, heads = spec->kv_heads, dim = dim_of(spec, side);
    const int64_t shape[4] = {batch, heads, n, dim};
    const int64_t strides[4] = {n * heads * dim, dim, heads * dim, 1};
    float *memory = must_calloc(batch * n * heads * dim, sizeof *memory), *at = memory;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++)
                    *at++ = i < counts[b] ? (float)story_element(tag_of(s, b, i), layer, side, h, d)
                                          : NAN;
    assert_ok(kvc_array_borrow(out, KVC_F32, 4, shape, strides, memory));
    return memory;
}

kvc_status stories_append_layer(const stories *s, int64_t layer, const int64_t *counts) {
    kvc_array k, v;
    const int64_t n = most_of(s, counts);
    float *keys = new_rows(&k, s, layer, 0, counts, n);
    float *values = new_rows(&v, s, layer, 1, counts, n);
    const kvc_status status = kvc_cache_append_ragged(s->cache, layer, &k, &v, counts);
    free(keys);
    free(values);
    return status;
}

static void make_room(story *one, int64_t length) {
    if (length <= one->room) return;
    one->room = 2 * length;
    one->tags = realloc(one->tags, (size_t)one->room * sizeof *one->tags);
    assert_non_null(one->tags);
}

void stories_note(stories *s, const int64_t *counts) {
    for (int64_t b = 0; b < s->desc.batch; b++) {
        story *one = &s->each[b];
        make_room(one, one->length + counts[b]);
        for (int64_t i = 0; i < counts[b]; i++) one->tags[one->length++] = tag_of(s, b, i);
    }
    s->last_tag += (uint32_t)(most_of(s, counts) * s->desc.batch);
}

void stories_append_ragged(stories *s, const int64_t *counts, const int64_t *order) {
    for (int64_t i = 0; i < s->desc.layers; i++)
        assert_ok(stories_append_layer(s, order ? order[i] : i, counts));
    stories_note(s, counts);
}

void stories_append(stories *s, int64_t n) {
    int64_t *counts = must_calloc(s->desc.batch, sizeof *counts);
    for (int64_t b = 0; b < s->desc.batch; b++) counts[b] = n;
    stories_append_ragged(s, counts, NULL);
    free(counts);
}

void stories_trim(stories *s, int64_t n) {
    assert_ok(kvc_cache_trim(s->cache, n));
    for (int64_t b = 0; b < s->desc.batch; b++) s->each[b].length -= n;
}

void stories_trim_sequence(stories *s, int64_t sequence, int64_t n) {
    assert_ok(kvc_cache_trim_sequence(s->cache, sequence, n));
    s->each[sequence].length -= n;
}

void stories_clear_sequence(stories *s, int64_t sequence) {
    assert_ok(kvc_cache_clear_sequence(s->cache, sequence));
    s->each[sequence].length = 0;
}

static void copy_story(story *to, const story *from) {
    make_room(to, from->length);
    to->length = from->length;
    if (from->length) memcpy(to->tags, from->tags, (size_t)from->length * sizeof *to->tags);
}

void stories_fork(stories *s, int64_t to, int64_t from) {
    assert_ok(kvc_cache_fork(s->cache, to, from));
    if (to != from) copy_story(&s->each[to], &s->each[from]);
}

void stories_reorder(stories *s, const int64_t *from) {
    story *moved = must_calloc(s->desc.batch, sizeof *moved);
    assert_ok(kvc_cache_reorder(s->cache, from));
    for (int64_t b = 0; b < s->desc.batch; b++) copy_story(&moved[b], &s->each[from[b]]);
    for (int64_t b = 0; b < s->desc.batch; b++) free(s->each[b].tags);
    free(s->each);
    s->each = moved;
}

void stories_copy(stories *to, const stories *from) {
    for (int64_t b = 0; b < to->desc.batch; b++) copy_story(&to->each[b], &from->each[b]);
    to->last_tag = from->last_tag;
}

/* Keys or values of a layer, or of a block: plain, or packed. Four dimensions each. */
typedef struct lent {
    kvc_array plain[2];
    kvc_quantized packed[2];
} lent;

static void wrong(const char *what, int64_t layer, int side, int64_t sequence, int64_t position) {
    fail_msg("layer %lld, sequence %lld, position %lld: not the %s that it should hold",
             (long long)layer, (long long)sequence, (long long)position,
             what   ? what
             : side ? "values"
                    : "keys");
}

static const char *row_of(const kvc_array *a, int64_t b, int64_t h, int64_t row) {
    const int64_t at = b * a->strides[0] + h * a->strides[1] + row * a->strides[2];
    return (const char *)a->data + at * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

/* Packs n floats as a row of `like`. */
static void pack_row(kvc_quantized *out, const kvc_quantized *like, const float *from, int64_t n,
                     char memory[3][4096]) {
    const kvc_array *arrays[3] = {&like->words, &like->scales, &like->biases};
    kvc_array *to[3] = {&out->words, &out->scales, &out->biases}, x;
    *out = (kvc_quantized){.struct_size = sizeof *out, .bits = like->bits, .group = like->group};
    for (int i = 0; i < 3; i++)
        assert_ok(
            kvc_array_borrow(to[i], arrays[i]->dtype, 1, &arrays[i]->shape[3], NULL, memory[i]));
    assert_ok(kvc_array_borrow(&x, KVC_F32, 1, &n, NULL, from));
    assert_ok(kvc_quantize(out, &x));
}

static void check_packed(const kvc_quantized *q, const float *want, int64_t dim, int64_t b,
                         int64_t h, int64_t row, const int64_t where[3], int side) {
    _Alignas(64) char memory[3][4096];
    kvc_quantized one;
    pack_row(&one, q, want, dim, memory);
    const kvc_array *arrays[3] = {&q->words, &q->scales, &q->biases};
    static const char *const names[3] = {"words", "scales", "biases"};
    for (int i = 0; i < 3; i++) {
        const size_t bytes = (size_t)arrays[i]->shape[3] * kvc_dtype_size_bytes(arrays[i]->dtype);
        if (memcmp(row_of(arrays[i], b, h, row), memory[i], bytes) != 0)
            wrong(names[i], where[0], side, where[1], where[2]);
    }
}

/* where: layer, sequence, position. */
static void check_row(const stories *s, const lent *rows, int64_t b, int64_t row,
                      const int64_t where[3]) {
    const kvc_layer_spec *spec = &s->desc.specs[where[0]];
    const uint32_t tag = s->each[where[1]].tags[where[2]];
    for (int side = 0; side < 2; side++)
        for (int64_t h = 0; h < spec->kv_heads; h++) {
            float want[1024];
            const int64_t dim = dim_of(spec, side);
            for (int64_t d = 0; d < dim; d++)
                want[d] = (float)story_element(tag, where[0], side, h, d);
            if (spec->kv_bits) check_packed(&rows->packed[side], want, dim, b, h, row, where, side);
            for (int64_t d = 0; !spec->kv_bits && d < dim; d++)
                if (test_get(&rows->plain[side], b, h, row, d) != (double)want[d])
                    wrong(NULL, where[0], side, where[1], where[2]);
        }
}

static void release(lent *rows) {
    for (int side = 0; side < 2; side++) {
        kvc_array_release(&rows->plain[side]);
        kvc_array_release(&rows->packed[side].words);
        kvc_array_release(&rows->packed[side].scales);
        kvc_array_release(&rows->packed[side].biases);
    }
}

/* [heads][B][dim] as [1][heads][B][dim]. */
static void add_batch(kvc_array *a) {
    if (a->ndim != 3) return;
    memmove(a->shape + 1, a->shape, 3 * sizeof *a->shape);
    memmove(a->strides + 1, a->strides, 3 * sizeof *a->strides);
    a->ndim = 4;
    a->shape[0] = 1;
    a->strides[0] = 0;
}

static lent lend_block(const stories *s, int64_t layer, int32_t id) {
    lent rows = {0};
    if (s->desc.specs[layer].kv_bits)
        assert_ok(
            kvc_blocks_view_quantized(s->desc.blocks, id, layer, &rows.packed[0], &rows.packed[1]));
    else assert_ok(kvc_blocks_view(s->desc.blocks, id, layer, &rows.plain[0], &rows.plain[1]));
    for (int side = 0; side < 2; side++) {
        add_batch(&rows.plain[side]);
        add_batch(&rows.packed[side].words);
        add_batch(&rows.packed[side].scales);
        add_batch(&rows.packed[side].biases);
    }
    return rows;
}

static void check_blocks(const stories *s, int64_t layer, int64_t sequence) {
    const int64_t size = kvc_cache_capacity(s->cache, layer), length = s->each[sequence].length;
    const int32_t *ids;
    int64_t count;
    assert_ok(kvc_cache_block_table(s->cache, sequence, &ids, &count));
    assert_int_equal(count, (length + size - 1) / size);
    for (int64_t i = 0; i < count; i++) {
        lent rows = lend_block(s, layer, ids[i]);
        for (int64_t p = i * size; p < length && p < (i + 1) * size; p++)
            check_row(s, &rows, 0, p % size, (const int64_t[]){layer, sequence, p});
        release(&rows);
    }
}

/* Every position that the query at `length`, the next one, sees. */
static void check_seen(const stories *s, int64_t layer, int64_t sequence, const bool *there) {
    const kvc_layer_spec *spec = &s->desc.specs[layer];
    const int64_t length = s->each[sequence].length;
    for (int64_t p = 0; p < length; p++) {
        const bool seen =
            !spec->window || p < spec->keep || p > length - (spec->window - spec->keep);
        if (seen && !there[p])
            fail_msg("layer %lld, sequence %lld: position %lld of %lld is not there",
                     (long long)layer, (long long)sequence, (long long)p, (long long)length);
    }
}

static void check_rows(const stories *s, const lent *rows, int64_t count, int64_t layer,
                       int64_t sequence) {
    const int64_t length = s->each[sequence].length;
    int64_t *positions = must_calloc(count, sizeof *positions);
    bool *there = must_calloc(length, sizeof *there);
    assert_ok(kvc_cache_row_positions(s->cache, layer, sequence, positions, count));
    for (int64_t row = 0; row < count; row++) {
        const int64_t p = positions[row];
        if (p == -1) continue;
        assert_in_range(p, 0, length - 1);
        assert_false(there[p]);
        there[p] = true;
        check_row(s, rows, sequence, row, (const int64_t[]){layer, sequence, p});
    }
    check_seen(s, layer, sequence, there);
    free(positions);
    free(there);
}

static void check_layer(const stories *s, int64_t layer) {
    lent rows = {0};
    const bool packed = s->desc.specs[layer].kv_bits > 0;
    if (packed)
        assert_ok(kvc_cache_view_quantized(s->cache, layer, &rows.packed[0], &rows.packed[1]));
    else assert_ok(kvc_cache_view(s->cache, layer, &rows.plain[0], &rows.plain[1]));
    const int64_t count = packed ? rows.packed[0].words.shape[2] : rows.plain[0].shape[2];
    for (int64_t b = 0; b < s->desc.batch; b++) check_rows(s, &rows, count, layer, b);
    release(&rows);
}

void stories_check(const stories *s) {
    assert_ok(kvc_cache_check(s->cache));
    for (int64_t i = 0; i < s->desc.layers; i++) {
        for (int64_t b = 0; b < s->desc.batch; b++) {
            assert_int_equal(kvc_cache_sequence_length(s->cache, i, b), s->each[b].length);
            if (s->desc.growth == KVC_GROW_PAGED) check_blocks(s, i, b);
        }
        if (s->desc.growth != KVC_GROW_PAGED) check_layer(s, i);
    }
}
