/* The buffer pool: its rule of reuse, figures and limits. */
#include <string.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

static const size_t page = TEST_PAGE_BYTES;

/* Keeps one buffer of a size and nothing else. */
static void keep_only(kvc_pool *pool, size_t bytes) {
    kvc_pool_clear(pool);
    pool_keep(pool, bytes);
}

static void pool__a_freed_buffer_of_100000_serves_91809_and_not_91808(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    keep_only(pool, 100000);
    assert_true(pool_serves(pool, 91809));
    keep_only(pool, 100000);
    assert_false(pool_serves(pool, 91808));
}

static void pool__a_freed_buffer_of_8192_serves_6000_and_not_4096(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    keep_only(pool, 8192);
    assert_true(pool_serves(pool, 6000));
    keep_only(pool, 8192);
    assert_true(pool_serves(pool, 4097));
    keep_only(pool, 8192);
    assert_false(pool_serves(pool, 4096));
}

static void pool__a_freed_buffer_of_2_mib_never_serves_a_page_more(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    const size_t mib = 1 << 20;
    keep_only(pool, 2 * mib);
    assert_false(pool_serves(pool, 2 * mib + page));
    keep_only(pool, 2 * mib);
    assert_false(pool_serves(pool, 2 * mib + 1));
    keep_only(pool, 2 * mib);
    assert_true(pool_serves(pool, 2 * mib));
    keep_only(pool, 2 * mib);
    assert_true(pool_serves(pool, 2 * mib - 2 * page + 1));
    keep_only(pool, 2 * mib);
    assert_false(pool_serves(pool, 2 * mib - 2 * page));
}

static void pool__the_rule_turns_at_two_pages(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    keep_only(pool, 4 * page - 1); /* up to two pages twice the size decides, beyond two pages do */
    assert_true(pool_serves(pool, 2 * page));
    keep_only(pool, 4 * page);
    assert_false(pool_serves(pool, 2 * page));
    keep_only(pool, 4 * page);
    assert_true(pool_serves(pool, 2 * page + 1));
    keep_only(pool, 1);
    assert_true(pool_serves(pool, 1));
    keep_only(pool, 2);
    assert_false(pool_serves(pool, 1));
}

static void pool__the_smallest_that_fits_is_taken_and_keeps_its_capacity(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_buffer *large = pool_take(pool, 10300), *small = pool_take(pool, 10100);
    kvc_buffer *medium = pool_take(pool, 10200);
    const void *data = kvc_buffer_data(medium);
    kvc_buffer_release(small);
    kvc_buffer_release(medium);
    kvc_buffer_release(large);
    kvc_buffer *again = pool_take(pool, 10101);
    assert_ptr_equal(kvc_buffer_data(again), data);
    assert_int_equal(kvc_buffer_capacity_bytes(again), 10200);
    assert_int_equal(kvc_buffer_resident_bytes(again), 10200);
    assert_int_equal(pool_stats(pool).active_bytes, 10200);
    kvc_buffer_release(again);
    assert_int_equal(pool_stats(pool).cached_bytes, 10100 + 10200 + 10300);
}

static void pool__buffers_are_neither_split_nor_joined(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_buffer *a = pool_take(pool, 50000), *b = pool_take(pool, 50000);
    kvc_buffer_release(a);
    kvc_buffer_release(b);
    assert_false(pool_serves(pool, 100000));
    kvc_pool_clear(pool);
    pool_keep(pool, 100000);
    assert_false(pool_serves(pool, 50000));
}

static void pool__the_figures_follow_a_buffer_from_the_device_and_back(void **state) {
    pool_fixture *f = *state;
    kvc_pool *pool = f->pool;
    kvc_pool_stats s = pool_stats(pool);
    assert_int_equal(s.active_bytes + s.cached_bytes + s.peak_active_bytes + s.peak_total_bytes, 0);
    assert_int_equal(s.hits + s.misses + s.driver_calls + s.driver_ns + s.evictions, 0);

    kvc_buffer *a = pool_take(pool, 1000), *b = pool_take(pool, 3000);
    s = pool_stats(pool);
    assert_int_equal(s.active_bytes, 4000);
    assert_int_equal(s.misses, 2);
    assert_int_equal(s.driver_calls, 2);

    kvc_buffer_release(a);
    s = pool_stats(pool);
    assert_int_equal(s.active_bytes, 3000);
    assert_int_equal(s.cached_bytes, 1000);
    assert_int_equal(s.driver_calls, 2);

    a = pool_take(pool, 999);
    s = pool_stats(pool);
    assert_int_equal(s.hits, 1);
    assert_int_equal(s.active_bytes, 4000);
    assert_int_equal(s.cached_bytes, 0);

    kvc_buffer_release(a);
    kvc_buffer_release(b);
    kvc_pool_clear(pool);
    s = pool_stats(pool);
    assert_int_equal(s.active_bytes, 0);
    assert_int_equal(s.cached_bytes, 0);
    assert_int_equal(s.evictions, 2);
    assert_int_equal(s.driver_calls, 4);
    assert_int_equal(s.driver_calls, test_device_driver_calls(&f->device));
    assert_int_equal(f->device.count, 0);
    assert_int_equal(s.peak_active_bytes, 4000);
}

static void pool__the_peaks_are_told_with_and_without_cached_bytes(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    pool_keep(pool, 100000);
    pool_keep(pool, 50000);
    kvc_pool_stats s = pool_stats(pool);
    assert_int_equal(s.peak_active_bytes, 100000);
    assert_int_equal(s.peak_total_bytes, 150000);

    kvc_pool_clear(pool);
    kvc_pool_peak_reset(pool);
    s = pool_stats(pool);
    assert_int_equal(s.peak_active_bytes, 0);
    assert_int_equal(s.peak_total_bytes, 0);

    kvc_buffer *held = pool_take(pool, 7000);
    pool_keep(pool, 500);
    kvc_pool_peak_reset(pool);
    s = pool_stats(pool);
    assert_int_equal(s.peak_active_bytes, 7000);
    assert_int_equal(s.peak_total_bytes, 7500);
    kvc_buffer_release(held);
}

static void pool__a_hit_asks_neither_the_device_nor_the_allocator(void **state) {
    pool_fixture *f = *state;
    pool_keep(f->pool, 80000);
    const size_t driver_calls = test_device_driver_calls(&f->device);
    const size_t allocations = test_allocator_calls();
    for (int i = 0; i < 100; i++) pool_keep(f->pool, 80000 - (size_t)i);
    assert_int_equal(test_device_driver_calls(&f->device), driver_calls);
    assert_int_equal(test_allocator_calls(), allocations);
    assert_int_equal(pool_stats(f->pool).hits, 100);
}

static void pool__an_old_caller_gets_the_figures_it_knows(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    pool_keep(pool, 300);
    kvc_pool_stats s = {.struct_size = offsetof(kvc_pool_stats, reserved_bytes), .hits = 77};
    assert_ok(kvc_pool_stats_get(pool, &s));
    assert_int_equal(s.cached_bytes, 300);
    assert_int_equal(s.hits, 77);
    s.struct_size = 0;
    assert_fails(kvc_pool_stats_get(pool, &s), KVC_E_INVALID);
    assert_fails(kvc_pool_stats_get(pool, NULL), KVC_E_INVALID);
}

static void limits__setters_return_the_previous(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    assert_int_equal(kvc_pool_memory_limit_set(pool, 1000), SIZE_MAX);
    assert_int_equal(kvc_pool_memory_limit_set(pool, SIZE_MAX), 1000);
    /* The test device does not tell its memory: no limit at first. */
    assert_int_equal(kvc_pool_cache_limit_set(pool, 500), SIZE_MAX);
    assert_int_equal(kvc_pool_cache_limit_set(pool, 0), 500);
}

static void limits__at_first_a_quarter_of_the_device_may_be_cached(void **state) {
    pool_fixture *f = *state;
    kvc_pool_free(f->pool);
    f->device.table.memory_bytes = 400000;
    assert_ok(kvc_pool_new(&f->pool, &f->device.table));
    assert_int_equal(kvc_pool_cache_limit_set(f->pool, 0), 100000);
}

static void limits__a_cache_limit_of_0_turns_pooling_off(void **state) {
    pool_fixture *f = *state;
    pool_keep(f->pool, 1000);
    (void)kvc_pool_cache_limit_set(f->pool, 0);
    assert_int_equal(f->device.count, 0);
    assert_false(pool_serves(f->pool, 1000));
    assert_int_equal(f->device.count, 0);
    assert_int_equal(pool_stats(f->pool).cached_bytes, 0);
    (void)kvc_pool_cache_limit_set(f->pool, SIZE_MAX);
    pool_keep(f->pool, 1000);
    assert_true(pool_serves(f->pool, 1000));
}

static void limits__the_least_recently_freed_go_first(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b[3];
    const void *data[3];
    for (size_t i = 0; i < 3; i++) {
        b[i] = pool_take(f->pool, 10000 + 50000 * i);
        data[i] = kvc_buffer_data(b[i]);
    }
    kvc_buffer_release(b[1]);
    kvc_buffer_release(b[2]);
    kvc_buffer_release(b[0]);
    (void)kvc_pool_cache_limit_set(f->pool, 10000 + 60000 + 110000 - 1);
    assert_ptr_equal(f->device.last_given_back, data[1]);
    (void)kvc_pool_cache_limit_set(f->pool, 110000 + 10000);
    assert_int_equal(f->device.count, 2);
    (void)kvc_pool_cache_limit_set(f->pool, 110000);
    assert_ptr_equal(f->device.last_given_back, data[2]);
    assert_int_equal(f->device.count, 1);
    assert_int_equal(pool_stats(f->pool).evictions, 2);
}

static void limits__a_buffer_larger_than_the_cache_limit_is_not_kept(void **state) {
    pool_fixture *f = *state;
    (void)kvc_pool_cache_limit_set(f->pool, 1000);
    pool_keep(f->pool, 1001);
    assert_int_equal(f->device.count, 0);
    pool_keep(f->pool, 1000);
    assert_int_equal(f->device.count, 1);
}

static void limits__cached_buffers_make_room_under_the_memory_limit(void **state) {
    pool_fixture *f = *state;
    (void)kvc_pool_memory_limit_set(f->pool, 100000);
    pool_keep(f->pool, 30000);
    pool_keep(f->pool, 60000);
    kvc_buffer *b = pool_take(f->pool, 40000); /* 130000 would be held: the oldest goes */
    assert_int_equal(pool_stats(f->pool).cached_bytes, 60000);
    assert_int_equal(f->device.held_bytes, 100000);
    kvc_buffer *c = pool_take(f->pool, 1);
    assert_int_equal(f->device.held_bytes, 40001);
    kvc_buffer_release(b);
    kvc_buffer_release(c);
}

static void limits__a_request_beyond_the_memory_limit_fails_and_changes_nothing(void **state) {
    pool_fixture *f = *state;
    (void)kvc_pool_memory_limit_set(f->pool, 100000);
    kvc_buffer *held = pool_take(f->pool, 60000), *b = held;
    pool_keep(f->pool, 20000);
    const kvc_pool_stats before = pool_stats(f->pool);
    assert_fails(kvc_buffer_new(&b, f->pool, 40001), KVC_E_LIMIT);
    assert_null(b);
    assert_non_null(strstr(kvc_last_error(), "40001"));
    assert_non_null(strstr(kvc_last_error(), "40000"));
    assert_non_null(strstr(kvc_last_error(), "100000"));
    const kvc_pool_stats after = pool_stats(f->pool);
    assert_int_equal(after.active_bytes, before.active_bytes);
    assert_int_equal(after.cached_bytes, before.cached_bytes);
    assert_int_equal(after.peak_active_bytes, before.peak_active_bytes);
    assert_int_equal(after.peak_total_bytes, before.peak_total_bytes);
    assert_int_equal(after.driver_calls, before.driver_calls);
    b = pool_take(f->pool, 40000);
    kvc_buffer_release(b);
    kvc_buffer_release(held);
}

static void limits__a_memory_limit_below_what_is_active_keeps_nothing_else(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *held = pool_take(f->pool, 60000), *b;
    pool_keep(f->pool, 20000);
    (void)kvc_pool_memory_limit_set(f->pool, 50000);
    assert_int_equal(pool_stats(f->pool).cached_bytes, 0);
    assert_int_equal(pool_stats(f->pool).active_bytes, 60000);
    assert_fails(kvc_buffer_new(&b, f->pool, 1), KVC_E_LIMIT);
    kvc_buffer_release(held); /* 60000 cached would pass the limit too */
    assert_int_equal(f->device.count, 0);
}

static void pool__buffers_outlive_it(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *a = pool_take(f->pool, 5000), *b = pool_take(f->pool, 100), *empty;
    assert_ok(kvc_buffer_new(&empty, f->pool, 0));
    kvc_buffer_release(b);
    kvc_buffer *other = kvc_buffer_retain(a);
    kvc_pool_free(f->pool);
    f->pool = NULL;
    assert_int_equal(f->device.count, 1);
    memset(kvc_buffer_data(a), 1, 5000);
    kvc_buffer_release(a);
    assert_true(kvc_buffer_is_sole(other));
    assert_ptr_equal(kvc_pool_device(kvc_buffer_pool(other)), &f->device.table);
    kvc_buffer_release(empty);
    assert_int_equal(f->device.count, 1);
    kvc_buffer_release(other);
    assert_int_equal(f->device.count, 0);
}

static void pool__a_pool_and_buffers_that_are_null_can_be_freed(void **state) {
    (void)state;
    kvc_pool_free(NULL);
    kvc_buffer_release(NULL);
    assert_null(kvc_buffer_retain(NULL));
}

static void pool__only_a_single_holder_is_the_sole_one(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_buffer *a = pool_take(pool, 1);
    assert_ptr_equal(kvc_buffer_retain(a), a);
    assert_false(kvc_buffer_is_sole(a));
    kvc_buffer_release(a);
    assert_true(kvc_buffer_is_sole(a));
    kvc_buffer_release(a);
}

static void pool__a_buffer_of_0_bytes_costs_no_memory_and_is_never_kept(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b = pool_take(f->pool, 0);
    assert_null(kvc_buffer_data(b));
    assert_int_equal(kvc_buffer_capacity_bytes(b), 0);
    assert_int_equal(kvc_buffer_resident_bytes(b), 0);
    kvc_buffer_release(b);
    pool_keep(f->pool, 1);
    assert_false(pool_serves(f->pool, 0));
    const kvc_pool_stats s = pool_stats(f->pool);
    assert_int_equal(s.misses, 1); /* that of the buffer of 1 byte */
    assert_int_equal(s.driver_calls, 1);
}

static void pool__absurd_sizes_are_refused(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, (size_t)PTRDIFF_MAX + 1, SIZE_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_fails(kvc_buffer_new(&b, f->pool, sizes[i]), KVC_E_RANGE);
        assert_null(b);
        assert_fails(kvc_buffer_reserve(&b, f->pool, sizes[i]), KVC_E_RANGE);
        assert_null(b);
    }
    assert_int_equal(test_device_driver_calls(&f->device), 0);
    assert_fails(kvc_buffer_new(&b, f->pool, PTRDIFF_MAX), KVC_E_NOMEM);
    assert_null(b);
    assert_int_equal(f->device.largest_asked, PTRDIFF_MAX);
    assert_int_equal(pool_stats(f->pool).active_bytes, 0);
}

static void pool__arguments_that_are_null_are_refused_by_name(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_buffer *b = NULL;
    assert_fails(kvc_buffer_new(NULL, pool, 1), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "out"));
    assert_fails(kvc_buffer_new(&b, NULL, 1), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "pool"));
    assert_fails(kvc_pool_new(NULL, kvc_device_cpu()), KVC_E_INVALID);
    kvc_pool *none = pool;
    assert_fails(kvc_pool_new(&none, NULL), KVC_E_INVALID);
    assert_null(none);
    assert_non_null(strstr(kvc_last_error(), "device"));
}

static void cpu__memory_of_every_size_is_aligned_to_64(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    (void)kvc_pool_cache_limit_set(pool, 0);
    size_t step = 1;
    for (size_t bytes = 1; bytes <= 1000000; bytes += step) {
        kvc_buffer *b = pool_take(pool, bytes);
        char *data = kvc_buffer_data(b);
        assert_int_equal((uintptr_t)data % KVC_ALIGNMENT_BYTES, 0);
        data[0] = data[bytes - 1] = 1;
        kvc_buffer_release(b);
        if (bytes > 300) step = bytes < 65000 || bytes > 67000 ? 1499 : 97;
    }
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(pool__a_freed_buffer_of_100000_serves_91809_and_not_91808),
        pool_test(pool__a_freed_buffer_of_8192_serves_6000_and_not_4096),
        pool_test(pool__a_freed_buffer_of_2_mib_never_serves_a_page_more),
        pool_test(pool__the_rule_turns_at_two_pages),
        pool_test(pool__the_smallest_that_fits_is_taken_and_keeps_its_capacity),
        pool_test(pool__buffers_are_neither_split_nor_joined),
        pool_test(pool__the_figures_follow_a_buffer_from_the_device_and_back),
        pool_test(pool__the_peaks_are_told_with_and_without_cached_bytes),
        pool_test(pool__a_hit_asks_neither_the_device_nor_the_allocator),
        pool_test(pool__an_old_caller_gets_the_figures_it_knows),
        pool_test(limits__setters_return_the_previous),
        pool_test(limits__at_first_a_quarter_of_the_device_may_be_cached),
        pool_test(limits__a_cache_limit_of_0_turns_pooling_off),
        pool_test(limits__the_least_recently_freed_go_first),
        pool_test(limits__a_buffer_larger_than_the_cache_limit_is_not_kept),
        pool_test(limits__cached_buffers_make_room_under_the_memory_limit),
        pool_test(limits__a_request_beyond_the_memory_limit_fails_and_changes_nothing),
        pool_test(limits__a_memory_limit_below_what_is_active_keeps_nothing_else),
        pool_test(pool__buffers_outlive_it),
        pool_test(pool__a_pool_and_buffers_that_are_null_can_be_freed),
        pool_test(pool__only_a_single_holder_is_the_sole_one),
        pool_test(pool__a_buffer_of_0_bytes_costs_no_memory_and_is_never_kept),
        pool_test(pool__absurd_sizes_are_refused),
        pool_test(pool__arguments_that_are_null_are_refused_by_name),
        cmocka_unit_test(cpu__memory_of_every_size_is_aligned_to_64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
