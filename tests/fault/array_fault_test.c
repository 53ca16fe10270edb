/* Every allocation and every call on the device made to fail, one after another, in every operation
 * on arrays: the status says so, outputs are zeroed, inputs unchanged byte for byte, nothing leaks.
 * Once each fails alone, and once everything from it on. */
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

static const int64_t all = KVC_SLICE_ALL;

/* What the operations work on: a is [2][3] of 0 to 5, b is [1][3] of 7, 8, 9, both f32. */
typedef struct stage {
    test_device device;
    kvc_pool *pool;
    kvc_array a, b, other; /* other: a second holder of a, when the operation wants one */
    kvc_array out;
    kvc_update how;
    float host[6];
} stage;

typedef struct operation {
    const char *name;
    bool shared; /* a has another holder */
    kvc_status (*run)(stage *s);
    void (*expect)(const stage *s); /* after success */
} operation;

static kvc_status run_zeros(stage *s) {
    return kvc_array_zeros(&s->out, s->pool, KVC_F32, 2, I64(1, 2));
}

static void expect_zeros(const stage *s) {
    array_expect(&s->out, 2, I64(1, 2), F64(0, 0));
}

static kvc_status run_full(stage *s) {
    return kvc_array_full(&s->out, s->pool, KVC_F16, 1, I64(3), 7);
}

static void expect_full(const stage *s) {
    array_expect(&s->out, 1, I64(3), F64(7, 7, 7));
}

static kvc_status run_empty(stage *s) {
    return kvc_array_empty(&s->out, s->pool, KVC_U32, 1, I64(2000));
}

static void expect_empty(const stage *s) {
    assert_int_equal(kvc_array_size(&s->out), 2000);
}

static kvc_status run_nothing(stage *s) {
    return kvc_array_zeros(&s->out, s->pool, KVC_F32, 1, I64(0));
}

static void expect_nothing(const stage *s) {
    assert_int_equal(kvc_array_size(&s->out), 0);
}

static kvc_status run_from_host(stage *s) {
    return kvc_array_from_host(&s->out, s->pool, KVC_F32, 1, I64(2), F64(0.25));
}

static void expect_from_host(const stage *s) {
    array_expect(&s->out, 1, I64(2), F64(0, 1.625)); /* the words of a double */
}

static kvc_status run_to_host(stage *s) {
    return kvc_array_to_host(s->host, sizeof s->host, &s->a);
}

static void expect_to_host(const stage *s) {
    for (int i = 0; i < 6; i++) assert_true(s->host[i] == (float)i);
}

static kvc_status run_concatenate(stage *s) {
    const kvc_array parts[3] = {s->b, s->a, s->b};
    return kvc_array_concatenate(&s->out, s->pool, parts, 3, 0);
}

static void expect_concatenate(const stage *s) {
    array_expect(&s->out, 2, I64(4, 3), F64(7, 8, 9, 0, 1, 2, 3, 4, 5, 7, 8, 9));
}

static kvc_status run_slice(stage *s) {
    return kvc_array_slice(&s->out, &s->a, NULL, NULL, I64(-1, 2));
}

static void expect_slice(const stage *s) {
    array_expect(&s->out, 2, I64(2, 2), F64(3, 5, 0, 2));
}

static kvc_status run_astype(stage *s) {
    return kvc_array_astype(&s->out, s->pool, &s->a, KVC_I8);
}

static kvc_status run_contiguous(stage *s) {
    kvc_array turned;
    const kvc_status sliced = kvc_array_slice(&turned, &s->a, NULL, NULL, I64(-1, -1));
    assert_int_equal(sliced, KVC_OK);
    const kvc_status status = kvc_array_contiguous(&s->out, s->pool, &turned);
    kvc_array_release(&turned);
    return status;
}

static void expect_astype(const stage *s) {
    array_expect(&s->out, 2, I64(2, 3), F64(0, 1, 2, 3, 4, 5));
}

static void expect_contiguous(const stage *s) {
    array_expect(&s->out, 2, I64(2, 3), F64(5, 4, 3, 2, 1, 0));
}

static kvc_status run_slice_update(stage *s) {
    const int axis = 0;
    return kvc_array_slice_update(&s->a, &s->b, I64(1), &axis, 1, &s->how);
}

static void expect_slice_update(const stage *s) {
    array_expect(&s->a, 2, I64(2, 3), F64(0, 1, 2, 7, 8, 9));
    assert_int_equal(s->how, s->other.buffer ? KVC_UPDATE_COPIED : KVC_UPDATE_IN_PLACE);
    if (s->other.buffer) array_expect(&s->other, 2, I64(2, 3), F64(0, 1, 2, 3, 4, 5));
}

static kvc_status run_assign(stage *s) {
    return kvc_array_assign(&s->a, &s->b, I64(all, 2), NULL, I64(1, -1), &s->how);
}

static void expect_assign(const stage *s) {
    array_expect(&s->a, 2, I64(2, 3), F64(9, 8, 7, 9, 8, 7));
    if (s->other.buffer) array_expect(&s->other, 2, I64(2, 3), F64(0, 1, 2, 3, 4, 5));
}

static kvc_status run_assign_to_itself(stage *s) {
    return kvc_array_assign(&s->a, &s->a, NULL, NULL, I64(-1, 1), &s->how);
}

static void expect_assign_to_itself(const stage *s) {
    array_expect(&s->a, 2, I64(2, 3), F64(3, 4, 5, 0, 1, 2));
    assert_int_equal(s->how, KVC_UPDATE_COPIED);
}

static kvc_status run_release(stage *s) {
    kvc_array sizes[20]; /* as many sizes as make the pool's table grow, which may fail */
    size_t count = 0;
    kvc_status status = KVC_OK;
    for (int64_t i = 0; i < 20 && status == KVC_OK; i++) {
        status = kvc_array_empty(&sizes[count], s->pool, KVC_U8, 1, I64(100 + i));
        if (status == KVC_OK) count++;
    }
    while (count) kvc_array_release(&sizes[--count]);
    return status;
}

static void expect_release(const stage *s) {
    assert_true(pool_stats(s->pool).cached_bytes <= 20 * 120 + 20000);
}

static const operation operations[] = {
    {"zeros", false, run_zeros, expect_zeros},
    {"full", false, run_full, expect_full},
    {"empty", false, run_empty, expect_empty},
    {"nothing", false, run_nothing, expect_nothing},
    {"from_host", false, run_from_host, expect_from_host},
    {"to_host", false, run_to_host, expect_to_host},
    {"concatenate", false, run_concatenate, expect_concatenate},
    {"slice", false, run_slice, expect_slice},
    {"astype", false, run_astype, expect_astype},
    {"contiguous", false, run_contiguous, expect_contiguous},
    {"slice_update", false, run_slice_update, expect_slice_update},
    {"slice_update, shared", true, run_slice_update, expect_slice_update},
    {"assign", false, run_assign, expect_assign},
    {"assign, shared", true, run_assign, expect_assign},
    {"assign to itself", false, run_assign_to_itself, expect_assign_to_itself},
    {"release", false, run_release, expect_release},
};

static void setup(stage *s, const operation *op, bool warm) {
    test_device_init(&s->device);
    assert_ok(kvc_pool_new(&s->pool, &s->device.table));
    s->a = array_counting(s->pool, KVC_F32, 2, I64(2, 3));
    s->b = array_of(s->pool, KVC_F32, 2, I64(1, 3), F64(7, 8, 9));
    s->other = op->shared ? kvc_array_retain(&s->a) : (kvc_array){0};
    memset(&s->out, 0x77, sizeof s->out); /* an output holds anything */
    s->how = (kvc_update)77;
    if (warm) pool_keep(s->pool, 20000); /* something to give back when the device fails */
}

static void teardown(stage *s) {
    kvc_array_release(&s->out);
    kvc_array_release(&s->other);
    kvc_array_release(&s->b);
    kvc_array_release(&s->a);
    kvc_pool_free(s->pool);
    test_device_deinit(&s->device);
}

static bool has_out(const operation *op) {
    return op->run != run_to_host && op->run != run_slice_update && op->run != run_assign &&
           op->run != run_assign_to_itself && op->run != run_release;
}

/* Runs an operation with its nth point failing. Returns false when there was none. */
static bool fail_at(const operation *op, size_t nth, test_fault_span span, bool warm) {
    static stage s;
    const size_t held = test_allocator_held();
    char a_bytes[24], b_bytes[12];
    setup(&s, op, warm);
    const kvc_array a = s.a, b = s.b;
    memcpy(a_bytes, a.data, sizeof a_bytes);
    memcpy(b_bytes, b.data, sizeof b_bytes);
    const uint64_t active = pool_stats(s.pool).active_bytes;

    test_fault_arm(nth, span);
    const kvc_status status = op->run(&s);
    const bool failed = test_fault_disarm();
    if (!has_out(op)) s.out = (kvc_array){0};

    if (status == KVC_OK) {
        op->expect(&s);
    } else {
        if (!failed) fail_msg("%s: %s", op->name, kvc_last_error());
        assert_true(status == KVC_E_NOMEM || status == KVC_E_UNSUPPORTED);
        const char *culprit = status == KVC_E_UNSUPPORTED ? "device 'test'" : "no memory";
        if (!strstr(kvc_last_error(), culprit)) fail_msg("%s: %s", op->name, kvc_last_error());
        array_expect_none(&s.out);
        assert_int_equal(s.how, 77);
        assert_memory_equal(&s.a, &a, sizeof a);
        assert_memory_equal(s.a.data, a_bytes, sizeof a_bytes);
        assert_int_equal(pool_stats(s.pool).active_bytes, active);
        assert_int_equal(kvc_buffer_is_sole(s.a.buffer), !op->shared);
    }
    assert_memory_equal(&s.b, &b, sizeof b);
    assert_memory_equal(s.b.data, b_bytes, sizeof b_bytes);
    teardown(&s);
    assert_int_equal(test_allocator_held(), held);
    return failed;
}

static void fault__any_one_failure_changes_nothing_and_leaks_nothing(void **state) {
    (void)state;
    test_allocator_use(true);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        for (int span = 0; span < 2; span++)
            for (int warm = 0; warm < 2; warm++) {
                size_t nth = 1;
                while (fail_at(&operations[i], nth, (test_fault_span)span, warm)) nth++;
                const bool fallible = operations[i].run != run_slice;
                if (fallible && nth < 2) fail_msg("%s never failed", operations[i].name);
            }
    test_allocator_use(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault__any_one_failure_changes_nothing_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
