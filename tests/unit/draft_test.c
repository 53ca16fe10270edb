#include <string.h>

#include "generate/draft.h"
#include "support/support.h"

enum { ROOM = 64, POISON = -7 };

/* Guesses `most` tokens after a text, and checks that nothing but them is written. */
static int64_t propose(int32_t out[ROOM], const int32_t *text, int64_t count, int64_t most) {
    int32_t all[2 * ROOM];
    for (int i = 0; i < 2 * ROOM; i++) all[i] = POISON;
    if (count > 0) memcpy(all, text, (size_t)count * sizeof *text);
    const int64_t n = draft_propose(all, count, most);
    assert_true(n == 0 || n == most);
    if (count > 0) assert_memory_equal(all, text, (size_t)count * sizeof *text);
    for (int64_t i = count + n; i < 2 * ROOM; i++) assert_int_equal(all[i], POISON);
    memcpy(out, all + count, (size_t)n * sizeof *out);
    return n;
}

static void draft__proposes_what_followed_the_same_tokens(void **state) {
    (void)state;
    const int32_t text[] = {1, 5, 6, 7, 8, 9, 5, 6};
    int32_t out[ROOM];
    assert_int_equal(propose(out, text, 8, 3), 3);
    const int32_t wanted[] = {7, 8, 9};
    assert_memory_equal(out, wanted, sizeof wanted);
}

static void draft__a_longer_match_wins_over_a_later_one(void **state) {
    (void)state;
    const int32_t text[] = {1, 4, 5, 6, 20, 3, 5, 6, 30, 4, 5, 6};
    int32_t out[ROOM];
    assert_int_equal(propose(out, text, 12, 1), 1);
    assert_int_equal(out[0], 20);
}

static void draft__of_equal_matches_the_latest_wins(void **state) {
    (void)state;
    const int32_t text[] = {1, 3, 5, 6, 20, 2, 5, 6, 30, 4, 5, 6};
    int32_t out[ROOM];
    assert_int_equal(propose(out, text, 12, 1), 1);
    assert_int_equal(out[0], 30);
}

static void draft__of_long_matches_the_latest_wins(void **state) {
    (void)state;
    int32_t text[3 * (DRAFT_LONGEST + 2)], out[ROOM];
    int64_t count = 0;
    for (int32_t part = 0; part < 3; part++) {
        text[count++] = part == 1 ? 50 : 40; /* the first part matches one token more */
        for (int32_t i = 0; i < DRAFT_LONGEST; i++) text[count++] = 2 + i;
        if (part < 2) text[count++] = 20 + 10 * part;
    }
    assert_int_equal(propose(out, text, count, 1), 1);
    assert_int_equal(out[0], 30);
}

static void draft__a_match_over_the_end_goes_round(void **state) {
    (void)state;
    const int32_t text[] = {1, 8, 2, 3, 2, 3};
    int32_t out[ROOM];
    assert_int_equal(propose(out, text, 6, 5), 5);
    const int32_t wanted[] = {2, 3, 2, 3, 2};
    assert_memory_equal(out, wanted, sizeof wanted);
}

static void draft__new_tokens_have_no_guess(void **state) {
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 9, 4}; /* one token alone has occurred */
    int32_t out[ROOM];
    for (int64_t count = 0; count <= 6; count++) assert_int_equal(propose(out, text, count, 4), 0);
    const int32_t same[] = {1, 2, 3, 2, 3};
    assert_int_equal(propose(out, same, 5, 0), 0);
    assert_int_equal(propose(out, same, 5, 1), 1);
}

/* The rule, told by its meaning: all lengths from the longest down, all ends from the latest. */
static int64_t find(const int32_t *text, int64_t count) {
    for (int64_t length = DRAFT_LONGEST; length >= DRAFT_LEAST; length--)
        for (int64_t end = count - 1; end >= length; end--)
            if (memcmp(text + end - length, text + count - length, (size_t)length * sizeof *text) ==
                0)
                return end;
    return 0;
}

static void draft__random_texts_are_guessed_by_the_rule(void **state) {
    (void)state;
    uint64_t random = 11;
    int guesses = 0;
    for (int round = 0; round < 3000; round++) {
        int32_t text[ROOM], out[ROOM];
        const int64_t count = (int64_t)(test_random(&random) % ROOM);
        const int64_t most = 1 + (int64_t)(test_random(&random) % 9);
        const uint64_t letters = 2 + test_random(&random) % 9;
        for (int64_t i = 0; i < count; i++) text[i] = (int32_t)(test_random(&random) % letters);
        const int64_t from = find(text, count), n = propose(out, text, count, most);
        assert_int_equal(n, from > 0 ? most : 0);
        guesses += n > 0;
        for (int64_t i = 0; i < n; i++)
            assert_int_equal(out[i], from + i < count ? text[from + i] : out[from + i - count]);
    }
    assert_in_range(guesses, 1000, 2999);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draft__proposes_what_followed_the_same_tokens),
        cmocka_unit_test(draft__a_longer_match_wins_over_a_later_one),
        cmocka_unit_test(draft__of_equal_matches_the_latest_wins),
        cmocka_unit_test(draft__of_long_matches_the_latest_wins),
        cmocka_unit_test(draft__a_match_over_the_end_goes_round),
        cmocka_unit_test(draft__new_tokens_have_no_guess),
        cmocka_unit_test(draft__random_texts_are_guessed_by_the_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
