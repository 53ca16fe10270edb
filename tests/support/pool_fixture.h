/** @file
 * A pool of a test device for every test of a program, and what tests ask of it. */
#ifndef KVC_TEST_POOL_FIXTURE_H
#define KVC_TEST_POOL_FIXTURE_H

#include <kvcache/pool.h>

#include "support/fault.h"
#include "support/support.h"
#include "support/test_device.h"

/** What *state points to in a test with pool_test. */
typedef struct pool_fixture {
    test_device device;
    kvc_pool *pool;     /**< a test that frees it sets NULL */
    size_t held_before; /**< objects of the allocator that are another test's */
} pool_fixture;

/** Makes the fixture; small objects come from the counting allocator. */
int pool_fixture_setup(void **state);

/** Frees the pool and verifies that nothing is left, on the device or of the allocator. */
int pool_fixture_teardown(void **state);

/** A cmocka test with a fixture. */
#define pool_test(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, pool_fixture_setup, pool_fixture_teardown)

/** Returns the figures of a pool. */
kvc_pool_stats pool_stats(kvc_pool *pool);

/** Takes a buffer, or fails the test. */
kvc_buffer *pool_take(kvc_pool *pool, size_t bytes);

/** Takes a buffer of a size and gives it back, so that the pool keeps one. */
void pool_keep(kvc_pool *pool, size_t bytes);

/** Takes a buffer, gives it back, and returns whether the pool had one. */
bool pool_serves(kvc_pool *pool, size_t bytes);

#endif
