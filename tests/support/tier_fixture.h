/** @file
 * What tests of tiers share: keys and values by number, folders of their own. */
#ifndef KVC_TEST_TIER_FIXTURE_H
#define KVC_TEST_TIER_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/tier.h>

/** Writes the key of a number, [32]; its digits are in the first two bytes too. */
void test_tier_key(uint8_t *key, uint64_t number);

/** Writes the bytes of a value that are known by a seed. */
void test_tier_payload(void *data, size_t bytes, uint64_t seed);

/** Returns a description whose faults are counted: test_tier_logged. */
kvc_tier_desc test_tier_desc(void);

/** How often a kind of fault was told since the last test_tier_desc. */
int test_tier_logged(kvc_tier_fault fault);

/** Puts the value of a seed under a number's key. */
kvc_tier_result test_tier_put(kvc_tier *tier, uint64_t number, uint64_t seed, size_t bytes);

/** Gets it into a poisoned buffer; fails the test where a hit is not the value of the seed. */
kvc_tier_result test_tier_get(kvc_tier *tier, uint64_t number, uint64_t seed, size_t bytes);

/** Asks whether it is there. */
kvc_tier_result test_tier_exists(kvc_tier *tier, uint64_t number);

/** The fault of this thread's last of these calls. */
kvc_tier_fault test_tier_fault(void);

/** The figures of a tier. */
kvc_tier_stats test_tier_stats(kvc_tier *tier);

/** Makes an empty folder.
 * @lifetime until test_folder_remove */
char *test_folder_new(void);

/** Removes a folder with all that is in it, and frees its name. */
void test_folder_remove(char *folder);

#endif
