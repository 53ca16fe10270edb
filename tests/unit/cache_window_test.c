/* Windows: which positions a ring holds, in which order, and what it moves and costs. */
#include <stdio.h>
#include <string.h>

#include <kvcache/cache.h>

#include "support/pool_fixture.h"
#include "support/stories.h"

enum { HEADS = 2, KEY_DIM = 4, VALUE_DIM = 3, ROWS = 512 };
static const uint64_t row_bytes = (uint64_t)HEADS * (KEY_DIM + VALUE_DIM) * 2;
static const kvc_growth growths[] = {KVC_GROW_RESERVE, KVC_GROW_CHUNK, KVC_GROW_EXACT};

/* What a test chooses; zeroed fields: a batch of 1, chunks of 4, reserve for 4096. */
typedef struct choice {
    int64_t window, keep, slack, batch, chunk, most;
    kvc_growth growth;
} choice;

static kvc_layer_spec spec_of(int64_t window, int64_t keep) {
    return (kvc_layer_spec){.kv_heads = HEADS,
                            .key_dim = KEY_DIM,
                            .value_dim = VALUE_DIM,
                            .dtype = KVC_BF16,
                            .window = window,
                            .keep = keep};
}

/* On the cpu: turning a ring goes through host pointers. */
static stories open_specs(choice c, const kvc_layer_spec *specs, int64_t layers) {
    kvc_pool *pool;
    kvc_cache *cache;
    stories s;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = c.batch,
                                 .layers = layers,
                                 .specs = specs,
                                 .spec_count = layers,
                                 .growth = c.growth,
                                 .chunk = c.chunk ? c.chunk : 4,
                                 .max_positions = c.most ? c.most : 4096,
                                 .slack = c.slack};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_pool_free(pool); /* the cache keeps it alive */
    stories_init(&s, cache);
    return s;
}

static stories open_window(choice c) {
    const kvc_layer_spec spec = spec_of(c.window, c.keep);
    return open_specs(c, &spec, 1);
}

static void close_all(stories *s) {
    stories_check(s);
    kvc_cache_free(s->cache);
    stories_deinit(s);
}

/* The rows of a sequence, as text: "0 1 10 11 6 7 8 9", "-" for a row without a position. */
static const char *rows_text(const stories *s, int64_t sequence) {
    static char text[ROWS * 8];
    int64_t positions[ROWS];
    size_t at = 0;
    kvc_array k, v;
    assert_ok(kvc_cache_view(s->cache, 0, &k, &v));
    const int64_t rows = k.shape[2];
    kvc_array_release(&k);
    kvc_array_release(&v);
    assert_ok(kvc_cache_row_positions(s->cache, 0, sequence, positions, ROWS));
    text[0] = '\0';
    for (int64_t i = 0; i < rows; i++) {
        const char *gap = i ? " " : "";
        at += (size_t)(positions[i] < 0 ? snprintf(text + at, sizeof text - at, "%s-", gap)
                                        : snprintf(text + at, sizeof text - at, "%s%lld", gap,
                                                   (long long)positions[i]));
    }
    return text;
}

static bool holds(const stories *s, int64_t layer, int64_t sequence, int64_t position) {
    int64_t positions[ROWS];
    memset(positions, 0xff, sizeof positions);
    assert_ok(kvc_cache_row_positions(s->cache, layer, sequence, positions, ROWS));
    for (int i = 0; i < ROWS; i++)
        if (positions[i] == position) return true;
    return false;
}

static kvc_cache_stats stats_of(const stories *s) {
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_cache_stats_get(s->cache, &stats));
    return stats;
}

/* Bytes that were moved beside those appended. */
static uint64_t moved(const stories *s) {
    const kvc_cache_stats stats = stats_of(s);
    return stats.copied_bytes - stats.appended_bytes;
}

static kvc_cache_nbytes nbytes_of(const stories *s) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_nbytes_get(s->cache, &nbytes));
    return nbytes;
}

/* Appends of several lengths, 0 ends the list, and the rows after the last of them: those of
 * mlx-lm's RotatingKVCache(max_size=8, keep=…), read off its code. */
static void window__rows_are_in_mlx_lms_order(void **state) {
    (void)state;
    const struct {
        int64_t keep, appends[14];
        const char *rows;
    } cases[] = {
        {2, {10, 1, 1}, "0 1 10 11 6 7 8 9"},
        {2, {10}, "0 1 2 3 4 5 6 7 8 9"},
        {2, {10, 1}, "0 1 10 5 6 7 8 9"},
        {2, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "0 1 8 9 10 11 6 7"},
        {2, {3, 3, 3}, "0 1 2 3 4 5 6 7 8"},
        {2, {3, 3, 3, 1, 1, 1}, "0 1 9 10 11 6 7 8"},
        {2, {3, 3, 3, 3}, "0 1 4 5 6 7 8 9 10 11"},
        {0, {10, 1, 1}, "10 11 4 5 6 7 8 9"},
        {0, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "8 9 10 11 4 5 6 7"},
        {0, {20, 2}, "13 14 15 16 17 18 19 20 21"},
        {7, {10, 1, 1}, "0 1 2 3 4 5 6 11"},
        {2, {5}, "0 1 2 3 4"},
        {2, {8, 1}, "0 1 8 3 4 5 6 7"},
    };
    for (size_t g = 0; g < 3; g++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            stories s =
                open_window((choice){.window = 8, .keep = cases[i].keep, .growth = growths[g]});
            for (const int64_t *n = cases[i].appends; *n; n++) stories_append(&s, *n);
            assert_string_equal(rows_text(&s, 0), cases[i].rows);
            close_all(&s);
        }
}

/* Each sequence is in the order that it would have alone. */
static void window__sequences_of_several_lengths_turn_on_their_own(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 8, .keep = 2, .batch = 2});
    stories_append_ragged(&s, (const int64_t[]){10, 3}, NULL);
    assert_string_equal(rows_text(&s, 0), "0 1 2 3 4 5 6 7 8 9");
    assert_string_equal(rows_text(&s, 1), "0 1 2 - - - - - - -");
    stories_append(&s, 1);
    assert_string_equal(rows_text(&s, 0), "0 1 10 5 6 7 8 9");
    assert_string_equal(rows_text(&s, 1), "0 1 2 3 - - - -");
    stories_append_ragged(&s, (const int64_t[]){1, 0}, NULL);
    stories_append_ragged(&s, (const int64_t[]){0, 5}, NULL);
    assert_string_equal(rows_text(&s, 0), "0 1 10 11 6 7 8 9 -");
    assert_string_equal(rows_text(&s, 1), "0 1 2 3 4 5 6 7 8");
    stories_check(&s);
    stories_append_ragged(&s, (const int64_t[]){0, 1}, NULL);
    assert_string_equal(rows_text(&s, 1), "0 1 9 4 5 6 7 8");
    close_all(&s);
}

/* Pitfalls 7 and 8: query i of n is at p = length + i and sees p - W + 1 … p, itself among them,
 * and those kept: `keep` of the W. All of them are there until the next append. */
static void window__every_query_of_an_append_finds_its_window(void **state) {
    (void)state;
    enum { W = 7, KEEP = 2 };
    for (int64_t keep = 0; keep <= KEEP; keep += KEEP)
        for (int64_t before = 0; before <= 3 * W; before++)
            for (int64_t n = 1; n <= W + 5; n++) {
                stories s =
                    open_window((choice){.window = W, .keep = keep, .growth = growths[n % 3]});
                for (int64_t i = 0; i < before; i++) stories_append(&s, 1);
                stories_append(&s, n);
                for (int64_t p = before; p < before + n; p++)
                    for (int64_t seen = 0; seen <= p; seen++)
                        if (seen < keep || seen > p - (W - keep))
                            assert_true(holds(&s, 0, 0, seen));
                close_all(&s);
            }
}

static void window__a_window_of_one_is_the_query_alone(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 1});
    for (int i = 0; i < 5; i++) stories_append(&s, 1);
    assert_string_equal(rows_text(&s, 0), "4");
    stories_append(&s, 3);
    assert_string_equal(rows_text(&s, 0), "5 6 7");
    close_all(&s);
}

static void window__slack_takes_appends_and_trims_without_a_move(void **state) {
    (void)state;
    enum { W = 16, KEEP = 3, SLACK = 4 };
    stories s = open_window((choice){.window = W, .keep = KEEP, .slack = SLACK});
    for (int64_t i = 0; i < 2 * W; i++) stories_append(&s, 1);
    for (int round = 0; round < 40; round++) {
        stories_append(&s, SLACK + 1); /* a guess of so many, of which one holds */
        assert_int_equal(kvc_cache_trimmable(s.cache), SLACK);
        stories_trim(&s, SLACK);
        stories_check(&s);
    }
    assert_int_equal(moved(&s), 0);
    stories_append(&s, SLACK + 2);
    assert_int_not_equal(moved(&s), 0);
    close_all(&s);
}

static void window__without_slack_one_position_at_a_time_moves_nothing(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 8, .keep = 1});
    for (int i = 0; i < 50; i++) stories_append(&s, 1);
    assert_int_equal(moved(&s), 0);
    close_all(&s);
}

static void chunk__a_window_grows_by_chunks_and_no_further(void **state) {
    (void)state;
    stories s =
        open_window((choice){.window = 10, .chunk = 4, .growth = KVC_GROW_CHUNK, .most = 0});
    for (int64_t n = 1; n <= 50; n++) {
        stories_append(&s, 1);
        const int64_t capacity = n > 8 ? 12 : (n + 3) / 4 * 4;
        assert_int_equal(kvc_cache_capacity(s.cache, 0), capacity);
        assert_int_equal(nbytes_of(&s).used, (uint64_t)(n < 10 ? n : 10) * row_bytes);
    }
    assert_int_equal(stats_of(&s).growths, 3);
    close_all(&s);
}

/* Bytes held after so many steps of one position. */
static uint64_t resident_after(stories *s, int64_t steps) {
    for (int64_t i = 0; i < steps; i++) stories_append(s, 1);
    return nbytes_of(s).resident;
}

static void window__memory_stays_once_the_window_is_full(void **state) {
    (void)state;
    for (size_t g = 0; g < 3; g++) {
        stories s =
            open_window((choice){.window = 300, .keep = 4, .growth = growths[g], .most = 100000});
        const uint64_t full = resident_after(&s, 300), growths_then = stats_of(&s).growths;
        assert_int_equal(resident_after(&s, 1500), full);
        assert_int_equal(stats_of(&s).growths, growths_then);
        close_all(&s);
    }
}

/* Twenty windows long, so that all of RESERVE's commit units are told from each other. */
static void window__the_room_of_a_long_prompt_comes_back(void **state) {
    (void)state;
    for (size_t g = 0; g < 3; g++)
        for (int cleared = 0; cleared < 2; cleared++) {
            const choice c = {.window = 2000, .keep = 4, .growth = growths[g], .most = 100000};
            stories plain = open_window(c), s = open_window(c);
            const uint64_t full = resident_after(&plain, 2200);
            stories_append(&s, 40000);
            const uint64_t prompt = nbytes_of(&s).resident;
            assert_true(prompt >= 40000 * row_bytes);
            if (cleared) stories_clear_sequence(&s, 0);
            assert_int_equal(nbytes_of(&s).resident, prompt);
            stories_append(&s, 1);
            assert_true(nbytes_of(&s).resident <= full);
            close_all(&plain);
            close_all(&s);
        }
}

/* Pitfall 9. */
static void window__trim_is_exact_or_refused(void **state) {
    (void)state;
    enum { W = 6 };
    for (int64_t keep = 0; keep < 3; keep++)
        for (int64_t slack = 0; slack < 4; slack++)
            for (int64_t length = 1; length < 25; length++) {
                stories s = open_window((choice){.window = W, .keep = keep, .slack = slack});
                for (int64_t i = 0; i < length; i++) stories_append(&s, 1);
                const int64_t most = kvc_cache_trimmable(s.cache);
                assert_int_equal(most, length <= W + slack ? length : slack);
                assert_fails(kvc_cache_trim(s.cache, most + 1), KVC_E_RANGE);
                stories_check(&s);
                stories_trim(&s, most);
                stories_check(&s);
                for (int64_t i = 0; i < W; i++) stories_append(&s, 1 + i % 3);
                close_all(&s);
            }
}

static void window__a_refused_trim_names_the_layer_and_what_would_help(void **state) {
    (void)state;
    const kvc_layer_spec specs[] = {spec_of(0, 0), spec_of(4, 0)};
    stories s = open_specs((choice){0}, specs, 2);
    for (int i = 0; i < 9; i++) stories_append(&s, 1);
    assert_fails(kvc_cache_trim(s.cache, 2), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "layer 1"));
    assert_non_null(strstr(kvc_last_error(), "desc.slack"));
    assert_fails(kvc_cache_trim(s.cache, 10), KVC_E_RANGE);
    assert_fails(kvc_cache_trim(s.cache, -1), KVC_E_RANGE);
    close_all(&s);
}

/* A prompt is held whole until the next append: it can be taken back to any length, also below
 * what is kept. */
static void window__a_prompt_can_be_trimmed_below_what_is_kept(void **state) {
    (void)state;
    for (int64_t left = 0; left < 8; left++) {
        stories s = open_window((choice){.window = 8, .keep = 4, .slack = 2});
        stories_append(&s, 30);
        assert_int_equal(kvc_cache_trimmable(s.cache), 30);
        stories_trim(&s, 30 - left);
        stories_check(&s);
        stories_append(&s, 1);
        stories_check(&s);
        for (int i = 0; i < 20; i++) stories_append(&s, 1);
        close_all(&s);
    }
}

static void window__trimmed_sequences_turn_on(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 8, .keep = 2, .slack = 3, .batch = 2});
    for (int i = 0; i < 60; i++) {
        stories_append_ragged(&s, (const int64_t[]){i % 3, 2 - i % 2}, NULL);
        if (i % 4 == 3 && i > 20) stories_trim_sequence(&s, i / 4 % 2, 1);
        stories_check(&s);
    }
    close_all(&s);
}

static void window__a_cleared_one_begins_anew(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 8, .keep = 2, .batch = 2});
    stories_append(&s, 11);
    stories_append(&s, 3);
    stories_clear_sequence(&s, 1);
    stories_check(&s);
    stories_append_ragged(&s, (const int64_t[]){1, 4}, NULL);
    stories_check(&s);
    kvc_cache_clear(s.cache);
    s.each[0].length = s.each[1].length = 0;
    stories_check(&s);
    assert_int_equal(nbytes_of(&s).used, 0);
    stories_append(&s, 10);
    stories_append(&s, 1);
    stories_append(&s, 1);
    assert_string_equal(rows_text(&s, 0), "0 1 10 11 6 7 8 9");
    close_all(&s);
}

static void window__layers_of_a_hybrid_model_are_one_cache(void **state) {
    (void)state;
    for (size_t g = 0; g < 3; g++) {
        const kvc_layer_spec specs[] = {spec_of(0, 0), spec_of(8, 2), spec_of(5, 0)};
        stories s = open_specs((choice){.batch = 2, .slack = 1, .growth = growths[g]}, specs, 3);
        stories_append(&s, 20);
        for (int i = 0; i < 20; i++) stories_append(&s, 1 + i % 2);
        assert_int_equal(kvc_cache_trimmable(s.cache), 1); /* the least of the layers */
        assert_int_equal(kvc_cache_length(s.cache, 0), 50);
        assert_int_equal(kvc_cache_length(s.cache, 2), 50);
        assert_int_equal(nbytes_of(&s).used, 2 * (50 + 9 + 6) * row_bytes);
        assert_fails(kvc_cache_trim(s.cache, 2), KVC_E_RANGE);
        stories_trim(&s, 1);
        close_all(&s);
    }
}

static void window__the_most_positions_bind_a_window_too(void **state) {
    (void)state;
    stories s = open_window((choice){.window = 8, .most = 20});
    stories_append(&s, 20);
    assert_fails(stories_append_layer(&s, 0, (const int64_t[]){1}), KVC_E_RANGE);
    close_all(&s);
}

static void window__room_is_not_lent(void **state) {
    (void)state;
    kvc_array k, v;
    stories s = open_window((choice){.window = 8});
    assert_fails(kvc_cache_prepare(s.cache, 0, 1, &k, &v), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "window"));
    close_all(&s);
}

static void window__rows_want_room_enough(void **state) {
    (void)state;
    int64_t positions[8];
    stories s = open_window((choice){.window = 8});
    stories_append(&s, 12);
    stories_append(&s, 1);
    assert_fails(kvc_cache_row_positions(s.cache, 0, 0, positions, 7), KVC_E_RANGE);
    assert_fails(kvc_cache_row_positions(s.cache, 0, 0, NULL, 8), KVC_E_RANGE);
    assert_fails(kvc_cache_row_positions(s.cache, 0, 1, positions, 8), KVC_E_INVALID);
    assert_fails(kvc_cache_row_positions(s.cache, 1, 0, positions, 8), KVC_E_INVALID);
    assert_ok(kvc_cache_row_positions(s.cache, 0, 0, positions, 8));
    close_all(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window__rows_are_in_mlx_lms_order),
        cmocka_unit_test(window__sequences_of_several_lengths_turn_on_their_own),
        cmocka_unit_test(window__every_query_of_an_append_finds_its_window),
        cmocka_unit_test(window__a_window_of_one_is_the_query_alone),
        cmocka_unit_test(window__slack_takes_appends_and_trims_without_a_move),
        cmocka_unit_test(window__without_slack_one_position_at_a_time_moves_nothing),
        cmocka_unit_test(chunk__a_window_grows_by_chunks_and_no_further),
        cmocka_unit_test(window__memory_stays_once_the_window_is_full),
        cmocka_unit_test(window__the_room_of_a_long_prompt_comes_back),
        cmocka_unit_test(window__trim_is_exact_or_refused),
        cmocka_unit_test(window__a_refused_trim_names_the_layer_and_what_would_help),
        cmocka_unit_test(window__a_prompt_can_be_trimmed_below_what_is_kept),
        cmocka_unit_test(window__trimmed_sequences_turn_on),
        cmocka_unit_test(window__a_cleared_one_begins_anew),
        cmocka_unit_test(window__layers_of_a_hybrid_model_are_one_cache),
        cmocka_unit_test(window__the_most_positions_bind_a_window_too),
        cmocka_unit_test(window__room_is_not_lent),
        cmocka_unit_test(window__rows_want_room_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
