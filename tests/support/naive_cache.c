#include "support/naive_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "support/support.h"

static void *must_malloc(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

/* Values near 1, which rounding tells apart, and now and then any pattern of bits. */
static uint32_t random_f32_bits(uint64_t *random) {
    const uint64_t x = test_random(random);
    return x >> 60 ? 0x3f000000u ^ ((uint32_t)x & 0x80ffffffu) : (uint32_t)x;
}

void rows_init(rows *r, kvc_dtype dtype, rows_layout layout, const int64_t shape[4],
               uint64_t *random) {
    const int64_t b = shape[0], h = shape[1], n = shape[2], d = shape[3];
    const int64_t gapped = layout == ROWS_POSITION_FIRST ? d + 3 : d;
    const int64_t all[ROWS_LAYOUTS][4] = {
        [ROWS_HEAD_MAJOR] = {h * n * d, n * d, d, 1},
        [ROWS_POSITION_MAJOR] = {n * h * d, d, h * d, 1},
        [ROWS_POSITION_FIRST] = {h * gapped, gapped, b * h * gapped, 1},
        [ROWS_BACKWARDS] = {h * n * d, n * d, -d, 1},
    };
    const size_t size = kvc_dtype_size_bytes(dtype);
    const size_t count = (size_t)(b * h * n * gapped);
    char *memory = r->memory = must_malloc(count * size);
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = random_f32_bits(random);
        const uint16_t half = (uint16_t)(bits >> 16); /* for f16 too: any pattern will do */
        memcpy(memory + i * size, size == 4 ? (const void *)&bits : &half, size);
    }
    if (layout == ROWS_BACKWARDS && n > 0) memory += (size_t)((n - 1) * d) * size;
    r->array = (kvc_array){.data = memory, .dtype = dtype, .ndim = 4};
    memcpy(r->array.shape, shape, 4 * sizeof *shape);
    memcpy(r->array.strides, all[layout], sizeof all[layout]);
}

void rows_deinit(rows *r) {
    free(r->memory);
    *r = (rows){0};
}

/* Element [b][h][p][0]. */
static const char *row_at(const kvc_array *a, int64_t b, int64_t h, int64_t p) {
    const int64_t offset = b * a->strides[0] + h * a->strides[1] + p * a->strides[2];
    return (const char *)a->data + offset * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

/* The bits of a row's element d. */
static uint32_t word_at(const kvc_array *a, const char *row, int64_t d) {
    uint16_t half;
    uint32_t word;
    if (kvc_dtype_size_bytes(a->dtype) == 2) {
        memcpy(&half, row + d * a->strides[3] * 2, sizeof half);
        return half;
    }
    memcpy(&word, row + d * a->strides[3] * 4, sizeof word);
    return word;
}

static uint32_t converted(uint32_t word, kvc_dtype from, kvc_dtype to) {
    if (from == to) return word;
    const float x = from == KVC_F32   ? kvc__f32_of_bits(word)
                    : from == KVC_F16 ? kvc__f32_of_f16((uint16_t)word)
                                      : kvc__f32_of_bf16((uint16_t)word);
    return to == KVC_F32   ? kvc__bits_of_f32(x)
           : to == KVC_F16 ? kvc__f16_of_f32(x)
                           : kvc__bf16_of_f32(x);
}

void convert_elements(void *out, kvc_dtype to, const void *in, kvc_dtype from, int64_t count) {
    const kvc_array a = {.dtype = from, .ndim = 4, .strides = {0, 0, 0, 1}};
    for (int64_t d = 0; d < count; d++) {
        const uint32_t word = converted(word_at(&a, in, d), from, to);
        const uint16_t half = (uint16_t)word;
        const size_t size = kvc_dtype_size_bytes(to);
        memcpy((char *)out + (size_t)d * size, size == 4 ? (const void *)&word : &half, size);
    }
}

/* Words of one position of a side. */
static size_t width(const naive_layer *l, int64_t dim) {
    return (size_t)(l->batch * l->spec.kv_heads * dim);
}

static void extend(uint32_t **words, const naive_layer *l, int64_t dim, const kvc_array *a) {
    const size_t before = (size_t)l->length * width(l, dim);
    const size_t after = before + (size_t)a->shape[2] * width(l, dim);
    *words = realloc(*words, after ? after * sizeof **words : 1);
    assert_non_null(*words);
    uint32_t *word = *words + before;
    for (int64_t p = 0; p < a->shape[2]; p++)
        for (int64_t b = 0; b < l->batch; b++)
            for (int64_t h = 0; h < l->spec.kv_heads; h++)
                for (int64_t d = 0; d < dim; d++)
                    *word++ = converted(word_at(a, row_at(a, b, h, p), d), a->dtype, l->spec.dtype);
}

void naive_cache_init(naive_cache *naive, const kvc_cache *cache) {
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_cache_desc_get(cache, &desc));
    naive->layers = desc.layers;
    naive->layer = must_malloc((size_t)desc.layers * sizeof *naive->layer);
    for (int64_t i = 0; i < desc.layers; i++)
        naive->layer[i] = (naive_layer){.spec = desc.specs[i], .batch = desc.batch};
}

void naive_cache_deinit(naive_cache *naive) {
    for (int64_t i = 0; i < naive->layers; i++) naive_layer_deinit(&naive->layer[i]);
    free(naive->layer);
    *naive = (naive_cache){0};
}

void naive_cache_append(naive_cache *naive, int64_t layer, const kvc_array *k, const kvc_array *v) {
    naive_layer *l = &naive->layer[layer];
    extend(&l->k, l, l->spec.key_dim, k);
    extend(&l->v, l, l->spec.value_dim, v);
    l->length += k->shape[2];
}

void naive_cache_trim(naive_cache *naive, int64_t n) {
    for (int64_t i = 0; i < naive->layers; i++) naive->layer[i].length -= n;
}

void naive_cache_clear(naive_cache *naive) {
    for (int64_t i = 0; i < naive->layers; i++) naive->layer[i].length = 0;
}

void naive_layer_copy(naive_layer *to, const naive_layer *from) {
    const size_t k = (size_t)from->length * width(from, from->spec.key_dim) * sizeof *from->k;
    const size_t v = (size_t)from->length * width(from, from->spec.value_dim) * sizeof *from->v;
    *to = *from;
    to->k = must_malloc(k);
    to->v = must_malloc(v);
    if (k) memcpy(to->k, from->k, k);
    if (v) memcpy(to->v, from->v, v);
}

void naive_layer_deinit(naive_layer *l) {
    free(l->k);
    free(l->v);
    *l = (naive_layer){0};
}

static void assert_side_equal(const naive_layer *l, const uint32_t *words, int64_t dim,
                              const kvc_array *a, int64_t count, const char *name) {
    const uint32_t *word = words;
    for (int64_t p = 0; p < count; p++)
        for (int64_t b = 0; b < l->batch; b++)
            for (int64_t h = 0; h < l->spec.kv_heads; h++) {
                const char *row = row_at(a, b, h, p);
                for (int64_t d = 0; d < dim; d++, word++)
                    if (word_at(a, row, d) != *word)
                        fail_msg("%s[%lld][%lld][%lld][%lld]: %x found, %x wanted", name,
                                 (long long)b, (long long)h, (long long)p, (long long)d,
                                 word_at(a, row, d), *word);
            }
}

void assert_view_equal(const naive_layer *l, const kvc_array *k, const kvc_array *v,
                       int64_t count) {
    assert_true(count <= l->length && count <= k->shape[2] && count <= v->shape[2]);
    assert_side_equal(l, l->k, l->spec.key_dim, k, count, "k");
    assert_side_equal(l, l->v, l->spec.value_dim, v, count, "v");
}

static void assert_shape(const kvc_array *a, const naive_layer *l, int64_t dim) {
    const int64_t shape[4] = {l->batch, l->spec.kv_heads, l->length, dim};
    assert_int_equal(a->dtype, l->spec.dtype);
    assert_int_equal(a->ndim, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(a->shape[i], shape[i]);
}

void assert_cache_equal(const naive_cache *naive, const kvc_cache *cache) {
    assert_ok(kvc_cache_check(cache));
    for (int64_t i = 0; i < naive->layers; i++) {
        const naive_layer *l = &naive->layer[i];
        kvc_array k, v;
        assert_int_equal(kvc_cache_length(cache, i), l->length);
        assert_ok(kvc_cache_view(cache, i, &k, &v));
        assert_shape(&k, l, l->spec.key_dim);
        assert_shape(&v, l, l->spec.value_dim);
        assert_view_equal(l, &k, &v, l->length);
        kvc_array_release(&k);
        kvc_array_release(&v);
    }
}

void append_both(kvc_cache *cache, naive_cache *naive, int64_t layer, int64_t n, uint64_t *random) {
    const naive_layer *l = &naive->layer[layer];
    const int64_t k_shape[4] = {l->batch, l->spec.kv_heads, n, l->spec.key_dim};
    const int64_t v_shape[4] = {l->batch, l->spec.kv_heads, n, l->spec.value_dim};
    rows k, v;
    rows_init(&k, KVC_F32, ROWS_POSITION_MAJOR, k_shape, random);
    rows_init(&v, KVC_F32, ROWS_POSITION_MAJOR, v_shape, random);
    assert_ok(kvc_cache_append(cache, layer, &k.array, &v.array));
    naive_cache_append(naive, layer, &k.array, &v.array);
    rows_deinit(&k);
    rows_deinit(&v);
}

void write_rows(const kvc_array *room, const kvc_array *from) {
    const kvc_device *cpu = kvc_device_cpu();
    const kvc_strided dst = {room->data, room->dtype, room->strides};
    const kvc_strided src = {from->data, from->dtype, from->strides};
    assert_memory_equal(room->shape, from->shape, 4 * sizeof *room->shape);
    assert_ok(cpu->copy(cpu->context, &dst, &src, 4, from->shape));
}
