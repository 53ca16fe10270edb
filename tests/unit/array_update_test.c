/* slice_update: in place when alone, a copy first when not, and every misuse refused with nothing
 * changed. Indexed assignment has array_assign_test.c. */
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

static const int64_t all = KVC_SLICE_ALL;

/* A list of axes. */
#define AXES(...) ((const int[]){__VA_ARGS__})

static kvc_pool *pool_of(void **state) {
    return ((pool_fixture *)*state)->pool;
}

static void update__writes_where_it_is_told(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 2, I64(3, 4));
    kvc_array one = array_of(pool, KVC_F32, 2, I64(1, 2), F64(70, 71));
    kvc_update how = KVC_UPDATE_COPIED;
    assert_ok(kvc_array_slice_update(&a, &one, I64(2, 1), AXES(0, 1), 2, &how));
    assert_int_equal(how, KVC_UPDATE_IN_PLACE);
    array_expect(&a, 2, I64(3, 4), F64(0, 1, 2, 3, 4, 5, 6, 7, 8, 70, 71, 11));
    assert_ok(kvc_array_slice_update(&a, &one, I64(2), AXES(-1), 1, NULL)); /* 0 along the others */
    array_expect(&a, 2, I64(3, 4), F64(0, 1, 70, 71, 4, 5, 6, 7, 8, 70, 71, 11));
    assert_ok(kvc_array_slice_update(&a, &one, I64(1, 1), AXES(1, -2), 2, NULL));
    array_expect(&a, 2, I64(3, 4), F64(0, 1, 70, 71, 4, 70, 71, 7, 8, 70, 71, 11));
    assert_ok(kvc_array_slice_update(&a, &one, NULL, NULL, 0, NULL));
    array_expect(&a, 2, I64(3, 4), F64(70, 71, 70, 71, 4, 70, 71, 7, 8, 70, 71, 11));
    kvc_array_release(&one);
    kvc_array_release(&a);
}

static void update__an_append_at_the_last_position_fits(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a, x = array_of(pool, KVC_BF16, 3, I64(1, 1, 2), F64(5, 6));
    assert_ok(kvc_array_zeros(&a, pool, KVC_BF16, 3, I64(1, 3, 2)));
    assert_ok(kvc_array_slice_update(&a, &x, I64(2), AXES(1), 1, NULL));
    array_expect(&a, 3, I64(1, 3, 2), F64(0, 0, 0, 0, 5, 6));
    kvc_array_release(&x);
    kvc_array_release(&a);
}

static void update__converts_what_it_writes(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a, x = array_of(pool, KVC_F32, 1, I64(3), F64(-1, 300, 2.9));
    assert_ok(kvc_array_full(&a, pool, KVC_U8, 1, I64(5), 9));
    assert_ok(kvc_array_slice_update(&a, &x, I64(1), AXES(0), 1, NULL));
    array_expect(&a, 1, I64(5), F64(9, 0, 255, 2, 9));
    kvc_array_release(&x);
    kvc_array_release(&a);
}

static void update__what_another_holds_is_copied_first(void **state) {
    pool_fixture *f = *state;
    kvc_array a = array_counting(f->pool, KVC_F32, 1, I64(4)), other = kvc_array_retain(&a);
    kvc_array x = array_of(f->pool, KVC_F32, 1, I64(1), F64(9));
    kvc_update how = KVC_UPDATE_IN_PLACE;
    assert_ok(kvc_array_slice_update(&a, &x, I64(3), AXES(0), 1, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&a, 1, I64(4), F64(0, 1, 2, 9));
    array_expect(&other, 1, I64(4), F64(0, 1, 2, 3));
    assert_true(kvc_buffer_is_sole(a.buffer));
    assert_true(kvc_buffer_is_sole(other.buffer)); /* dst's reference was consumed */
    const void *data = a.data;
    assert_ok(kvc_array_slice_update(&a, &x, I64(0), AXES(0), 1, &how));
    assert_int_equal(how, KVC_UPDATE_IN_PLACE);
    assert_ptr_equal(a.data, data);
    kvc_array_release(&other);
    kvc_array_release(&x);
    kvc_array_release(&a);
}

static void update__a_slice_in_another_hand_counts_as_a_holder(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(4));
    kvc_array keys = array_sliced(&a, NULL, I64(2), NULL);
    kvc_array x = array_of(pool, KVC_F32, 1, I64(1), F64(9));
    kvc_update how;
    assert_ok(kvc_array_slice_update(&a, &x, I64(0), AXES(0), 1, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&keys, 1, I64(2), F64(0, 1));
    array_expect(&a, 1, I64(4), F64(9, 1, 2, 3));
    kvc_array_release(&keys);
    kvc_array_release(&x);
    kvc_array_release(&a);
}

static void update__into_a_view_that_alone_holds_the_buffer_stays_in_the_view(void **state) {
    pool_fixture *f = *state;
    kvc_array whole = array_counting(f->pool, KVC_F32, 2, I64(3, 4));
    kvc_array view = array_sliced(&whole, I64(all, 1), I64(all, 3), I64(-1, 1));
    const kvc_array weak = whole; /* to look at what lies around the view */
    kvc_array_release(&whole);
    kvc_array x = array_of(f->pool, KVC_F32, 2, I64(2, 1), F64(50, 51));
    kvc_update how;
    assert_ok(kvc_array_slice_update(&view, &x, I64(1, 1), AXES(0, 1), 2, &how));
    assert_int_equal(how, KVC_UPDATE_IN_PLACE);
    array_expect(&view, 2, I64(3, 2), F64(9, 10, 5, 50, 1, 51));
    array_expect(&weak, 2, I64(3, 4), F64(0, 1, 51, 3, 4, 5, 50, 7, 8, 9, 10, 11));
    kvc_array_release(&x);
    kvc_array_release(&view);
}

static void update__a_copied_view_brings_its_elements_alone(void **state) {
    pool_fixture *f = *state;
    kvc_array whole = array_counting(f->pool, KVC_F32, 2, I64(3, 4));
    kvc_array view = array_sliced(&whole, I64(all, 1), I64(all, 3), I64(-1, 1));
    kvc_array x = array_of(f->pool, KVC_F32, 2, I64(1, 1), F64(50));
    kvc_update how;
    assert_ok(kvc_array_slice_update(&view, &x, NULL, NULL, 0, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&view, 2, I64(3, 2), F64(50, 10, 5, 6, 1, 2));
    assert_true(kvc_array_is_contiguous(&view));
    assert_int_equal(kvc_buffer_capacity_bytes(view.buffer), 24);
    array_expect(&whole, 2, I64(3, 4), F64(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    kvc_array_release(&x);
    kvc_array_release(&view);
    kvc_array_release(&whole);
}

static void update__a_slice_of_the_destination_may_be_the_source(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(6));
    kvc_array tail = array_sliced(&a, I64(2), I64(6), NULL);
    kvc_update how;
    assert_ok(kvc_array_slice_update(&a, &tail, I64(1), AXES(0), 1, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&a, 1, I64(6), F64(0, 2, 3, 4, 5, 5));
    array_expect(&tail, 1, I64(4), F64(2, 3, 4, 5));
    kvc_array_release(&tail);
    kvc_array_release(&a);
}

static void update__nothing_is_written_from_an_empty_source(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(3));
    kvc_array none = array_counting(pool, KVC_F32, 1, I64(0));
    assert_ok(kvc_array_slice_update(&a, &none, I64(3), AXES(0), 1, NULL));
    assert_fails(kvc_array_slice_update(&a, &none, I64(4), AXES(0), 1, NULL), KVC_E_RANGE);
    array_expect(&a, 1, I64(3), F64(0, 1, 2));
    assert_ok(kvc_array_slice_update(&none, &none, I64(0), AXES(0), 1, NULL));
    kvc_array_release(&none);
    kvc_array_release(&a);
}

/* A destination, a source, and how they were before a call that is to be refused. */
typedef struct attempt {
    kvc_array dst, src, dst_before, src_before;
    char dst_bytes[96], src_bytes[96];
    kvc_update how;
    kvc_pool *pool;
    kvc_pool_stats stats;
} attempt;

static void attempt_init(attempt *t, kvc_pool *pool) {
    memset(t, 0, sizeof *t);
    t->pool = pool;
    t->dst = array_counting(pool, KVC_F32, 3, I64(2, 3, 4));
    t->src = array_of(pool, KVC_F32, 3, I64(2, 1, 4), F64(90, 91, 92, 93, 94, 95, 96, 97));
    t->dst_before = t->dst;
    t->src_before = t->src;
    memcpy(t->dst_bytes, t->dst.data, kvc_array_nbytes(&t->dst));
    memcpy(t->src_bytes, t->src.data, kvc_array_nbytes(&t->src));
    t->how = (kvc_update)77;
    t->stats = pool_stats(pool);
}

static void nothing_changed(const attempt *t) {
    const kvc_pool_stats stats = pool_stats(t->pool);
    assert_memory_equal(&t->dst, &t->dst_before, sizeof t->dst);
    assert_memory_equal(&t->src, &t->src_before, sizeof t->src);
    assert_memory_equal(t->dst.data, t->dst_bytes, kvc_array_nbytes(&t->dst));
    assert_memory_equal(t->src.data, t->src_bytes, kvc_array_nbytes(&t->src));
    assert_int_equal(t->how, 77);
    assert_memory_equal(&stats, &t->stats, sizeof stats);
}

static void attempt_deinit(attempt *t) {
    kvc_array_release(&t->dst);
    kvc_array_release(&t->src);
}

/* Fails unless the update is refused with a sentence that has these words, alone and shared. */
static void refused(void **state, const int64_t *start, const int *axes, int naxes,
                    kvc_status status, const char *words) {
    for (int shared = 0; shared < 2; shared++) {
        attempt t;
        attempt_init(&t, pool_of(state));
        kvc_array other = shared ? kvc_array_retain(&t.dst) : (kvc_array){0};
        assert_fails(kvc_array_slice_update(&t.dst, &t.src, start, axes, naxes, &t.how), status);
        if (!strstr(kvc_last_error(), words)) fail_msg("'%s' lacks '%s'", kvc_last_error(), words);
        nothing_changed(&t);
        kvc_array_release(&other);
        attempt_deinit(&t);
    }
}

static void update__a_start_outside_is_refused_with_both_numbers(void **state) {
    /* At the capacity MLX drops a static start and overruns the heap from a dynamic one. */
    refused(state, I64(3), AXES(1), 1, KVC_E_RANGE,
            "start: 3 given along axis 1 for 1 positions, at most 2 wanted");
    refused(state, I64(4), AXES(-2), 1, KVC_E_RANGE, "4 given along axis 1");
    refused(state, I64(100000), AXES(1), 1, KVC_E_RANGE, "100000");
    refused(state, I64(INT64_MAX), AXES(1), 1, KVC_E_RANGE, "9223372036854775807");
    refused(state, I64(-1), AXES(1), 1, KVC_E_RANGE, "-1");
    refused(state, I64(INT64_MIN), AXES(1), 1, KVC_E_RANGE, "-9223372036854775808");
    refused(state, I64(0, 1), AXES(1, 0), 2, KVC_E_RANGE,
            "along axis 0 for 2 positions, at most 0");
    refused(state, I64(0, 0, 1), AXES(0, 1, 2), 3, KVC_E_RANGE, "along axis 2");
}

static void update__axes_that_are_wrong_are_refused(void **state) {
    refused(state, I64(0), AXES(3), 1, KVC_E_INVALID, "axes: 3 given, -3 to 2 wanted");
    refused(state, I64(0), AXES(-4), 1, KVC_E_INVALID, "-4");
    refused(state, I64(0, 0), AXES(1, 1), 2, KVC_E_INVALID, "axes: 1 given twice");
    refused(state, I64(0, 0), AXES(1, -2), 2, KVC_E_INVALID, "axes: -2 given twice");
    refused(state, I64(0, 0, 0, 0), AXES(0, 1, 2, 0), 4, KVC_E_INVALID, "naxes: 4");
    refused(state, I64(0), AXES(0), -1, KVC_E_INVALID, "naxes: -1");
    refused(state, NULL, AXES(0), 1, KVC_E_INVALID, "start");
    refused(state, I64(0), NULL, 1, KVC_E_INVALID, "axes");
}

/* As refused, for a source of another shape. */
static void refused_source(void **state, int ndim, const int64_t *shape, const char *words) {
    attempt t;
    attempt_init(&t, pool_of(state));
    kvc_array src = array_counting(t.pool, KVC_F32, ndim, shape);
    t.stats = pool_stats(t.pool);
    assert_fails(kvc_array_slice_update(&t.dst, &src, I64(0), AXES(1), 1, &t.how), KVC_E_SHAPE);
    if (!strstr(kvc_last_error(), words)) fail_msg("'%s' lacks '%s'", kvc_last_error(), words);
    nothing_changed(&t);
    kvc_array_release(&src);
    attempt_deinit(&t);
}

static void update__a_source_that_does_not_fit_is_refused(void **state) {
    refused_source(state, 3, I64(2, 4, 4), "extent 4 given along axis 1, at most 3 wanted");
    refused_source(state, 3, I64(3, 1, 1), "axis 0");
    refused_source(state, 3, I64(1, 1, 5), "axis 2");
    refused_source(state, 2, I64(1, 4), "2 dimensions given, dst has 3");
    refused_source(state, 4, I64(1, 1, 1, 4), "4 dimensions given, dst has 3");
    refused_source(state, 0, NULL, "0 dimensions given, dst has 3");
}

static void update__borrowed_memory_is_not_written(void **state) {
    float data[3] = {1, 2, 3};
    attempt t;
    attempt_init(&t, pool_of(state));
    kvc_array dst, one = array_of(t.pool, KVC_F32, 1, I64(1), F64(9));
    assert_ok(kvc_array_borrow(&dst, KVC_F32, 1, I64(3), NULL, data));
    assert_fails(kvc_array_slice_update(&dst, &one, I64(0), AXES(0), 1, NULL), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "borrowed"));
    assert_fails(kvc_array_assign(&dst, &one, I64(0), I64(1), NULL, NULL), KVC_E_INVALID);
    assert_true(data[0] == 1);
    assert_ptr_equal(dst.data, data);
    kvc_array src; /* as a source it serves */
    assert_ok(kvc_array_borrow(&src, KVC_F32, 3, I64(1, 1, 3), I64(9, 9, -1), data + 2));
    assert_ok(kvc_array_slice_update(&t.dst, &src, I64(1, 1), AXES(0, 2), 2, NULL));
    assert_true(array_value(&t.dst, 13) == 3 && array_value(&t.dst, 15) == 1);
    kvc_array_release(&one);
    attempt_deinit(&t);
}

static void update__what_is_no_array_is_refused(void **state) {
    attempt t;
    attempt_init(&t, pool_of(state));
    kvc_array none = {0};
    assert_fails(kvc_array_slice_update(&t.dst, NULL, NULL, NULL, 0, &t.how), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "src"));
    assert_fails(kvc_array_slice_update(&t.dst, &none, NULL, NULL, 0, &t.how), KVC_E_INVALID);
    assert_fails(kvc_array_slice_update(NULL, &t.src, NULL, NULL, 0, &t.how), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "dst"));
    assert_fails(kvc_array_slice_update(&none, &t.src, NULL, NULL, 0, &t.how), KVC_E_INVALID);
    nothing_changed(&t);
    attempt_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(update__writes_where_it_is_told),
        pool_test(update__an_append_at_the_last_position_fits),
        pool_test(update__converts_what_it_writes),
        pool_test(update__what_another_holds_is_copied_first),
        pool_test(update__a_slice_in_another_hand_counts_as_a_holder),
        pool_test(update__into_a_view_that_alone_holds_the_buffer_stays_in_the_view),
        pool_test(update__a_copied_view_brings_its_elements_alone),
        pool_test(update__a_slice_of_the_destination_may_be_the_source),
        pool_test(update__nothing_is_written_from_an_empty_source),
        pool_test(update__a_start_outside_is_refused_with_both_numbers),
        pool_test(update__axes_that_are_wrong_are_refused),
        pool_test(update__a_source_that_does_not_fit_is_refused),
        pool_test(update__borrowed_memory_is_not_written),
        pool_test(update__what_is_no_array_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
