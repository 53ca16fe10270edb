/* Memory that goes back while its address space stays. */
#include <string.h>
#include <sys/mman.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

static kvc_buffer *committed(kvc_pool *pool, size_t units) {
    kvc_buffer *b;
    const size_t bytes = units * kvc_buffer_commit_unit_bytes(pool);
    assert_ok(kvc_buffer_reserve(&b, pool, bytes));
    assert_ok(kvc_buffer_commit(b, 0, bytes));
    memset(kvc_buffer_data(b), 7, bytes);
    return b;
}

static void decommit__gives_back_whole_units_only(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    const struct {
        size_t offset, bytes, given_back;
    } cases[] = {{0, 0, 0},
                 {0, unit - 1, 0},
                 {0, unit, 1},
                 {1, unit, 0},
                 {1, 2 * unit - 1, 1},
                 {unit - 1, 2 * unit + 1, 2},
                 {unit / 2, 9 * unit, 8},
                 {0, 10 * unit, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvc_buffer *b = committed(f->pool, 10);
        const uint64_t active = pool_stats(f->pool).active_bytes;
        kvc_buffer_decommit(b, cases[i].offset, cases[i].bytes);
        const size_t bytes = cases[i].given_back * unit;
        assert_int_equal(kvc_buffer_resident_bytes(b), 10 * unit - bytes);
        assert_int_equal(pool_stats(f->pool).active_bytes, active - bytes);
        assert_int_equal(kvc_buffer_capacity_bytes(b), 10 * unit);
        kvc_buffer_release(b);
        kvc_pool_clear(f->pool);
    }
}

static void decommit__what_lies_beside_stays(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = committed(f->pool, 5);
    const char *data = kvc_buffer_data(b);
    kvc_buffer_decommit(b, unit + 1, 3 * unit - 2); /* unit 2 alone */
    assert_int_equal(f->device.decommitted_bytes, unit);
    for (size_t i = 0; i < 5 * unit; i++)
        if (i < 2 * unit || i >= 3 * unit) assert_int_equal(data[i], 7);
    kvc_buffer_release(b);
}

static void decommit__what_is_gone_can_be_committed_again(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = committed(f->pool, 4);
    kvc_buffer_decommit(b, unit, 2 * unit);
    assert_ok(kvc_buffer_commit(b, 0, 4 * unit));
    assert_int_equal(kvc_buffer_resident_bytes(b), 4 * unit);
    memset((char *)kvc_buffer_data(b) + unit, 1, 2 * unit); /* traps where it is not resident */
    assert_int_equal(pool_stats(f->pool).active_bytes, 4 * unit);
    kvc_buffer_release(b);
}

static void decommit__holes_are_left_out_and_calls_are_counted(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = committed(f->pool, 200);
    kvc_buffer_decommit(b, 70 * unit, unit);
    assert_int_equal(f->device.calls[TEST_DECOMMIT], 1);
    kvc_buffer_decommit(b, 60 * unit, 20 * unit);
    assert_int_equal(f->device.calls[TEST_DECOMMIT], 3);
    assert_int_equal(f->device.decommitted_bytes, 20 * unit);
    kvc_buffer_decommit(b, 60 * unit, 20 * unit);
    assert_int_equal(f->device.calls[TEST_DECOMMIT], 3);
    assert_int_equal(pool_stats(f->pool).driver_calls, test_device_driver_calls(&f->device));
    kvc_buffer_release(b);
}

static void decommit__the_last_unit_may_be_short(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool), bytes = unit + TEST_PAGE_BYTES;
    kvc_buffer *b;
    assert_ok(kvc_buffer_reserve(&b, f->pool, bytes));
    assert_ok(kvc_buffer_commit(b, 0, bytes));
    kvc_buffer_decommit(b, unit, bytes - unit - 1);
    assert_int_equal(kvc_buffer_resident_bytes(b), bytes);
    kvc_buffer_decommit(b, unit, bytes - unit);
    assert_int_equal(kvc_buffer_resident_bytes(b), unit);
    kvc_buffer_release(b);
}

static void decommit__nothing_happens_where_nothing_can_be_given_back(void **state) {
    pool_fixture *f = *state;
    const size_t unit = kvc_buffer_commit_unit_bytes(f->pool);
    kvc_buffer *b = committed(f->pool, 2), *plain = pool_take(f->pool, 2 * unit);
    kvc_buffer_decommit(NULL, 0, unit);
    kvc_buffer_decommit(plain, 0, unit);
    kvc_buffer_decommit(b, 0, 3 * unit);
    kvc_buffer_decommit(b, 3 * unit, 0);
    kvc_buffer_decommit(b, SIZE_MAX, 2);
    kvc_buffer_decommit(b, unit, SIZE_MAX);
    assert_int_equal(f->device.calls[TEST_DECOMMIT], 0);
    assert_int_equal(kvc_buffer_resident_bytes(b), 2 * unit);
    kvc_buffer_release(b);
    kvc_buffer_release(plain);
}

/* The call may be NULL: memory then stays. */
static void decommit__a_device_need_not_be_able_to(void **state) {
    pool_fixture *f = *state;
    kvc_device unable = f->device.table;
    kvc_pool *pool;
    unable.decommit = NULL;
    assert_ok(kvc_pool_new(&pool, &unable));
    const size_t unit = kvc_buffer_commit_unit_bytes(pool);
    kvc_buffer *b = committed(pool, 3);
    kvc_buffer_decommit(b, 0, 3 * unit);
    assert_int_equal(kvc_buffer_resident_bytes(b), 3 * unit);
    assert_int_equal(((char *)kvc_buffer_data(b))[2 * unit], 7);
    kvc_buffer_release(b);
    kvc_pool_free(pool);
}

static size_t pages_in_memory(const void *memory, size_t bytes) {
    unsigned char in[256];
    size_t count = 0;
    const size_t pages = bytes / kvc_device_cpu()->page_bytes;
    assert_true(pages <= sizeof in);
    assert_int_equal(mincore((void *)memory, bytes, in), 0);
    for (size_t i = 0; i < pages; i++) count += in[i] & 1;
    return count;
}

static void decommit__the_cpus_memory_goes_back_to_the_system(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    kvc_pool *pool;
    kvc_buffer *b;
    assert_ok(kvc_pool_new(&pool, cpu));
    const size_t unit = kvc_buffer_commit_unit_bytes(pool), bytes = 6 * unit;
    assert_ok(kvc_buffer_reserve(&b, pool, bytes));
    char *data = kvc_buffer_data(b);
    assert_int_equal(pages_in_memory(data, bytes), 0);
    assert_ok(kvc_buffer_commit(b, 0, bytes));
    memset(data, 7, bytes);
    assert_int_equal(pages_in_memory(data, bytes), bytes / cpu->page_bytes);
    kvc_buffer_decommit(b, 2 * unit, 3 * unit);
    assert_int_equal(pages_in_memory(data, bytes), 3 * unit / cpu->page_bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(data[i], i < 2 * unit || i >= 5 * unit ? 7 : 0); /* a fresh page */
    assert_ok(kvc_buffer_commit(b, 0, bytes));
    assert_int_equal(pages_in_memory(data, bytes), bytes / cpu->page_bytes);
    kvc_buffer_release(b);
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(decommit__gives_back_whole_units_only),
        pool_test(decommit__what_lies_beside_stays),
        pool_test(decommit__what_is_gone_can_be_committed_again),
        pool_test(decommit__holes_are_left_out_and_calls_are_counted),
        pool_test(decommit__the_last_unit_may_be_short),
        pool_test(decommit__nothing_happens_where_nothing_can_be_given_back),
        pool_test(decommit__a_device_need_not_be_able_to),
        cmocka_unit_test(decommit__the_cpus_memory_goes_back_to_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
