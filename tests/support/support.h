/** @file
 * What every test program shares: cmocka with the headers that it wants, the data outside the
 * repository, seeds and budgets of random tests. */
#ifndef KVC_TEST_SUPPORT_H
#define KVC_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvcache/status.h>

/** Returns the path of a file below KVC_SHARED_DIR (data that is not part of the repository), or
 * skips the running test, saying what is missing.
 * @lifetime until the next call */
const char *test_shared_path(const char *file);

/** Returns the seed of a random test: KVC_TEST_SEED, or the one given. Prints it, so that a failed
 * run can be run again. */
uint64_t test_seed(uint64_t otherwise);

/** Returns the seconds that a random test may take: KVC_TEST_SECONDS, or those given. */
double test_seconds(double otherwise);

/** Returns the next number of a sequence (splitmix64); *state is any seed. */
uint64_t test_random(uint64_t *state);

/** Returns the next number below n, which is more than 0. */
int64_t test_below(uint64_t *state, int64_t n);

/** Returns the seconds of a clock that only goes forward. */
double test_now(void);

/** Fails with the library's own sentence when a call did not return KVC_OK. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        const kvc_status assert_ok_status = (call);                                                \
        if (assert_ok_status != KVC_OK)                                                            \
            fail_msg("%s: %s: %s", #call, kvc_status_name(assert_ok_status), kvc_last_error());    \
    } while (0)

/** Fails when a call did not return the status wanted, or left no sentence. */
#define assert_fails(call, wanted)                                                                 \
    do {                                                                                           \
        assert_string_equal(kvc_status_name(call), kvc_status_name(wanted));                       \
        assert_string_not_equal(kvc_last_error(), "");                                             \
    } while (0)

#endif
