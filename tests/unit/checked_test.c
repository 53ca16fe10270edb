#include "base/checked.h"
#include "support/support.h"

static void checked__sizes_add_up_to_the_largest_and_not_beyond(void **state) {
    (void)state;
    size_t out;
    assert_true(kvc__add(&out, SIZE_MAX - 1, 1));
    assert_int_equal(out, SIZE_MAX);
    assert_true(kvc__add(&out, 0, 0));
    assert_int_equal(out, 0);
    assert_false(kvc__add(&out, SIZE_MAX, 1));
    assert_false(kvc__add(&out, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1));
}

static void checked__products_of_sizes_that_wrap_are_refused(void **state) {
    (void)state;
    size_t out;
    assert_true(kvc__mul(&out, (size_t)1 << 32, ((size_t)1 << 32) - 1));
    assert_int_equal(out, 0xffffffff00000000u);
    assert_false(kvc__mul(&out, (size_t)1 << 32, (size_t)1 << 32));
    assert_true(kvc__mul(&out, SIZE_MAX, 0));
    assert_int_equal(out, 0);
    /* Wraps to 0 in 32 bits, which calloc(0) would have let pass. */
    assert_true(kvc__mul(&out, (size_t)32 * 131072, 1024));
    assert_int_equal(out, (uint64_t)1 << 32);
}

static void checked__signed_sums_and_products_are_refused_at_both_ends(void **state) {
    (void)state;
    int64_t out;
    assert_true(kvc__add_i64(&out, INT64_MAX, -1));
    assert_int_equal(out, INT64_MAX - 1);
    assert_false(kvc__add_i64(&out, INT64_MAX, 1));
    assert_false(kvc__add_i64(&out, INT64_MIN, -1));
    assert_true(kvc__mul_i64(&out, INT64_MAX, -1));
    assert_int_equal(out, -INT64_MAX);
    assert_false(kvc__mul_i64(&out, INT64_MIN, -1));
    assert_false(kvc__mul_i64(&out, (int64_t)1 << 32, (int64_t)1 << 31));
}

static void checked__rounding_up_reaches_the_next_multiple_or_fails(void **state) {
    (void)state;
    size_t out;
    assert_true(kvc__round_up(&out, 0, 4096));
    assert_int_equal(out, 0);
    assert_true(kvc__round_up(&out, 1, 4096));
    assert_int_equal(out, 4096);
    assert_true(kvc__round_up(&out, 4096, 4096));
    assert_int_equal(out, 4096);
    assert_true(kvc__round_up(&out, 7, 1));
    assert_int_equal(out, 7);
    assert_true(kvc__round_up(&out, SIZE_MAX - 4095, 4096));
    assert_int_equal(out, SIZE_MAX - 4095);
    assert_false(kvc__round_up(&out, SIZE_MAX - 4094, 4096));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked__sizes_add_up_to_the_largest_and_not_beyond),
        cmocka_unit_test(checked__products_of_sizes_that_wrap_are_refused),
        cmocka_unit_test(checked__signed_sums_and_products_are_refused_at_both_ends),
        cmocka_unit_test(checked__rounding_up_reaches_the_next_multiple_or_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
