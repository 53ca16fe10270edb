#include <float.h>
#include <math.h>

#include "attention/exp.h"
#include "support/support.h"

/* The error bound that exp.h states. */
static const double limit_ulp = 1.5;

/* The unit in the last place of an f32 of this value: that of the smallest normals below them. */
static double ulp(double value) {
    int exponent;
    (void)frexp(value, &exponent);
    return ldexp(1, (exponent < FLT_MIN_EXP ? FLT_MIN_EXP : exponent) - FLT_MANT_DIG);
}

static void check_one(float x) {
    const double wanted = exp((double)x);
    const double given = (double)kvc__exp_f32(x);
    if (wanted > (double)FLT_MAX + ulp((double)FLT_MAX)) {
        if (!isinf(given)) fail_msg("exp(%a): %a given, inf wanted", (double)x, given);
    } else if (!(fabs(given - wanted) <= limit_ulp * ulp(wanted)))
        fail_msg("exp(%a): %a given, %a wanted, %.2f ulp off", (double)x, given, wanted,
                 fabs(given - wanted) / ulp(wanted));
}

/* Every `step`-th f32 of either sign, infinities left out. An odd step reaches all low bits. */
static void exp__is_within_its_bound_over_the_whole_range(void **state) {
    (void)state;
    const uint32_t step = 4093;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += step) {
        check_one(kvc__f32_of_bits(bits));
        check_one(kvc__f32_of_bits(bits | 0x80000000u));
    }
}

static void exp__is_within_its_bound_where_results_are_subnormal(void **state) {
    (void)state;
    for (int i = 0; i < 30 * 1024; i++) check_one(-110 + (float)i * 0x1p-10f);
}

static void exp__is_within_its_bound_where_it_overflows(void **state) {
    (void)state;
    for (int i = 0; i < 2 * 4096; i++) check_one(88 + (float)i * 0x1p-12f);
}

static void exp__of_zero_is_one(void **state) {
    (void)state;
    assert_true(kvc__exp_f32(0.0f) == 1.0f);
    assert_true(kvc__exp_f32(-0.0f) == 1.0f);
}

static void exp__keeps_infinities_and_nan(void **state) {
    (void)state;
    assert_true(kvc__exp_f32(-INFINITY) == 0.0f);
    assert_true(isinf(kvc__exp_f32(INFINITY)));
    assert_true(isnan(kvc__exp_f32(NAN)));
    assert_true(isnan(kvc__exp_f32(-NAN)));
    assert_true(kvc__exp_f32(-FLT_MAX) == 0.0f);
    assert_true(isinf(kvc__exp_f32(FLT_MAX)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp__is_within_its_bound_over_the_whole_range),
        cmocka_unit_test(exp__is_within_its_bound_where_results_are_subnormal),
        cmocka_unit_test(exp__is_within_its_bound_where_it_overflows),
        cmocka_unit_test(exp__of_zero_is_one),
        cmocka_unit_test(exp__keeps_infinities_and_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
