#include <math.h>

#include "base/half.h"
#include "support/support.h"

/* A 16-bit float format: f16 has 10 bits of mantissa and 5 of exponent, bf16 has 7 and 8. */
typedef struct format {
    int mantissa_bits;
    int bias; /* also the largest exponent of a finite number */
    uint16_t (*of_f32)(float x);
    float (*to_f32)(uint16_t h);
} format;

static uint16_t f16_of_f32(float x) {
    return kvc__f16_of_f32(x);
}
static float f32_of_f16(uint16_t h) {
    return kvc__f32_of_f16(h);
}
static uint16_t bf16_of_f32(float x) {
    return kvc__bf16_of_f32(x);
}
static float f32_of_bf16(uint16_t h) {
    return kvc__f32_of_bf16(h);
}

static const format f16 = {10, 15, f16_of_f32, f32_of_f16};
static const format bf16 = {7, 127, bf16_of_f32, f32_of_bf16};

static uint16_t infinity_of(const format *f) {
    return (uint16_t)(0x7fffu >> f->mantissa_bits << f->mantissa_bits);
}

static bool is_nan_word(const format *f, uint16_t h) {
    return (h & 0x7fffu) > infinity_of(f);
}

/* The value of a word by the definition of the format. Not for NaNs. */
static double value_of(const format *f, uint16_t h) {
    const int exponent = (h & 0x7fff) >> f->mantissa_bits;
    const int mantissa = h & ((1 << f->mantissa_bits) - 1);
    double magnitude;
    if ((h & 0x7fffu) == infinity_of(f)) magnitude = INFINITY;
    else if (exponent == 0) magnitude = ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
    else
        magnitude =
            ldexp(mantissa + (1 << f->mantissa_bits), exponent - f->bias - f->mantissa_bits);
    return h & 0x8000u ? -magnitude : magnitude;
}

/* The word nearest to x, the even one of two that are as near. In double, where every step is
 * exact: x is counted in units of the last place at its exponent, and rounded to a whole one. */
static uint16_t nearest_word(const format *f, float x) {
    const uint16_t sign = signbit(x) ? 0x8000u : 0;
    const double magnitude = fabs((double)x);
    if (isinf(x)) return sign | infinity_of(f);
    if (magnitude == 0) return sign;
    int exponent;
    (void)frexp(magnitude, &exponent); /* magnitude = 0.5..1 × 2^exponent */
    exponent -= 1;
    if (exponent < 1 - f->bias) exponent = 1 - f->bias; /* subnormal: the lowest unit there is */
    const double unit = ldexp(1, exponent - f->mantissa_bits);
    const double units = magnitude / unit;
    double whole = floor(units);
    const double rest = units - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) == 1)) whole += 1;
    /* A word's magnitude counts units too: each exponent holds 2^mantissa_bits of them. A normal
     * number's first 2^mantissa_bits are the hidden bit; carries go to the exponent by themselves.
     */
    const int steps = exponent + f->bias - 1;
    const double word = whole + ldexp(steps, f->mantissa_bits);
    return word >= infinity_of(f) ? sign | infinity_of(f) : (uint16_t)(sign | (uint16_t)word);
}

static void check_round_trip(const format *f) {
    for (uint32_t word = 0; word <= 0xffff; word++) {
        const uint16_t h = (uint16_t)word;
        const float x = f->to_f32(h);
        if (is_nan_word(f, h)) {
            assert_true(isnan(x));
            continue;
        }
        if ((double)x != value_of(f, h) || !signbit(x) != !(h & 0x8000u))
            fail_msg("word %04x gives %a", h, (double)x);
        if (f->of_f32(x) != h) fail_msg("word %04x comes back as %04x", h, f->of_f32(x));
    }
}

static void half__every_f16_word_survives_the_round_trip(void **state) {
    (void)state;
    check_round_trip(&f16);
}

static void half__every_bf16_word_survives_the_round_trip(void **state) {
    (void)state;
    check_round_trip(&bf16);
}

static void check_rounding(const format *f, uint32_t bits) {
    const float x = kvc__f32_of_bits(bits);
    if (isnan(x)) return;
    const uint16_t given = f->of_f32(x), wanted = nearest_word(f, x);
    if (given != wanted) fail_msg("%a rounds to %04x, nearest is %04x", (double)x, given, wanted);
}

/* Each word, the tie between it and the next, and their neighbours in f32 on both sides. */
static void check_rounding_near_every_word(const format *f) {
    for (uint32_t word = 0; word <= 0xffff; word++) {
        const uint16_t h = (uint16_t)word;
        if (is_nan_word(f, h)) continue;
        const float x = f->to_f32(h);
        const uint16_t next_word = (uint16_t)(word + 1);
        /* Beyond the largest finite number the next would be 2^(bias + 1). */
        const double next = (next_word & 0x7fffu) == infinity_of(f)
                                ? copysign(ldexp(1, f->bias + 1), (double)x)
                                : value_of(f, next_word);
        const float tie = (float)(((double)x + next) / 2);
        for (uint32_t i = 0; i < 5; i++) {
            check_rounding(f, kvc__bits_of_f32(x) + i - 2);
            if (!isnan(tie)) check_rounding(f, kvc__bits_of_f32(tie) + i - 2);
        }
    }
}

static void half__f16_rounds_to_the_nearest_even_near_every_word(void **state) {
    (void)state;
    check_rounding_near_every_word(&f16);
}

static void half__bf16_rounds_to_the_nearest_even_near_every_word(void **state) {
    (void)state;
    check_rounding_near_every_word(&bf16);
}

static void half__both_round_a_walk_over_all_of_f32_to_the_nearest_even(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 2039) { /* prime: all low bits occur */
        check_rounding(&f16, (uint32_t)bits);
        check_rounding(&bf16, (uint32_t)bits);
    }
}

static void half__nan_stays_nan_and_becomes_quiet(void **state) {
    (void)state;
    const uint32_t nans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u,
                             0x7fffffffu, 0xffffffffu, 0x7fa00000u};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        const float x = kvc__f32_of_bits(nans[i]);
        const uint16_t sign = (uint16_t)(nans[i] >> 16 & 0x8000u);
        assert_int_equal(kvc__f16_of_f32(x) & 0xfe00u, sign | 0x7e00u);
        assert_int_equal(kvc__bf16_of_f32(x) & 0xffc0u, sign | 0x7fc0u);
    }
}

static void half__numbers_too_large_become_infinite_at_the_right_one(void **state) {
    (void)state;
    assert_int_equal(kvc__f16_of_f32(65504.0f), 0x7bff);
    assert_int_equal(kvc__f16_of_f32(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(kvc__f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(kvc__f16_of_f32(-65520.0f), 0xfc00);
    assert_int_equal(kvc__bf16_of_f32(0x1.fep127f), 0x7f7f);
    assert_int_equal(kvc__bf16_of_f32(0x1.fefffep127f), 0x7f7f);
    assert_int_equal(kvc__bf16_of_f32(0x1.ffp127f), 0x7f80);
    assert_int_equal(kvc__bf16_of_f32(-0x1.fffffep127f), 0xff80);
}

static void half__numbers_too_small_become_the_zero_of_their_sign(void **state) {
    (void)state;
    assert_int_equal(kvc__f16_of_f32(0x1p-24f), 0x0001);
    assert_int_equal(kvc__f16_of_f32(0x1.000002p-25f), 0x0001);
    assert_int_equal(kvc__f16_of_f32(0x1p-25f), 0x0000);
    assert_int_equal(kvc__f16_of_f32(-0x1p-25f), 0x8000);
    assert_int_equal(kvc__f16_of_f32(-0x1p-149f), 0x8000);
    assert_int_equal(kvc__bf16_of_f32(0x1p-133f), 0x0001);
    assert_int_equal(kvc__bf16_of_f32(0x1p-134f), 0x0000);
    assert_int_equal(kvc__bf16_of_f32(-0x1p-149f), 0x8000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half__every_f16_word_survives_the_round_trip),
        cmocka_unit_test(half__every_bf16_word_survives_the_round_trip),
        cmocka_unit_test(half__f16_rounds_to_the_nearest_even_near_every_word),
        cmocka_unit_test(half__bf16_rounds_to_the_nearest_even_near_every_word),
        cmocka_unit_test(half__both_round_a_walk_over_all_of_f32_to_the_nearest_even),
        cmocka_unit_test(half__nan_stays_nan_and_becomes_quiet),
        cmocka_unit_test(half__numbers_too_large_become_infinite_at_the_right_one),
        cmocka_unit_test(half__numbers_too_small_become_the_zero_of_their_sign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
