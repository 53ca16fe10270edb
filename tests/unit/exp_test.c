#include <float.h>
#include <math.h>

#include "attention/exp.h"
#include "attention/ops.h"
#include "support/attend.h"
#include "support/support.h"

/* The error bound that exp.h states. */
static const double limit_ulp = 1.5;

/* The unit in the last place of an f32 of this value: that of the smallest normals below them. */
static double ulp(double value) {
    int exponent;
    (void)frexp(value, &exponent);
    return ldexp(1, (exponent < FLT_MIN_EXP ? FLT_MIN_EXP : exponent) - FLT_MANT_DIG);
}

static void check(float x, float y) {
    const double wanted = exp((double)x);
    const double given = (double)y;
    if (wanted > (double)FLT_MAX + ulp((double)FLT_MAX)) {
        if (!isinf(given)) fail_msg("exp(%a): %a given, inf wanted", (double)x, given);
    } else if (!(fabs(given - wanted) <= limit_ulp * ulp(wanted)))
        fail_msg("exp(%a): %a given, %a wanted, %.2f ulp off", (double)x, given, wanted,
                 fabs(given - wanted) / ulp(wanted));
}

static void check_one(float x) {
    check(x, kvc__exp_f32(x));
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

/* The kernels' own exp, of scores below the largest, which is 0: beneath exp(-87.6), 0 is enough.
 */
static void soften__gives_exp_within_its_bound(void **state) {
    (void)state;
    const kvc__ops *ops = kvc__ops_best();
    _Alignas(KVC_ALIGNMENT_BYTES) float s[KVC__SCORES];
    const uint32_t step = 4093, block = KVC__BLOCK * step, end = 0xff800000u - block;
    for (uint32_t bits = 0x80000000u; bits < end; bits += block) {
        float max = 0, total = 0, factor;
        kvc__tile tile = {.max = &max, .total = &total};
        const kvc__range seen = {0, KVC__BLOCK};
        for (uint32_t i = 0; i < KVC__BLOCK; i++) s[i] = kvc__f32_of_bits(bits + i * step);
        ops->soften[0](&tile, &seen, KVC__BLOCK, s, &factor);
        for (uint32_t i = 0; i < KVC__BLOCK; i++) {
            const float x = kvc__f32_of_bits(bits + i * step);
            if (s[i] == 0) assert_true(x < -87.6f);
            else check(x, s[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp__is_within_its_bound_over_the_whole_range),
        cmocka_unit_test(exp__is_within_its_bound_where_results_are_subnormal),
        cmocka_unit_test(exp__is_within_its_bound_where_it_overflows),
        cmocka_unit_test(exp__of_zero_is_one),
        cmocka_unit_test(exp__keeps_infinities_and_nan),
        cmocka_unit_test(soften__gives_exp_within_its_bound),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
