/* Packed rows: what a cache holds is what kvc_quantize gives, however it came in and wherever it
 * lies. */
#include <math.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/quantize.h>

#include "support/attend.h"
#include "support/stories.h"
#include "support/support.h"

enum { BATCH = 2, HEADS = 2, POSITIONS = 40 };
static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
static const kvc_growth growths[] = {KVC_GROW_RESERVE, KVC_GROW_CHUNK, KVC_GROW_EXACT};

static kvc_layer_spec spec_of(int bits, int group, kvc_dtype scaling) {
    return (kvc_layer_spec){.kv_heads = HEADS,
                            .key_dim = 2 * group,
                            .value_dim = group,
                            .dtype = scaling,
                            .kv_bits = bits,
                            .kv_group = group};
}

static kvc_pool *new_pool(void) {
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    return pool;
}

static kvc_cache *new_cache(const kvc_layer_spec *spec, kvc_growth growth) {
    kvc_pool *pool = new_pool();
    kvc_cache *cache;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = BATCH,
                                 .layers = 1,
                                 .specs = spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = 16,
                                 .max_positions = 1000};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_pool_free(pool); /* the cache keeps it alive */
    return cache;
}

/* A whole array, packed at once: what is right. */
typedef struct packed {
    test_tensor words, scales, biases;
    kvc_quantized q;
} packed;

static packed pack(const kvc_array *x, int bits, int group, kvc_dtype scaling) {
    const int64_t b = x->shape[0], h = x->shape[1], n = x->shape[2], dim = x->shape[3];
    packed p = {.words = test_tensor_new(KVC_U8, TEST_HEAD_MAJOR, b, h, n, dim * bits / 8),
                .scales = test_tensor_new(scaling, TEST_HEAD_MAJOR, b, h, n, dim / group),
                .biases = test_tensor_new(scaling, TEST_HEAD_MAJOR, b, h, n, dim / group)};
    p.q = (kvc_quantized){.struct_size = sizeof p.q,
                          .bits = bits,
                          .group = group,
                          .words = p.words.array,
                          .scales = p.scales.array,
                          .biases = p.biases.array};
    assert_ok(kvc_quantize(&p.q, x));
    return p;
}

static void packed_free(packed *p) {
    test_tensor_free(&p->words);
    test_tensor_free(&p->scales);
    test_tensor_free(&p->biases);
}

/* Rows to the bit, NaN too. */
static void assert_array_same(const kvc_array *found, const kvc_array *wanted, const char *name) {
    assert_int_equal(found->dtype, wanted->dtype);
    assert_memory_equal(found->shape, wanted->shape, 4 * sizeof *found->shape);
    const size_t size = kvc_dtype_size_bytes(found->dtype), bytes = (size_t)found->shape[3] * size;
    for (int64_t b = 0; b < found->shape[0]; b++)
        for (int64_t h = 0; h < found->shape[1]; h++)
            for (int64_t i = 0; i < found->shape[2]; i++) {
                const kvc_array *a[2] = {found, wanted};
                const char *row[2];
                for (int j = 0; j < 2; j++)
                    row[j] = (const char *)a[j]->data +
                             (b * a[j]->strides[0] + h * a[j]->strides[1] + i * a[j]->strides[2]) *
                                 (int64_t)size;
                if (memcmp(row[0], row[1], bytes) != 0)
                    fail_msg("%s[%lld][%lld][%lld] differ", name, (long long)b, (long long)h,
                             (long long)i);
            }
}

static void assert_same(const kvc_quantized *found, const packed *wanted) {
    assert_int_equal(found->bits, wanted->q.bits);
    assert_int_equal(found->group, wanted->q.group);
    assert_array_same(&found->words, &wanted->q.words, "words");
    assert_array_same(&found->scales, &wanted->q.scales, "scales");
    assert_array_same(&found->biases, &wanted->q.biases, "biases");
}

static void release(kvc_quantized *q) {
    kvc_array_release(&q->words);
    kvc_array_release(&q->scales);
    kvc_array_release(&q->biases);
}

/* Fails unless a layer holds k and v packed. */
static void assert_holds(const kvc_cache *cache, const kvc_layer_spec *spec, const kvc_array *k,
                         const kvc_array *v) {
    kvc_quantized found[2];
    packed keys = pack(k, spec->kv_bits, spec->kv_group, spec->dtype);
    packed values = pack(v, spec->kv_bits, spec->kv_group, spec->dtype);
    assert_ok(kvc_cache_check(cache));
    assert_ok(kvc_cache_view_quantized(cache, 0, &found[0], &found[1]));
    assert_same(&found[0], &keys);
    assert_same(&found[1], &values);
    release(&found[0]);
    release(&found[1]);
    packed_free(&keys);
    packed_free(&values);
}

/* Positions [from, from + n). */
static kvc_array some_of(const kvc_array *a, int64_t from, int64_t n) {
    kvc_array some = *a;
    some.data = (char *)a->data + from * a->strides[2] * (int64_t)kvc_dtype_size_bytes(a->dtype);
    some.shape[2] = n;
    return some;
}

static void append_in_pieces(kvc_cache *cache, const kvc_array *k, const kvc_array *v, int64_t most,
                             uint64_t *seed) {
    for (int64_t done = 0, n; done < k->shape[2]; done += n) {
        n = 1 + test_below(seed, most);
        if (n > k->shape[2] - done) n = k->shape[2] - done;
        const kvc_array some_k = some_of(k, done, n), some_v = some_of(v, done, n);
        assert_ok(kvc_cache_append(cache, 0, &some_k, &some_v));
    }
}

/* Keys and values of a dtype, in a layout, as large as rounding makes a difference. */
static void new_rows(test_tensor rows[2], const kvc_layer_spec *spec, kvc_dtype dtype,
                     test_layout layout, uint64_t *seed) {
    const int64_t dims[2] = {spec->key_dim, spec->value_dim};
    for (int side = 0; side < 2; side++) {
        rows[side] = test_tensor_new(dtype, layout, BATCH, HEADS, POSITIONS, dims[side]);
        test_fill_random(&rows[side].array, 3, seed);
    }
}

static void free_rows(test_tensor rows[2]) {
    test_tensor_free(&rows[0]);
    test_tensor_free(&rows[1]);
}

/* Pitfall 21: however a sequence is cut into appends. */
static void packed__streaming_is_one_shot_to_the_bit(void **state) {
    (void)state;
    uint64_t seed = test_seed(21);
    for (int w = 0; w < 6; w++)
        for (int g = 0; g < 3; g++)
            for (int scaling = 0; scaling < 3; scaling++)
                for (int source = 0; source < 3; source++)
                    for (int growth = 0; growth < 3; growth++) {
                        const kvc_layer_spec spec = spec_of(widths[w], groups[g], dtypes[scaling]);
                        kvc_cache *cache = new_cache(&spec, growths[growth]);
                        test_tensor rows[2];
                        new_rows(rows, &spec, dtypes[source], TEST_TOKEN_MAJOR, &seed);
                        append_in_pieces(cache, &rows[0].array, &rows[1].array, 9, &seed);
                        assert_holds(cache, &spec, &rows[0].array, &rows[1].array);
                        free_rows(rows);
                        kvc_cache_free(cache);
                    }
}

/* The last dimension goes backwards: a stride of -1. */
static kvc_array mirrored(const kvc_array *a) {
    kvc_array m = *a;
    m.data = (char *)a->data +
             (a->shape[3] - 1) * a->strides[3] * (int64_t)kvc_dtype_size_bytes(a->dtype);
    m.strides[3] = -a->strides[3];
    return m;
}

/* An array with the elements of another, one after the other. */
static test_tensor straightened(const kvc_array *a) {
    test_tensor t = test_tensor_new(a->dtype, TEST_HEAD_MAJOR, a->shape[0], a->shape[1],
                                    a->shape[2], a->shape[3]);
    for (int64_t b = 0; b < a->shape[0]; b++)
        for (int64_t h = 0; h < a->shape[1]; h++)
            for (int64_t i = 0; i < a->shape[2]; i++)
                for (int64_t d = 0; d < a->shape[3]; d++)
                    test_set(&t.array, b, h, i, d, test_get(a, b, h, i, d));
    return t;
}

static void packed__rows_come_by_any_strides(void **state) {
    (void)state;
    uint64_t seed = test_seed(22);
    for (int w = 0; w < 6; w++)
        for (int source = 0; source < 3; source++)
            for (int layout = TEST_HEAD_MAJOR; layout <= TEST_SPREAD; layout++)
                for (int mirror = 0; mirror < 2; mirror++) {
                    const kvc_layer_spec spec = spec_of(widths[w], groups[w % 3], KVC_F16);
                    kvc_cache *cache = new_cache(&spec, KVC_GROW_CHUNK);
                    test_tensor rows[2], straight[2];
                    kvc_array given[2];
                    new_rows(rows, &spec, dtypes[source], (test_layout)layout, &seed);
                    for (int side = 0; side < 2; side++) {
                        given[side] = mirror ? mirrored(&rows[side].array) : rows[side].array;
                        straight[side] = straightened(&given[side]);
                    }
                    append_in_pieces(cache, &given[0], &given[1], 30, &seed);
                    assert_holds(cache, &spec, &straight[0].array, &straight[1].array);
                    free_rows(rows);
                    free_rows(straight);
                    kvc_cache_free(cache);
                }
}

/* A group that holds NaN or infinity is NaN, and no other. */
static void packed__a_group_of_nan_is_nan_alone(void **state) {
    (void)state;
    uint64_t seed = test_seed(23);
    const double bad[] = {(double)NAN, (double)INFINITY, (double)-INFINITY};
    for (int w = 0; w < 6; w++) {
        const kvc_layer_spec spec = spec_of(widths[w], 32, KVC_F32);
        kvc_cache *cache = new_cache(&spec, KVC_GROW_RESERVE);
        kvc_quantized k, v;
        test_tensor rows[2];
        new_rows(rows, &spec, KVC_F32, TEST_HEAD_MAJOR, &seed);
        for (int i = 0; i < 3; i++) test_set(&rows[0].array, 1, 0, 10 * i, 33, bad[i]);
        append_in_pieces(cache, &rows[0].array, &rows[1].array, 1, &seed);
        assert_holds(cache, &spec, &rows[0].array, &rows[1].array);
        assert_ok(kvc_cache_view_quantized(cache, 0, &k, &v));
        for (int64_t i = 0; i < POSITIONS; i++)
            for (int64_t g = 0; g < 2; g++) {
                const bool is_bad = g == 1 && i % 10 == 0 && i < 30;
                assert_true(is_bad == isnan(test_get(&k.scales, 1, 0, i, g)));
                assert_true(is_bad == isnan(test_get(&k.biases, 1, 0, i, g)));
            }
        release(&k);
        release(&v);
        free_rows(rows);
        kvc_cache_free(cache);
    }
}

static void packed__sequences_of_several_lengths_trim_fork_and_move(void **state) {
    (void)state;
    for (int w = 0; w < 6; w++)
        for (int growth = 0; growth < 3; growth++) {
            const kvc_layer_spec spec = spec_of(widths[w], groups[w % 3], dtypes[growth]);
            stories s;
            stories_init(&s, new_cache(&spec, growths[growth]));
            stories_append_ragged(&s, (const int64_t[]){17, 3}, NULL);
            stories_append(&s, 1);
            stories_trim_sequence(&s, 0, 5);
            stories_reorder(&s, (const int64_t[]){1, 0});
            stories_append_ragged(&s, (const int64_t[]){0, 20}, NULL);
            stories_check(&s);
            stories_fork(&s, 0, 1);
            stories_append_ragged(&s, (const int64_t[]){2, 3}, NULL);
            stories_check(&s);
            kvc_cache_free(s.cache);
            stories_deinit(&s);
        }
}

static void packed__a_ring_turns_packed_rows(void **state) {
    (void)state;
    for (int w = 0; w < 6; w++)
        for (int growth = 0; growth < 3; growth++) {
            kvc_layer_spec spec = spec_of(widths[w], groups[w % 3], dtypes[growth]);
            stories s;
            spec.window = 8;
            spec.keep = 2;
            stories_init(&s, new_cache(&spec, growths[growth]));
            stories_append(&s, 10);
            for (int i = 0; i < 30; i++) {
                stories_append_ragged(&s, (const int64_t[]){1 + i % 5 / 4 * 6, i % 3}, NULL);
                stories_check(&s);
            }
            kvc_cache_free(s.cache);
            stories_deinit(&s);
        }
}

static void packed__blocks_hold_packed_rows(void **state) {
    (void)state;
    for (int w = 0; w < 6; w++) {
        const kvc_layer_spec spec = spec_of(widths[w], groups[w % 3], dtypes[w % 3]);
        const kvc_blocks_desc blocks_desc = {.struct_size = sizeof blocks_desc,
                                             .layers = 1,
                                             .specs = &spec,
                                             .spec_count = 1,
                                             .positions = 16};
        kvc_pool *pool = new_pool();
        kvc_blocks *blocks;
        kvc_cache *cache;
        stories s;
        assert_ok(kvc_blocks_new(&blocks, pool, &blocks_desc));
        const kvc_cache_desc desc = {
            .struct_size = sizeof desc, .batch = BATCH, .growth = KVC_GROW_PAGED, .blocks = blocks};
        assert_ok(kvc_cache_new(&cache, pool, &desc));
        stories_init(&s, cache);
        stories_append_ragged(&s, (const int64_t[]){37, 1}, NULL);
        stories_fork(&s, 1, 0);
        stories_append(&s, 3);
        stories_check(&s);
        stories_trim(&s, 10);
        stories_append_ragged(&s, (const int64_t[]){1, 40}, NULL);
        stories_check(&s);
        kvc_cache_free(cache);
        stories_deinit(&s);
        kvc_blocks_free(blocks);
        kvc_pool_free(pool);
    }
}

static void packed__rows_are_viewed_as_what_they_are(void **state) {
    (void)state;
    kvc_array k, v;
    kvc_quantized kq, vq;
    kvc_layer_spec spec = spec_of(4, 32, KVC_BF16);
    kvc_cache *cache = new_cache(&spec, KVC_GROW_RESERVE);
    assert_fails(kvc_cache_view(cache, 0, &k, &v), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "kvc_cache_view_quantized"));
    assert_fails(kvc_cache_prepare(cache, 0, 1, &k, &v), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "packed"));
    assert_ok(kvc_cache_view_quantized(cache, 0, &kq, &vq)); /* of an empty cache */
    assert_int_equal(kq.words.shape[2], 0);
    release(&kq);
    release(&vq);
    assert_fails(kvc_cache_view_quantized(cache, 1, &kq, &vq), KVC_E_INVALID);
    assert_fails(kvc_cache_view_quantized(cache, 0, NULL, &vq), KVC_E_INVALID);
    kvc_cache_free(cache);
    spec.kv_bits = spec.kv_group = 0;
    cache = new_cache(&spec, KVC_GROW_RESERVE);
    assert_fails(kvc_cache_view_quantized(cache, 0, &kq, &vq), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "kvc_cache_view wanted"));
    kvc_cache_free(cache);
}

static void packed__a_view_outlives_growth_and_the_cache(void **state) {
    (void)state;
    uint64_t seed = test_seed(24);
    for (int growth = 0; growth < 3; growth++) {
        const kvc_layer_spec spec = spec_of(5, 64, KVC_F32);
        kvc_cache *cache = new_cache(&spec, growths[growth]);
        test_tensor rows[2];
        kvc_quantized k, v;
        new_rows(rows, &spec, KVC_F32, TEST_HEAD_MAJOR, &seed);
        kvc_array first[2] = {some_of(&rows[0].array, 0, 7), some_of(&rows[1].array, 0, 7)};
        assert_ok(kvc_cache_append(cache, 0, &first[0], &first[1]));
        assert_ok(kvc_cache_view_quantized(cache, 0, &k, &v));
        assert_ok(kvc_cache_append(cache, 0, &rows[0].array, &rows[1].array));
        kvc_cache_free(cache);
        packed wanted = pack(&first[0], 5, 64, KVC_F32);
        assert_same(&k, &wanted);
        packed_free(&wanted);
        release(&k);
        release(&v);
        free_rows(rows);
    }
}

static void packed__bytes_are_those_of_words_scales_and_biases(void **state) {
    (void)state;
    const kvc_layer_spec spec = spec_of(4, 64, KVC_BF16); /* dims 128 and 64 */
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    stories s;
    stories_init(&s, new_cache(&spec, KVC_GROW_CHUNK));
    stories_append_ragged(&s, (const int64_t[]){9, 17}, NULL);
    assert_ok(kvc_cache_nbytes_get(s.cache, &nbytes));
    const uint64_t row = HEADS * (64 + 32 + (2 + 1) * 2 * 2);
    assert_int_equal(nbytes.used, (9 + 17) * row);
    assert_true(nbytes.resident >= BATCH * 32 * row);
    kvc_cache_free(s.cache);
    stories_deinit(&s);
}

static void packed__what_groups_do_not_divide_is_refused_by_name(void **state) {
    (void)state;
    const struct {
        int bits, group;
        int64_t key_dim, value_dim;
    } cases[] = {{8, 64, 96, 64}, {8, 64, 64, 96}, {8, 128, 64, 0}, {7, 32, 32, 0},
                 {1, 32, 32, 0},  {8, 0, 64, 0},   {0, 64, 64, 0},  {8, 16, 64, 0},
                 {-4, 32, 32, 0}, {4, -32, 32, 0}, {16, 32, 32, 0}, {4, 32, 32, 33},
                 {4, 96, 96, 0}};
    kvc_pool *pool = new_pool();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvc_layer_spec specs[2] = {spec_of(8, 32, KVC_F32),
                                         {.kv_heads = 1,
                                          .key_dim = cases[i].key_dim,
                                          .value_dim = cases[i].value_dim,
                                          .dtype = KVC_F16,
                                          .kv_bits = cases[i].bits,
                                          .kv_group = cases[i].group}};
        const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                     .layers = 2,
                                     .specs = specs,
                                     .spec_count = 2,
                                     .growth = KVC_GROW_CHUNK};
        kvc_cache *cache;
        assert_fails(kvc_cache_new(&cache, pool, &desc), KVC_E_INVALID);
        assert_null(cache);
        assert_non_null(strstr(kvc_last_error(), "desc.specs[1]"));
        assert_non_null(strstr(kvc_last_error(), "kv_group"));
    }
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed__streaming_is_one_shot_to_the_bit),
        cmocka_unit_test(packed__rows_come_by_any_strides),
        cmocka_unit_test(packed__a_group_of_nan_is_nan_alone),
        cmocka_unit_test(packed__sequences_of_several_lengths_trim_fork_and_move),
        cmocka_unit_test(packed__a_ring_turns_packed_rows),
        cmocka_unit_test(packed__blocks_hold_packed_rows),
        cmocka_unit_test(packed__rows_are_viewed_as_what_they_are),
        cmocka_unit_test(packed__a_view_outlives_growth_and_the_cache),
        cmocka_unit_test(packed__bytes_are_those_of_words_scales_and_biases),
        cmocka_unit_test(packed__what_groups_do_not_divide_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
