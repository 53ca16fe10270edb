/* The spans that a profile is made of: each call on the device sends one, with its bytes. */
#include <stdio.h>

#include <kvcache/array.h>
#include <kvcache/trace.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

/* The spans of a test, as "name kind bytes" a line. */
typedef struct profile {
    char text[1024];
    size_t length;
    uint64_t last_ns;
} profile;

static profile spans;

static void keep(void *context, const kvc_span *span) {
    profile *p = context;
    p->length += (size_t)snprintf(p->text + p->length, sizeof p->text - p->length, "%s %d %llu\n",
                                  span->name, (int)span->kind, (unsigned long long)span->bytes);
    assert_true(span->end_ns >= span->start_ns && span->start_ns >= p->last_ns);
    p->last_ns = span->end_ns;
}

static int setup(void **state) {
    spans = (profile){.length = 0};
    (void)pool_fixture_setup(state);
    kvc_trace_set(keep, &spans);
    return 0;
}

static int teardown(void **state) {
    kvc_trace_set(NULL, NULL);
    return pool_fixture_teardown(state);
}

static void spans__of_a_buffer_tell_what_the_device_gave_and_got_back(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    pool_keep(pool, 5000);
    pool_keep(pool, 4900); /* a hit: no call, no span */
    kvc_pool_clear(pool);
    assert_string_equal(spans.text, "allocate 0 5000\n"
                                    "release 1 5000\n");
}

static void spans__of_a_reserved_buffer_tell_commits_from_address_space(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_buffer *b;
    assert_ok(kvc_buffer_reserve(&b, pool, (size_t)1 << 20));
    assert_ok(kvc_buffer_commit(b, 0, 16384));
    assert_ok(kvc_buffer_commit(b, 0, 16384));
    kvc_buffer_release(b);
    kvc_pool_clear(pool);
    assert_string_equal(spans.text, "reserve 0 1048576\n"
                                    "commit 2 16384\n"
                                    "release 1 16384\n");
}

static void spans__of_arrays_tell_the_bytes_written(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_array a, half;
    assert_ok(kvc_array_zeros(&a, pool, KVC_F32, 2, I64(2, 3)));
    assert_ok(kvc_array_astype(&half, pool, &a, KVC_F16));
    uint16_t host[6];
    assert_ok(kvc_array_to_host(host, sizeof host, &half));
    kvc_array_release(&a);
    kvc_array_release(&half);
    assert_string_equal(spans.text, "allocate 0 24\n"
                                    "fill 4 24\n"
                                    "allocate 0 12\n"
                                    "copy 3 12\n"
                                    "transfer 3 12\n");
}

static void spans__are_sent_for_calls_that_fail_too(void **state) {
    pool_fixture *f = *state;
    kvc_buffer *b;
    f->device.room_bytes = 100;
    assert_fails(kvc_buffer_new(&b, f->pool, 101), KVC_E_NOMEM);
    assert_string_equal(kvc_last_error(), "device 'test': no memory to allocate 101 bytes");
    assert_string_equal(spans.text, "allocate 0 101\n");
}

/* A test whose spans are kept. */
#define span_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        span_test(spans__of_a_buffer_tell_what_the_device_gave_and_got_back),
        span_test(spans__of_a_reserved_buffer_tell_commits_from_address_space),
        span_test(spans__of_arrays_tell_the_bytes_written),
        span_test(spans__are_sent_for_calls_that_fail_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
