/* The pool when memory runs out: the limit, the device, and whom it asks then. */
#include <string.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

/* A caller with buffers to spare. */
typedef struct spender {
    kvc_pool *pool;
    kvc_buffer *spare[16];
    size_t spares, at_a_time, asked, last_bytes;
    size_t says_yes; /* answers before it says no */
} spender;

static bool spend(void *context, size_t bytes) {
    spender *s = context;
    s->asked++;
    s->last_bytes = bytes;
    for (size_t i = 0; i < s->at_a_time && s->spares; i++)
        kvc_buffer_release(s->spare[--s->spares]);
    /* Called without a lock held: the pool answers. */
    (void)pool_stats(s->pool);
    return s->says_yes && s->says_yes--;
}

static spender spender_of(kvc_pool *pool, size_t spares, size_t bytes) {
    spender s = {.pool = pool, .at_a_time = 1, .says_yes = SIZE_MAX};
    while (s.spares < spares) s.spare[s.spares++] = pool_take(pool, bytes);
    return s;
}

static void pressure__what_the_callback_frees_serves_a_request_over_the_limit(void **state) {
    pool_fixture *f = *state;
    spender s = spender_of(f->pool, 5, 10000);
    (void)kvc_pool_memory_limit_set(f->pool, 50000);
    kvc_pool_pressure_set(f->pool, spend, &s);
    kvc_buffer *b = pool_take(f->pool, 25000);
    assert_int_equal(s.asked, 3);
    assert_int_equal(s.last_bytes, 25000);
    assert_int_equal(pool_stats(f->pool).active_bytes, 45000);
    assert_true(f->device.held_bytes <= 50000);
    kvc_buffer_release(b);
    while (s.spares) kvc_buffer_release(s.spare[--s.spares]);
}

static void pressure__a_callback_that_says_no_lets_the_request_fail(void **state) {
    pool_fixture *f = *state;
    spender s = {.pool = f->pool, .says_yes = 0};
    (void)kvc_pool_memory_limit_set(f->pool, 50000);
    kvc_pool_pressure_set(f->pool, spend, &s);
    kvc_buffer *b;
    assert_fails(kvc_buffer_new(&b, f->pool, 50001), KVC_E_LIMIT);
    assert_null(b);
    assert_int_equal(s.asked, 1);
    kvc_pool_pressure_set(f->pool, NULL, NULL);
    assert_fails(kvc_buffer_new(&b, f->pool, 50001), KVC_E_LIMIT);
    assert_int_equal(s.asked, 1);
}

static void pressure__a_request_is_tried_again_eight_times_at_most(void **state) {
    pool_fixture *f = *state;
    spender s = {.pool = f->pool, .says_yes = SIZE_MAX};
    (void)kvc_pool_memory_limit_set(f->pool, 50000);
    kvc_pool_pressure_set(f->pool, spend, &s);
    kvc_buffer *b;
    assert_fails(kvc_buffer_new(&b, f->pool, 50001), KVC_E_LIMIT);
    assert_int_equal(s.asked, 8);

    (void)kvc_pool_memory_limit_set(f->pool, SIZE_MAX);
    f->device.room_bytes = 50000;
    assert_fails(kvc_buffer_new(&b, f->pool, 50001), KVC_E_NOMEM);
    assert_int_equal(s.asked, 16);
}

static void pressure__the_eighth_answer_still_counts(void **state) {
    pool_fixture *f = *state;
    spender s = spender_of(f->pool, 8, 10000);
    (void)kvc_pool_memory_limit_set(f->pool, 80000);
    kvc_pool_pressure_set(f->pool, spend, &s);
    kvc_buffer_release(pool_take(f->pool, 80000));
    assert_int_equal(s.asked, 8);

    s = spender_of(f->pool, 8, 10000);
    (void)kvc_pool_memory_limit_set(f->pool, SIZE_MAX);
    f->device.room_bytes = 80000;
    kvc_buffer_release(pool_take(f->pool, 80000));
    assert_int_equal(s.asked, 8);
}

static void
pressure__a_device_without_memory_gets_cached_buffers_back_and_is_asked_again(void **state) {
    pool_fixture *f = *state;
    pool_keep(f->pool, 60000);
    pool_keep(f->pool, 30000);
    f->device.room_bytes = 100000;
    kvc_buffer *b = pool_take(f->pool, 50000);
    assert_int_equal(f->device.held_bytes, 50000);
    const kvc_pool_stats s = pool_stats(f->pool);
    assert_int_equal(s.evictions, 2);
    assert_int_equal(s.active_bytes, 50000);
    assert_int_equal(s.cached_bytes, 0);
    assert_int_equal(s.driver_calls, test_device_driver_calls(&f->device));
    kvc_buffer_release(b);
}

static void pressure__a_device_without_memory_has_the_callback_asked(void **state) {
    pool_fixture *f = *state;
    spender s = spender_of(f->pool, 4, 30000);
    kvc_pool_pressure_set(f->pool, spend, &s);
    f->device.room_bytes = 120000;
    kvc_buffer *b = pool_take(f->pool, 50000);
    assert_int_equal(s.asked, 2);
    assert_int_equal(f->device.held_bytes, 2 * 30000 + 50000);
    kvc_buffer_release(b);
    while (s.spares) kvc_buffer_release(s.spare[--s.spares]);
}

static void pressure__a_device_that_fails_leaves_the_figures_as_they_were(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *held = pool_take(f->pool, 1000), *b = held;
    const kvc_pool_stats before = pool_stats(f->pool);
    f->device.room_bytes = 2000;
    assert_fails(kvc_buffer_new(&b, f->pool, 100000), KVC_E_NOMEM);
    assert_null(b);
    assert_non_null(strstr(kvc_last_error(), "100000"));
    assert_non_null(strstr(kvc_last_error(), "test"));
    const kvc_pool_stats after = pool_stats(f->pool);
    assert_int_equal(after.active_bytes, before.active_bytes);
    assert_int_equal(after.cached_bytes, before.cached_bytes);
    assert_int_equal(after.peak_active_bytes, before.peak_active_bytes);
    assert_int_equal(after.peak_total_bytes, before.peak_total_bytes);
    kvc_buffer_release(held);
}

static void pressure__one_failure_of_the_device_is_survived_by_giving_back(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b, *reserved;
    test_device_fail(&f->device, TEST_ALLOCATE, 2, 1);
    pool_keep(f->pool, 10);
    b = pool_take(f->pool, 100);
    kvc_buffer_release(b);
    test_device_fail(&f->device, TEST_RESERVE, 1, 1);
    assert_ok(kvc_buffer_reserve(&reserved, f->pool, 100));
    pool_keep(f->pool, 10);
    test_device_fail(&f->device, TEST_COMMIT, 1, 1);
    assert_ok(kvc_buffer_commit(reserved, 0, 100));
    kvc_buffer_release(reserved);
}

static void pressure__with_nothing_to_give_back_the_device_is_asked_once(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b;
    f->device.room_bytes = 1000;
    assert_fails(kvc_buffer_new(&b, f->pool, 1001), KVC_E_NOMEM);
    assert_int_equal(f->device.calls[TEST_ALLOCATE], 1);
}

static void pressure__a_commit_over_the_limit_asks_too(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    spender s = spender_of(f->pool, 2, unit);
    (void)kvc_pool_memory_limit_set(f->pool, 3 * unit);
    kvc_pool_pressure_set(f->pool, spend, &s);
    kvc_buffer *b;
    assert_ok(kvc_buffer_reserve(&b, f->pool, 10 * unit));
    assert_ok(kvc_buffer_commit(b, 0, 2 * unit));
    assert_int_equal(s.asked, 1);
    assert_ok(kvc_buffer_commit(b, 0, 3 * unit));
    assert_int_equal(s.asked, 2);
    s.says_yes = 0;
    assert_fails(kvc_buffer_commit(b, 0, 4 * unit), KVC_E_LIMIT);
    assert_int_equal(kvc_buffer_resident_bytes(b), 3 * unit);
    kvc_buffer_release(b);
}

static bool raise_limit(void *context, size_t bytes) {
    kvc_pool *pool = context;
    kvc_pool_clear(pool);
    (void)kvc_pool_memory_limit_set(pool, 2 * bytes);
    return true;
}

static void pressure__the_callback_may_clear_the_pool_and_set_its_limits(void **state) {
    pool_fixture *f = *state;
    (void)kvc_pool_memory_limit_set(f->pool, 100);
    kvc_pool_pressure_set(f->pool, raise_limit, f->pool);
    pool_keep(f->pool, 5000);
    assert_int_equal(kvc_pool_memory_limit_set(f->pool, SIZE_MAX), 10000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(pressure__what_the_callback_frees_serves_a_request_over_the_limit),
        pool_test(pressure__a_callback_that_says_no_lets_the_request_fail),
        pool_test(pressure__a_request_is_tried_again_eight_times_at_most),
        pool_test(pressure__the_eighth_answer_still_counts),
        pool_test(pressure__a_device_without_memory_gets_cached_buffers_back_and_is_asked_again),
        pool_test(pressure__a_device_without_memory_has_the_callback_asked),
        pool_test(pressure__a_device_that_fails_leaves_the_figures_as_they_were),
        pool_test(pressure__one_failure_of_the_device_is_survived_by_giving_back),
        pool_test(pressure__with_nothing_to_give_back_the_device_is_asked_once),
        pool_test(pressure__a_commit_over_the_limit_asks_too),
        pool_test(pressure__the_callback_may_clear_the_pool_and_set_its_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
