/** @file
 * A tier that is a map in memory: it can be held, and can lie. What it holds outlives the tier, as
 * a folder or a server does. */
#ifndef KVC_TEST_MAP_TIER_H
#define KVC_TEST_MAP_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/tier.h>

/** Values by key. */
typedef struct test_map test_map;

test_map *test_map_new(void);

/** Its tiers are freed before. */
void test_map_free(test_map *map);

/** Opens it as a tier with the fingerprint of test_tier_desc. */
kvc_tier *test_map_open(test_map *map);

/** Has puts wait from now on, before they read their buffers; or lets them go on. */
void test_map_hold(test_map *map, bool held);

/** Does to about one value in so many what goes wrong with tiers, at each call: it is refused, cut,
 * garbled, forgotten or another's. 0: to none; 1: to each. */
void test_map_harm(test_map *map, uint64_t one_in);

/** How many values it holds. */
size_t test_map_count(test_map *map);

/** Forgets all. */
void test_map_clear(test_map *map);

#endif
