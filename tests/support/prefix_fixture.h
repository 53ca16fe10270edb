/** @file
 * A small pool of blocks with a prefix tree for every test of a program. */
#ifndef KVC_TEST_PREFIX_FIXTURE_H
#define KVC_TEST_PREFIX_FIXTURE_H

#include <kvcache/prefix.h>

#include "support/pool_fixture.h"

enum {
    PREFIX_B = 16,           /**< positions of a block */
    PREFIX_BLOCK_BYTES = 128 /**< one head of one element, keys and values aligned */
};

/** Makes blocks of which `most` fit, in slabs of `slab` (a power of two). */
kvc_blocks *prefix_blocks(kvc_pool *pool, uint64_t most, uint64_t slab);

/** What *state points to in a test with prefix_test: `pool` of a pool_fixture comes first. */
typedef struct prefix_fixture {
    pool_fixture *base;
    kvc_blocks *blocks; /**< 32 of them, in slabs of 4 */
    kvc_prefix *tree;
} prefix_fixture;

/** Makes the fixture. */
int prefix_fixture_setup(void **state);

/** Checks and frees it; nothing may be left. */
int prefix_fixture_teardown(void **state);

/** A cmocka test with a fixture. */
#define prefix_test(name)                                                                          \
    cmocka_unit_test_setup_teardown(name, prefix_fixture_setup, prefix_fixture_teardown)

/** Writes the tokens of a sequence of blocks: a letter stands for a block, equal letters for equal
 * tokens. Returns n = B × letters. */
int64_t prefix_tokens(int32_t *out, const char *letters);

/** Returns a namespace of three texts, each as long as its letters. */
kvc_prefix_namespace prefix_space(const char *tenant, const char *adapter, const char *model);

/** Takes blocks for a sequence, inserts it with a priority, and returns how many were stored. The
 * blocks stay held, in ids. */
int64_t prefix_insert_held(const prefix_fixture *f, const char *letters, int priority,
                           int32_t *ids);

/** The same, and lets go of the blocks. */
int64_t prefix_insert(const prefix_fixture *f, const char *letters, int priority);

/** Returns how many blocks of a sequence are stored, without using them. */
int64_t prefix_stored(const prefix_fixture *f, const char *letters);

/** Matches a sequence and lets go of what was found: a use. Returns the blocks found. */
int64_t prefix_use(const prefix_fixture *f, const char *letters);

/** Returns the figures of a tree. */
kvc_prefix_stats prefix_stats(kvc_prefix *tree);

#endif
