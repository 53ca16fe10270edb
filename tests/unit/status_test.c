#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/status.h>
#include <kvcache/version.h>

#include "base/error.h"
#include "support/support.h"

static void status__every_status_has_a_name_and_a_text(void **state) {
    (void)state;
#define CHECK(name, value, text)                                                                   \
    assert_int_equal(name, value);                                                                 \
    assert_string_equal(kvc_status_name(name), #name);                                             \
    assert_string_equal(kvc_status_text(name), text);
    KVC_STATUS_LIST(CHECK)
#undef CHECK
}

static void status__an_unknown_status_has_words_too(void **state) {
    (void)state;
    assert_string_equal(kvc_status_name((kvc_status)-99), "KVC_E_?");
    assert_string_equal(kvc_status_text((kvc_status)-99), "an unknown status");
}

static void version__the_library_tells_the_version_of_its_headers(void **state) {
    (void)state;
    char wanted[32];
    (void)snprintf(wanted, sizeof wanted, "%d.%d.%d", KVC_VERSION_MAJOR, KVC_VERSION_MINOR,
                   KVC_VERSION_PATCH);
    assert_string_equal(kvc_version(), wanted);
}

static void error__a_failure_returns_its_status_and_leaves_its_sentence(void **state) {
    (void)state;
    assert_int_equal(kvc__fail(KVC_E_RANGE, "layer: %d given, %d to %d wanted", 7, 0, 3),
                     KVC_E_RANGE);
    assert_string_equal(kvc_last_error(), "layer: 7 given, 0 to 3 wanted");
}

static kvc_status fails_in_the_middle(int *reached) {
    *reached = 1;
    KVC_TRY(KVC_OK);
    *reached = 2;
    KVC_TRY(kvc__fail(KVC_E_SHAPE, "middle"));
    *reached = 3;
    return KVC_OK;
}

static void error__try_returns_at_the_first_failure(void **state) {
    (void)state;
    int reached = 0;
    assert_fails(fails_in_the_middle(&reached), KVC_E_SHAPE);
    assert_int_equal(reached, 2);
}

static void error__a_sentence_too_long_is_cut_and_still_ends(void **state) {
    (void)state;
    char given[4096];
    memset(given, 'x', sizeof given - 1);
    given[sizeof given - 1] = '\0';
    (void)kvc__fail(KVC_E_INVALID, "name: %s", given);
    assert_int_equal(strncmp(kvc_last_error(), "name: xxxx", 10), 0);
    assert_in_range(strlen(kvc_last_error()), 100, sizeof given - 1);
}

/* Runs on a second thread: has it no sentence before its first failure, and its own after? */
static void *fail_elsewhere(void *argument) {
    bool *ok = argument;
    ok[0] = kvc_last_error()[0] == '\0';
    (void)kvc__fail(KVC_E_NOMEM, "elsewhere");
    ok[1] = strcmp(kvc_last_error(), "elsewhere") == 0;
    return NULL;
}

static void error__a_sentence_may_hold_the_one_before(void **state) {
    (void)state;
    kvc_last_error_set("%d given", 7);
    kvc_last_error_set("layer: %s", kvc_last_error());
    assert_string_equal(kvc_last_error(), "layer: 7 given");
}

static void error__each_thread_has_its_own_sentence(void **state) {
    (void)state;
    (void)kvc__fail(KVC_E_INVALID, "here");
    bool ok[2] = {false, false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, ok), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(ok[0]);
    assert_true(ok[1]);
    assert_string_equal(kvc_last_error(), "here");
}

/* A struct as an old caller knows it, and as the library does. */
typedef struct old_figures {
    size_t struct_size;
    uint64_t first;
} old_figures;

typedef struct figures {
    size_t struct_size;
    uint64_t first;
    uint64_t second;
} figures;

static void structs__an_old_caller_receives_the_fields_it_knows(void **state) {
    (void)state;
    const figures full = {sizeof full, 1, 2};
    old_figures out[2] = {{sizeof(old_figures), 0}, {77, 77}};
    assert_ok(kvc__struct_out(out, &full, sizeof full, "figures"));
    assert_int_equal(out[0].struct_size, sizeof(old_figures));
    assert_int_equal(out[0].first, 1);
    assert_int_equal(out[1].struct_size, 77);
    assert_int_equal(out[1].first, 77);
}

static void structs__a_new_caller_keeps_the_fields_that_the_library_does_not_know(void **state) {
    (void)state;
    const old_figures full = {sizeof full, 1};
    figures out = {sizeof out, 0, 77};
    assert_ok(kvc__struct_out(&out, &full, sizeof full, "figures"));
    assert_int_equal(out.struct_size, sizeof out);
    assert_int_equal(out.first, 1);
    assert_int_equal(out.second, 77);
}

static void structs__fields_that_an_old_caller_does_not_know_are_zero(void **state) {
    (void)state;
    const old_figures desc = {sizeof desc, 1};
    figures full = {77, 77, 77};
    assert_ok(kvc__struct_in(&full, sizeof full, &desc, "figures"));
    assert_int_equal(full.first, 1);
    assert_int_equal(full.second, 0);
}

static void structs__one_without_its_size_is_refused_by_name(void **state) {
    (void)state;
    const figures full = {sizeof full, 1, 2};
    figures out = {0, 77, 77};
    assert_fails(kvc__struct_out(&out, &full, sizeof full, "figures"), KVC_E_INVALID);
    assert_string_equal(kvc_last_error(), "figures.struct_size: 0 given, sizeof(figures) wanted");
    assert_int_equal(out.first, 77);
    out.struct_size = SIZE_MAX; /* a struct that was never set */
    assert_fails(kvc__struct_out(&out, &full, sizeof full, "figures"), KVC_E_INVALID);
    assert_fails(kvc__struct_in(&out, sizeof out, NULL, "figures"), KVC_E_INVALID);
    assert_int_equal(out.first, 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status__every_status_has_a_name_and_a_text),
        cmocka_unit_test(status__an_unknown_status_has_words_too),
        cmocka_unit_test(version__the_library_tells_the_version_of_its_headers),
        cmocka_unit_test(error__a_failure_returns_its_status_and_leaves_its_sentence),
        cmocka_unit_test(error__try_returns_at_the_first_failure),
        cmocka_unit_test(error__a_sentence_too_long_is_cut_and_still_ends),
        cmocka_unit_test(error__a_sentence_may_hold_the_one_before),
        cmocka_unit_test(error__each_thread_has_its_own_sentence),
        cmocka_unit_test(structs__an_old_caller_receives_the_fields_it_knows),
        cmocka_unit_test(structs__a_new_caller_keeps_the_fields_that_the_library_does_not_know),
        cmocka_unit_test(structs__fields_that_an_old_caller_does_not_know_are_zero),
        cmocka_unit_test(structs__one_without_its_size_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
