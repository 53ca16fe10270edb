/* What networks and servers do to the Redis tier: always a miss, never wrong bytes, never a hang
 * (the test's own time limit sees to that). */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <kvcache/tier_redis.h>

#include "support/redis_server.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { KEYS = 8, BYTES = 3000, REPLY_BYTES = BYTES + KVC_TIER_HEADER_BYTES + 9 };

static test_redis server;
static test_proxy *proxy;

static int setup(void **state) {
    (void)state;
    test_redis_init(&server, NULL);
    proxy = test_proxy_new(server.port);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_proxy_free(proxy);
    test_redis_deinit(&server);
    return 0;
}

static kvc_tier *open_port(int port, int timeout_ms, int pause_ms) {
    char url[64];
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    kvc_tier_redis_desc desc = {.struct_size = sizeof desc,
                                .url = url,
                                .connections = 1,
                                .connect_ms = 5000,
                                .timeout_ms = timeout_ms,
                                .pause_ms = pause_ms,
                                .longest_pause_ms = pause_ms};
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", port);
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &desc));
    return tier;
}

static void sleep_ms(long ms) {
    const struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&span, NULL);
}

/* Puts all values past the proxy's tricks. */
static void fill(void) {
    kvc_tier *tier = open_port(server.port, 20000, 1);
    for (uint64_t i = 0; i < KEYS; i++)
        assert_int_equal(test_tier_put(tier, i, i, BYTES), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

/* Gets all values in one batch; returns the hits, whose bytes are right. */
static int get_all(kvc_tier *tier) {
    uint8_t keys[KEYS][KVC_BLOCK_KEY_BYTES];
    static char data[KEYS][BYTES], right[BYTES];
    kvc_tier_item items[KEYS];
    int hits = 0;
    memset(data, 0xa5, sizeof data);
    for (uint64_t i = 0; i < KEYS; i++) {
        test_tier_key(keys[i], i);
        items[i] = (kvc_tier_item){.key = keys[i], .data = data[i], .size_bytes = BYTES};
    }
    assert_ok(kvc_tier_get_into_many(tier, items, KEYS));
    for (uint64_t i = 0; i < KEYS; i++) {
        if (items[i].result != KVC_TIER_HIT) continue;
        test_tier_payload(right, BYTES, i);
        assert_memory_equal(data[i], right, BYTES);
        hits++;
    }
    return hits;
}

/* Waits until the tier serves again, after the fault was mended. */
static void expect_recovery(kvc_tier *tier) {
    for (int i = 0; i < 1000; i++) {
        if (get_all(tier) == KEYS) return;
        sleep_ms(10);
    }
    fail_msg("the tier does not recover");
}

static void redis_fault__a_server_that_is_not_there_is_a_miss_and_may_come_back(void **state) {
    (void)state;
    fill();
    kvc_tier *tier = open_port(server.port, 20000, 1);
    assert_int_equal(get_all(tier), KEYS);
    test_redis_kill(&server);
    assert_int_equal(get_all(tier), 0);
    sleep_ms(5);
    assert_int_equal(get_all(tier), 0);
    sleep_ms(5);
    assert_int_equal(test_tier_put(tier, 1, 1, BYTES), KVC_TIER_FAULT);
    sleep_ms(5);
    assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REFUSED);
    assert_int_equal(test_tier_logged(KVC_TIER_REFUSED), 1);
    test_redis_start(&server);
    fill();
    expect_recovery(tier);
    kvc_tier_free(tier);
}

static void redis_fault__a_stopped_server_is_a_miss_until_it_goes_on(void **state) {
    (void)state;
    fill();
    kvc_tier *tier = open_port(server.port, 100, 1);
    expect_recovery(tier);
    test_redis_pause(&server, true);
    assert_int_equal(get_all(tier), 0);
    sleep_ms(5);
    assert_int_equal(test_tier_put(tier, 1, 1, BYTES), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_SLOW);
    sleep_ms(5);
    assert_int_equal(test_tier_put(tier, 100, 1, 8 << 20), KVC_TIER_FAULT); /* fills the socket */
    assert_int_equal(test_tier_fault(), KVC_TIER_SLOW);
    test_redis_pause(&server, false);
    expect_recovery(tier);
    kvc_tier_free(tier);
}

static void redis_fault__after_a_fault_nothing_is_asked_for_a_while(void **state) {
    (void)state;
    fill();
    kvc_tier *tier = open_port(test_proxy_port(proxy), 20000, 3600000);
    assert_int_equal(get_all(tier), KEYS);
    test_proxy_set(proxy, TEST_PROXY_CUT, 0);
    assert_int_equal(get_all(tier), 0);
    test_proxy_set(proxy, TEST_PROXY_PASS, 0);
    const int64_t connections = test_proxy_connections(proxy);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(test_tier_get(tier, 1, 1, BYTES), KVC_TIER_FAULT);
        assert_int_equal(test_tier_fault(), KVC_TIER_PAUSED);
    }
    assert_int_equal(test_proxy_connections(proxy), connections);
    assert_int_equal(test_tier_stats(tier).faults[KVC_TIER_PAUSED], 50);
    assert_int_equal(test_tier_logged(KVC_TIER_PAUSED), 1);
    kvc_tier_free(tier);
}

static void redis_fault__replies_cut_anywhere_are_misses(void **state) {
    uint64_t seed = test_seed(21);
    (void)state;
    fill();
    kvc_tier *tier = open_port(test_proxy_port(proxy), 20000, 1);
    for (int i = 0; i < 60; i++) {
        const int64_t at = i < 12 ? i : test_below(&seed, (int64_t)KEYS * REPLY_BYTES);
        test_proxy_set(proxy, TEST_PROXY_PASS, 0);
        expect_recovery(tier);
        test_proxy_set(proxy, TEST_PROXY_CUT, at);
        sleep_ms(1);
        assert_true(get_all(tier) <= at / REPLY_BYTES);
        sleep_ms(2);
    }
    assert_true(test_tier_stats(tier).faults[KVC_TIER_CUT] > 0);
    kvc_tier_free(tier);
}

static void redis_fault__garbled_replies_are_never_wrong_bytes(void **state) {
    int hits = 0, faults = 0;
    (void)state;
    for (int i = 0; i < 60; i++) {
        fill(); /* what is damaged is removed */
        kvc_tier *tier = open_port(test_proxy_port(proxy), 100, 1);
        test_proxy_set(proxy, TEST_PROXY_GARBLE, i % 3 == 0 ? 10 : i % 3 == 1 ? 3000 : 100000);
        const int good = get_all(tier);
        hits += good;
        faults += KEYS - good;
        sleep_ms(2);
        (void)test_tier_put(tier, 1, 1, BYTES);
        (void)test_tier_exists(tier, 1);
        kvc_tier_free(tier);
    }
    assert_true(hits > 0 && faults > 0);
}

static void redis_fault__noise_instead_of_replies_is_a_miss(void **state) {
    (void)state;
    fill();
    kvc_tier *tier = open_port(test_proxy_port(proxy), 50, 1);
    test_proxy_set(proxy, TEST_PROXY_NOISE, 0);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(get_all(tier), 0);
        sleep_ms(2);
        (void)test_tier_put(tier, 1, 1, BYTES);
        sleep_ms(2);
    }
    test_proxy_set(proxy, TEST_PROXY_PASS, 0);
    fill();
    kvc_tier_free(tier);
    tier = open_port(test_proxy_port(proxy), 20000, 1);
    expect_recovery(tier);
    kvc_tier_free(tier);
}

static void redis_fault__replies_that_drip_or_stay_out_are_misses(void **state) {
    const test_proxy_mode modes[] = {TEST_PROXY_DRIP, TEST_PROXY_SWALLOW};
    (void)state;
    fill();
    for (int i = 0; i < 2; i++) {
        kvc_tier *tier = open_port(test_proxy_port(proxy), 100, 1);
        test_proxy_set(proxy, modes[i], 0);
        assert_int_equal(get_all(tier), 0);
        assert_int_equal(test_tier_stats(tier).faults[KVC_TIER_SLOW], KEYS);
        sleep_ms(5);
        assert_int_equal(test_tier_get(tier, 1, 1, BYTES), KVC_TIER_FAULT);
        test_proxy_set(proxy, TEST_PROXY_PASS, 0);
        kvc_tier_free(tier);
    }
}

static void redis_fault__connections_closed_at_once_are_misses(void **state) {
    (void)state;
    fill();
    kvc_tier *tier = open_port(test_proxy_port(proxy), 20000, 1);
    test_proxy_set(proxy, TEST_PROXY_REFUSE, 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(get_all(tier), 0);
        sleep_ms(2);
        assert_int_equal(test_tier_put(tier, 100, 1, 1 << 20), KVC_TIER_FAULT); /* no SIGPIPE */
        sleep_ms(2);
    }
    test_proxy_set(proxy, TEST_PROXY_PASS, 0);
    expect_recovery(tier);
    kvc_tier_free(tier);
}

#define SERVER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        SERVER_TEST(redis_fault__a_server_that_is_not_there_is_a_miss_and_may_come_back),
        SERVER_TEST(redis_fault__a_stopped_server_is_a_miss_until_it_goes_on),
        SERVER_TEST(redis_fault__after_a_fault_nothing_is_asked_for_a_while),
        SERVER_TEST(redis_fault__replies_cut_anywhere_are_misses),
        SERVER_TEST(redis_fault__garbled_replies_are_never_wrong_bytes),
        SERVER_TEST(redis_fault__noise_instead_of_replies_is_a_miss),
        SERVER_TEST(redis_fault__replies_that_drip_or_stay_out_are_misses),
        SERVER_TEST(redis_fault__connections_closed_at_once_are_misses),
    };
    return cmocka_run_group_tests_name("redis_fault", tests, NULL, NULL);
}
