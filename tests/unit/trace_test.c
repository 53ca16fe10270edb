#include "base/trace.h"
#include "support/support.h"

typedef struct record {
    int count;
    kvc_span last;
} record;

static void keep(void *context, const kvc_span *span) {
    record *r = context;
    r->count++;
    r->last = *span;
}

static int trace_off(void **state) {
    (void)state;
    kvc_trace_set(NULL, NULL);
    return 0;
}

static void trace__off_reads_no_clock_and_sends_nothing(void **state) {
    (void)state;
    assert_int_equal(kvc__span_begin(), 0);
    kvc__span_end(0, KVC_SPAN_COPY, "copy", 1);
}

static void trace__a_span_arrives_whole(void **state) {
    (void)state;
    record r = {0};
    kvc_trace_set(keep, &r);
    const uint64_t start = kvc__span_begin();
    assert_int_not_equal(start, 0);
    kvc__span_end(start, KVC_SPAN_COMMIT, "commit", 4096);
    assert_int_equal(r.count, 1);
    assert_int_equal(r.last.kind, KVC_SPAN_COMMIT);
    assert_string_equal(r.last.name, "commit");
    assert_int_equal(r.last.bytes, 4096);
    assert_int_equal(r.last.start_ns, start);
    assert_in_range(r.last.end_ns, start, kvc__now_ns());
}

static void trace__a_span_is_dropped_when_either_end_is_outside(void **state) {
    (void)state;
    record r = {0};
    const uint64_t before = kvc__span_begin();
    kvc_trace_set(keep, &r);
    kvc__span_end(before, KVC_SPAN_FILL, "fill", 1);
    const uint64_t within = kvc__span_begin();
    kvc_trace_set(NULL, NULL);
    kvc__span_end(within, KVC_SPAN_FILL, "fill", 1);
    assert_int_equal(r.count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace__off_reads_no_clock_and_sends_nothing),
        cmocka_unit_test_teardown(trace__a_span_arrives_whole, trace_off),
        cmocka_unit_test_teardown(trace__a_span_is_dropped_when_either_end_is_outside, trace_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
