/* Keys that are packed per channel: blocks of positions in the bits of kvc_quantize, an unpacked
 * tail behind them, whatever happens to sequences; and rotated rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/naive_cache.h"
#include "support/support.h"

enum { HEADS = 2, KEY_DIM = 256, VALUE_DIM = 128, MOST = 700, BATCH = 3 };

static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
static const kvc_growth growths[] = {KVC_GROW_RESERVE, KVC_GROW_CHUNK, KVC_GROW_EXACT};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* What a sequence holds, as it was appended: [position][HEADS][dim]. */
typedef struct story {
    float k[MOST * HEADS * KEY_DIM], v[MOST * HEADS * VALUE_DIM];
    int64_t length;
    int64_t oldest; /* what the tail holds, or held: 2 groups, once there were more */
} story;

static story stories[BATCH], other[BATCH], kept;

static kvc_layer_spec spec_of(int bits, int group, kvc_dtype dtype) {
    return (kvc_layer_spec){.kv_heads = HEADS,
                            .key_dim = KEY_DIM,
                            .value_dim = VALUE_DIM,
                            .dtype = dtype,
                            .kv_bits = bits,
                            .kv_group = group,
                            .keys_per_channel = true};
}

static kvc_cache *open_cache(const kvc_layer_spec *spec, kvc_growth growth, int64_t batch) {
    kvc_pool *pool;
    kvc_cache *cache;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .layers = 1,
                                 .specs = spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = 40, /* no multiple of any group */
                                 .max_positions = MOST};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_pool_free(pool);
    return cache;
}

/* One element in 64 is large at every position, as in keys. */
static void draw(story *s, int64_t n, uint64_t *seed) {
    for (int64_t i = 0; i < n * HEADS * KEY_DIM; i++) {
        const double x = (double)(int64_t)test_random(seed) * 0x1p-63;
        s->k[s->length * HEADS * KEY_DIM + i] = (float)(i % 64 == 3 ? 12 + x : x);
    }
    for (int64_t i = 0; i < n * HEADS * VALUE_DIM; i++)
        s->v[s->length * HEADS * VALUE_DIM + i] = (float)((double)test_random(seed) * 0x1p-64);
}

/* Appends counts[b] positions to each of the stories and the cache. */
static kvc_status append(kvc_cache *cache, story *all, int64_t batch, const int64_t *counts,
                         uint64_t *seed) {
    int64_t n = 0;
    for (int64_t b = 0; b < batch; b++) n = counts[b] > n ? counts[b] : n;
    const int64_t k_shape[] = {batch, HEADS, n, KEY_DIM}, v_shape[] = {batch, HEADS, n, VALUE_DIM};
    const int64_t k_strides[] = {n * HEADS * KEY_DIM, KEY_DIM, HEADS * KEY_DIM, 1};
    const int64_t v_strides[] = {n * HEADS * VALUE_DIM, VALUE_DIM, HEADS * VALUE_DIM, 1};
    float *k_rows = calloc((size_t)(batch * n * HEADS * KEY_DIM) + 1, sizeof *k_rows);
    float *v_rows = calloc((size_t)(batch * n * HEADS * VALUE_DIM) + 1, sizeof *v_rows);
    kvc_array k, v;
    assert_true(k_rows && v_rows);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t at = all[b].length;
        draw(&all[b], counts[b], seed);
        memcpy(k_rows + b * k_strides[0], all[b].k + at * HEADS * KEY_DIM,
               (size_t)(counts[b] * HEADS * KEY_DIM) * sizeof *k_rows);
        memcpy(v_rows + b * v_strides[0], all[b].v + at * HEADS * VALUE_DIM,
               (size_t)(counts[b] * HEADS * VALUE_DIM) * sizeof *v_rows);
    }
    assert_ok(kvc_array_borrow(&k, KVC_F32, 4, k_shape, k_strides, k_rows));
    assert_ok(kvc_array_borrow(&v, KVC_F32, 4, v_shape, v_strides, v_rows));
    const kvc_status status = kvc_cache_append_ragged(cache, 0, &k, &v, counts);
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_cache_desc_get(cache, &desc));
    for (int64_t b = 0; status == KVC_OK && b < batch; b++) {
        all[b].length += counts[b];
        const int64_t oldest = all[b].length - (int64_t)2 * desc.specs[0].kv_group;
        if (oldest > all[b].oldest) all[b].oldest = oldest;
    }
    free(k_rows);
    free(v_rows);
    return status;
}

static void append_one(kvc_cache *cache, int64_t n, uint64_t *seed) {
    assert_ok(append(cache, stories, 1, &n, seed));
}

/* Packs n rows of `dim` in a dtype, and tells their words, scales and biases. */
static void quantize(const kvc_layer_spec *spec, void *given, int64_t n, int64_t dim,
                     uint8_t *words, void *scales, void *biases) {
    const int64_t shape[] = {n, dim}, groups_shape[] = {n, dim / spec->kv_group};
    const int64_t words_shape[] = {n, dim * spec->kv_bits / 8};
    kvc_array x;
    kvc_quantized q = {.struct_size = sizeof q, .bits = spec->kv_bits, .group = spec->kv_group};
    assert_ok(kvc_array_borrow(&x, spec->dtype, 2, shape, NULL, given));
    assert_ok(kvc_array_borrow(&q.words, KVC_U8, 2, words_shape, NULL, words));
    assert_ok(kvc_array_borrow(&q.scales, spec->dtype, 2, groups_shape, NULL, scales));
    assert_ok(kvc_array_borrow(&q.biases, spec->dtype, 2, groups_shape, NULL, biases));
    assert_ok(kvc_quantize(&q, &x));
}

static const char *at(const kvc_array *a, int64_t b, int64_t h, int64_t i) {
    return (const char *)a->data +
           (size_t)(b * a->strides[0] + h * a->strides[1] + i * a->strides[2]) *
               kvc_dtype_size_bytes(a->dtype);
}

/* A block of keys, transposed: [KEY_DIM][group] in the layer's dtype. */
static void transpose(char *out, const kvc_layer_spec *spec, const story *s, int64_t h,
                      int64_t block) {
    const size_t element = kvc_dtype_size_bytes(spec->dtype);
    for (int64_t i = 0; i < spec->kv_group; i++)
        for (int64_t d = 0; d < KEY_DIM; d++)
            convert_elements(out + (size_t)(d * spec->kv_group + i) * element, spec->dtype,
                             &s->k[((block * spec->kv_group + i) * HEADS + h) * KEY_DIM + d],
                             KVC_F32, 1);
}

/* Every block of a sequence is what kvc_quantize makes of it. */
static void assert_blocks(const kvc_cache *cache, const kvc_layer_spec *spec, const story *s,
                          int64_t b) {
    static char turned[KEY_DIM * 128 * 4], scales[KEY_DIM * 4], biases[KEY_DIM * 4];
    static uint8_t words[KEY_DIM * 128];
    const size_t element = kvc_dtype_size_bytes(spec->dtype);
    kvc_quantized k, v;
    assert_ok(kvc_cache_view_quantized(cache, 0, &k, &v));
    assert_int_equal(k.words.ndim, 5);
    assert_int_equal(k.words.shape[4], spec->kv_group * spec->kv_bits / 8);
    assert_int_equal(k.words.shape[2], kvc_cache_length(cache, 0) / spec->kv_group);
    assert_int_equal(v.words.shape[2], kvc_cache_length(cache, 0));
    for (int64_t block = 0; block < s->length / spec->kv_group; block++)
        for (int64_t h = 0; h < HEADS; h++) {
            transpose(turned, spec, s, h, block);
            quantize(spec, turned, KEY_DIM, spec->kv_group, words, scales, biases);
            assert_memory_equal(at(&k.words, b, h, block), words,
                                (size_t)(KEY_DIM * spec->kv_group * spec->kv_bits / 8));
            assert_memory_equal(at(&k.scales, b, h, block), scales, KEY_DIM * element);
            assert_memory_equal(at(&k.biases, b, h, block), biases, KEY_DIM * element);
        }
    kvc_array *const all[] = {&k.words, &k.scales, &k.biases, &v.words, &v.scales, &v.biases};
    for (int i = 0; i < COUNT(all); i++) kvc_array_release(all[i]);
}

/* The keys behind the blocks, and those before them that are held unpacked too, are as they were
 * appended. */
static void assert_tail(const kvc_cache *cache, const kvc_layer_spec *spec, const story *s,
                        int64_t b) {
    const int64_t turn = (int64_t)2 * spec->kv_group;
    char wanted[KEY_DIM * 4];
    kvc_cache_held held;
    kvc_array k;
    assert_ok(kvc_cache_view_tail(cache, 0, &k));
    assert_ok(kvc_cache_held_get(cache, 0, b, &held));
    assert_int_equal(k.shape[2], kvc_cache_length(cache, 0) ? turn : 0);
    assert_int_equal(held.length, s->length);
    assert_true(held.first >= s->oldest &&
                held.first <= s->length / spec->kv_group * spec->kv_group);
    for (int64_t p = held.first; p < s->length; p++)
        for (int64_t h = 0; h < HEADS; h++) {
            convert_elements(wanted, spec->dtype, &s->k[(p * HEADS + h) * KEY_DIM], KVC_F32,
                             KEY_DIM);
            assert_memory_equal(at(&k, b, h, p % turn), wanted,
                                KEY_DIM * kvc_dtype_size_bytes(spec->dtype));
        }
    kvc_array_release(&k);
}

/* The keys of a sequence as any reader gets them, through a copy into a plain cache: in blocks up
 * to a step of their scale off, behind these in dtype. */
static void assert_readable(const kvc_cache *cache, const kvc_layer_spec *spec, const story *all,
                            int64_t batch) {
    const kvc_layer_spec plain = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_F32};
    kvc_cache *copy = open_cache(&plain, KVC_GROW_EXACT, batch);
    kvc_array k, v;
    assert_ok(kvc_cache_copy(copy, cache));
    assert_ok(kvc_cache_view(copy, 0, &k, &v));
    for (int64_t b = 0; b < batch; b++) {
        assert_int_equal(kvc_cache_sequence_length(cache, 0, b), all[b].length);
        for (int64_t p = 0; p < all[b].length; p++)
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t d = 0; d < KEY_DIM; d++) {
                    const float given = ((const float *)(const void *)at(&k, b, h, p))[d];
                    const double wanted = (double)all[b].k[(p * HEADS + h) * KEY_DIM + d];
                    const bool packed = p < all[b].length / spec->kv_group * spec->kv_group;
                    const double span = spec->keys_per_channel ? 2 : 14;
                    const double step = packed ? span / ((1 << spec->kv_bits) - 1) : 0;
                    if (!(fabs((double)given - wanted) <= step + 0.07))
                        fail_msg("sequence %d, position %d of %d, element %d: %g, wanted %g",
                                 (int)b, (int)p, (int)all[b].length, (int)d, (double)given, wanted);
                }
    }
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(copy);
}

static void assert_all(const kvc_cache *cache, const kvc_layer_spec *spec, const story *all,
                       int64_t batch) {
    assert_ok(kvc_cache_check(cache));
    for (int64_t b = 0; !spec->rotated && b < batch; b++) {
        assert_blocks(cache, spec, &all[b], b);
        if (spec->keys_per_channel) assert_tail(cache, spec, &all[b], b);
    }
    assert_readable(cache, spec, all, batch);
}

static void per_channel__blocks_are_what_kvc_quantize_makes_of_them(void **state) {
    (void)state;
    uint64_t seed = test_seed(1);
    for (int w = 0; w < COUNT(widths); w++)
        for (int g = 0; g < COUNT(groups); g++)
            for (int i = 0; i < 3; i++) {
                const kvc_layer_spec spec = spec_of(widths[w], groups[g], dtypes[i]);
                kvc_cache *cache = open_cache(&spec, growths[(w + i) % 3], 1);
                stories[0].length = stories[0].oldest = 0;
                append_one(cache, 2 * groups[g] + test_below(&seed, groups[g]), &seed);
                assert_all(cache, &spec, stories, 1);
                kvc_cache_free(cache);
            }
}

/* PITFALLS 21: streaming equals one shot, at every length. */
static void per_channel__how_a_sequence_was_cut_makes_no_difference(void **state) {
    (void)state;
    uint64_t seed = test_seed(2);
    for (int g = 0; g < COUNT(groups); g++)
        for (int turn = 0; turn < 3; turn++) {
            const int64_t most = turn == 0 ? 1 : 3 * groups[g];
            const kvc_layer_spec spec = spec_of(4, groups[g], KVC_BF16);
            kvc_cache *cache = open_cache(&spec, growths[turn], 1);
            for (stories[0].length = stories[0].oldest = 0;
                 stories[0].length < 2 * groups[g] + 5;) {
                append_one(cache, 1 + test_below(&seed, most), &seed);
                if (most > 1 || stories[0].length % 13 == 0)
                    assert_blocks(cache, &spec, stories, 0);
                assert_tail(cache, &spec, stories, 0);
            }
            assert_all(cache, &spec, stories, 1);
            kvc_cache_free(cache);
        }
}

static void per_channel__a_trim_goes_back_to_what_was_unpacked(void **state) {
    (void)state;
    enum { G = 32 };
    uint64_t seed = test_seed(3);
    const kvc_layer_spec spec = spec_of(4, G, KVC_F16);
    for (int64_t length = 1; length < 5 * G; length += 1 + test_below(&seed, 9)) {
        kvc_cache *cache = open_cache(&spec, KVC_GROW_CHUNK, 1);
        stories[0].length = stories[0].oldest = 0;
        append_one(cache, length, &seed);
        const int64_t most = kvc_cache_trimmable(cache);
        assert_true(length <= 2 * G ? most == length : most > G && most <= 2 * G);
        assert_int_equal((length - most) % G, 0);
        if (most < length) {
            assert_fails(kvc_cache_trim(cache, most + 1), KVC_E_RANGE);
            assert_non_null(strstr(kvc_last_error(), "packed per channel"));
            assert_all(cache, &spec, stories, 1);
        }
        assert_fails(kvc_cache_trim(cache, length + 1), KVC_E_RANGE);
        const int64_t n = test_below(&seed, 3) ? test_below(&seed, most + 1) : most;
        assert_ok(kvc_cache_trim(cache, n));
        stories[0].length -= n;
        assert_int_equal(kvc_cache_trimmable(cache), most - n);
        assert_all(cache, &spec, stories, 1);
        append_one(cache, 1 + test_below(&seed, 3 * G), &seed);
        assert_all(cache, &spec, stories, 1);
        kvc_cache_free(cache);
    }
}

/* Ends with every list and cache as they were, whatever the kinds. */
static void copy_through(kvc_cache **cache, const kvc_layer_spec *spec, kvc_growth growth) {
    kvc_cache *copy = open_cache(spec, growth, BATCH);
    const int64_t before = kvc_cache_trimmable(*cache);
    assert_ok(kvc_cache_copy(copy, *cache));
    assert_int_equal(kvc_cache_trimmable(copy), before);
    kvc_cache_free(*cache);
    *cache = copy;
}

static void reorder(kvc_cache *cache, const int64_t *from) {
    memcpy(other, stories, sizeof other);
    for (int64_t b = 0; b < BATCH; b++) stories[b] = other[from[b]];
    assert_ok(kvc_cache_reorder(cache, from));
}

static void act(kvc_cache **cache, const kvc_layer_spec *spec, kvc_growth growth, uint64_t *seed) {
    const int64_t b = test_below(seed, BATCH), from = test_below(seed, BATCH);
    int64_t counts[BATCH];
    switch (test_below(seed, 9)) {
    case 0: {
        int64_t n = test_below(seed, 2 * spec->kv_group);
        if (n > stories[b].length) n = stories[b].length;
        const int64_t G = spec->kv_group, left = stories[b].length - n;
        const bool goes = left >= (stories[b].oldest + G - 1) / G * G;
        assert_int_equal(kvc_cache_trim_sequence(*cache, b, n), goes ? KVC_OK : KVC_E_RANGE);
        if (goes) stories[b].length = left;
        return;
    }
    case 1:
        assert_ok(kvc_cache_clear_sequence(*cache, b));
        stories[b].length = stories[b].oldest = 0;
        return;
    case 2:
        if (b != from) stories[b] = stories[from];
        assert_ok(kvc_cache_fork(*cache, b, from));
        return;
    case 3: reorder(*cache, (const int64_t[]){from, b, (b + 1) % BATCH}); return;
    case 4: copy_through(cache, spec, growth); return;
    default:
        for (int i = 0; i < BATCH; i++) {
            counts[i] = test_below(seed, test_below(seed, 4) ? 20 : 150);
            if (stories[i].length + counts[i] > MOST) counts[i] = MOST - stories[i].length;
        }
        assert_ok(append(*cache, stories, BATCH, counts, seed));
    }
}

static void per_channel__sequences_go_their_own_ways(void **state) {
    (void)state;
    uint64_t seed = test_seed(4);
    const double end = test_now() + test_seconds(2);
    for (int round = 0; round < 6 || test_now() < end; round++) {
        kvc_layer_spec spec = spec_of(widths[round % 6], groups[round % 3], dtypes[round / 2 % 3]);
        kvc_cache *cache = open_cache(&spec, growths[round % 3], BATCH);
        for (int b = 0; b < BATCH; b++) stories[b].length = stories[b].oldest = 0;
        for (int i = 0; i < 25; i++) {
            act(&cache, &spec, growths[test_below(&seed, 3)], &seed);
            assert_ok(kvc_cache_check(cache));
            if (i % 4 == 0) assert_all(cache, &spec, stories, BATCH);
        }
        assert_all(cache, &spec, stories, BATCH);
        kvc_cache_free(cache);
    }
}

/* From another kind, and to another. */
static void per_channel__is_copied_to_and_from_any_kind(void **state) {
    (void)state;
    uint64_t seed = test_seed(5);
    const int64_t counts[BATCH] = {100, 0, 231};
    kvc_layer_spec spec = spec_of(8, 64, KVC_F32), kinds[4] = {spec, spec, spec, spec};
    kinds[1].keys_per_channel = false;
    kinds[2] = (kvc_layer_spec){
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_F32};
    kinds[3].kv_group = 32;
    kinds[3].rotated = true;
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            kvc_cache *a = open_cache(&kinds[from], KVC_GROW_CHUNK, BATCH);
            kvc_cache *b = open_cache(&kinds[to], KVC_GROW_RESERVE, BATCH);
            for (int i = 0; i < BATCH; i++) stories[i].length = stories[i].oldest = 0;
            assert_ok(append(a, stories, BATCH, counts, &seed));
            assert_ok(kvc_cache_copy(b, a));
            assert_ok(kvc_cache_check(b));
            spec.kv_bits =
                6; /* packed twice, and perhaps along rows: an error four times as large */
            spec.kv_group = 1;
            spec.keys_per_channel = false;
            assert_readable(b, &spec, stories, BATCH);
            kvc_cache_free(a);
            kvc_cache_free(b);
        }
}

/* The squared error of keys as a reader gets them. */
static double key_error(const kvc_layer_spec *spec, uint64_t seed) {
    const kvc_layer_spec plain = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_F32};
    kvc_cache *cache = open_cache(spec, KVC_GROW_CHUNK, 1);
    kvc_cache *copy = open_cache(&plain, KVC_GROW_EXACT, 1);
    double error = 0;
    kvc_array k, v;
    stories[0].length = stories[0].oldest = 0;
    append_one(cache, 256, &seed);
    assert_ok(kvc_cache_copy(copy, cache));
    assert_ok(kvc_cache_view(copy, 0, &k, &v));
    for (int64_t p = 0; p < 256; p++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t d = 0; d < KEY_DIM; d++) {
                const float given = ((const float *)(const void *)at(&k, 0, h, p))[d];
                const float off = given - stories[0].k[(p * HEADS + h) * KEY_DIM + d];
                error += (double)(off * off);
            }
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(cache);
    kvc_cache_free(copy);
    return error;
}

/* What both are for. */
static void per_channel__and_rotation_lose_less_where_some_elements_are_large(void **state) {
    (void)state;
    const uint64_t seed = test_seed(6);
    for (int bits = 3; bits <= 4; bits++) {
        kvc_layer_spec spec = spec_of(bits, 64, KVC_F32);
        const double per_channel = key_error(&spec, seed);
        spec.keys_per_channel = false;
        const double per_position = key_error(&spec, seed);
        spec.rotated = true;
        const double rotated = key_error(&spec, seed);
        print_message("%d bits: per position %g, per channel %g, rotated %g\n", bits, per_position,
                      per_channel, rotated);
        assert_true(per_channel < 0.05 * per_position);
        assert_true(rotated < 0.7 * per_position);
    }
}

static void per_channel__what_cannot_be_is_refused(void **state) {
    (void)state;
    kvc_layer_spec spec = spec_of(4, 32, KVC_BF16);
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .layers = 1,
                           .specs = &spec,
                           .spec_count = 1,
                           .growth = KVC_GROW_CHUNK};
    kvc_blocks_desc blocks_desc = {
        .struct_size = sizeof blocks_desc, .layers = 1, .specs = &spec, .spec_count = 1};
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_blocks *blocks;
    kvc_array k;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    spec.window = 64;
    assert_fails(kvc_cache_new(&cache, pool, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "keys_per_channel"));
    spec.window = 0;
    assert_fails(kvc_blocks_new(&blocks, pool, &blocks_desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "keys_per_channel"));
    spec.kv_bits = spec.kv_group = 0;
    assert_fails(kvc_cache_new(&cache, pool, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "keys_per_channel"));
    spec.keys_per_channel = false;
    spec.rotated = true;
    assert_fails(kvc_cache_new(&cache, pool, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "rotated"));
    spec.rotated = false;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    assert_fails(kvc_cache_view_tail(cache, 0, &k), KVC_E_UNSUPPORTED);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

static void per_channel__bytes_are_those_of_blocks_and_tail(void **state) {
    (void)state;
    uint64_t seed = test_seed(8);
    const kvc_layer_spec spec = spec_of(4, 64, KVC_BF16);
    kvc_cache *cache = open_cache(&spec, KVC_GROW_CHUNK, 1);
    kvc_cache_nbytes bytes = {.struct_size = sizeof bytes};
    stories[0].length = stories[0].oldest = 0;
    append_one(cache, 130, &seed); /* two blocks and two keys behind them */
    assert_ok(kvc_cache_nbytes_get(cache, &bytes));
    const uint64_t values = 130 * (VALUE_DIM / 2 + VALUE_DIM / 64 * 4);
    const uint64_t keys = 2 * (KEY_DIM * (64 / 2 + 4)) + 2 * KEY_DIM * 2;
    assert_int_equal(bytes.used, HEADS * (values + keys));
    assert_int_equal(kvc_cache_capacity(cache, 0), 192); /* chunks of 40 become those of 64 */
    assert_true(bytes.resident >= HEADS * (192 * (VALUE_DIM / 2 + VALUE_DIM / 64 * 4) +
                                           3 * KEY_DIM * (64 / 2 + 4) + 128 * KEY_DIM * 2));
    kvc_cache_free(cache);
}

/* Each allocation fails once: nothing has changed, and the same call then succeeds. */
static void per_channel__that_fails_to_grow_changes_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(9);
    const size_t held = test_allocator_held();
    test_allocator_use(true);
    for (size_t nth = 1, done = 0; !done; nth++) {
        const kvc_layer_spec spec = spec_of(4, 32, KVC_BF16);
        kvc_cache *cache = open_cache(&spec, KVC_GROW_CHUNK, BATCH);
        for (int b = 0; b < BATCH; b++) stories[b].length = stories[b].oldest = 0;
        assert_ok(append(cache, stories, BATCH, (const int64_t[]){39, 5, 64}, &seed));
        test_fault_arm(nth, TEST_FAULT_ONCE);
        kvc_status status = append(cache, stories, BATCH, (const int64_t[]){90, 1, 30}, &seed);
        const kvc_status turned = kvc_cache_reorder(cache, (const int64_t[]){1, 0, 1});
        done = !test_fault_disarm();
        assert_true(status == KVC_OK || status == KVC_E_NOMEM);
        if (turned == KVC_OK) {
            kept = stories[0];
            stories[0] = stories[2] = stories[1];
            stories[1] = kept;
        }
        assert_all(cache, &spec, stories, BATCH);
        if (done) assert_true(status == KVC_OK && turned == KVC_OK && nth > 7);
        assert_ok(append(cache, stories, BATCH, (const int64_t[]){70, 3, 40}, &seed));
        assert_all(cache, &spec, stories, BATCH);
        kvc_cache_free(cache);
    }
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), held);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_channel__blocks_are_what_kvc_quantize_makes_of_them),
        cmocka_unit_test(per_channel__how_a_sequence_was_cut_makes_no_difference),
        cmocka_unit_test(per_channel__a_trim_goes_back_to_what_was_unpacked),
        cmocka_unit_test(per_channel__sequences_go_their_own_ways),
        cmocka_unit_test(per_channel__is_copied_to_and_from_any_kind),
        cmocka_unit_test(per_channel__and_rotation_lose_less_where_some_elements_are_large),
        cmocka_unit_test(per_channel__what_cannot_be_is_refused),
        cmocka_unit_test(per_channel__bytes_are_those_of_blocks_and_tail),
        cmocka_unit_test(per_channel__that_fails_to_grow_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
