/* Indexed assignment: dst[start:stop:step] = src, with broadcasting. Expected values are NumPy's,
 * but for positions outside of dst, which NumPy moves and the library refuses. */
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

static const int64_t all = KVC_SLICE_ALL;

static kvc_pool *pool_of(void **state) {
    return ((pool_fixture *)*state)->pool;
}

/* zeros(3, 4)[start:stop:step] = src, and what it should then be. */
static void expect(void **state, const kvc_array *src, const int64_t *start, const int64_t *stop,
                   const int64_t *step, const double *values) {
    kvc_array a;
    kvc_update how = KVC_UPDATE_COPIED;
    assert_ok(kvc_array_zeros(&a, pool_of(state), KVC_F32, 2, I64(3, 4)));
    assert_ok(kvc_array_assign(&a, src, start, stop, step, &how));
    assert_int_equal(how, KVC_UPDATE_IN_PLACE);
    array_expect(&a, 2, I64(3, 4), values);
    kvc_array_release(&a);
}

static void assign__steps_and_positions_from_the_end(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array src = array_of(pool, KVC_F32, 2, I64(2, 2), F64(1, 2, 3, 4));
    expect(state, &src, I64(1, 1), I64(3, 3), NULL, F64(0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0));
    expect(state, &src, I64(-2, -2), NULL, NULL, F64(0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4));
    expect(state, &src, NULL, NULL, I64(2, 2), F64(1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4, 0));
    expect(state, &src, I64(all, 3), I64(all, all), I64(-2, -3),
           F64(4, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0, 1));
    expect(state, &src, I64(2, 2), I64(0, 0), I64(-1, -1), F64(0, 0, 0, 0, 0, 4, 3, 0, 0, 2, 1, 0));
    expect(state, &src, I64(1, all), I64(-4, 2), I64(-1, 1),
           F64(3, 4, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0)); /* -4: what lies before the first of three */
    kvc_array_release(&src);
}

static void assign__broadcasts_missing_axes_and_extents_of_1(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array scalar = array_of(pool, KVC_F32, 0, NULL, F64(7));
    expect(state, &scalar, I64(1, 1), I64(2, 3), NULL, F64(0, 0, 0, 0, 0, 7, 7, 0, 0, 0, 0, 0));
    kvc_array row = array_of(pool, KVC_F32, 1, I64(4), F64(1, 2, 3, 4));
    expect(state, &row, NULL, NULL, NULL, F64(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4));
    expect(state, &row, I64(1, all), I64(2, all), I64(1, -1),
           F64(0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0));
    kvc_array column = array_of(pool, KVC_F32, 2, I64(3, 1), F64(1, 2, 3));
    expect(state, &column, I64(all, 2), NULL, NULL, F64(0, 0, 1, 1, 0, 0, 2, 2, 0, 0, 3, 3));
    kvc_array cell = array_of(pool, KVC_F32, 2, I64(1, 1), F64(5));
    expect(state, &cell, NULL, NULL, I64(2, 3), F64(5, 0, 0, 5, 0, 0, 0, 0, 5, 0, 0, 5));
    kvc_array_release(&scalar);
    kvc_array_release(&row);
    kvc_array_release(&column);
    kvc_array_release(&cell);
}

static void assign__a_view_is_read_as_it_steps(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array counting = array_counting(pool, KVC_U8, 2, I64(4, 8));
    kvc_array src = array_sliced(&counting, I64(3, 7), I64(0, all), I64(-1, -2));
    expect(state, &src, NULL, NULL, NULL, F64(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9));
    kvc_array_release(&src);
    kvc_array_release(&counting);
}

static void assign__the_seeds_line_reads_as_slice_update(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a, b, x = array_of(pool, KVC_F32, 3, I64(1, 1, 2), F64(5, 6));
    assert_ok(kvc_array_zeros(&a, pool, KVC_F32, 3, I64(1, 4, 2)));
    assert_ok(kvc_array_zeros(&b, pool, KVC_F32, 3, I64(1, 4, 2)));
    for (int64_t offset = 0; offset < 4; offset++) {
        const int axis = 1; /* cache[:, offset : offset + 1, :] = x */
        assert_ok(
            kvc_array_assign(&a, &x, I64(all, offset, all), I64(all, offset + 1, all), NULL, NULL));
        assert_ok(kvc_array_slice_update(&b, &x, &offset, &axis, 1, NULL));
    }
    array_expect(&a, 3, I64(1, 4, 2), F64(5, 6, 5, 6, 5, 6, 5, 6));
    array_expect(&b, 3, I64(1, 4, 2), F64(5, 6, 5, 6, 5, 6, 5, 6));
    assert_fails(kvc_array_assign(&a, &x, I64(all, 4, all), I64(all, 5, all), NULL, NULL),
                 KVC_E_RANGE);
    kvc_array_release(&x);
    kvc_array_release(&a);
    kvc_array_release(&b);
}

static void assign__what_another_holds_is_copied_first(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_I8, 1, I64(4)), other = kvc_array_retain(&a);
    kvc_array x = array_of(pool, KVC_F32, 0, NULL, F64(-200));
    kvc_update how = KVC_UPDATE_IN_PLACE;
    assert_ok(kvc_array_assign(&a, &x, I64(1), I64(3), NULL, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&a, 1, I64(4), F64(0, -128, -128, 3));
    array_expect(&other, 1, I64(4), F64(0, 1, 2, 3));
    kvc_array_release(&other);
    kvc_array_release(&x);
    kvc_array_release(&a);
}

static void assign__a_slice_of_the_destination_may_be_the_source(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(6));
    kvc_array back = array_sliced(&a, NULL, NULL, I64(-1));
    kvc_update how;
    assert_ok(kvc_array_assign(&a, &back, NULL, NULL, NULL, &how));
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&a, 1, I64(6), F64(5, 4, 3, 2, 1, 0));
    array_expect(&back, 1, I64(6), F64(5, 4, 3, 2, 1, 0));
    kvc_array_release(&back);
    kvc_array_release(&a);
}

static void assign__the_destination_may_be_the_source_itself(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(6));
    kvc_update how;
    assert_ok(kvc_array_assign(&a, &a, NULL, NULL, I64(-1), &how)); /* a[::-1] = a */
    assert_int_equal(how, KVC_UPDATE_COPIED);
    array_expect(&a, 1, I64(6), F64(5, 4, 3, 2, 1, 0));
    const int axis = 0;
    assert_ok(kvc_array_slice_update(&a, &a, I64(0), &axis, 1, NULL));
    array_expect(&a, 1, I64(6), F64(5, 4, 3, 2, 1, 0));
    assert_true(kvc_buffer_is_sole(a.buffer));
    kvc_array_release(&a);
}

static void assign__an_empty_region_takes_what_broadcasts_to_nothing(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a = array_counting(pool, KVC_F32, 1, I64(4));
    kvc_array one = array_of(pool, KVC_F32, 1, I64(1), F64(9));
    kvc_array two = array_of(pool, KVC_F32, 1, I64(2), F64(8, 9));
    assert_ok(kvc_array_assign(&a, &one, I64(2), I64(2), NULL, NULL));
    assert_ok(kvc_array_assign(&a, &one, I64(3), I64(1), NULL, NULL));
    assert_fails(kvc_array_assign(&a, &two, I64(2), I64(2), NULL, NULL), KVC_E_SHAPE);
    array_expect(&a, 1, I64(4), F64(0, 1, 2, 3));
    kvc_array_release(&one);
    kvc_array_release(&two);
    kvc_array_release(&a);
}

/* Fails unless the assignment is refused with these words and nothing changed. */
static void refused(void **state, const kvc_array *src, const int64_t *start, const int64_t *stop,
                    const int64_t *step, kvc_status status, const char *words) {
    kvc_array a = array_counting(pool_of(state), KVC_F32, 2, I64(3, 4));
    const kvc_array before = a;
    kvc_update how = (kvc_update)77;
    assert_fails(kvc_array_assign(&a, src, start, stop, step, &how), status);
    if (!strstr(kvc_last_error(), words)) fail_msg("'%s' lacks '%s'", kvc_last_error(), words);
    assert_memory_equal(&a, &before, sizeof a);
    array_expect(&a, 2, I64(3, 4), F64(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    assert_int_equal(how, 77);
    kvc_array_release(&a);
}

static void assign__a_position_outside_is_refused_in_both_directions(void **state) {
    kvc_array x = array_of(pool_of(state), KVC_F32, 2, I64(1, 1), F64(9));
    refused(state, &x, I64(0, 4), I64(1, 5), NULL, KVC_E_RANGE,
            "axis 1: start 4 and stop 5 given, both within its extent of 4 wanted");
    refused(state, &x, I64(0, 5), NULL, NULL, KVC_E_RANGE, "start 5");
    refused(state, &x, I64(0, -5), NULL, NULL, KVC_E_RANGE, "start -5");
    refused(state, &x, NULL, I64(0, 5), NULL, KVC_E_RANGE, "stop 5");
    refused(state, &x, NULL, I64(-4, 0), NULL, KVC_E_RANGE, "axis 0");
    refused(state, &x, I64(0, INT64_MAX), NULL, NULL, KVC_E_RANGE, "9223372036854775807");
    refused(state, &x, I64(0, INT64_MIN + 1), NULL, NULL, KVC_E_RANGE, "-9223372036854775807");
    /* Backwards the first position is the last element's. */
    refused(state, &x, I64(0, 4), NULL, I64(1, -1), KVC_E_RANGE, "start 4");
    refused(state, &x, NULL, I64(3, 4), I64(1, -1), KVC_E_RANGE, "stop 4");
    refused(state, &x, I64(0, -100), NULL, I64(1, -1), KVC_E_RANGE, "start -100");
    refused(state, &x, I64(0, 3), I64(1, -100), I64(1, -1), KVC_E_RANGE, "stop -100");
    refused(state, &x, I64(0, -6), NULL, I64(1, -1), KVC_E_RANGE, "start -6");
    kvc_array_release(&x);
}

static void assign__a_step_of_0_is_refused(void **state) {
    kvc_array x = array_of(pool_of(state), KVC_F32, 0, NULL, F64(9));
    refused(state, &x, NULL, NULL, I64(1, 0), KVC_E_INVALID, "step[1]: 0 given");
    kvc_array_release(&x);
}

static void assign__a_source_that_does_not_broadcast_is_refused(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array x = array_counting(pool, KVC_F32, 2, I64(2, 4));
    refused(state, &x, NULL, NULL, NULL, KVC_E_SHAPE,
            "src: [2, 4] given, [3, 4] or what broadcasts to it wanted");
    refused(state, &x, I64(0, 0), I64(2, 3), NULL, KVC_E_SHAPE, "[2, 3]");
    kvc_array_release(&x);
    x = array_counting(pool, KVC_F32, 3, I64(1, 3, 4));
    refused(state, &x, NULL, NULL, NULL, KVC_E_SHAPE, "[1, 3, 4] given");
    kvc_array_release(&x);
    x = array_counting(pool, KVC_F32, 2, I64(3, 0));
    refused(state, &x, NULL, NULL, NULL, KVC_E_SHAPE, "[3, 0] given");
    kvc_array_release(&x);
    refused(state, NULL, NULL, NULL, NULL, KVC_E_INVALID, "src");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(assign__steps_and_positions_from_the_end),
        pool_test(assign__broadcasts_missing_axes_and_extents_of_1),
        pool_test(assign__a_view_is_read_as_it_steps),
        pool_test(assign__the_seeds_line_reads_as_slice_update),
        pool_test(assign__what_another_holds_is_copied_first),
        pool_test(assign__a_slice_of_the_destination_may_be_the_source),
        pool_test(assign__the_destination_may_be_the_source_itself),
        pool_test(assign__an_empty_region_takes_what_broadcasts_to_nothing),
        pool_test(assign__a_position_outside_is_refused_in_both_directions),
        pool_test(assign__a_step_of_0_is_refused),
        pool_test(assign__a_source_that_does_not_broadcast_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
