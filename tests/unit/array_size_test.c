/* Sizes past 32 and 64 bits: products, strides and offsets that overflow are refused with a
 * sentence that names them, and those that only a 32-bit number could not hold are right. */
#include <stdio.h>
#include <string.h>

#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/pool_fixture.h"

static const int64_t all = KVC_SLICE_ALL;
static const int64_t two_31 = (int64_t)1 << 31, two_32 = (int64_t)1 << 32,
                     two_33 = (int64_t)1 << 33, two_61 = (int64_t)1 << 61,
                     two_62 = (int64_t)1 << 62;

/* Fails unless no array has this shape, and the sentence names it. */
static void refused(pool_fixture *f, kvc_dtype dtype, int ndim, const int64_t *shape,
                    const char *words) {
    const size_t calls = test_device_driver_calls(&f->device);
    kvc_array a;
    assert_fails(kvc_array_zeros(&a, f->pool, dtype, ndim, shape), KVC_E_RANGE);
    array_expect_none(&a);
    if (!strstr(kvc_last_error(), words)) fail_msg("'%s' lacks '%s'", kvc_last_error(), words);
    assert_fails(kvc_array_empty(&a, f->pool, dtype, ndim, shape), KVC_E_RANGE);
    assert_fails(kvc_array_full(&a, f->pool, dtype, ndim, shape, 1), KVC_E_RANGE);
    assert_fails(kvc_array_from_host(&a, f->pool, dtype, ndim, shape, words), KVC_E_RANGE);
    assert_fails(kvc_array_borrow(&a, dtype, ndim, shape, NULL, words), KVC_E_RANGE);
    array_expect_none(&a);
    assert_int_equal(test_device_driver_calls(&f->device), calls);
}

static void size__products_that_overflow_64_bits_are_refused(void **state) {
    pool_fixture *f = *state;
    refused(f, KVC_U8, 2, I64(two_32, two_32), "[4294967296, 4294967296] of u8");
    refused(f, KVC_F32, 1, I64(two_62), "[4611686018427387904] of f32");
    refused(f, KVC_F32, 1, I64(two_61), "[2305843009213693952] of f32"); /* only the sign is lost */
    refused(f, KVC_F16, 3, I64(two_31, two_31, 2), "[2147483648, 2147483648, 2] of f16");
    refused(f, KVC_U8, 1 + 1, I64(INT64_MAX, 2), "[9223372036854775807, 2]");
    refused(f, KVC_U8, 8, I64(256, 256, 256, 256, 256, 256, 256, 256), "[256, 256, 256, 256, 256,");
    refused(f, KVC_U8, 3, I64(0, two_32, two_32), "[0, 4294967296, 4294967296]"); /* strides */
    refused(f, KVC_BF16, 4, I64(INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX), "bf16");
}

static void size__products_that_wrap_in_32_bits_reach_the_device_whole(void **state) {
    pool_fixture *f = *state; /* which has no room for any of them */
    const struct {
        kvc_dtype dtype;
        int64_t shape[3];
        size_t bytes;
    } cases[] = {
        {KVC_U8, {32, 131072, 1024}, (size_t)1 << 32},
        {KVC_F32, {32, 131072, 1024}, (size_t)1 << 34},
        {KVC_F16, {65536, 65536, 1}, (size_t)1 << 33},
        {KVC_BF16, {1, 1, ((int64_t)1 << 31) + 1}, ((size_t)1 << 32) + 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvc_array a;
        f->device.largest_asked = 0;
        assert_fails(kvc_array_zeros(&a, f->pool, cases[i].dtype, 3, cases[i].shape), KVC_E_NOMEM);
        array_expect_none(&a);
        assert_int_equal(f->device.largest_asked, cases[i].bytes);
        (void)kvc_pool_memory_limit_set(f->pool, cases[i].bytes - 1);
        assert_fails(kvc_array_zeros(&a, f->pool, cases[i].dtype, 3, cases[i].shape), KVC_E_LIMIT);
        (void)kvc_pool_memory_limit_set(f->pool, SIZE_MAX);
    }
}

static void size__joined_extents_that_overflow_are_refused(void **state) {
    pool_fixture *f = *state;
    const char byte = 0;
    kvc_array parts[5], a;
    for (size_t i = 0; i < 5; i++)
        assert_ok(kvc_array_borrow(&parts[i], KVC_U8, 2, I64(two_62, 0), NULL, NULL));
    assert_fails(kvc_array_concatenate(&a, f->pool, parts, 2, 0), KVC_E_RANGE);
    array_expect_none(&a);
    assert_non_null(strstr(kvc_last_error(), "axis 0"));
    for (size_t i = 0; i < 5; i++) /* one byte, two_61 times */
        assert_ok(kvc_array_borrow(&parts[i], KVC_U8, 1, I64(two_61), I64(0), &byte));
    assert_fails(kvc_array_concatenate(&a, f->pool, parts, 5, 0), KVC_E_RANGE);
    assert_fails(kvc_array_concatenate(&a, f->pool, parts, 3, 0), KVC_E_NOMEM);
    assert_int_equal(f->device.largest_asked, 3 * two_61);
    assert_fails(kvc_array_astype(&a, f->pool, &parts[0], KVC_F32), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "[2305843009213693952] of f32"));
    assert_fails(kvc_array_contiguous(&a, f->pool, &parts[0]), KVC_E_NOMEM);
    array_expect_none(&a);
}

static void size__strides_that_reach_past_64_bits_are_refused(void **state) {
    (void)state;
    const float data[2] = {1, 2};
    kvc_array a;
    const int64_t strides[] = {INT64_MAX, INT64_MIN, two_62, -two_62, two_61, -two_61, two_61 / 2};
    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
        const int64_t shape[2] = {1, 5};
        const int64_t both[2] = {strides[i], strides[i]};
        assert_fails(kvc_array_borrow(&a, KVC_F32, 2, shape, both, data), KVC_E_RANGE);
        array_expect_none(&a);
        char number[32];
        (void)snprintf(number, sizeof number, "%lld", (long long)strides[i]);
        assert_non_null(strstr(kvc_last_error(), number));
        assert_non_null(strstr(kvc_last_error(), "strides[1]"));
    }
    /* Each fits alone, their sum does not. */
    assert_fails(kvc_array_borrow(&a, KVC_F32, 2, I64(2, 2), I64(two_61 - 1, two_61 - 1), data),
                 KVC_E_RANGE);
    /* Where there is nothing to step to, any stride will do. */
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, I64(1, 2), I64(INT64_MIN, 1), data));
    kvc_array s = array_sliced(&a, NULL, NULL, I64(-1, -1));
    array_expect(&s, 2, I64(1, 2), F64(2, 1));
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, I64(0, 1), I64(INT64_MAX, INT64_MAX), NULL));
    s = array_sliced(&a, NULL, NULL, I64(-1, INT64_MIN));
    assert_int_equal(kvc_array_size(&s), 0);
}

static void size__slices_of_slices_never_step_past_64_bits(void **state) {
    pool_fixture *f = *state;
    kvc_array a;
    assert_ok(kvc_array_empty(&a, f->pool, KVC_U8, 2, I64(INT64_MAX, 0)));
    kvc_array s = array_sliced(&a, NULL, NULL, I64(two_62, 1));
    assert_int_equal(s.shape[0], 2);
    kvc_array t = array_sliced(&s, NULL, NULL, I64(INT64_MAX, -1));
    assert_int_equal(t.shape[0], 1);
    kvc_array u = array_sliced(&t, NULL, NULL, I64(INT64_MIN, INT64_MIN));
    assert_int_equal(u.shape[0], 1);
    kvc_array v = array_sliced(&a, I64(INT64_MAX - 1, all), NULL, I64(-two_62, 1));
    assert_int_equal(v.shape[0], 2);
    kvc_array *const list[] = {&a, &s, &t, &u, &v};
    for (size_t i = 0; i < 5; i++) kvc_array_release(list[i]);
}

/* An array of 8 GiB of which a few pages are there. */
static kvc_array spacious(pool_fixture *f) {
    kvc_array a = {.dtype = KVC_U8, .ndim = 2, .shape = {2, two_32}, .strides = {two_32, 1}};
    assert_ok(kvc_buffer_reserve(&a.buffer, f->pool, (size_t)two_33));
    a.data = kvc_buffer_data(a.buffer);
    assert_ok(kvc_buffer_commit(a.buffer, 0, 4096));
    assert_ok(kvc_buffer_commit(a.buffer, (size_t)two_32 - 4096, 8192));
    assert_ok(kvc_buffer_commit(a.buffer, (size_t)two_33 - 4096, 4096));
    return a;
}

static void size__offsets_past_32_bits_find_their_elements(void **state) {
    pool_fixture *f = *state;
    kvc_array a = spacious(f), back;
    char *data = a.data;
    const int axes[] = {0, 1};
    kvc_array x = array_of(f->pool, KVC_F32, 2, I64(2, 2), F64(1, 2, 3, 4));
    kvc_update how;
    assert_ok(kvc_array_slice_update(&a, &x, I64(0, two_32 - 2), axes, 2, &how));
    assert_int_equal(how, KVC_UPDATE_IN_PLACE);
    assert_int_equal(data[two_32 - 2], 1);
    assert_int_equal(data[two_32 - 1], 2);
    assert_int_equal(data[two_33 - 2], 3);
    assert_int_equal(data[two_33 - 1], 4);
    assert_fails(kvc_array_slice_update(&a, &x, I64(0, two_32 - 1), axes, 2, &how), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "4294967295"));
    assert_ok(kvc_array_assign(&a, &x, I64(all, all), I64(all, all), I64(-1, two_32 - 1), NULL));
    assert_int_equal(data[0], 3);
    assert_int_equal(data[two_32 - 1], 4);
    assert_int_equal(data[two_32], 1);
    assert_int_equal(data[two_33 - 1], 2);

    kvc_array corners = array_sliced(&a, I64(all, -1), NULL, I64(-1, -two_32 + 1));
    array_expect(&corners, 2, I64(2, 2), F64(2, 1, 4, 3));
    assert_ok(kvc_array_contiguous(&back, f->pool, &corners));
    array_expect(&back, 2, I64(2, 2), F64(2, 1, 4, 3));
    kvc_array_release(&back);
    const kvc_array parts[2] = {corners, corners};
    assert_ok(kvc_array_concatenate(&back, f->pool, parts, 2, 1));
    array_expect(&back, 2, I64(2, 4), F64(2, 1, 2, 1, 4, 3, 4, 3));
    assert_int_equal(kvc_array_size(&a), two_33);
    assert_int_equal(kvc_array_nbytes(&a), two_33);
    kvc_array_release(&corners);
    kvc_array_release(&back);
    kvc_array_release(&x);
    kvc_array_release(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(size__products_that_overflow_64_bits_are_refused),
        pool_test(size__products_that_wrap_in_32_bits_reach_the_device_whole),
        pool_test(size__joined_extents_that_overflow_are_refused),
        cmocka_unit_test(size__strides_that_reach_past_64_bits_are_refused),
        pool_test(size__slices_of_slices_never_step_past_64_bits),
        pool_test(size__offsets_past_32_bits_find_their_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
