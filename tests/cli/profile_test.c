/* How the program adds up spans and samples. */

#include <math.h>
#include <string.h>

#include "profile.h"
#include "stats.h"
#include "support/support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static profile_span span(int kind, uint64_t start_ns, uint64_t end_ns) {
    return (profile_span){"span", start_ns, end_ns, 1024, 0, kind};
}

static profile_track sum(profile_span *spans, size_t count) {
    profile_track track = {.label = "track"};
    profile_sort(spans, count);
    profile_sum(spans, count, &track, 1);
    return track;
}

static void profile__a_span_inside_another_is_counted_once(void **state) {
    (void)state;
    profile_span spans[] = {span(KVC_SPAN_ALLOCATE, 20, 50), span(KVC_SPAN_COMMIT, 30, 35),
                            span(KVC_SPAN_COPY, 10, 90), span(PROFILE_STEP, 0, 100)};
    const profile_track track = sum(spans, COUNT(spans));
    assert_int_equal(track.steps, 1);
    assert_int_equal(track.step_ns, 100);
    assert_int_equal(track.own_ns[KVC_SPAN_COPY], 80 - 30);
    assert_int_equal(track.own_ns[KVC_SPAN_ALLOCATE], 30 - 5);
    assert_int_equal(track.own_ns[KVC_SPAN_COMMIT], 5);
}

static void profile__spans_in_a_row_are_not_nested(void **state) {
    (void)state;
    profile_span spans[] = {span(PROFILE_STEP, 0, 100), span(KVC_SPAN_COPY, 0, 40),
                            span(KVC_SPAN_COPY, 40, 60), span(KVC_SPAN_KERNEL, 60, 100)};
    const profile_track track = sum(spans, COUNT(spans));
    assert_int_equal(track.own_ns[KVC_SPAN_COPY], 60);
    assert_int_equal(track.own_ns[KVC_SPAN_KERNEL], 40);
    assert_int_equal(track.spans[KVC_SPAN_COPY], 2);
    assert_int_equal(track.bytes[KVC_SPAN_COPY], 2048);
}

static void profile__a_step_encloses_what_takes_as_long(void **state) {
    (void)state;
    profile_span spans[] = {span(KVC_SPAN_KERNEL, 5, 9), span(PROFILE_STEP, 5, 9)};
    const profile_track track = sum(spans, COUNT(spans));
    assert_int_equal(track.own_ns[KVC_SPAN_KERNEL], 4);
    assert_int_equal(track.step_ns, 4);
}

static void profile__spans_between_steps_count_nowhere(void **state) {
    (void)state;
    profile_span spans[] = {span(PROFILE_STEP, 0, 10), span(KVC_SPAN_COPY, 20, 30)};
    spans[1].track = PROFILE_NO_TRACK;
    const profile_track track = sum(spans, COUNT(spans));
    assert_int_equal(track.own_ns[KVC_SPAN_COPY], 0);
}

static void profile__deep_nesting_loses_no_time(void **state) {
    (void)state;
    profile_span spans[41] = {span(PROFILE_STEP, 0, 1000)};
    uint64_t own_ns = 0;
    for (uint64_t i = 1; i < COUNT(spans); i++)
        spans[i] = span(KVC_SPAN_COPY, 10 * i, 1000 - 10 * i);
    const profile_track track = sum(spans, COUNT(spans));
    for (int kind = 0; kind < PROFILE_KINDS; kind++) own_ns += track.own_ns[kind];
    assert_int_equal(own_ns, 1000 - 20);
}

static void assert_sentence(const profile_track *track, const char *wanted) {
    char sentence[512];
    profile_sentence(sentence, sizeof sentence, track, "the model's own arithmetic");
    assert_string_equal(sentence, wanted);
}

static void profile__the_sentence_names_the_cause(void **state) {
    (void)state;
    profile_track track = {.label = "concat", .steps = 10, .step_ns = 1000, .pool_misses = 200};
    track.own_ns[KVC_SPAN_COPY] = 370;
    track.own_ns[KVC_SPAN_ALLOCATE] = 600;
    track.spans[KVC_SPAN_ALLOCATE] = 200;
    assert_sentence(&track, "concat: 63 % of the step no copy or kernel was running: the driver "
                            "was allocating (20 buffers a step, none of a size that the pool "
                            "could reuse)");
    track.pool_hits = 600;
    track.own_ns[KVC_SPAN_ALLOCATE] = 300;
    track.own_ns[KVC_SPAN_RELEASE] = 300;
    track.spans[KVC_SPAN_ALLOCATE] = 1;
    assert_sentence(&track, "concat: 63 % of the step no copy or kernel was running: the driver "
                            "was allocating and taking back (1 buffer in 10 steps, while the pool "
                            "could serve 75 % of the requests)");
    track.own_ns[KVC_SPAN_COMMIT] = 610;
    track.own_ns[KVC_SPAN_ALLOCATE] = track.own_ns[KVC_SPAN_RELEASE] = 0;
    track.spans[KVC_SPAN_COMMIT] = 50;
    track.bytes[KVC_SPAN_COMMIT] = 50 * 16384;
    assert_sentence(&track, "concat: 63 % of the step no copy or kernel was running: pages were "
                            "being made resident (5 commits a step, 80 KiB a step)");
    track.own_ns[KVC_SPAN_COMMIT] = 0;
    assert_sentence(&track, "concat: 63 % of the step no copy or kernel was running: the model's "
                            "own arithmetic ran");
    track.own_ns[KVC_SPAN_KERNEL] = 590;
    track.longest_step_ns = 700;
    assert_sentence(&track, "concat: 96 % of the step a copy or kernel was running; one step took "
                            "70 % of the time of all 10");
}

static void profile__no_step_is_told(void **state) {
    (void)state;
    const profile_track track = {.label = "idle"};
    assert_sentence(&track, "idle: no step was traced");
}

static void stats__an_empty_list_has_no_figures(void **state) {
    (void)state;
    stats_samples samples = {0};
    const stats_summary summary = stats_summarise(&samples);
    assert_int_equal(summary.count, 0);
    assert_true(isnan(summary.p50) && isnan(summary.mean) && isnan(summary.max));
}

static void stats__percentiles_are_of_sorted_samples(void **state) {
    (void)state;
    stats_samples samples = {0};
    for (int i = 0; i < 1000; i++) assert_true(stats_add(&samples, (i * 7) % 1000 + 1));
    stats_summary summary = stats_summarise(&samples);
    assert_true(summary.p50 == 500.5 && summary.mean == 500.5);
    assert_true(summary.p99 == 990 && summary.max == 1000);
    samples.count = 1;
    samples.values[0] = 3;
    summary = stats_summarise(&samples);
    assert_true(summary.p50 == 3 && summary.p99 == 3 && summary.max == 3);
    stats_free(&samples);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profile__a_span_inside_another_is_counted_once),
        cmocka_unit_test(profile__spans_in_a_row_are_not_nested),
        cmocka_unit_test(profile__a_step_encloses_what_takes_as_long),
        cmocka_unit_test(profile__spans_between_steps_count_nowhere),
        cmocka_unit_test(profile__deep_nesting_loses_no_time),
        cmocka_unit_test(profile__the_sentence_names_the_cause),
        cmocka_unit_test(profile__no_step_is_told),
        cmocka_unit_test(stats__an_empty_list_has_no_figures),
        cmocka_unit_test(stats__percentiles_are_of_sorted_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
