/* What an append takes, how it converts, and what it refuses before it has written anything. */
#include <stdlib.h>
#include <string.h>

#include <kvcache/cache.h>

#include "base/half.h"
#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { BATCH = 2, HEADS = 3, KEY_DIM = 16, VALUE_DIM = 5 };

static test_device device;
static kvc_pool *pool;

static int open_pool(void **state) {
    (void)state;
    test_device_init(&device);
    assert_ok(kvc_pool_new(&pool, &device.table));
    return 0;
}

static int close_pool(void **state) {
    (void)state;
    kvc_pool_free(pool);
    test_device_deinit(&device);
    return 0;
}

static kvc_cache *new_cache(kvc_growth growth, kvc_dtype dtype) {
    kvc_cache *cache;
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = dtype};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = BATCH,
                                 .layers = 2,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = 4,
                                 .max_positions = 10};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    return cache;
}

static const float zeros[1 << 12];

/* A borrowed array of zeros, without strides of its own. */
static kvc_array zeros_of(kvc_dtype dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    kvc_array array;
    const int64_t shape[5] = {a, b, c, d, 1};
    assert_ok(kvc_array_borrow(&array, dtype, ndim, shape, NULL, zeros));
    return array;
}

/* Whatever is wrong with an append, it is told by both shapes, and nothing has changed: not even
 * that one side was written or that room was made. */
static void assert_append_refused(kvc_growth growth, const kvc_array *k, const kvc_array *v,
                                  kvc_status status, const char *const words[3]) {
    uint64_t random = 7;
    naive_cache naive;
    kvc_cache *cache = new_cache(growth, KVC_BF16);
    naive_cache_init(&naive, cache);
    append_both(cache, &naive, 0, 3, &random);
    append_both(cache, &naive, 1, 4, &random);
    const int64_t capacity = kvc_cache_capacity(cache, 1);
    kvc_cache_stats before = {.struct_size = sizeof before}, after = before;
    assert_ok(kvc_cache_stats_get(cache, &before));
    const uint64_t copied = device.copied_bytes, calls = test_device_driver_calls(&device);

    assert_fails(kvc_cache_append(cache, 1, k, v), status);
    for (int i = 0; i < 3; i++)
        if (words[i] && !strstr(kvc_last_error(), words[i]))
            fail_msg("'%s' does not name '%s'", kvc_last_error(), words[i]);

    assert_ok(kvc_cache_stats_get(cache, &after));
    assert_memory_equal(&after, &before, sizeof before);
    assert_int_equal(kvc_cache_capacity(cache, 1), capacity);
    assert_int_equal(device.copied_bytes, copied);
    assert_int_equal(test_device_driver_calls(&device), calls);
    assert_cache_equal(&naive, cache);
    naive_cache_deinit(&naive);
    kvc_cache_free(cache);
}

static void assert_refused(const kvc_array *k, const kvc_array *v, kvc_status status,
                           const char *one, const char *two, const char *three) {
    const char *const words[3] = {one, two, three};
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)
        assert_append_refused(growth, k, v, status, words);
}

static void append__shapes_that_do_not_fit_are_refused_with_both_shapes(void **state) {
    (void)state;
    const kvc_array k = zeros_of(KVC_F32, 4, 2, 3, 5, 16), v = zeros_of(KVC_F32, 4, 2, 3, 5, 5);
    const kvc_status shape = KVC_E_SHAPE;
    kvc_array bad;
    bad = zeros_of(KVC_F32, 4, 1, 3, 5, 16);
    assert_refused(&bad, &v, shape, "k: ", "[1, 3, 5, 16] given", "[2, 3, n, 16] wanted");
    bad = zeros_of(KVC_F32, 4, 2, 4, 5, 16);
    assert_refused(&bad, &v, shape, "k: ", "[2, 4, 5, 16] given", "[2, 3, n, 16] wanted");
    bad = zeros_of(KVC_F32, 4, 2, 3, 5, 15);
    assert_refused(&bad, &v, shape, "k: ", "[2, 3, 5, 15] given", "[2, 3, n, 16] wanted");
    bad = zeros_of(KVC_F32, 3, 2, 3, 5, 16);
    assert_refused(&bad, &v, shape, "k: ", "[2, 3, 5] given", "[2, 3, n, 16] wanted");
    bad = zeros_of(KVC_F32, 5, 2, 3, 5, 16);
    assert_refused(&bad, &v, shape, "k: ", "[2, 3, 5, 16, 1] given", NULL);
    /* v last: k has been found right by then, and must not have been written. */
    bad = zeros_of(KVC_F32, 4, 2, 3, 4, 5);
    assert_refused(&k, &bad, shape, "v: ", "[2, 3, 4, 5] given", "[2, 3, 5, 5] wanted");
    bad = zeros_of(KVC_F32, 4, 2, 3, 0, 5);
    assert_refused(&k, &bad, shape, "v: ", "[2, 3, 0, 5] given", "[2, 3, 5, 5] wanted");
    assert_refused(&k, &k, shape, "v: ", "[2, 3, 5, 16] given", "[2, 3, 5, 5] wanted");
    bad = zeros_of(KVC_F32, 4, 2, 3, 0, 16); /* nothing to append, but not of v's count */
    assert_refused(&bad, &v, shape, "v: ", "[2, 3, 5, 5] given", "[2, 3, 0, 5] wanted");
}

static void append__what_is_no_array_is_refused(void **state) {
    (void)state;
    const kvc_array k = zeros_of(KVC_F32, 4, 2, 3, 5, 16), v = zeros_of(KVC_F32, 4, 2, 3, 5, 5);
    const kvc_array empty = {0};
    kvc_array bad;
    assert_refused(NULL, &v, KVC_E_INVALID, "k: NULL given", NULL, NULL);
    assert_refused(&k, NULL, KVC_E_INVALID, "v: NULL given", NULL, NULL);
    assert_refused(&empty, &v, KVC_E_INVALID, "k: ", NULL, NULL);
    bad = k;
    bad.ndim = 9;
    assert_refused(&bad, &v, KVC_E_INVALID, "k: ", "9", NULL);
    /* Arrays are structs that a caller may fill: a count below 0 is not a way to any count. */
    bad = k;
    bad.shape[2] = -1;
    assert_refused(&bad, &v, KVC_E_SHAPE, "k: ", "[2, 3, -1, 16] given", NULL);
}

static void append__dtypes_that_are_no_floats_are_refused(void **state) {
    (void)state;
    const kvc_array k = zeros_of(KVC_F32, 4, 2, 3, 5, 16), v = zeros_of(KVC_F32, 4, 2, 3, 5, 5);
    kvc_array bad = zeros_of(KVC_I8, 4, 2, 3, 5, 16);
    assert_refused(&bad, &v, KVC_E_SHAPE, "k: ", "i8 given", "f32, f16 or bf16 wanted");
    bad = zeros_of(KVC_U32, 4, 2, 3, 5, 5);
    assert_refused(&k, &bad, KVC_E_SHAPE, "v: ", "u32 given", "f32, f16 or bf16 wanted");
}

static void append__arrays_of_another_device_are_refused(void **state) {
    (void)state;
    kvc_pool *others;
    kvc_array k;
    const kvc_array v = zeros_of(KVC_F32, 4, 2, 3, 1, 5);
    assert_ok(kvc_pool_new(&others, kvc_device_cpu()));
    assert_ok(kvc_array_zeros(&k, others, KVC_F32, 4, (const int64_t[4]){2, 3, 1, 16}));
    assert_refused(&k, &v, KVC_E_SHAPE, "k: ", "'cpu'", "'test'");
    kvc_array_release(&k);
    kvc_pool_free(others);
}

/* Pitfalls 3 and 10: the maximum is no multiple of the chunk, and is exactly the maximum. */
static void append__the_last_chunk_may_be_short_and_one_more_position_is_refused(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        uint64_t random = 1;
        naive_cache naive;
        kvc_cache *cache = new_cache(growth, KVC_F16); /* chunk 4, at most 10 */
        const kvc_array k = zeros_of(KVC_F32, 4, 2, 3, 1, 16), v = zeros_of(KVC_F32, 4, 2, 3, 1, 5);
        naive_cache_init(&naive, cache);
        for (int i = 0; i < 10; i++) append_both(cache, &naive, 0, 1, &random);
        append_both(cache, &naive, 1, 10, &random);
        for (int64_t layer = 0; layer < 2; layer++) {
            assert_fails(kvc_cache_append(cache, layer, &k, &v), KVC_E_RANGE);
            assert_non_null(strstr(kvc_last_error(), "11 positions"));
            assert_non_null(strstr(kvc_last_error(), "max_positions is 10"));
        }
        assert_cache_equal(&naive, cache);
        /* All or nothing: 9 and 2 more do not end at 10. */
        assert_ok(kvc_cache_trim(cache, 1));
        naive_cache_trim(&naive, 1);
        const kvc_array k2 = zeros_of(KVC_F32, 4, 2, 3, 2, 16),
                        v2 = zeros_of(KVC_F32, 4, 2, 3, 2, 5);
        assert_fails(kvc_cache_append(cache, 0, &k2, &v2), KVC_E_RANGE);
        assert_cache_equal(&naive, cache);
        append_both(cache, &naive, 0, 1, &random);
        assert_cache_equal(&naive, cache);
        naive_cache_deinit(&naive);
        kvc_cache_free(cache);
    }
}

static void append__of_no_positions_changes_nothing(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        kvc_cache *cache = new_cache(growth, KVC_BF16);
        const kvc_array k = zeros_of(KVC_F32, 4, 2, 3, 0, 16), v = zeros_of(KVC_F32, 4, 2, 3, 0, 5);
        const uint64_t calls = test_device_driver_calls(&device);
        assert_ok(kvc_cache_append(cache, 0, &k, &v));
        assert_int_equal(kvc_cache_length(cache, 0), 0);
        assert_int_equal(test_device_driver_calls(&device), calls);
        assert_ok(kvc_cache_check(cache));
        kvc_cache_free(cache);
    }
}

/* All that an engine may hand over: every dtype in every layout, into every dtype of cache. */
static void append__rows_of_every_dtype_and_layout_arrive_to_the_bit(void **state) {
    (void)state;
    uint64_t random = test_seed(2);
    const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};
    for (int to = 0; to < 3; to++) {
        naive_cache naive;
        kvc_cache *cache = new_cache(KVC_GROW_RESERVE, dtypes[to]);
        naive_cache_init(&naive, cache);
        for (int from = 0; from < 3; from++)
            for (rows_layout layout = 0; layout < ROWS_LAYOUTS; layout++)
                for (int64_t n = 1; n <= 9; n += 4) {
                    rows k, v;
                    rows_init(&k, dtypes[from], layout, (const int64_t[4]){2, 3, n, 16}, &random);
                    rows_init(&v, KVC_F32, layout, (const int64_t[4]){2, 3, n, 5}, &random);
                    assert_ok(kvc_cache_append(cache, 1, &k.array, &v.array));
                    naive_cache_append(&naive, 1, &k.array, &v.array);
                    assert_cache_equal(&naive, cache);
                    kvc_cache_clear(cache);
                    naive_cache_clear(&naive);
                    rows_deinit(&k);
                    rows_deinit(&v);
                }
        naive_cache_deinit(&naive);
        kvc_cache_free(cache);
    }
}

/* Without the naive cache's help: these values, at these places, rounded to nearest even. */
static void append__position_major_f32_becomes_head_major_bf16(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_array k, v;
    const kvc_layer_spec spec = {.kv_heads = 2, .key_dim = 2, .value_dim = 1, .dtype = KVC_BF16};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .max_positions = 256};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    /* [position][head][dim], as a projection leaves it. 1 + 2^-8 is a tie and goes to 1; 1 + 3·2^-8
     * is one too and goes up. */
    const float keys[3][2][2] = {{{1, 2}, {3, 4}},
                                 {{1.00390625F, 1.01171875F}, {-1.00390625F, -0.0F}},
                                 {{1e-40F, 3.4e38F}, {0.1F, -0.1F}}};
    const float values[3][2] = {{5, 6}, {7, 8}, {9, 10}};
    assert_ok(kvc_array_borrow(&k, KVC_F32, 4, (const int64_t[4]){1, 2, 3, 2},
                               (const int64_t[4]){12, 2, 4, 1}, keys));
    assert_ok(kvc_array_borrow(&v, KVC_F32, 4, (const int64_t[4]){1, 2, 3, 1},
                               (const int64_t[4]){6, 1, 2, 1}, values));
    assert_ok(kvc_cache_append(cache, 0, &k, &v));
    assert_ok(kvc_cache_view(cache, 0, &k, &v));
    const uint16_t wanted[2][3][2] = {{{0x3f80, 0x4000}, {0x3f80, 0x3f82}, {0x0001, 0x7f80}},
                                      {{0x4040, 0x4080}, {0xbf80, 0x8000}, {0x3dcd, 0xbdcd}}};
    assert_int_equal(k.strides[1], 256 * 2); /* head to head: the capacity, whole chunks */
    for (int h = 0; h < 2; h++)
        assert_memory_equal((const uint16_t *)k.data + h * k.strides[1], wanted[h],
                            sizeof wanted[h]);
    const uint16_t *last = (const uint16_t *)v.data + v.strides[1] + 2 * v.strides[2];
    assert_int_equal(*last, kvc__bf16_of_f32(10));
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(cache);
}

/* Sliding layers beside full ones, and layers that run ahead of others. */
static void append__layers_of_unlike_geometry_and_length_are_one_cache(void **state) {
    (void)state;
    const kvc_layer_spec specs[4] = {
        {.kv_heads = 1, .key_dim = 1, .dtype = KVC_F32},
        {.kv_heads = 8, .key_dim = 32, .dtype = KVC_BF16},
        {.kv_heads = 3, .key_dim = 7, .value_dim = 64, .dtype = KVC_F16},
        {.kv_heads = 2, .key_dim = 128, .value_dim = 1, .dtype = KVC_F32}};
    uint64_t random = test_seed(3);
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        uint64_t used = 0;
        naive_cache naive;
        kvc_cache *cache;
        const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                     .batch = 3,
                                     .layers = 4,
                                     .specs = specs,
                                     .spec_count = 4,
                                     .growth = growth,
                                     .chunk = 8,
                                     .max_positions = 50};
        assert_ok(kvc_cache_new(&cache, pool, &desc));
        naive_cache_init(&naive, cache);
        for (int64_t n = 1; n <= 9; n++)
            for (int64_t layer = 0; layer < 4; layer++)
                append_both(cache, &naive, layer, (n * (layer + 1)) % 6, &random);
        assert_cache_equal(&naive, cache);
        for (int i = 0; i < 4; i++) {
            const naive_layer *l = &naive.layer[i];
            used += (uint64_t)(3 * l->length * l->spec.kv_heads *
                               (l->spec.key_dim + l->spec.value_dim)) *
                    kvc_dtype_size_bytes(l->spec.dtype);
        }
        kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
        assert_ok(kvc_cache_nbytes_get(cache, &nbytes));
        assert_int_equal(nbytes.used, used);
        assert_true(nbytes.resident >= used);
        naive_cache_deinit(&naive);
        kvc_cache_free(cache);
    }
}

/* A cache's view is an array like any other, also as the source for another cache. */
static void append__takes_the_view_of_another_cache(void **state) {
    (void)state;
    uint64_t random = 4;
    naive_cache naive, copy;
    kvc_array k, v;
    kvc_cache *from = new_cache(KVC_GROW_CHUNK, KVC_F32), *to = new_cache(KVC_GROW_EXACT, KVC_F16);
    naive_cache_init(&naive, from);
    naive_cache_init(&copy, to);
    append_both(from, &naive, 0, 6, &random);
    assert_ok(kvc_cache_view(from, 0, &k, &v));
    assert_ok(kvc_cache_append(to, 1, &k, &v));
    naive_cache_append(&copy, 1, &k, &v);
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(from);
    assert_cache_equal(&copy, to);
    naive_cache_deinit(&naive);
    naive_cache_deinit(&copy);
    kvc_cache_free(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append__shapes_that_do_not_fit_are_refused_with_both_shapes),
        cmocka_unit_test(append__what_is_no_array_is_refused),
        cmocka_unit_test(append__dtypes_that_are_no_floats_are_refused),
        cmocka_unit_test(append__arrays_of_another_device_are_refused),
        cmocka_unit_test(append__the_last_chunk_may_be_short_and_one_more_position_is_refused),
        cmocka_unit_test(append__of_no_positions_changes_nothing),
        cmocka_unit_test(append__rows_of_every_dtype_and_layout_arrive_to_the_bit),
        cmocka_unit_test(append__position_major_f32_becomes_head_major_bf16),
        cmocka_unit_test(append__layers_of_unlike_geometry_and_length_are_one_cache),
        cmocka_unit_test(append__takes_the_view_of_another_cache),
    };
    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
