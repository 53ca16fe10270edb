/* Attention over caches whose sequences differ in length, or whose rows are packed. */
#include <string.h>

#include <kvcache/attention.h>

#include "support/attend.h"
#include "support/support.h"

enum { BATCH = 3, KV_HEADS = 2, Q_HEADS = 6, KEY_DIM = 64, VALUE_DIM = 32, MOST = 200 };

/* Lengths on both sides of a block's edge, and nothing. */
static const int64_t lengths[][BATCH] = {
    {1, 64, 129}, {63, 65, 64}, {0, 127, 128}, {200, 1, 0}, {0, 0, 0}};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static kvc_cache *new_cache(kvc_dtype dtype, int bits, int group) {
    kvc_pool *pool;
    kvc_cache *cache;
    const kvc_layer_spec spec = {.kv_heads = KV_HEADS,
                                 .key_dim = KEY_DIM,
                                 .value_dim = VALUE_DIM,
                                 .dtype = dtype,
                                 .kv_bits = bits,
                                 .kv_group = group};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = BATCH,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .max_positions = MOST};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_pool_free(pool);
    return cache;
}

static kvc_attention *new_plan(const kvc_cache *cache, kvc_path path) {
    kvc_attention *plan;
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_attention_desc_for(&desc, cache, 0));
    desc.q_heads = Q_HEADS;
    desc.max_q_len = 4;
    desc.path = path;
    assert_ok(kvc_attention_plan(&plan, &desc));
    return plan;
}

/* Keys, values, queries and outputs of a test. */
typedef struct problem {
    test_tensor k, v, q, out[2];
} problem;

static problem new_problem(kvc_dtype dtype, int64_t queries, uint64_t *seed) {
    problem p = {.k = test_tensor_new(dtype, TEST_TOKEN_MAJOR, BATCH, KV_HEADS, MOST, KEY_DIM),
                 .v = test_tensor_new(dtype, TEST_TOKEN_MAJOR, BATCH, KV_HEADS, MOST, VALUE_DIM),
                 .q = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, BATCH, Q_HEADS, queries, KEY_DIM)};
    test_fill_random(&p.k.array, 1, seed);
    test_fill_random(&p.v.array, 1, seed);
    test_fill_random(&p.q.array, 1, seed);
    for (int i = 0; i < 2; i++) /* poisoned */
        p.out[i] = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, BATCH, Q_HEADS, queries, VALUE_DIM);
    return p;
}

static void free_problem(problem *p) {
    test_tensor *all[] = {&p->k, &p->v, &p->q, &p->out[0], &p->out[1]};
    for (int i = 0; i < 5; i++) test_tensor_free(all[i]);
}

static bool same_bits(const problem *p) {
    return memcmp(p->out[0].memory, p->out[1].memory, kvc_array_nbytes(&p->out[0].array)) == 0;
}

/* Sequences of a cache that differ are those of an even one under extras.lengths. */
static void sequences__of_a_cache_are_attended_by_their_lengths(void **state) {
    (void)state;
    uint64_t seed = test_seed(41);
    static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
    for (int path = KVC_PATH_REFERENCE; path <= KVC_PATH_FUSED; path++)
        for (int d = 0; d < 3; d++)
            for (int l = 0; l < LENGTHS; l++)
                for (int64_t queries = 1; queries <= 4; queries += 3) {
                    problem p = new_problem(dtypes[d], queries, &seed);
                    kvc_cache *uneven = new_cache(dtypes[d], 0, 0);
                    kvc_cache *even = new_cache(dtypes[d], 0, 0);
                    kvc_attention *plan = new_plan(even, (kvc_path)path);
                    const kvc_attention_extras extras = {.struct_size = sizeof extras,
                                                         .lengths = lengths[l]};
                    assert_ok(
                        kvc_cache_append_ragged(uneven, 0, &p.k.array, &p.v.array, lengths[l]));
                    assert_ok(kvc_cache_append(even, 0, &p.k.array, &p.v.array));
                    assert_ok(
                        kvc_attention_run(plan, uneven, 0, &p.q.array, &p.out[0].array, NULL));
                    assert_ok(
                        kvc_attention_run(plan, even, 0, &p.q.array, &p.out[1].array, &extras));
                    assert_true(same_bits(&p));
                    kvc_attention_free(plan);
                    kvc_cache_free(uneven);
                    kvc_cache_free(even);
                    free_problem(&p);
                }
}

/* What lies behind the end of a shorter sequence is not read: here NaN, of a sequence that was. */
static void sequences__what_was_there_before_is_not_seen(void **state) {
    (void)state;
    uint64_t seed = test_seed(42);
    problem p = new_problem(KVC_F32, 1, &seed), nan = new_problem(KVC_F32, 1, &seed);
    kvc_cache *cache = new_cache(KVC_F32, 0, 0);
    kvc_attention *plan = new_plan(cache, KVC_PATH_AUTO);
    memset(nan.k.memory, 0xff, kvc_array_nbytes(&nan.k.array));
    memset(nan.v.memory, 0xff, kvc_array_nbytes(&nan.v.array));
    assert_ok(kvc_cache_append(cache, 0, &nan.k.array, &nan.v.array));
    for (int64_t b = 0; b < BATCH; b++) assert_ok(kvc_cache_clear_sequence(cache, b));
    assert_ok(kvc_cache_append_ragged(cache, 0, &p.k.array, &p.v.array, lengths[0]));
    assert_ok(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out[0].array, NULL));
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < Q_HEADS; h++)
            for (int64_t i = 0; i < VALUE_DIM; i++) {
                const double x = test_get(&p.out[0].array, b, h, 0, i);
                assert_true(x >= -1 && x <= 1);
            }
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    free_problem(&p);
    free_problem(&nan);
}

static void sequences__a_length_is_at_most_that_of_its_own_sequence(void **state) {
    (void)state;
    uint64_t seed = test_seed(43);
    problem p = new_problem(KVC_F32, 1, &seed);
    kvc_cache *cache = new_cache(KVC_F32, 0, 0);
    kvc_attention *plan = new_plan(cache, KVC_PATH_AUTO);
    kvc_attention_extras extras = {.struct_size = sizeof extras};
    assert_ok(kvc_cache_append_ragged(cache, 0, &p.k.array, &p.v.array, lengths[0]));
    extras.lengths = (const int64_t[]){1, 65, 129}; /* the longest has so many */
    assert_fails(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out[0].array, &extras),
                 KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "extras.lengths[1]: 65 given, 0 to 64"));
    extras.lengths = (const int64_t[]){1, 64, 100};
    assert_ok(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out[0].array, &extras));
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    free_problem(&p);
}

static void release(kvc_quantized *q) {
    kvc_array_release(&q->words);
    kvc_array_release(&q->scales);
    kvc_array_release(&q->biases);
}

static void packed__a_cache_is_attended_as_its_view_is(void **state) {
    (void)state;
    uint64_t seed = test_seed(44);
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    static const kvc_dtype scalings[] = {KVC_F32, KVC_F16, KVC_BF16};
    for (int path = KVC_PATH_REFERENCE; path <= KVC_PATH_FUSED; path++)
        for (int w = 0; w < 6; w++)
            for (int l = 0; l < LENGTHS; l++)
                for (int64_t queries = 1; queries <= 4; queries += 3) {
                    problem p = new_problem(KVC_F32, queries, &seed);
                    kvc_cache *cache = new_cache(scalings[w % 3], widths[w], 32);
                    kvc_attention *plan = new_plan(cache, (kvc_path)path);
                    const kvc_attention_extras extras = {.struct_size = sizeof extras,
                                                         .lengths = lengths[l]};
                    kvc_quantized k, v;
                    assert_ok(
                        kvc_cache_append_ragged(cache, 0, &p.k.array, &p.v.array, lengths[l]));
                    assert_ok(kvc_cache_view_quantized(cache, 0, &k, &v));
                    assert_ok(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out[0].array, NULL));
                    assert_ok(kvc_attention_run_quantized(plan, &k, &v, &p.q.array, &p.out[1].array,
                                                          &extras));
                    assert_true(same_bits(&p));
                    release(&k);
                    release(&v);
                    kvc_attention_free(plan);
                    kvc_cache_free(cache);
                    free_problem(&p);
                }
}

/* In blocks of eight bits, attention is close to that over the numbers themselves. */
static void packed__a_cache_is_near_to_what_was_packed(void **state) {
    (void)state;
    uint64_t seed = test_seed(45);
    problem p = new_problem(KVC_F32, 1, &seed);
    kvc_cache *packed = new_cache(KVC_F32, 8, 32), *plain = new_cache(KVC_F32, 0, 0);
    kvc_cache *caches[2] = {packed, plain};
    for (int i = 0; i < 2; i++) {
        kvc_attention *plan = new_plan(caches[i], KVC_PATH_AUTO);
        assert_ok(kvc_cache_append(caches[i], 0, &p.k.array, &p.v.array));
        assert_ok(kvc_attention_run(plan, caches[i], 0, &p.q.array, &p.out[i].array, NULL));
        kvc_attention_free(plan);
        kvc_cache_free(caches[i]);
    }
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < Q_HEADS; h++)
            for (int64_t i = 0; i < VALUE_DIM; i++)
                assert_float_equal(test_get(&p.out[0].array, b, h, 0, i),
                                   test_get(&p.out[1].array, b, h, 0, i), 0.01);
    assert_false(same_bits(&p)); /* it is the packed ones that were read */
    free_problem(&p);
}

static void desc_for__tells_how_a_layer_is_packed_and_its_window(void **state) {
    (void)state;
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    const kvc_layer_spec specs[2] = {{.kv_heads = 1,
                                      .key_dim = 128,
                                      .value_dim = 64,
                                      .dtype = KVC_BF16,
                                      .kv_bits = 6,
                                      .kv_group = 64},
                                     {.kv_heads = 3, .key_dim = 8, .dtype = KVC_F16, .window = 9}};
    const kvc_cache_desc cache_desc = {.struct_size = sizeof cache_desc,
                                       .batch = 5,
                                       .layers = 2,
                                       .specs = specs,
                                       .spec_count = 2,
                                       .growth = KVC_GROW_CHUNK};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &cache_desc));
    for (int64_t layer = 0; layer < 2; layer++) {
        const kvc_layer_spec *spec = &specs[layer];
        assert_ok(kvc_attention_desc_for(&desc, cache, layer));
        assert_int_equal(desc.batch, 5);
        assert_int_equal(desc.kv_heads, spec->kv_heads);
        assert_int_equal(desc.key_dim, spec->key_dim);
        assert_int_equal(desc.value_dim, spec->value_dim ? spec->value_dim : spec->key_dim);
        assert_int_equal(desc.kv_dtype, spec->dtype);
        assert_int_equal(desc.kv_bits, spec->kv_bits);
        assert_int_equal(desc.kv_group, spec->kv_group);
        assert_int_equal(desc.window, spec->window);
    }
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

/* A plan is for one format, plain or packed. */
static void packed__a_plan_for_another_format_is_refused(void **state) {
    (void)state;
    uint64_t seed = test_seed(46);
    problem p = new_problem(KVC_F32, 1, &seed);
    const int formats[3][2] = {{0, 0}, {8, 32}, {4, 32}};
    for (int i = 0; i < 3; i++) {
        kvc_cache *planned = new_cache(KVC_F32, formats[i][0], formats[i][1]);
        kvc_attention *plan = new_plan(planned, KVC_PATH_AUTO);
        for (int j = 0; j < 3; j++) {
            if (i == j) continue;
            kvc_cache *cache = new_cache(KVC_F32, formats[j][0], formats[j][1]);
            assert_fails(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out[0].array, NULL),
                         KVC_E_SHAPE);
            assert_non_null(strstr(kvc_last_error(), "kv_bits"));
            kvc_cache_free(cache);
        }
        kvc_attention_free(plan);
        kvc_cache_free(planned);
    }
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences__of_a_cache_are_attended_by_their_lengths),
        cmocka_unit_test(sequences__what_was_there_before_is_not_seen),
        cmocka_unit_test(sequences__a_length_is_at_most_that_of_its_own_sequence),
        cmocka_unit_test(packed__a_cache_is_attended_as_its_view_is),
        cmocka_unit_test(packed__a_cache_is_near_to_what_was_packed),
        cmocka_unit_test(desc_for__tells_how_a_layer_is_packed_and_its_window),
        cmocka_unit_test(packed__a_plan_for_another_format_is_refused),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
