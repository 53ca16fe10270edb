/* Snapshots: random caches of the kinds that have a naive one, saved and loaded. */
#include <kvcache/snapshot.h>

#include "support/arrays.h"
#include "support/naive_batch.h"
#include "support/naive_cache.h"
#include "support/snapshot_fixture.h"
#include "support/support.h"

enum { LAYERS = 4, MOST = 700, ROUNDS = 120, BLOCK = 16, MOST_BATCH = 3 };

typedef struct stage {
    snapshot_stage at;
    kvc_threads *threads;
    kvc_layer_spec specs[LAYERS];
    int64_t batch;
} stage;

static int setup(void **state) {
    static stage s;
    snapshot_stage_init(&s.at, 1);
    assert_ok(kvc_threads_new(&s.threads, 3));
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    kvc_threads_free(s->threads);
    snapshot_stage_deinit(&s->at);
    return 0;
}

/* @param windows  whether there may be some */
static void choose_specs(stage *s, bool windows) {
    for (int i = 0; i < LAYERS; i++) {
        kvc_layer_spec *spec = &s->specs[i];
        *spec = (kvc_layer_spec){
            .kv_heads = 1 + test_below(&s->at.random, 3),
            .key_dim = snapshot_one_of(&s->at, 3, I64(32, 64, 96)),
            .value_dim = snapshot_one_of(&s->at, 3, I64(0, 64, 128)),
            .dtype = (kvc_dtype)snapshot_one_of(&s->at, 3, I64(KVC_F32, KVC_F16, KVC_BF16))};
        if (test_below(&s->at.random, 3) == 0) {
            spec->kv_bits = (int)snapshot_one_of(&s->at, 6, I64(2, 3, 4, 5, 6, 8));
            spec->kv_group = 32;
        }
        if (windows && test_below(&s->at.random, 3) == 0) {
            spec->window = 1 + test_below(&s->at.random, test_below(&s->at.random, 2) ? 40 : 6);
            spec->keep = test_below(&s->at.random, spec->window);
        }
    }
}

static kvc_blocks *new_blocks(const stage *s) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = LAYERS,
                                  .specs = s->specs,
                                  .spec_count = LAYERS,
                                  .positions = BLOCK};
    kvc_blocks *blocks;
    assert_ok(kvc_blocks_new(&blocks, s->at.pool, &desc));
    return blocks;
}

static kvc_cache *new_cache(stage *s, kvc_blocks *blocks, int64_t slack) {
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = s->batch,
                           .layers = LAYERS,
                           .specs = s->specs,
                           .spec_count = LAYERS,
                           .growth = KVC_GROW_PAGED,
                           .max_positions = MOST,
                           .blocks = blocks,
                           .slack = slack};
    kvc_cache *cache;
    if (!blocks) desc.growth = (kvc_growth)test_below(&s->at.random, 3);
    assert_ok(kvc_cache_new(&cache, s->at.pool, &desc));
    return cache;
}

/* Appends to both the same random rows, each sequence some, or as many. */
static void append_some(stage *s, kvc_cache *cache, naive_batch *naive, int64_t n, bool even) {
    int64_t counts[MOST_BATCH];
    for (int64_t b = 0; b < s->batch; b++) counts[b] = even ? n : test_below(&s->at.random, n + 1);
    for (int64_t i = 0; i < LAYERS; i++) {
        const kvc_layer_spec *spec = &s->specs[i];
        const int64_t k_shape[] = {s->batch, spec->kv_heads, n, spec->key_dim};
        const int64_t v_shape[] = {s->batch, spec->kv_heads, n,
                                   spec->value_dim ? spec->value_dim : spec->key_dim};
        rows k, v;
        rows_init(&k, KVC_F32, ROWS_HEAD_MAJOR, k_shape, &s->at.random);
        rows_init(&v, KVC_F32, ROWS_HEAD_MAJOR, v_shape, &s->at.random);
        assert_ok(kvc_cache_append_ragged(cache, i, &k.array, &v.array, counts));
        naive_batch_append(naive, i, &k.array, &v.array, counts);
        rows_deinit(&k);
        rows_deinit(&v);
    }
}

static void fill_some(stage *s, kvc_cache *cache, naive_batch *naive) {
    const bool even = test_below(&s->at.random, 2);
    for (int64_t steps = test_below(&s->at.random, 9); steps-- > 0;)
        append_some(s, cache, naive,
                    1 + test_below(&s->at.random, test_below(&s->at.random, 4) ? 5 : 60), even);
    if (test_below(&s->at.random, 3) == 0) {
        const int64_t n = kvc_cache_trimmable(cache);
        const int64_t some = n > 0 ? test_below(&s->at.random, n + 1) : 0;
        assert_ok(kvc_cache_trim(cache, some));
        for (int64_t b = 0; b < s->batch; b++) naive_batch_trim(naive, b, some);
    }
}

/* Rows of views hold the same positions. */
static void assert_same_rows(const stage *s, const kvc_cache *a, const kvc_cache *b) {
    for (int64_t i = 0; i < LAYERS; i++)
        for (int64_t j = 0; j < s->batch; j++) {
            kvc_cache_held x, y;
            assert_ok(kvc_cache_held_get(a, i, j, &x));
            assert_ok(kvc_cache_held_get(b, i, j, &y));
            assert_int_equal(x.length, y.length);
        }
}

/* Loads the file in some way, and expects what the naive cache holds; also after more. */
static void expect_load(stage *s, const naive_batch *naive, const kvc_cache *from, bool windows) {
    const int64_t way = test_below(&s->at.random, windows ? 4 : 5);
    const kvc_executor executor = kvc_threads_executor(s->threads);
    int64_t mapped = -1;
    kvc_blocks *blocks = way == 4 ? new_blocks(s) : NULL;
    kvc_snapshot_options options = {.struct_size = sizeof options,
                                    .flags = way == 3 ? KVC_LOAD_MAP : 0,
                                    .growth = way == 4   ? KVC_GROW_PAGED
                                              : way == 3 ? KVC_GROW_RESERVE
                                                         : (kvc_growth)way,
                                    .max_positions = MOST,
                                    .blocks = blocks,
                                    .slack = windows ? test_below(&s->at.random, 5) : 0,
                                    .mapped_layers = &mapped,
                                    .executor = test_below(&s->at.random, 2) ? &executor : NULL};
    kvc_cache *cache;
    naive_batch twin;
    assert_ok(kvc_snapshot_load(&cache, s->at.pool, s->at.path, &options));
    if (way == 3 && kvc_cache_length(cache, 0)) assert_int_equal(mapped, LAYERS);
    naive_batch_init(&twin, cache);
    naive_batch_copy(&twin, naive);
    assert_batch_equal(&twin, cache);
    assert_same_rows(s, from, cache);
    assert_ok(kvc_snapshot_save(s->at.again, cache, NULL));
    snapshot_files_equal(s->at.path, s->at.again);
    for (int i = 0; i < 4; i++) append_some(s, cache, &twin, 1 + 10 * (i % 2), i == 0);
    assert_batch_equal(&twin, cache);
    assert_ok(kvc_snapshot_save(s->at.again, cache, NULL)); /* of a mapped file, which it is not */
    if (way == 3) assert_ok(kvc_snapshot_save(s->at.path, cache, NULL)); /* which it is */
    assert_batch_equal(&twin, cache);
    naive_batch_deinit(&twin);
    kvc_cache_free(cache);
    kvc_blocks_free(blocks);
}

static void any_cache__comes_back_to_the_bit_and_goes_on(void **state) {
    stage *s = *state;
    s->at.random = test_seed(5);
    const double end = test_now() + test_seconds(4);
    for (int round = 0; round < ROUNDS && test_now() < end; round++) {
        const bool windows = test_below(&s->at.random, 2);
        naive_batch naive;
        choose_specs(s, windows);
        s->batch = 1 + test_below(&s->at.random, MOST_BATCH);
        kvc_blocks *blocks = !windows && test_below(&s->at.random, 3) == 0 ? new_blocks(s) : NULL;
        kvc_cache *cache =
            new_cache(s, blocks, test_below(&s->at.random, 2) * test_below(&s->at.random, 4));
        naive_batch_init(&naive, cache);
        fill_some(s, cache, &naive);
        assert_batch_equal(&naive, cache);
        assert_ok(kvc_snapshot_save(s->at.path, cache, NULL));
        kvc_snapshot *snapshot;
        assert_ok(kvc_snapshot_open(&snapshot, s->at.path));
        assert_ok(kvc_snapshot_verify(snapshot));
        kvc_snapshot_close(snapshot);
        expect_load(s, &naive, cache, windows);
        naive_batch_deinit(&naive);
        kvc_cache_free(cache);
        kvc_blocks_free(blocks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(any_cache__comes_back_to_the_bit_and_goes_on),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
