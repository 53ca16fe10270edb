/* Random operations on every tier, against a naive map. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/tier_disk.h>
#ifdef KVC_TEST_REDIS
#include <kvcache/tier_redis.h>

#include "support/redis_server.h"
#endif

#include "support/support.h"
#include "support/tier_fixture.h"

enum { KEYS = 24, MOST_ITEMS = 40, MOST_BYTES = 5000, ABSENT = 0 };

/* What the tier should hold: the seed of each key's value; 0: none. A key's value has one size. */
typedef struct map {
    uint64_t seeds[KEYS];
    uint64_t next_seed;
} map;

static uint8_t keys[KEYS][KVC_BLOCK_KEY_BYTES];
static char data[MOST_ITEMS][MOST_BYTES], right[MOST_BYTES];

static size_t size_of(int64_t key) {
    return key % 5 == 0 ? (size_t)key / 5 : (size_t)(key * 211 % MOST_BYTES);
}

/* One batch of any operation; where the tier may forget (`forgets`), a miss is right too. A put of
 * one key twice in a batch may end in either order, so each key comes once. */
static void step(kvc_tier *tier, map *m, uint64_t *random, bool forgets) {
    kvc_tier_item items[MOST_ITEMS];
    int64_t picked[MOST_ITEMS], count = test_below(random, KEYS + 1);
    const kvc_tier_op op = (kvc_tier_op)test_below(random, 3);
    const int64_t first = test_below(random, KEYS);
    kvc_tier_batch batch = {.struct_size = sizeof batch, .op = op, .items = items, .count = count};
    for (int64_t i = 0; i < count; i++) {
        const int64_t key = picked[i] = (first + 7 * i) % KEYS; /* 7 and 24 have no divisor */
        items[i] = (kvc_tier_item){.key = keys[key], .data = data[i], .size_bytes = size_of(key)};
        memset(data[i], 0xa5, size_of(key));
        if (op != KVC_TIER_PUT) continue;
        m->seeds[key] = ++m->next_seed;
        test_tier_payload(data[i], size_of(key), m->seeds[key]);
    }
    assert_ok(kvc_tier_submit(tier, &batch));
    assert_true(kvc_tier_wait(tier, &batch, UINT64_MAX));
    for (int64_t i = 0; i < count; i++) {
        const uint64_t seed = m->seeds[picked[i]];
        if (op == KVC_TIER_PUT) assert_int_equal(items[i].result, KVC_TIER_HIT);
        if (seed == ABSENT) assert_int_equal(items[i].result, KVC_TIER_MISS);
        else if (!forgets) assert_int_equal(items[i].result, KVC_TIER_HIT);
        assert_int_not_equal(items[i].result, KVC_TIER_FAULT);
        if (op != KVC_TIER_GET || items[i].result != KVC_TIER_HIT) continue;
        test_tier_payload(right, size_of(picked[i]), seed);
        assert_memory_equal(data[i], right, size_of(picked[i]));
    }
}

static kvc_tier *open_disk(const char *folder, uint64_t limit_bytes) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {
        .struct_size = sizeof desc, .folder = folder, .limit_bytes = limit_bytes, .threads = 3};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

static int setup(void **state) {
    (void)state;
    for (uint64_t i = 0; i < KEYS; i++) test_tier_key(keys[i], i);
    return 0;
}

static void run_disk(uint64_t seed, uint64_t limit_bytes) {
    const double end = test_now() + test_seconds(0.5);
    char *folder = test_folder_new();
    kvc_tier *tier = open_disk(folder, limit_bytes);
    map m = {{0}, 0};
    do {
        for (int i = 0; i < 50; i++) step(tier, &m, &seed, limit_bytes > 0);
        kvc_tier_free(tier); /* and after a restart */
        tier = open_disk(folder, limit_bytes);
    } while (test_now() < end);
    kvc_tier_free(tier);
    test_folder_remove(folder);
}

static void disk__does_what_a_map_does(void **state) {
    (void)state;
    run_disk(test_seed(31), 0);
}

static void disk__with_a_limit_forgets_and_is_never_wrong(void **state) {
    (void)state;
    run_disk(test_seed(32), 20000);
}

#ifdef KVC_TEST_REDIS
static void redis__does_what_a_map_does(void **state) {
    uint64_t seed = test_seed(33);
    const double end = test_now() + test_seconds(0.5);
    char url[64];
    test_redis server;
    kvc_tier *tier;
    map m = {{0}, 0};
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_redis_desc desc = {
        .struct_size = sizeof desc, .url = url, .connections = 3, .timeout_ms = 20000};
    (void)state;
    test_redis_init(&server, NULL);
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", server.port);
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &desc));
    do step(tier, &m, &seed, false);
    while (test_now() < end);
    kvc_tier_free(tier);
    test_redis_deinit(&server);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disk__does_what_a_map_does),
        cmocka_unit_test(disk__with_a_limit_forgets_and_is_never_wrong),
#ifdef KVC_TEST_REDIS
        cmocka_unit_test(redis__does_what_a_map_does),
#endif
    };
    return cmocka_run_group_tests_name("tier_model", tests, setup, NULL);
}
