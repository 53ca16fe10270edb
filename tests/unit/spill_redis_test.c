/* Machines that share a Redis server: what one computed another finds; a server that is killed,
 * paused or garbled in the middle is a miss, never wrong. */
#include <stdio.h>

#include <kvcache/tier_redis.h>

#include "support/redis_server.h"
#include "support/spill_fixture.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = SPILL_B, BLOCKS = 20, N = BLOCKS * B };

static int32_t tokens[N];
static test_redis server;
static test_proxy *proxy;

static int setup(void **state) {
    (void)state;
    for (int32_t i = 0; i < N; i++) tokens[i] = i * 31;
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

static kvc_tier *connect_to(int port, int timeout_ms) {
    char url[64];
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_redis_desc desc = {.struct_size = sizeof desc,
                                      .url = url,
                                      .connect_ms = 5000,
                                      .timeout_ms = timeout_ms,
                                      .pause_ms = 1,
                                      .longest_pause_ms = 5};
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", port);
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &desc));
    return tier;
}

static void spill_redis__a_machine_finds_what_another_computed(void **state) {
    kvc_tier *tiers[2];
    spill_machine machines[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        tiers[i] = connect_to(server.port, 20000);
        spill_machine_init(&machines[i], 32, &tiers[i], 1);
    }
    assert_int_equal(spill_turn(&machines[0], "a", tokens, N, NULL), 0);
    assert_true(kvc_spill_wait(machines[0].spill, UINT64_MAX));
    assert_int_equal(spill_find(&machines[1], "b", tokens, N), 0);
    assert_int_equal(spill_find(&machines[1], "a", tokens, N), BLOCKS);
    for (int i = 0; i < 2; i++) {
        spill_machine_deinit(&machines[i]);
        kvc_tier_free(tiers[i]);
    }
}

static void spill_redis__faults_in_the_middle_are_misses(void **state) {
    static const struct {
        test_proxy_mode mode;
        int64_t amount;
    } tricks[] = {{TEST_PROXY_PASS, 0},    {TEST_PROXY_CUT, 700},  {TEST_PROXY_GARBLE, 200},
                  {TEST_PROXY_SWALLOW, 0}, {TEST_PROXY_NOISE, 0},  {TEST_PROXY_REFUSE, 0},
                  {TEST_PROXY_CUT, 5000},  {TEST_PROXY_GARBLE, 9}, {TEST_PROXY_PASS, 0}};
    (void)state;
    kvc_tier *tier = connect_to(test_proxy_port(proxy), 200);
    spill_machine m;
    spill_machine_init(&m, 32, &tier, 1);
    for (size_t i = 0; i < sizeof tricks / sizeof *tricks; i++) {
        test_proxy_set(proxy, tricks[i].mode, tricks[i].amount);
        for (int turn = 0; turn < 3; turn++) {
            (void)spill_turn(&m, NULL, tokens, N, NULL); /* verifies what is found */
            spill_forget(&m);
        }
    }
    test_proxy_set(proxy, TEST_PROXY_PASS, 0);
    test_redis_kill(&server);
    (void)spill_turn(&m, NULL, tokens, N, NULL);
    spill_forget(&m);
    test_redis_start(&server);
    test_redis_pause(&server, true);
    (void)spill_turn(&m, NULL, tokens, N, NULL);
    spill_forget(&m);
    test_redis_pause(&server, false);
    spill_machine_deinit(&m);
    kvc_tier_free(tier);

    tier = connect_to(server.port, 20000); /* and all is well again */
    spill_machine_init(&m, 32, &tier, 1);
    (void)spill_turn(&m, NULL, tokens, N, NULL);
    spill_forget(&m);
    assert_int_equal(spill_find(&m, NULL, tokens, N), BLOCKS);
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(spill_redis__a_machine_finds_what_another_computed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(spill_redis__faults_in_the_middle_are_misses, setup,
                                        teardown),
    };
    return cmocka_run_group_tests_name("spill_redis", tests, NULL, NULL);
}
