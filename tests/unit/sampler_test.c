#include <math.h>
#include <string.h>

#include "generate/sampler.h"
#include "support/support.h"

enum { TOKENS = 5, DRAWS = 20000 };

/* Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625, out of order. */
static const float logits[TOKENS] = {-2, 0, -4, -1, -3};
static const float scale = 0.69314718f; /* ln 2: one less is half as likely */

static sampler make_sampler(float temperature, float top_p, uint64_t seed) {
    failure error;
    sampler s;
    if (!sampler_init(&s, TOKENS, temperature, top_p, seed, &error)) fail_msg("%s", error.sentence);
    return s;
}

/* Draws many tokens and counts them. The temperature 1 / ln 2 makes halves of the logits. */
static void draw(float top_p, uint64_t seed, int counts[TOKENS]) {
    sampler s = make_sampler(1 / scale, top_p, seed);
    memset(counts, 0, TOKENS * sizeof *counts);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t id = sampler_next(&s, logits);
        assert_in_range(id, 0, TOKENS - 1);
        counts[id]++;
    }
    sampler_deinit(&s);
}

static void assert_share(int count, double share) {
    const double deviation = sqrt(DRAWS * share * (1 - share));
    assert_true(fabs(count - DRAWS * share) < 5 * deviation);
}

static void sampler__temperature_zero_takes_the_first_of_the_largest(void **state) {
    (void)state;
    const float ties[TOKENS] = {1, 3, 2, 3, -1};
    sampler s = make_sampler(0, 0.9f, 7);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(sampler_next(&s, logits), 1);
        assert_int_equal(sampler_next(&s, ties), 1);
    }
    sampler_deinit(&s);
}

static void sampler__all_tokens_are_drawn_by_their_probabilities(void **state) {
    (void)state;
    const float all[] = {0, 1};
    for (int i = 0; i < 2; i++) {
        int counts[TOKENS];
        draw(all[i], 42, counts);
        const double sum = 1 + 0.5 + 0.25 + 0.125 + 0.0625;
        assert_share(counts[1], 1 / sum);
        assert_share(counts[3], 0.5 / sum);
        assert_share(counts[0], 0.25 / sum);
        assert_share(counts[4], 0.125 / sum);
        assert_share(counts[2], 0.0625 / sum);
    }
}

static void sampler__top_p_leaves_the_unlikely_out(void **state) {
    (void)state;
    int counts[TOKENS];
    draw(0.6f, 42, counts); /* 0.516 alone does not pass it, 0.774 does */
    assert_share(counts[1], 2.0 / 3);
    assert_share(counts[3], 1.0 / 3);
    assert_int_equal(counts[0] + counts[2] + counts[4], 0);
    draw(0.5f, 42, counts);
    assert_int_equal(counts[1], DRAWS);
    draw(1e-6f, 42, counts);
    assert_int_equal(counts[1], DRAWS);
}

static void sampler__equal_tokens_are_left_to_the_first_by_a_tiny_top_p(void **state) {
    (void)state;
    const float flat[TOKENS] = {0};
    sampler s = make_sampler(1, 1e-6f, 3);
    for (int i = 0; i < 10; i++) assert_int_equal(sampler_next(&s, flat), 0);
    sampler_deinit(&s);
}

static void sampler__equal_seeds_draw_equally_and_others_do_not(void **state) {
    (void)state;
    sampler a = make_sampler(1, 1, 5), b = make_sampler(1, 1, 5), c = make_sampler(1, 1, 6);
    int different = 0;
    for (int i = 0; i < 200; i++) {
        const int32_t id = sampler_next(&a, logits);
        assert_int_equal(sampler_next(&b, logits), id);
        different += sampler_next(&c, logits) != id;
    }
    assert_true(different > 0);
    sampler_deinit(&a);
    sampler_deinit(&b);
    sampler_deinit(&c);
}

static void sampler__seed_zero_draws_as_well_as_others(void **state) {
    (void)state;
    int counts[TOKENS];
    draw(1, 0, counts);
    assert_share(counts[2], 0.0625 / 1.9375);
}

static void sampler__tiny_temperatures_do_not_divide_into_infinity(void **state) {
    (void)state;
    sampler s = make_sampler(1e-38f, 0.9f, 5);
    for (int i = 0; i < 100; i++) assert_int_equal(sampler_next(&s, logits), 1);
    sampler_deinit(&s);
}

static void sampler__logits_that_are_no_numbers_are_told(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const float temperatures[] = {0, 1};
    for (int i = 0; i < 6; i++) {
        sampler s = make_sampler(temperatures[i % 2], 0.9f, 5);
        for (int at = 0; at < TOKENS; at++) {
            float broken[TOKENS];
            memcpy(broken, logits, sizeof broken);
            broken[at] = bad[i / 2];
            assert_int_equal(sampler_next(&s, broken), -1);
        }
        sampler_deinit(&s);
    }
}

static void sampler__a_single_token_is_always_drawn(void **state) {
    (void)state;
    failure error;
    sampler s;
    assert_true(sampler_init(&s, 1, 1, 0.9f, 5, &error));
    for (int i = 0; i < 10; i++) assert_int_equal(sampler_next(&s, logits), 0);
    sampler_deinit(&s);
}

static void sampler__wrong_settings_are_refused(void **state) {
    (void)state;
    failure error;
    sampler s;
    assert_false(sampler_init(&s, 0, 1, 0.9f, 5, &error));
    assert_false(sampler_init(&s, TOKENS, -1, 0.9f, 5, &error));
    assert_false(sampler_init(&s, TOKENS, NAN, 0.9f, 5, &error));
    assert_false(sampler_init(&s, TOKENS, 1, -0.1f, 5, &error));
    assert_false(sampler_init(&s, TOKENS, 1, 1.1f, 5, &error));
    assert_false(sampler_init(&s, TOKENS, 1, NAN, 5, &error));
    assert_non_null(strstr(error.sentence, "top_p"));
    sampler_deinit(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampler__temperature_zero_takes_the_first_of_the_largest),
        cmocka_unit_test(sampler__all_tokens_are_drawn_by_their_probabilities),
        cmocka_unit_test(sampler__top_p_leaves_the_unlikely_out),
        cmocka_unit_test(sampler__equal_tokens_are_left_to_the_first_by_a_tiny_top_p),
        cmocka_unit_test(sampler__equal_seeds_draw_equally_and_others_do_not),
        cmocka_unit_test(sampler__seed_zero_draws_as_well_as_others),
        cmocka_unit_test(sampler__tiny_temperatures_do_not_divide_into_infinity),
        cmocka_unit_test(sampler__logits_that_are_no_numbers_are_told),
        cmocka_unit_test(sampler__a_single_token_is_always_drawn),
        cmocka_unit_test(sampler__wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
