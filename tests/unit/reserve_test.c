/* Buffers that reserve address space first and commit memory unit by unit. */
#include <string.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

static kvc_buffer *reserve(kvc_pool *pool, size_t bytes) {
    kvc_buffer *b;
    assert_ok(kvc_buffer_reserve(&b, pool, bytes));
    assert_true(kvc_buffer_capacity_bytes(b) >= bytes);
    return b;
}

static void reserve__address_space_costs_no_memory(void **state) {
    pool_fixture *f = *state;
    const size_t bytes = (size_t)1 << 33;
    kvc_buffer *b = reserve(f->pool, bytes);
    assert_int_equal((uintptr_t)kvc_buffer_data(b) % KVC_ALIGNMENT_BYTES, 0);
    assert_int_equal(kvc_buffer_resident_bytes(b), 0);
    kvc_pool_stats s = pool_stats(f->pool);
    assert_int_equal(s.reserved_bytes, bytes);
    assert_int_equal(s.active_bytes, 0);
    assert_int_equal(s.misses, 1);
    kvc_buffer_release(b);
    assert_int_equal(pool_stats(f->pool).reserved_bytes, bytes);
    kvc_pool_clear(f->pool);
    assert_int_equal(pool_stats(f->pool).reserved_bytes, 0);
}

static void reserve__units_are_whole_pages(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    assert_true(unit >= TEST_PAGE_BYTES && unit % TEST_PAGE_BYTES == 0);
    kvc_pool *coarse;
    f->device.table.page_bytes = (size_t)2 << 20;
    assert_ok(kvc_pool_new(&coarse, &f->device.table));
    assert_int_equal(kvc_buffer_commit_unit_bytes(coarse) % ((size_t)2 << 20), 0);
    kvc_pool_free(coarse);
}

static void commit__what_is_committed_costs_no_driver_call(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, 10 * unit);
    assert_ok(kvc_buffer_commit(b, 2 * unit, unit));
    assert_int_equal(f->device.calls[TEST_COMMIT], 1);
    assert_ok(kvc_buffer_commit(b, 2 * unit, unit));
    assert_ok(kvc_buffer_commit(b, 2 * unit + 5, 1));
    assert_ok(kvc_buffer_commit(b, 3 * unit - 1, 1));
    assert_ok(kvc_buffer_commit(b, 10 * unit, 0));
    assert_int_equal(f->device.calls[TEST_COMMIT], 1);
    assert_int_equal(kvc_buffer_resident_bytes(b), unit);
    /* The hole in the middle is left out: two calls, nine units. */
    assert_ok(kvc_buffer_commit(b, 0, 10 * unit));
    assert_int_equal(f->device.calls[TEST_COMMIT], 3);
    assert_int_equal(f->device.committed_bytes, 10 * unit);
    assert_int_equal(kvc_buffer_resident_bytes(b), 10 * unit);
    assert_int_equal(pool_stats(f->pool).active_bytes, 10 * unit);
    kvc_buffer_release(b);
}

static void commit__a_byte_on_each_side_of_a_border_commits_both_units(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, 4 * unit);
    assert_ok(kvc_buffer_commit(b, 2 * unit - 1, 2));
    assert_int_equal(kvc_buffer_resident_bytes(b), 2 * unit);
    memset((char *)kvc_buffer_data(b) + unit, 1, 2 * unit); /* traps where it is not resident */
    kvc_buffer_release(b);
}

static void commit__more_than_64_units_are_told_apart(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, 200 * unit);
    for (size_t i = 1; i < 200; i += 2) assert_ok(kvc_buffer_commit(b, i * unit, 1));
    assert_int_equal(kvc_buffer_resident_bytes(b), 100 * unit);
    for (size_t i = 0; i < 200; i += 2) assert_ok(kvc_buffer_commit(b, i * unit, unit));
    assert_int_equal(kvc_buffer_resident_bytes(b), 200 * unit);
    assert_int_equal(f->device.calls[TEST_COMMIT], 200);
    kvc_buffer_release(b);
}

static void commit__the_last_unit_may_be_short(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, unit + 1);
    const size_t capacity = unit + TEST_PAGE_BYTES;
    assert_int_equal(kvc_buffer_capacity_bytes(b), capacity);
    assert_ok(kvc_buffer_commit(b, unit, 1));
    assert_int_equal(kvc_buffer_resident_bytes(b), TEST_PAGE_BYTES);
    assert_ok(kvc_buffer_commit(b, 0, capacity));
    assert_int_equal(kvc_buffer_resident_bytes(b), capacity);
    memset(kvc_buffer_data(b), 1, capacity);
    kvc_buffer_release(b);
    b = reserve(f->pool, 1);
    assert_ok(kvc_buffer_commit(b, 0, 1));
    assert_int_equal(kvc_buffer_resident_bytes(b), TEST_PAGE_BYTES);
    kvc_buffer_release(b);
}

static void commit__a_range_outside_of_the_buffer_is_refused(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b = reserve(f->pool, 8192);
    assert_fails(kvc_buffer_commit(b, 8192, 1), KVC_E_RANGE);
    assert_fails(kvc_buffer_commit(b, 0, 8193), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "8193"));
    assert_non_null(strstr(kvc_last_error(), "8192"));
    assert_fails(kvc_buffer_commit(b, SIZE_MAX, 2), KVC_E_RANGE);
    assert_fails(kvc_buffer_commit(b, 2, SIZE_MAX), KVC_E_RANGE);
    assert_fails(kvc_buffer_commit(b, 8193, 0), KVC_E_RANGE);
    assert_int_equal(kvc_buffer_resident_bytes(b), 0);
    assert_int_equal(f->device.calls[TEST_COMMIT], 0);
    kvc_buffer_release(b);
}

static void commit__only_a_reserved_buffer_is_committed(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b = pool_take(f->pool, 8192);
    assert_fails(kvc_buffer_commit(b, 0, 1), KVC_E_INVALID);
    assert_fails(kvc_buffer_commit(NULL, 0, 1), KVC_E_INVALID);
    kvc_buffer_release(b);
}

static void commit__what_a_unit_holds_stays(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    const size_t unit = kvc_buffer_commit_unit_bytes(pool);
    kvc_buffer *b = reserve(pool, 8 * unit);
    unsigned char *data = kvc_buffer_data(b);
    for (size_t i = 0; i < 8; i += 2) {
        assert_ok(kvc_buffer_commit(b, i * unit, unit));
        memset(data + i * unit, (int)i + 1, unit);
    }
    assert_ok(kvc_buffer_commit(b, 0, 8 * unit));
    for (size_t i = 0; i < 8 * unit; i++)
        assert_int_equal(data[i], i / unit % 2 == 0 ? i / unit + 1 : 0);
    kvc_buffer_release(b);
    b = reserve(pool, 8 * unit);
    assert_ptr_equal(kvc_buffer_data(b), data);
    for (size_t i = 0; i < 8 * unit; i += 2 * unit) assert_int_equal(data[i], i / unit + 1);
    kvc_buffer_release(b);
    kvc_pool_free(pool);
}

static void reserve__a_kept_buffer_is_reused_with_what_it_has_committed(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, 10 * unit);
    assert_ok(kvc_buffer_commit(b, unit, 3 * unit));
    kvc_buffer_release(b);
    kvc_pool_stats s = pool_stats(f->pool);
    assert_int_equal(s.cached_bytes, 3 * unit);
    assert_int_equal(s.active_bytes, 0);

    b = reserve(f->pool, 10 * unit - TEST_PAGE_BYTES); /* the rule, by address space */
    s = pool_stats(f->pool);
    assert_int_equal(s.hits, 1);
    assert_int_equal(s.active_bytes, 3 * unit);
    assert_int_equal(s.cached_bytes, 0);
    assert_int_equal(kvc_buffer_capacity_bytes(b), 10 * unit);
    assert_int_equal(kvc_buffer_resident_bytes(b), 3 * unit);
    assert_ok(kvc_buffer_commit(b, unit, 3 * unit));
    assert_int_equal(f->device.calls[TEST_COMMIT], 1);
    kvc_buffer_release(b);

    b = reserve(f->pool, 10 * unit - (size_t)2 * TEST_PAGE_BYTES);
    assert_int_equal(pool_stats(f->pool).hits, 1);
    kvc_buffer_release(b);
}

static void reserve__reserved_and_plain_buffers_are_never_taken_for_each_other(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b = reserve(f->pool, 65536);
    assert_ok(kvc_buffer_commit(b, 0, 65536));
    kvc_buffer_release(b);
    assert_false(pool_serves(f->pool, 65536));
    kvc_pool_clear(f->pool);
    pool_keep(f->pool, 65536);
    b = reserve(f->pool, 65536);
    assert_int_equal(pool_stats(f->pool).hits, 0);
    assert_int_equal(kvc_buffer_resident_bytes(b), 0);
    kvc_buffer_release(b);
}

static void reserve__limits_count_what_is_committed(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    (void)kvc_pool_memory_limit_set(f->pool, 5 * unit);
    kvc_buffer *b = reserve(f->pool, 1000 * unit);
    assert_ok(kvc_buffer_commit(b, 0, 3 * unit));
    assert_fails(kvc_buffer_commit(b, 0, 6 * unit), KVC_E_LIMIT);
    assert_int_equal(kvc_buffer_resident_bytes(b), 3 * unit);
    assert_ok(kvc_buffer_commit(b, 0, 5 * unit));

    kvc_buffer *plain = b;
    assert_fails(kvc_buffer_new(&plain, f->pool, 1), KVC_E_LIMIT);
    assert_null(plain);
    kvc_buffer_release(b);
    assert_int_equal(pool_stats(f->pool).cached_bytes, 5 * unit);
    plain = pool_take(f->pool, 1); /* the kept one goes */
    assert_int_equal(f->device.calls[TEST_RELEASE], 1);
    kvc_buffer_release(plain);

    (void)kvc_pool_memory_limit_set(f->pool, SIZE_MAX);
    kvc_pool_clear(f->pool);
    (void)kvc_pool_cache_limit_set(f->pool, 2 * unit);
    b = reserve(f->pool, 1000 * unit);
    assert_ok(kvc_buffer_commit(b, 0, 2 * unit));
    kvc_buffer_release(b);
    assert_int_equal(f->device.count, 1);
    b = reserve(f->pool, 1000 * unit);
    assert_ok(kvc_buffer_commit(b, 0, 3 * unit));
    kvc_buffer_release(b);
    assert_int_equal(f->device.count, 0);
}

static void reserve__a_buffer_with_nothing_committed_goes_when_pooling_is_turned_off(void **state) {
    pool_fixture *f = *state;
    kvc_buffer_release(reserve(f->pool, 65536));
    assert_int_equal(f->device.count, 1);
    (void)kvc_pool_cache_limit_set(f->pool, 0);
    assert_int_equal(f->device.count, 0);
    kvc_buffer_release(reserve(f->pool, 65536));
    assert_int_equal(f->device.count, 0);
}

static void reserve__a_device_that_cannot_is_told_by_name(void **state) {
    pool_fixture *f = *state;
    kvc_pool *plain;
    kvc_buffer *b;
    f->device.table.reserve = NULL;
    f->device.table.commit = NULL;
    f->device.table.release = NULL;
    assert_ok(kvc_pool_new(&plain, &f->device.table));
    assert_fails(kvc_buffer_reserve(&b, plain, 4096), KVC_E_UNSUPPORTED);
    assert_null(b);
    assert_non_null(strstr(kvc_last_error(), "test"));
    kvc_pool_free(plain);
}

static void reserve__nothing_and_more_than_there_is_are_refused(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b;
    assert_fails(kvc_buffer_reserve(&b, f->pool, 0), KVC_E_RANGE);
    assert_null(b);
    assert_fails(kvc_buffer_reserve(&b, f->pool, PTRDIFF_MAX), KVC_E_NOMEM);
    assert_null(b);
    test_device_fail(&f->device, TEST_RESERVE, 1, SIZE_MAX / 2);
    assert_fails(kvc_buffer_reserve(&b, f->pool, 4096), KVC_E_NOMEM);
    assert_null(b);
    assert_int_equal(pool_stats(f->pool).reserved_bytes, 0);
}

static void commit__a_device_that_fails_keeps_what_was_there(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = reserve(f->pool, 10 * unit);
    assert_ok(kvc_buffer_commit(b, 4 * unit, unit));
    /* Two runs, before and after the unit that is there: the second run's calls fail. */
    test_device_fail(&f->device, TEST_COMMIT, 2, SIZE_MAX / 2);
    assert_fails(kvc_buffer_commit(b, 2 * unit, 5 * unit), KVC_E_NOMEM);
    assert_int_equal(kvc_buffer_resident_bytes(b), 3 * unit);
    assert_int_equal(pool_stats(f->pool).active_bytes, 3 * unit);
    assert_int_equal(pool_stats(f->pool).peak_active_bytes, 3 * unit);
    memset((char *)kvc_buffer_data(b) + 2 * unit, 1, 3 * unit);
    test_device_fail(&f->device, TEST_COMMIT, 1, 0);
    assert_ok(kvc_buffer_commit(b, 2 * unit, 5 * unit));
    assert_int_equal(kvc_buffer_resident_bytes(b), 5 * unit);
    kvc_buffer_release(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(reserve__address_space_costs_no_memory),
        pool_test(reserve__units_are_whole_pages),
        pool_test(commit__what_is_committed_costs_no_driver_call),
        pool_test(commit__a_byte_on_each_side_of_a_border_commits_both_units),
        pool_test(commit__more_than_64_units_are_told_apart),
        pool_test(commit__the_last_unit_may_be_short),
        pool_test(commit__a_range_outside_of_the_buffer_is_refused),
        pool_test(commit__only_a_reserved_buffer_is_committed),
        cmocka_unit_test(commit__what_a_unit_holds_stays),
        pool_test(reserve__a_kept_buffer_is_reused_with_what_it_has_committed),
        pool_test(reserve__reserved_and_plain_buffers_are_never_taken_for_each_other),
        pool_test(reserve__limits_count_what_is_committed),
        pool_test(reserve__a_buffer_with_nothing_committed_goes_when_pooling_is_turned_off),
        pool_test(reserve__a_device_that_cannot_is_told_by_name),
        pool_test(reserve__nothing_and_more_than_there_is_are_refused),
        pool_test(commit__a_device_that_fails_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
