/* Slices, against Python's own definition and facts from NumPy. */
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

static const int64_t all = KVC_SLICE_ALL;

/* Fails unless arange(n)[start:stop:step] is values. */
static void expect(kvc_pool *pool, int64_t n, int64_t start, int64_t stop, int64_t step,
                   int64_t count, const double *values) {
    kvc_array a = array_counting(pool, KVC_F32, 1, &n);
    kvc_array s = array_sliced(&a, &start, &stop, &step);
    array_expect(&s, 1, &count, values);
    kvc_array_release(&s);
    kvc_array_release(&a);
}

static void slice__steps_and_ends_are_numpys(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    expect(pool, 10, 2, 8, 3, 2, F64(2, 5));
    expect(pool, 10, 2, 9, 3, 3, F64(2, 5, 8));
    expect(pool, 10, 8, 1, -3, 3, F64(8, 5, 2));
    expect(pool, 10, 8, 2, -3, 2, F64(8, 5));
    expect(pool, 10, -3, all, 1, 3, F64(7, 8, 9));
    expect(pool, 10, all, -7, 1, 3, F64(0, 1, 2));
    expect(pool, 10, all, all, -4, 3, F64(9, 5, 1));
    expect(pool, 10, -100, 100, 4, 3, F64(0, 4, 8));
    expect(pool, 10, 100, -100, -4, 3, F64(9, 5, 1));
    expect(pool, 4, 3, all, -1, 4, F64(3, 2, 1, 0));
    expect(pool, 4, 3, -1, -1, 0, NULL); /* -1 is the last element, not what is before the first */
    expect(pool, 10, 5, 5, 1, 0, NULL);
    expect(pool, 10, 6, 5, 1, 0, NULL);
    expect(pool, 10, 5, 6, -1, 0, NULL);
    expect(pool, 10, 10, all, 1, 0, NULL);
    expect(pool, 10, -100, all, -1, 0, NULL);
    expect(pool, 0, all, all, -1, 0, NULL);
    expect(pool, 0, 0, 5, 3, 0, NULL);
}

static void slice__positions_and_steps_as_large_as_there_are_fit(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    expect(pool, 10, 0, INT64_MAX, INT64_MAX, 1, F64(0));
    expect(pool, 10, INT64_MAX, INT64_MIN + 1, INT64_MIN, 1, F64(9));
    expect(pool, 10, INT64_MAX, INT64_MIN + 1, -INT64_MAX, 1, F64(9));
    expect(pool, 10, INT64_MIN + 1, INT64_MAX, 9, 2, F64(0, 9));
    expect(pool, 10, all, all, -9, 2, F64(9, 0));
    expect(pool, 10, INT64_MAX, all, 1, 0, NULL);
    expect(pool, 1, all, all, INT64_MIN, 1, F64(0));
    expect(pool, 0, INT64_MAX, INT64_MIN + 1, INT64_MIN, 0, NULL);
}

/* What Python's reference says of s[i:j:k], n = len(s). */
static int64_t python_slice(double *values, int64_t n, int64_t i, int64_t j, int64_t k) {
    int64_t count = 0;
    if (i == all) i = k > 0 ? 0 : n - 1;
    else if (i < 0) i += n;
    if (j == all) j = k > 0 ? n : -1;
    else if (j < 0) j += n < -j ? -j - 1 : n; /* before the first: -1 */
    for (int64_t at = i; k > 0 ? at < j : at > j; at += k) {
        /* Positions outside are those of the nearest end, from which the steps then go. */
        if (k > 0 && at < 0) at = 0;
        if (k < 0 && at > n - 1) at = n - 1;
        if (at < 0 || at >= n || (k > 0 ? at >= j : at <= j)) break;
        values[count++] = (double)at;
    }
    return count;
}

static void slice__every_small_one_is_pythons(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    for (int64_t n = 0; n <= 5; n++) {
        kvc_array a = array_counting(pool, KVC_U8, 1, &n);
        for (int64_t i = -8; i <= 8; i++)
            for (int64_t j = -8; j <= 8; j++)
                for (int64_t k = -6; k <= 6; k++) {
                    if (k == 0) continue;
                    const int64_t start = i == 8 ? all : i, stop = j == 8 ? all : j;
                    double values[8];
                    const int64_t count = python_slice(values, n, start, stop, k);
                    kvc_array s = array_sliced(&a, &start, &stop, &k);
                    array_expect(&s, 1, &count, values);
                    kvc_array_release(&s);
                }
        kvc_array_release(&a);
    }
}

static void slice__narrows_every_axis_on_its_own(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_array a = array_counting(pool, KVC_F32, 3, I64(2, 3, 4));
    kvc_array s = array_sliced(&a, I64(all, 2, 1), I64(all, all, 4), I64(-1, -2, 2));
    array_expect(&s, 3, I64(2, 2, 2), F64(21, 23, 13, 15, 9, 11, 1, 3));
    assert_false(kvc_array_is_contiguous(&s));
    assert_ptr_equal(s.buffer, a.buffer);
    kvc_array of_slice = array_sliced(&s, I64(1, all, all), NULL, I64(1, -1, -1));
    array_expect(&of_slice, 3, I64(1, 2, 2), F64(3, 1, 11, 9));
    kvc_array whole = array_sliced(&a, NULL, NULL, NULL);
    assert_true(kvc_array_is_contiguous(&whole));
    assert_ptr_equal(whole.data, a.data);
    kvc_array none = array_sliced(&a, I64(all, 3, all), NULL, NULL);
    array_expect(&none, 3, I64(2, 0, 4), NULL);
    kvc_array_release(&none);
    kvc_array_release(&whole);
    kvc_array_release(&of_slice);
    kvc_array_release(&s);
    kvc_array_release(&a);
}

static void slice__a_prefix_of_one_head_is_contiguous_and_of_two_is_not(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_array a = array_counting(pool, KVC_F32, 4, I64(1, 2, 6, 3));
    kvc_array two = array_sliced(&a, NULL, I64(all, all, 4, all), NULL);
    kvc_array one = array_sliced(&a, NULL, I64(all, 1, 4, all), NULL);
    assert_false(kvc_array_is_contiguous(&two));
    assert_true(kvc_array_is_contiguous(&one));
    kvc_array_release(&one);
    kvc_array_release(&two);
    kvc_array_release(&a);
}

static void slice__copies_nothing_and_holds_the_buffer(void **state) {
    pool_fixture *f = *state;
    kvc_array a = array_counting(f->pool, KVC_F32, 1, I64(8));
    const size_t copies = f->device.calls[TEST_COPY];
    const size_t allocations = test_allocator_calls();
    kvc_array s = array_sliced(&a, I64(2), I64(5), NULL);
    assert_int_equal(f->device.calls[TEST_COPY], copies);
    assert_int_equal(test_allocator_calls(), allocations);
    assert_false(kvc_buffer_is_sole(a.buffer));
    kvc_array_release(&a);
    array_expect(&s, 1, I64(3), F64(2, 3, 4));
    kvc_array_release(&s);
}

static void slice__a_step_of_0_and_what_is_no_array_are_refused(void **state) {
    kvc_pool *pool = ((pool_fixture *)*state)->pool;
    kvc_array a = array_counting(pool, KVC_F32, 2, I64(2, 3)), s = a;
    assert_fails(kvc_array_slice(&s, &a, NULL, NULL, I64(1, 0)), KVC_E_INVALID);
    array_expect_none(&s);
    assert_non_null(strstr(kvc_last_error(), "step[1]"));
    assert_true(kvc_buffer_is_sole(a.buffer));
    assert_fails(kvc_array_slice(&s, NULL, NULL, NULL, NULL), KVC_E_INVALID);
    assert_fails(kvc_array_slice(NULL, &a, NULL, NULL, NULL), KVC_E_INVALID);
    kvc_array broken = a;
    broken.ndim = KVC_MAX_DIMS + 1;
    assert_fails(kvc_array_slice(&s, &broken, NULL, NULL, NULL), KVC_E_INVALID);
    broken = a;
    broken.dtype = (kvc_dtype)0;
    assert_fails(kvc_array_slice(&s, &broken, NULL, NULL, NULL), KVC_E_INVALID);
    kvc_array_release(&a);
}

static void slice__of_borrowed_memory_owns_nothing(void **state) {
    (void)state;
    const float data[4] = {0, 1, 2, 3};
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, KVC_F32, 1, I64(4), NULL, data));
    kvc_array s = array_sliced(&a, NULL, NULL, I64(-2));
    array_expect(&s, 1, I64(2), F64(3, 1));
    assert_null(s.buffer);
    kvc_array_release(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(slice__steps_and_ends_are_numpys),
        pool_test(slice__positions_and_steps_as_large_as_there_are_fit),
        pool_test(slice__every_small_one_is_pythons),
        pool_test(slice__narrows_every_axis_on_its_own),
        pool_test(slice__a_prefix_of_one_head_is_contiguous_and_of_two_is_not),
        pool_test(slice__copies_nothing_and_holds_the_buffer),
        pool_test(slice__a_step_of_0_and_what_is_no_array_are_refused),
        cmocka_unit_test(slice__of_borrowed_memory_owns_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
