/* Arrays: making them, bringing them back, joining, converting, comparing. Slices have
 * array_slice_test.c, updates array_update_test.c. Expected values are NumPy's. */
#include <math.h>
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"
#include "support/reference.h"

static const int64_t all = KVC_SLICE_ALL;

static kvc_pool *pool_of(void **state) {
    return ((pool_fixture *)*state)->pool;
}

static void create__zeros_full_and_empty_have_their_shape(void **state) {
    pool_fixture *f = *state;
    kvc_pool *pool = f->pool;
    for (size_t d = 0; d < 6; d++) {
        const kvc_dtype dtype = reference_dtypes[d];
        kvc_array a;
        assert_ok(kvc_array_zeros(&a, pool, dtype, 2, I64(2, 3)));
        array_expect(&a, 2, I64(2, 3), F64(0, 0, 0, 0, 0, 0));
        assert_int_equal(a.dtype, dtype);
        assert_int_equal(kvc_array_nbytes(&a), 6 * kvc_dtype_size_bytes(dtype));
        assert_true(kvc_array_is_contiguous(&a));
        kvc_array_release(&a);
        array_expect_none(&a);
        assert_ok(kvc_array_full(&a, pool, dtype, 1, I64(3), 7));
        array_expect(&a, 1, I64(3), F64(7, 7, 7));
        kvc_array_release(&a);
        const size_t fills = f->device.calls[TEST_FILL];
        assert_ok(kvc_array_empty(&a, pool, dtype, 3, I64(1, 2, 3)));
        assert_int_equal(kvc_array_size(&a), 6);
        assert_int_equal(f->device.calls[TEST_FILL], fills); /* no pass over it */
        kvc_array_release(&a);
    }
}

static void create__full_rounds_its_value_once_into_the_dtype(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a;
    assert_ok(kvc_array_full(&a, pool, KVC_U8, 1, I64(2), 300));
    array_expect(&a, 1, I64(2), F64(255, 255));
    kvc_array_release(&a);
    assert_ok(kvc_array_full(&a, pool, KVC_I8, 1, I64(1), (double)NAN));
    array_expect(&a, 1, I64(1), F64(0));
    kvc_array_release(&a);
    assert_ok(kvc_array_full(&a, pool, KVC_BF16, 1, I64(1), 1.00390625000001)); /* past a tie */
    array_expect(&a, 1, I64(1), F64(1.0078125));
    kvc_array_release(&a);
}

static void create__no_dimensions_make_one_element(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a;
    assert_ok(kvc_array_full(&a, pool, KVC_F32, 0, NULL, 5));
    array_expect(&a, 0, NULL, F64(5));
    assert_int_equal(kvc_array_nbytes(&a), 4);
    float back;
    assert_ok(kvc_array_to_host(&back, sizeof back, &a));
    assert_true(back == 5);
    kvc_array_release(&a);
}

static void create__an_extent_of_0_makes_no_elements(void **state) {
    pool_fixture *f = *state;
    kvc_array a;
    assert_ok(kvc_array_zeros(&a, f->pool, KVC_F32, 3, I64(2, 0, 4)));
    assert_int_equal(kvc_array_size(&a), 0);
    assert_int_equal(kvc_array_nbytes(&a), 0);
    assert_true(kvc_array_is_contiguous(&a));
    assert_ok(kvc_array_to_host(NULL, 0, &a));
    kvc_array_release(&a);
    assert_ok(kvc_array_from_host(&a, f->pool, KVC_U8, 1, I64(0), NULL));
    kvc_array_release(&a);
    assert_int_equal(test_device_driver_calls(&f->device), 0);
}

static void create__what_no_array_can_have_is_refused_by_name(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a;
    assert_fails(kvc_array_zeros(&a, pool, (kvc_dtype)0, 1, I64(1)), KVC_E_INVALID);
    array_expect_none(&a);
    assert_non_null(strstr(kvc_last_error(), "dtype"));
    assert_fails(kvc_array_zeros(&a, pool, (kvc_dtype)99, 1, I64(1)), KVC_E_INVALID);
    assert_fails(kvc_array_zeros(&a, pool, KVC_F32, -1, I64(1)), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "-1"));
    assert_fails(kvc_array_zeros(&a, pool, KVC_F32, KVC_MAX_DIMS + 1, I64(1)), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "ndim: 9"));
    assert_fails(kvc_array_zeros(&a, pool, KVC_F32, 2, I64(3, -4)), KVC_E_INVALID);
    assert_string_equal(kvc_last_error(), "shape[1]: -4 given, at least 0 wanted");
    assert_fails(kvc_array_zeros(&a, pool, KVC_F32, 2, NULL), KVC_E_INVALID);
    assert_fails(kvc_array_zeros(&a, NULL, KVC_F32, 1, I64(1)), KVC_E_INVALID);
    array_expect_none(&a);
    assert_fails(kvc_array_zeros(NULL, pool, KVC_F32, 1, I64(1)), KVC_E_INVALID);
    assert_fails(kvc_array_from_host(&a, pool, KVC_F32, 1, I64(1), NULL), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "data"));
    array_expect_none(&a);
}

static void host__elements_go_there_and_back_untouched(void **state) {
    kvc_pool *pool = pool_of(state);
    unsigned char bytes[24 + 1], back[24];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 200);
    for (size_t d = 0; d < 6; d++) {
        const int64_t n = 24 / (int64_t)kvc_dtype_size_bytes(reference_dtypes[d]);
        kvc_array a; /* from memory that is not aligned: it goes by bytes */
        assert_ok(kvc_array_from_host(&a, pool, reference_dtypes[d], 1, &n, bytes + 1));
        assert_ok(kvc_array_to_host(back, 24, &a));
        assert_memory_equal(back, bytes + 1, 24);
        kvc_array_release(&a);
    }
}

static void host__room_that_is_not_the_arrays_size_is_refused(void **state) {
    kvc_array a = array_counting(pool_of(state), KVC_F32, 2, I64(2, 3));
    float back[8] = {77};
    assert_fails(kvc_array_to_host(back, 23, &a), KVC_E_SHAPE);
    assert_non_null(strstr(kvc_last_error(), "23"));
    assert_non_null(strstr(kvc_last_error(), "24"));
    assert_fails(kvc_array_to_host(back, 25, &a), KVC_E_SHAPE);
    assert_fails(kvc_array_to_host(NULL, 24, &a), KVC_E_INVALID);
    assert_fails(kvc_array_to_host(back, 24, NULL), KVC_E_INVALID);
    kvc_array column = array_sliced(&a, I64(all, 1), I64(all, 2), NULL);
    assert_fails(kvc_array_to_host(back, 8, &column), KVC_E_SHAPE);
    assert_non_null(strstr(kvc_last_error(), "contiguous"));
    assert_true(back[0] == 77);
    kvc_array_release(&column);
    kvc_array_release(&a);
}

static void borrow__describes_memory_without_owning_it(void **state) {
    (void)state;
    const float data[6] = {0, 1, 2, 3, 4, 5};
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, I64(2, 3), NULL, data));
    array_expect(&a, 2, I64(2, 3), F64(0, 1, 2, 3, 4, 5));
    assert_null(a.buffer);
    assert_ptr_equal(a.data, data);
    kvc_array_release(&a);
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, I64(3, 2), I64(1, 3), data));
    array_expect(&a, 2, I64(3, 2), F64(0, 3, 1, 4, 2, 5));
    assert_false(kvc_array_is_contiguous(&a));
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, I64(2, 3), I64(0, -1), data + 2));
    array_expect(&a, 2, I64(2, 3), F64(2, 1, 0, 2, 1, 0));
    kvc_array again = kvc_array_retain(&a);
    assert_ptr_equal(again.data, data + 2);
    kvc_array_release(&again);
    assert_ok(kvc_array_borrow(&a, KVC_F32, 1, I64(0), NULL, NULL));
    assert_int_equal(kvc_array_size(&a), 0);
    assert_fails(kvc_array_borrow(&a, KVC_F32, 1, I64(1), NULL, NULL), KVC_E_INVALID);
    array_expect_none(&a);
    assert_fails(kvc_array_borrow(&a, KVC_F32, 1, I64(-1), NULL, data), KVC_E_INVALID);
    assert_fails(kvc_array_borrow(NULL, KVC_F32, 1, I64(1), NULL, data), KVC_E_INVALID);
}

static void borrow__memory_that_is_not_aligned_to_its_dtype_is_refused(void **state) {
    (void)state;
    const float data[2] = {1, 2};
    kvc_array a;
    for (size_t d = 0; d < 6; d++) {
        const kvc_dtype dtype = reference_dtypes[d];
        const size_t size = kvc_dtype_size_bytes(dtype);
        for (size_t offset = 0; offset < 4; offset++) {
            const char *at = (const char *)data + offset;
            if (offset % size == 0) {
                assert_ok(kvc_array_borrow(&a, dtype, 1, I64(1), NULL, at));
                continue;
            }
            assert_fails(kvc_array_borrow(&a, dtype, 1, I64(1), NULL, at), KVC_E_INVALID);
            array_expect_none(&a);
            assert_non_null(strstr(kvc_last_error(), kvc_dtype_name(dtype)));
        }
    }
}

static void own__retain_and_release_count_holders(void **state) {
    pool_fixture *f = *state;
    kvc_array a = array_counting(f->pool, KVC_F32, 1, I64(3));
    kvc_array b = kvc_array_retain(&a);
    assert_false(kvc_buffer_is_sole(a.buffer));
    kvc_array_release(&a);
    array_expect_none(&a);
    kvc_array_release(&a);
    kvc_array_release(NULL);
    assert_true(kvc_buffer_is_sole(b.buffer));
    array_expect(&b, 1, I64(3), F64(0, 1, 2));
    kvc_array_release(&b);
    assert_int_equal(pool_stats(f->pool).active_bytes, 0);
}

static void concatenate__joins_along_any_axis(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array parts[2] = {array_of(pool, KVC_F32, 2, I64(1, 2), F64(1, 2)),
                          array_of(pool, KVC_F32, 2, I64(1, 2), F64(3, 4))};
    kvc_array a;
    assert_ok(kvc_array_concatenate(&a, pool, parts, 2, 0));
    array_expect(&a, 2, I64(2, 2), F64(1, 2, 3, 4));
    kvc_array_release(&a);
    assert_ok(kvc_array_concatenate(&a, pool, parts, 2, -1));
    array_expect(&a, 2, I64(1, 4), F64(1, 2, 3, 4));
    kvc_array_release(&a);
    assert_ok(kvc_array_concatenate(&a, pool, parts, 2, -2));
    array_expect(&a, 2, I64(2, 2), F64(1, 2, 3, 4));
    kvc_array_release(&a);
    assert_ok(kvc_array_concatenate(&a, pool, parts, 1, 1)); /* a copy, even of one */
    array_expect(&a, 2, I64(1, 2), F64(1, 2));
    assert_true(kvc_buffer_is_sole(a.buffer));
    for (size_t i = 0; i < 2; i++) kvc_array_release(&parts[i]);
    kvc_array_release(&a);
}

static void concatenate__interleaves_along_the_middle(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array parts[3] = {array_counting(pool, KVC_U8, 3, I64(2, 1, 2)),
                          array_of(pool, KVC_U8, 3, I64(2, 0, 2), NULL),
                          array_of(pool, KVC_U8, 3, I64(2, 2, 2), F64(9, 8, 7, 6, 5, 4, 3, 2))};
    kvc_array a;
    assert_ok(kvc_array_concatenate(&a, pool, parts, 3, 1));
    array_expect(&a, 3, I64(2, 3, 2), F64(0, 1, 9, 8, 7, 6, 2, 3, 5, 4, 3, 2));
    kvc_array_release(&a);
    assert_ok(kvc_array_concatenate(&a, pool, parts + 1, 1, 1));
    assert_int_equal(kvc_array_size(&a), 0);
    for (size_t i = 0; i < 3; i++) kvc_array_release(&parts[i]);
    kvc_array_release(&a);
}

static void concatenate__takes_views_that_step_back_and_the_same_part_twice(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array whole = array_counting(pool, KVC_BF16, 1, I64(6));
    kvc_array back = array_sliced(&whole, NULL, NULL, I64(-2)), a;
    const kvc_array parts[3] = {back, whole, back}; /* borrowed for the call */
    assert_ok(kvc_array_concatenate(&a, pool, parts, 3, 0));
    array_expect(&a, 1, I64(12), F64(5, 3, 1, 0, 1, 2, 3, 4, 5, 5, 3, 1));
    kvc_array_release(&a);
    kvc_array_release(&back);
    kvc_array_release(&whole);
}

static void concatenate__names_the_part_that_does_not_fit(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array parts[3] = {array_counting(pool, KVC_F32, 2, I64(2, 3)),
                          array_counting(pool, KVC_F32, 2, I64(2, 1)),
                          array_counting(pool, KVC_F32, 2, I64(3, 3))};
    kvc_array a;
    assert_fails(kvc_array_concatenate(&a, pool, parts, 3, 1), KVC_E_SHAPE);
    array_expect_none(&a);
    assert_string_equal(kvc_last_error(),
                        "parts[2]: f32 [3, 3] given, f32 [2, 3] wanted but for axis 1");
    kvc_array_release(&parts[1]);
    parts[1] = array_counting(pool, KVC_F16, 2, I64(2, 3));
    assert_fails(kvc_array_concatenate(&a, pool, parts, 2, 0), KVC_E_SHAPE);
    assert_non_null(strstr(kvc_last_error(), "parts[1]: f16"));
    kvc_array_release(&parts[1]);
    parts[1] = array_counting(pool, KVC_F32, 1, I64(3));
    assert_fails(kvc_array_concatenate(&a, pool, parts, 2, 0), KVC_E_SHAPE);
    assert_non_null(strstr(kvc_last_error(), "parts[1]: f32 [3] given"));
    for (size_t i = 0; i < 3; i++) kvc_array_release(&parts[i]);
}

static void concatenate__an_axis_or_count_that_is_not_there_is_refused(void **state) {
    kvc_pool *pool = pool_of(state);
    kvc_array a, part = array_counting(pool, KVC_F32, 2, I64(2, 3));
    assert_fails(kvc_array_concatenate(&a, pool, &part, 1, 2), KVC_E_INVALID);
    array_expect_none(&a);
    assert_string_equal(kvc_last_error(), "axis: 2 given, -2 to 1 wanted");
    assert_fails(kvc_array_concatenate(&a, pool, &part, 1, -3), KVC_E_INVALID);
    assert_fails(kvc_array_concatenate(&a, pool, &part, 1, INT32_MIN), KVC_E_INVALID);
    assert_fails(kvc_array_concatenate(&a, pool, &part, 0, 0), KVC_E_INVALID);
    assert_fails(kvc_array_concatenate(&a, pool, NULL, 1, 0), KVC_E_INVALID);
    assert_fails(kvc_array_concatenate(NULL, pool, &part, 1, 0), KVC_E_INVALID);
    const kvc_array none = {0};
    assert_fails(kvc_array_concatenate(&a, pool, &none, 1, 0), KVC_E_INVALID);
    kvc_array_release(&part);
    part = array_counting(pool, KVC_F32, 0, NULL);
    assert_fails(kvc_array_concatenate(&a, pool, &part, 1, 0), KVC_E_INVALID);
    assert_string_equal(kvc_last_error(), "axis: 0 given, the array has no dimensions");
    kvc_array_release(&part);
}

static void astype__converts_and_leaves_what_fits(void **state) {
    pool_fixture *f = *state;
    kvc_array a = array_of(f->pool, KVC_F32, 2, I64(2, 2), F64(1.5, -300, 65520, (double)NAN));
    kvc_array turned = array_sliced(&a, NULL, NULL, I64(-1, 1)), b;
    assert_ok(kvc_array_astype(&b, f->pool, &turned, KVC_F16));
    array_expect(&b, 2, I64(2, 2), F64((double)INFINITY, (double)NAN, 1.5, -300));
    assert_true(kvc_array_is_contiguous(&b) && kvc_buffer_is_sole(b.buffer));
    kvc_array_release(&b);
    assert_ok(kvc_array_astype(&b, f->pool, &turned, KVC_I8));
    array_expect(&b, 2, I64(2, 2), F64(127, 0, 1, -128));
    kvc_array_release(&b);

    const size_t copies = f->device.calls[TEST_COPY];
    assert_ok(kvc_array_astype(&b, NULL, &turned, KVC_F32)); /* no pool is needed for no copy */
    assert_ptr_equal(b.data, turned.data);
    assert_ptr_equal(b.buffer, a.buffer);
    assert_int_equal(f->device.calls[TEST_COPY], copies);
    kvc_array_release(&b);
    assert_fails(kvc_array_astype(&b, f->pool, &a, (kvc_dtype)0), KVC_E_INVALID);
    array_expect_none(&b);
    assert_fails(kvc_array_astype(&b, f->pool, NULL, KVC_F32), KVC_E_INVALID);
    kvc_array_release(&turned);
    assert_true(kvc_buffer_is_sole(a.buffer));
    kvc_array_release(&a);
}

static void contiguous__copies_only_what_is_not(void **state) {
    pool_fixture *f = *state;
    kvc_array a = array_counting(f->pool, KVC_U32, 2, I64(3, 4)), b;
    const size_t copies = f->device.calls[TEST_COPY];
    kvc_array rows = array_sliced(&a, I64(1, all), I64(3, all), NULL);
    kvc_array columns = array_sliced(&a, I64(all, 1), I64(all, 3), NULL);
    kvc_array cell = array_sliced(&a, I64(1, 2), I64(2, 3), I64(-1 + 2, 3));
    assert_ok(kvc_array_contiguous(&b, f->pool, &rows));
    assert_ptr_equal(b.data, rows.data);
    kvc_array_release(&b);
    assert_ok(kvc_array_contiguous(&b, f->pool, &cell)); /* strides of extents of 1 are nothing */
    assert_ptr_equal(b.data, cell.data);
    kvc_array_release(&b);
    assert_int_equal(f->device.calls[TEST_COPY], copies);
    assert_ok(kvc_array_contiguous(&b, f->pool, &columns));
    array_expect(&b, 2, I64(3, 2), F64(1, 2, 5, 6, 9, 10));
    assert_true(kvc_array_is_contiguous(&b) && kvc_buffer_is_sole(b.buffer));
    kvc_array_release(&b);
    kvc_array_release(&rows);
    kvc_array_release(&columns);
    kvc_array_release(&cell);
    kvc_array_release(&a);
}

static bool equal(const kvc_array *a, const kvc_array *b) {
    bool out = false, reverse = true;
    assert_ok(kvc_array_equal(&out, a, b));
    assert_ok(kvc_array_equal(&reverse, b, a));
    assert_int_equal(out, reverse);
    return out;
}

static void equal__compares_shape_dtype_and_elements(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_array a = array_counting(pool, KVC_F32, 2, I64(2, 3));
    kvc_array same = array_counting(pool, KVC_F32, 2, I64(2, 3));
    kvc_array flat = array_counting(pool, KVC_F32, 1, I64(6));
    kvc_array wide = array_counting(pool, KVC_F32, 2, I64(3, 2));
    kvc_array half = array_counting(pool, KVC_F16, 2, I64(2, 3));
    kvc_array last = array_of(pool, KVC_F32, 2, I64(2, 3), F64(0, 1, 2, 3, 4, 6));
    assert_true(equal(&a, &a) && equal(&a, &same));
    assert_false(equal(&a, &flat) || equal(&a, &wide) || equal(&a, &half) || equal(&a, &last));
    kvc_array turned = array_sliced(&a, NULL, NULL, I64(-1, -1));
    kvc_array twice = array_sliced(&turned, NULL, NULL, I64(-1, -1));
    assert_false(equal(&a, &turned));
    assert_true(equal(&a, &twice));
    kvc_array deeper = array_counting(pool, KVC_F32, 2, I64(6, 1));
    assert_false(equal(&flat, &deeper));
    kvc_array none = array_counting(pool, KVC_F32, 2, I64(0, 3));
    kvc_array none_too = array_counting(pool, KVC_F32, 2, I64(0, 3));
    kvc_array none_else = array_counting(pool, KVC_F32, 2, I64(3, 0));
    assert_true(equal(&none, &none_too));
    assert_false(equal(&none, &none_else));
    kvc_array *const list[] = {&a,     &same, &flat,     &wide,      &half,   &last, &turned,
                               &twice, &none, &none_too, &none_else, &deeper, NULL};
    for (size_t i = 0; list[i]; i++) kvc_array_release(list[i]);
    kvc_pool_free(pool);
}

static void equal__follows_ieee_754_in_every_float(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    for (size_t d = 0; d < 3; d++) {
        const kvc_dtype dtype = reference_dtypes[d];
        kvc_array zero = array_of(pool, dtype, 1, I64(2), F64(0, (double)INFINITY));
        kvc_array minus = array_of(pool, dtype, 1, I64(2), F64(-0.0, (double)INFINITY));
        kvc_array nan = array_of(pool, dtype, 1, I64(2), F64(0, (double)NAN));
        assert_true(equal(&zero, &minus));
        assert_false(equal(&nan, &nan));
        kvc_array_release(&zero);
        kvc_array_release(&minus);
        kvc_array_release(&nan);
    }
    kvc_pool_free(pool);
}

static void equal__reads_the_host_only(void **state) {
    const float data[2] = {0, 1};
    kvc_array there = array_counting(pool_of(state), KVC_F32, 1, I64(2)), here;
    assert_ok(kvc_array_borrow(&here, KVC_F32, 1, I64(2), NULL, data));
    bool out = true;
    assert_fails(kvc_array_equal(&out, &there, &here), KVC_E_UNSUPPORTED);
    assert_false(out);
    assert_fails(kvc_array_equal(&out, &here, &there), KVC_E_UNSUPPORTED);
    assert_true(equal(&here, &here));
    assert_fails(kvc_array_equal(NULL, &here, &here), KVC_E_INVALID);
    assert_fails(kvc_array_equal(&out, NULL, &here), KVC_E_INVALID);
    assert_fails(kvc_array_equal(&out, &here, NULL), KVC_E_INVALID);
    kvc_array_release(&there);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(create__zeros_full_and_empty_have_their_shape),
        pool_test(create__full_rounds_its_value_once_into_the_dtype),
        pool_test(create__no_dimensions_make_one_element),
        pool_test(create__an_extent_of_0_makes_no_elements),
        pool_test(create__what_no_array_can_have_is_refused_by_name),
        pool_test(host__elements_go_there_and_back_untouched),
        pool_test(host__room_that_is_not_the_arrays_size_is_refused),
        cmocka_unit_test(borrow__describes_memory_without_owning_it),
        cmocka_unit_test(borrow__memory_that_is_not_aligned_to_its_dtype_is_refused),
        pool_test(own__retain_and_release_count_holders),
        pool_test(concatenate__joins_along_any_axis),
        pool_test(concatenate__interleaves_along_the_middle),
        pool_test(concatenate__takes_views_that_step_back_and_the_same_part_twice),
        pool_test(concatenate__names_the_part_that_does_not_fit),
        pool_test(concatenate__an_axis_or_count_that_is_not_there_is_refused),
        pool_test(astype__converts_and_leaves_what_fits),
        pool_test(contiguous__copies_only_what_is_not),
        cmocka_unit_test(equal__compares_shape_dtype_and_elements),
        cmocka_unit_test(equal__follows_ieee_754_in_every_float),
        pool_test(equal__reads_the_host_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
