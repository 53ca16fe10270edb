/* As array_fault_test.c, for the pool: every allocation and every call on the device made to fail.
 */
#include <string.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

typedef struct stage {
    test_device device;
    kvc_pool *pool, *second;
    kvc_buffer *plain,
        *reserved; /* of 5000 bytes; of 200 units, of which units 1 and 70 are there */
    kvc_buffer *out;
    size_t unit;
} stage;

typedef struct operation {
    const char *name;
    kvc_status (*run)(stage *s);
    void (*expect)(const stage *s); /* after success */
} operation;

static kvc_status run_pool_new(stage *s) {
    return kvc_pool_new(&s->second, &s->device.table);
}

static void expect_pool(const stage *s) {
    assert_non_null(s->second);
}

static kvc_status run_new(stage *s) {
    return kvc_buffer_new(&s->out, s->pool, 7000);
}

static kvc_status run_new_empty(stage *s) {
    return kvc_buffer_new(&s->out, s->pool, 0);
}

static kvc_status run_hit(stage *s) {
    return kvc_buffer_new(&s->out, s->pool, 19999);
}

static kvc_status run_reserve(stage *s) {
    return kvc_buffer_reserve(&s->out, s->pool, 300000);
}

static void expect_out(const stage *s) {
    assert_non_null(s->out);
    assert_true(kvc_buffer_is_sole(s->out));
}

static kvc_status run_commit(stage *s) { /* three runs, around the units that are there */
    return kvc_buffer_commit(s->reserved, 0, 100 * s->unit);
}

static void expect_commit(const stage *s) {
    assert_int_equal(kvc_buffer_resident_bytes(s->reserved), 100 * s->unit);
    memset((char *)kvc_buffer_data(s->reserved), 1, 100 * s->unit);
}

static kvc_status run_clear(stage *s) {
    kvc_pool_clear(s->pool);
    (void)kvc_pool_memory_limit_set(s->pool, 1);
    (void)kvc_pool_memory_limit_set(s->pool, SIZE_MAX);
    kvc_pool_peak_reset(s->pool);
    return KVC_OK;
}

static void expect_clear(const stage *s) {
    assert_int_equal(pool_stats(s->pool).cached_bytes, 0);
}

static const operation operations[] = {
    {"pool_new", run_pool_new, expect_pool},
    {"new", run_new, expect_out},
    {"new of 0 bytes", run_new_empty, expect_out},
    {"new, pooled", run_hit, expect_out},
    {"reserve", run_reserve, expect_out},
    {"commit", run_commit, expect_commit},
    {"clear", run_clear, expect_clear},
};

static void setup(stage *s, bool warm) {
    test_device_init(&s->device);
    assert_ok(kvc_pool_new(&s->pool, &s->device.table));
    s->unit = kvc_buffer_commit_unit_bytes(s->pool);
    s->plain = pool_take(s->pool, 5000);
    memset(kvc_buffer_data(s->plain), 3, 5000);
    assert_ok(kvc_buffer_reserve(&s->reserved, s->pool, 200 * s->unit));
    assert_ok(kvc_buffer_commit(s->reserved, s->unit, 1));
    assert_ok(kvc_buffer_commit(s->reserved, 70 * s->unit, 1));
    memset((char *)kvc_buffer_data(s->reserved) + s->unit, 4, s->unit);
    s->second = (kvc_pool *)s; /* outputs hold anything */
    s->out = (kvc_buffer *)s;
    if (warm) pool_keep(s->pool, 20000);
}

static void teardown(stage *s) {
    if (s->second != (kvc_pool *)s) kvc_pool_free(s->second);
    if (s->out != (kvc_buffer *)s) kvc_buffer_release(s->out);
    kvc_buffer_release(s->plain);
    kvc_pool_free(s->pool);
    kvc_buffer_release(s->reserved); /* the pool lives until here */
    test_device_deinit(&s->device);
}

static void expect_whole(const stage *s) {
    const unsigned char *plain = kvc_buffer_data(s->plain),
                        *reserved = kvc_buffer_data(s->reserved);
    for (size_t i = 0; i < 5000; i++) assert_int_equal(plain[i], 3);
    for (size_t i = 0; i < s->unit; i++) assert_int_equal(reserved[s->unit + i], 4);
}

/* Runs an operation with its nth point failing. Returns false when there was none. */
static bool fail_at(const operation *op, size_t nth, test_fault_span span, bool warm) {
    static stage s;
    const size_t held = test_allocator_held();
    setup(&s, warm);
    const kvc_pool_stats before = pool_stats(s.pool);
    test_fault_arm(nth, span);
    const kvc_status status = op->run(&s);
    const bool failed = test_fault_disarm();
    const kvc_pool_stats after = pool_stats(s.pool);
    if (status == KVC_OK) {
        op->expect(&s);
    } else {
        if (!failed) fail_msg("%s: %s", op->name, kvc_last_error());
        assert_int_equal(status, KVC_E_NOMEM);
        assert_string_not_equal(kvc_last_error(), "");
        if (op->run == run_pool_new) assert_null(s.second);
        else if (op->run != run_commit) assert_null(s.out);
        /* Units before the failing one stay committed, and are counted. */
        const size_t resident = kvc_buffer_resident_bytes(s.reserved);
        assert_int_equal(after.active_bytes, 5000 + resident);
        assert_int_equal(s.device.committed_bytes, resident);
        assert_int_equal(after.reserved_bytes, before.reserved_bytes);
        assert_true(after.peak_active_bytes <= 20000 + 5000 + resident);
    }
    if (op->run != run_commit || status != KVC_OK) expect_whole(&s);
    assert_int_equal(after.driver_calls, test_device_driver_calls(&s.device));
    teardown(&s);
    assert_int_equal(test_allocator_held(), held);
    return failed;
}

static void fault__any_one_failure_leaves_the_pool_whole(void **state) {
    (void)state;
    test_allocator_use(true);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (int span = 0; span < 2; span++)
            for (int warm = 0; warm < 2; warm++) {
                size_t nth = 1;
                while (fail_at(&operations[i], nth, (test_fault_span)span, warm)) nth++;
                const bool fallible =
                    operations[i].run != run_clear && operations[i].run != run_hit;
                if (fallible && nth < 2) fail_msg("%s never failed", operations[i].name);
            }
    test_allocator_use(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault__any_one_failure_leaves_the_pool_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
