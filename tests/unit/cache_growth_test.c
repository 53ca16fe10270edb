/* How the three policies get room: what they copy, what moves, what the pool sees of it. */
#include <string.h>

#include <kvcache/cache.h>

#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { HEADS = 2, KEY_DIM = 8, VALUE_DIM = 6 };
static const uint64_t row_bytes = (uint64_t)HEADS * (KEY_DIM + VALUE_DIM) * 2; /* keys and values */

/* A pool, a cache of it and what the cache should hold. */
typedef struct fixture {
    test_device device;
    kvc_pool *pool;
    kvc_cache *cache;
    naive_cache naive;
    uint64_t random;
} fixture;

static void new_cache(fixture *f, kvc_growth growth, int64_t chunk, int64_t max_positions) {
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_BF16};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = chunk,
                                 .max_positions = max_positions};
    assert_ok(kvc_cache_new(&f->cache, f->pool, &desc));
    naive_cache_init(&f->naive, f->cache);
}

static void free_cache(fixture *f) {
    assert_cache_equal(&f->naive, f->cache);
    naive_cache_deinit(&f->naive);
    kvc_cache_free(f->cache);
}

static void open_all(fixture *f, kvc_growth growth, int64_t chunk, int64_t max_positions) {
    *f = (fixture){.random = 5};
    test_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, &f->device.table));
    new_cache(f, growth, chunk, max_positions);
}

static void close_all(fixture *f) {
    free_cache(f);
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
}

static void append(fixture *f, int64_t n) {
    append_both(f->cache, &f->naive, 0, n, &f->random);
}

static kvc_cache_stats stats_of(const fixture *f) {
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_cache_stats_get(f->cache, &stats));
    return stats;
}

static kvc_cache_nbytes nbytes_of(const fixture *f) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_nbytes_get(f->cache, &nbytes));
    return nbytes;
}

static kvc_pool_stats pool_stats_of(const fixture *f) {
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(f->pool, &stats));
    return stats;
}

static const void *keys_of(const fixture *f) {
    kvc_array k, v;
    assert_ok(kvc_cache_view(f->cache, 0, &k, &v));
    const void *data = k.data;
    kvc_array_release(&k);
    kvc_array_release(&v);
    return data;
}

/* mlx-lm has 812 here, and loses its fused kernel with it. */
static void chunk__capacity_is_always_a_multiple_of_the_chunk(void **state) {
    (void)state;
    const struct {
        int64_t chunk, appends[4], capacities[4];
    } cases[] = {
        {256, {300, 300, 168, 1}, {512, 768, 768, 1024}},
        {256, {2048, 700, 500, 1}, {2048, 2816, 3328, 3328}},
        {256, {1, 255, 1, 256}, {256, 256, 512, 768}},
        {100, {99, 1, 1, 1000}, {100, 100, 200, 1200}},
        {1, {1, 1, 2, 3}, {1, 2, 4, 7}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        open_all(&f, KVC_GROW_CHUNK, cases[i].chunk, 0);
        for (int step = 0; step < 4; step++) {
            append(&f, cases[i].appends[step]);
            assert_int_equal(kvc_cache_capacity(f.cache, 0), cases[i].capacities[step]);
        }
        close_all(&f);
    }
}

static void reserve__capacity_is_whole_chunks_of_the_maximum_from_the_start(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_RESERVE, 256, 1000);
    assert_int_equal(kvc_cache_capacity(f.cache, 0), 1024);
    append(&f, 600);
    assert_int_equal(kvc_cache_capacity(f.cache, 0), 1024);
    assert_int_equal(nbytes_of(&f).used, 600 * row_bytes);
    assert_true(nbytes_of(&f).reserved >= 1024 * row_bytes);
    close_all(&f);
}

static void exact__capacity_is_the_length(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_EXACT, 256, 0);
    for (int64_t n = 1; n <= 20; n++) {
        append(&f, 1 + n % 3);
        assert_int_equal(kvc_cache_capacity(f.cache, 0), kvc_cache_length(f.cache, 0));
        assert_int_equal(nbytes_of(&f).reserved, nbytes_of(&f).resident);
    }
    close_all(&f);
}

/* Pitfall 1, and the reason for this policy: not one byte is copied that was not appended, by the
 * cache's own account and by the device's. */
static void reserve__copies_what_is_appended_and_nothing_else(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_RESERVE, 16, 6000);
    append(&f, 4700);
    for (int i = 0; i < 1300; i++) append(&f, 1);
    const kvc_cache_stats stats = stats_of(&f);
    assert_int_equal(stats.appends, 1301);
    assert_int_equal(stats.appended_bytes, 6000 * row_bytes);
    assert_int_equal(stats.copied_bytes, stats.appended_bytes);
    assert_int_equal(stats.grown_bytes, 0);
    assert_int_equal(f.device.copied_bytes, stats.appended_bytes);
    assert_true(stats.growths > 1);
    assert_int_equal(f.device.calls[TEST_ALLOCATE], 0);
    assert_int_equal(f.device.calls[TEST_RESERVE], 2);
    close_all(&f);
}

static void chunk__copies_the_live_positions_once_a_chunk(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_CHUNK, 16, 0);
    for (int i = 0; i < 100; i++) append(&f, 1);
    const kvc_cache_stats stats = stats_of(&f);
    assert_int_equal(stats.appends, 100);
    assert_int_equal(stats.growths, 7); /* 16, 32 … 112 */
    assert_int_equal(stats.appended_bytes, 100 * row_bytes);
    assert_int_equal(stats.grown_bytes, (16 + 32 + 48 + 64 + 80 + 96) * row_bytes);
    assert_int_equal(stats.copied_bytes, stats.appended_bytes + stats.grown_bytes);
    assert_int_equal(f.device.copied_bytes, stats.copied_bytes);
    close_all(&f);
}

static void exact__copies_the_live_positions_on_every_append(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_EXACT, 16, 0);
    for (int i = 0; i < 100; i++) append(&f, 1);
    const kvc_cache_stats stats = stats_of(&f);
    assert_int_equal(stats.growths, 100);
    assert_int_equal(stats.appended_bytes, 100 * row_bytes);
    assert_int_equal(stats.grown_bytes, 100 * 99 / 2 * row_bytes);
    assert_int_equal(stats.copied_bytes, stats.appended_bytes + stats.grown_bytes);
    assert_int_equal(f.device.copied_bytes, stats.copied_bytes);
    close_all(&f);
}

static void reserve__pointers_never_move(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_RESERVE, 16, 2000);
    append(&f, 1);
    const void *keys = keys_of(&f);
    for (int i = 0; i < 40; i++) {
        append(&f, 1 + i);
        assert_ptr_equal(keys_of(&f), keys);
    }
    kvc_cache_clear(f.cache);
    naive_cache_clear(&f.naive);
    append(&f, 2000);
    assert_ptr_equal(keys_of(&f), keys);
    close_all(&f);
}

/* Pitfall 24. */
static void view__copies_nothing_and_lies_in_the_caches_memory(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        kvc_array k, v, k_room, v_room;
        open_all(&f, growth, 16, 100);
        append(&f, 20);
        assert_ok(kvc_cache_prepare(f.cache, 0, 3, &k_room, &v_room)); /* EXACT moves here */
        const uint64_t copied = f.device.copied_bytes, calls = test_device_driver_calls(&f.device);
        assert_ok(kvc_cache_view(f.cache, 0, &k, &v));
        const int64_t capacity = kvc_cache_capacity(f.cache, 0);
        const int64_t k_strides[4] = {HEADS * capacity * KEY_DIM, capacity * KEY_DIM, KEY_DIM, 1};
        const int64_t v_strides[4] = {HEADS * capacity * VALUE_DIM, capacity * VALUE_DIM, VALUE_DIM,
                                      1};
        assert_memory_equal(k.strides, k_strides, sizeof k_strides);
        assert_memory_equal(v.strides, v_strides, sizeof v_strides);
        assert_int_equal(k.shape[2], 20);
        assert_ptr_equal(k.buffer, k_room.buffer);
        assert_ptr_equal(k.data, kvc_buffer_data(k.buffer));
        assert_ptr_equal((uint16_t *)k.data + 20 * k.strides[2], k_room.data);
        assert_ptr_equal((uint16_t *)v.data + 20 * v.strides[2], v_room.data);
        assert_int_equal(f.device.copied_bytes, copied);
        assert_int_equal(test_device_driver_calls(&f.device), calls);
        kvc_array_release(&k);
        kvc_array_release(&v);
        kvc_array_release(&k_room);
        kvc_array_release(&v_room);
        close_all(&f);
    }
}

static void view__of_an_empty_cache_is_an_empty_array(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        kvc_array k, v;
        open_all(&f, growth, 16, 100);
        assert_ok(kvc_cache_view(f.cache, 0, &k, &v));
        assert_int_equal(k.ndim, 4);
        assert_int_equal(k.shape[1], HEADS);
        assert_int_equal(k.shape[2], 0);
        assert_int_equal(k.shape[3], KEY_DIM);
        assert_int_equal(kvc_array_size(&v), 0);
        kvc_array_release(&k);
        kvc_array_release(&v);
        assert_fails(kvc_cache_view(f.cache, 0, NULL, &v), KVC_E_INVALID);
        assert_fails(kvc_cache_view(f.cache, 0, &k, NULL), KVC_E_INVALID);
        close_all(&f);
    }
}

/* Pitfalls 2 and 5. Every length's view is kept while the cache grows past it, and is looked at
 * when the cache and the pool are gone and others have used their memory. */
static void view__stays_as_it_was_through_growth_free_and_reuse(void **state) {
    (void)state;
    enum { VIEWS = 40 };
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        naive_layer seen[VIEWS];
        kvc_array k[VIEWS], v[VIEWS];
        open_all(&f, growth, 16, 200);
        for (int i = 0; i < VIEWS; i++) {
            append(&f, 1 + i % 4);
            assert_ok(kvc_cache_view(f.cache, 0, &k[i], &v[i]));
            naive_layer_copy(&seen[i], &f.naive.layer[0]);
        }
        for (int i = 0; i < VIEWS; i++) assert_view_equal(&seen[i], &k[i], &v[i], seen[i].length);
        free_cache(&f);
        for (int i = 0; i < 3; i++) { /* caches that would like that memory */
            new_cache(&f, growth, 16, 200);
            append(&f, 150);
            free_cache(&f);
        }
        kvc_pool_free(f.pool); /* before its last buffers */
        for (int i = 0; i < VIEWS; i++) {
            assert_view_equal(&seen[i], &k[i], &v[i], seen[i].length);
            kvc_array_release(&k[i]);
            kvc_array_release(&v[i]);
            naive_layer_deinit(&seen[i]);
        }
        test_device_deinit(&f.device);
    }
}

static void cache__outlives_its_pools_owner(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        open_all(&f, growth, 16, 200);
        append(&f, 10);
        kvc_pool_free(f.pool);
        for (int i = 0; i < 10; i++) append(&f, 11);
        free_cache(&f);
        test_device_deinit(&f.device);
    }
}

/* The steady state of a server: the second cache asks the device for nothing at all. */
static void cache__memory_of_a_freed_one_serves_the_next(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        open_all(&f, growth, 256, 4000);
        for (int i = 0; i < 30; i++) append(&f, 100);
        const uint64_t resident = nbytes_of(&f).resident;
        free_cache(&f);

        const kvc_pool_stats before = pool_stats_of(&f);
        const uint64_t calls = test_device_driver_calls(&f.device);
        new_cache(&f, growth, 256, 4000);
        if (growth == KVC_GROW_RESERVE) /* its pages have stayed */
            assert_int_equal(nbytes_of(&f).resident, resident);
        for (int i = 0; i < 30; i++) append(&f, 100);
        const kvc_pool_stats after = pool_stats_of(&f);
        assert_int_equal(after.driver_calls, before.driver_calls);
        assert_int_equal(after.misses, before.misses);
        assert_true(after.hits >= before.hits + 2);
        assert_int_equal(test_device_driver_calls(&f.device), calls);
        assert_int_equal(nbytes_of(&f).resident, resident);
        if (growth == KVC_GROW_RESERVE) assert_int_equal(stats_of(&f).growths, 0);
        close_all(&f);
    }
}

/* The pool's rule does not let a smaller cache take it, or a larger one. */
static void reserve__memory_is_not_reused_for_an_unlike_size(void **state) {
    (void)state;
    fixture f;
    open_all(&f, KVC_GROW_RESERVE, 256, 1 << 16);
    append(&f, 100);
    free_cache(&f);
    const kvc_pool_stats before = pool_stats_of(&f);
    new_cache(&f, KVC_GROW_RESERVE, 256, 1 << 15);
    assert_int_equal(pool_stats_of(&f).hits, before.hits);
    assert_int_equal(nbytes_of(&f).resident, 0);
    close_all(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunk__capacity_is_always_a_multiple_of_the_chunk),
        cmocka_unit_test(reserve__capacity_is_whole_chunks_of_the_maximum_from_the_start),
        cmocka_unit_test(exact__capacity_is_the_length),
        cmocka_unit_test(reserve__copies_what_is_appended_and_nothing_else),
        cmocka_unit_test(chunk__copies_the_live_positions_once_a_chunk),
        cmocka_unit_test(exact__copies_the_live_positions_on_every_append),
        cmocka_unit_test(reserve__pointers_never_move),
        cmocka_unit_test(view__copies_nothing_and_lies_in_the_caches_memory),
        cmocka_unit_test(view__of_an_empty_cache_is_an_empty_array),
        cmocka_unit_test(view__stays_as_it_was_through_growth_free_and_reuse),
        cmocka_unit_test(cache__outlives_its_pools_owner),
        cmocka_unit_test(cache__memory_of_a_freed_one_serves_the_next),
        cmocka_unit_test(reserve__memory_is_not_reused_for_an_unlike_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
