/* The Redis tier before a server that works, or says no. What networks do to it is in
 * tests/fault/redis_fault_test.c. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/tier_redis.h>

#include "redis/url.h"
#include "support/redis_server.h"
#include "support/support.h"
#include "support/tier_fixture.h"

static test_redis server;

static int setup(void **state) {
    (void)state;
    test_redis_init(&server, NULL);
    return 0;
}

static int setup_password(void **state) {
    (void)state;
    test_redis_init(&server, "p@ss/word");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_redis_deinit(&server);
    return 0;
}

/* A tier of the server; format is what stands before its port in the URL, and behind. */
static kvc_tier *open_url(const char *login, const char *path, kvc_tier_redis_desc desc) {
    char url[256];
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    (void)snprintf(url, sizeof url, "redis://%s127.0.0.1:%d%s", login, server.port, path);
    desc.struct_size = sizeof desc;
    desc.url = url;
    desc.timeout_ms = 20000; /* this machine may be busy */
    desc.pause_ms = 1;
    desc.longest_pause_ms = 1;
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &desc));
    return tier;
}

static kvc_tier *open_tier(void) {
    return open_url("", "", (kvc_tier_redis_desc){0});
}

/* The hexadecimal name of a number's key. */
static const char *name_of(uint64_t number) {
    static char name[2 * KVC_BLOCK_KEY_BYTES + 1];
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    test_tier_key(key, number);
    for (int i = 0; i < KVC_BLOCK_KEY_BYTES; i++) (void)snprintf(name + 2 * i, 3, "%02x", key[i]);
    return name;
}

static void redis__values_come_back_and_are_replaced(void **state) {
    const size_t sizes[] = {0, 1, 127, 16384, 300001, 4 << 20};
    (void)state;
    kvc_tier *tier = open_tier();
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_MISS);
        assert_int_equal(test_tier_exists(tier, i), KVC_TIER_MISS);
        assert_int_equal(test_tier_put(tier, i, i + 100, sizes[i]), KVC_TIER_HIT);
        assert_int_equal(test_tier_put(tier, i, i, sizes[i]), KVC_TIER_HIT);
        assert_int_equal(test_tier_exists(tier, i), KVC_TIER_HIT);
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_HIT);
    }
    kvc_tier_free(tier);
    tier = open_tier();
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_HIT);
    for (int f = 1; f < KVC_TIER_FAULTS_MAX; f++)
        assert_int_equal(test_tier_stats(tier).faults[f], 0);
    kvc_tier_free(tier);
}

static void redis__a_large_batch_goes_over_all_connections(void **state) {
    enum { ITEMS = 101, BYTES = 5000 };
    uint8_t keys[ITEMS][KVC_BLOCK_KEY_BYTES];
    kvc_tier_item items[ITEMS];
    char *data = calloc(ITEMS, BYTES), *right = malloc(BYTES);
    (void)state;
    assert_non_null(data);
    assert_non_null(right);
    kvc_tier *tier = open_url("", "", (kvc_tier_redis_desc){.connections = 3});
    for (uint64_t i = 0; i < ITEMS; i++) {
        test_tier_key(keys[i], i);
        test_tier_payload(data + i * BYTES, BYTES, i);
        items[i] = (kvc_tier_item){.key = keys[i], .data = data + i * BYTES, .size_bytes = BYTES};
    }
    assert_ok(kvc_tier_put_many(tier, items, ITEMS));
    assert_true(test_redis_command(&server, "DEL kvc:%s", name_of(50)) == 1);
    memset(data, 0, ITEMS * (size_t)BYTES);
    assert_ok(kvc_tier_get_into_many(tier, items, ITEMS));
    for (uint64_t i = 0; i < ITEMS; i++) {
        assert_int_equal(items[i].result, i == 50 ? KVC_TIER_MISS : KVC_TIER_HIT);
        test_tier_payload(right, BYTES, i);
        if (i != 50) assert_memory_equal(data + i * BYTES, right, BYTES);
    }
    assert_ok(kvc_tier_exists_many(tier, items, ITEMS));
    assert_int_equal(test_tier_stats(tier).found, ITEMS - 1);
    kvc_tier_free(tier);
    free(data);
    free(right);
}

static void redis__prefix_and_database_keep_values_apart(void **state) {
    (void)state;
    kvc_tier *one = open_tier(), *two = open_url("", "", (kvc_tier_redis_desc){.prefix = "x{1}:"}),
             *three = open_url("", "/3", (kvc_tier_redis_desc){0});
    assert_int_equal(test_tier_put(one, 1, 1, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(two, 1, 1, 10), KVC_TIER_MISS);
    assert_int_equal(test_tier_get(three, 1, 1, 10), KVC_TIER_MISS);
    assert_int_equal(test_tier_put(two, 1, 2, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(three, 1, 3, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(one, 1, 1, 10), KVC_TIER_HIT);
    assert_int_equal(test_redis_command(&server, "EXISTS x{1}:%s", name_of(1)), 1);
    assert_int_equal(test_redis_command(&server, "STRLEN kvc:%s", name_of(1)),
                     KVC_TIER_HEADER_BYTES + 10);
    kvc_tier_free(one);
    kvc_tier_free(two);
    kvc_tier_free(three);
}

static void redis__a_lifetime_is_the_server_s_to_keep(void **state) {
    (void)state;
    kvc_tier *tier = open_url("", "", (kvc_tier_redis_desc){.lifetime_seconds = 1000});
    assert_int_equal(test_tier_put(tier, 1, 1, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_HIT);
    const long long left = test_redis_command(&server, "TTL kvc:%s", name_of(1));
    assert_true(left > 900 && left <= 1000);
    kvc_tier_free(tier);
}

static void redis__a_login_is_given_or_refused(void **state) {
    (void)state;
    kvc_tier *tier = open_url(":p%40ss%2Fword@", "/2", (kvc_tier_redis_desc){0});
    assert_int_equal(test_tier_put(tier, 1, 1, 10), KVC_TIER_HIT);
    kvc_tier_free(tier);
    tier = open_url("default:wrong@", "/2", (kvc_tier_redis_desc){.password = "p@ss/word"});
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_HIT);
    kvc_tier_free(tier);
    tier = open_url(":wrong@", "", (kvc_tier_redis_desc){0});
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REFUSED);
    kvc_tier_free(tier);
    tier = open_tier();
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REPLY); /* NOAUTH, in answer to the GET */
    kvc_tier_free(tier);
}

static void redis__what_is_no_value_is_a_miss_and_can_be_replaced(void **state) {
    char *long_text = malloc(1 << 20);
    (void)state;
    assert_non_null(long_text);
    memset(long_text, 'x', 1 << 20);
    const int lengths[] = {0, 10, KVC_TIER_HEADER_BYTES + 10, KVC_TIER_HEADER_BYTES + 11, 1 << 20};
    kvc_tier *tier = open_tier();
    assert_int_equal(test_tier_put(tier, 2, 2, 10), KVC_TIER_HIT);
    for (int i = 0; i < 5; i++) {
        (void)test_redis_command(&server, "SET kvc:%s %b", name_of(1), long_text,
                                 (size_t)lengths[i]);
        assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_FAULT);
        assert_int_equal(test_tier_fault(), i == 2 ? KVC_TIER_BAD_MAGIC : KVC_TIER_BAD_LENGTH);
        assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_MISS);
        assert_int_equal(test_tier_get(tier, 2, 2, 10), KVC_TIER_HIT);
    }
    (void)test_redis_command(&server, "LPUSH kvc:%s x", name_of(1));
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REPLY); /* WRONGTYPE; the connection goes on */
    assert_int_equal(test_tier_get(tier, 2, 2, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 1, 1, 10), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_HIT);
    kvc_tier_free(tier);
    free(long_text);
}

static void redis__a_value_of_another_key_is_a_miss(void **state) {
    char other[2 * KVC_BLOCK_KEY_BYTES + 1];
    (void)state;
    kvc_tier *tier = open_tier();
    assert_int_equal(test_tier_put(tier, 2, 2, 10), KVC_TIER_HIT);
    memcpy(other, name_of(2), sizeof other);
    (void)test_redis_command(&server, "RENAME kvc:%s kvc:%s", other, name_of(1));
    assert_int_equal(test_tier_get(tier, 1, 2, 10), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_KEY);
    kvc_tier_free(tier);
}

static void redis__a_full_server_refuses_the_put_alone(void **state) {
    (void)state;
    kvc_tier *tier = open_tier();
    assert_int_equal(test_tier_put(tier, 1, 1, 10), KVC_TIER_HIT);
    (void)test_redis_command(&server, "CONFIG SET maxmemory-policy noeviction");
    (void)test_redis_command(&server, "CONFIG SET maxmemory 1");
    assert_int_equal(test_tier_put(tier, 2, 2, 10), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_FULL);
    assert_int_equal(test_tier_get(tier, 1, 1, 10), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static kvc_tier *shared;

static void *use(void *argument) {
    const uint64_t first = *(const uint64_t *)argument;
    for (uint64_t i = 0; i < 100; i++) {
        const uint64_t number = first + i % 10;
        if (test_tier_put(shared, number, number, 1000) != KVC_TIER_HIT) return argument;
        if (test_tier_get(shared, number, number, 1000) != KVC_TIER_HIT) return argument;
    }
    return NULL;
}

static void redis__threads_share_one(void **state) {
    uint64_t first[2] = {0, 1000};
    pthread_t threads[2];
    void *failed;
    (void)state;
    shared = open_tier();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, &first[i]), 0);
    for (int i = 0; i < 2; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    kvc_tier_free(shared);
}

static void redis__urls_are_read(void **state) {
    kvc__redis_url url;
    (void)state;
    assert_ok(kvc__redis_url_parse(&url, "redis://example.org"));
    assert_string_equal(url.host, "example.org");
    assert_int_equal(url.port, 6379);
    assert_false(url.tls);
    assert_string_equal(url.user, "");
    assert_string_equal(url.password, "");
    assert_string_equal(url.database, "");
    assert_ok(kvc__redis_url_parse(&url, "rediss://me:a%3Ab@c:d@[::1]:7000/15"));
    assert_string_equal(url.host, "::1");
    assert_int_equal(url.port, 7000);
    assert_true(url.tls);
    assert_string_equal(url.user, "me");
    assert_string_equal(url.password, "a:b@c:d");
    assert_string_equal(url.database, "15");
    assert_ok(kvc__redis_url_parse(&url, "redis://:x@h/"));
    assert_string_equal(url.password, "x");
}

static void redis__bad_urls_are_refused_without_repeating_them(void **state) {
    const char *const bad[] = {
        "",
        "http://h",
        "redis:/h",
        "redis://",
        "redis://:1",
        "redis://h:",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:secret",
        "redis://h:1x",
        "redis://h/secret",
        "redis://h/-1",
        "redis://h/99999999999",
        "redis://secret@h",
        "redis://u:secret%@h",
        "redis://u:secret%2@h",
        "redis://u:secret%2g@h",
        "redis://u:secret%00@h",
        "redis://[::1",
        "redis://[::1]x",
        "redis://h/1?secret=2",
    };
    kvc__redis_url url;
    char text[1200] = "redis://";
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(kvc__redis_url_parse(&url, bad[i]), KVC_E_INVALID);
        assert_null(strstr(kvc_last_error(), "secret"));
    }
    memset(text + 8, 'h', 256);
    assert_fails(kvc__redis_url_parse(&url, text), KVC_E_INVALID);
    text[8 + 255] = '\0';
    assert_ok(kvc__redis_url_parse(&url, text));
    memset(text + 8, ':', 1);
    memset(text + 9, 'p', 512);
    memcpy(text + 9 + 512, "@h", 3);
    assert_fails(kvc__redis_url_parse(&url, text), KVC_E_INVALID);
    assert_fails(kvc__redis_url_parse(&url, NULL), KVC_E_INVALID);
}

static void redis__what_makes_no_sense_is_refused(void **state) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_redis_desc good = {.struct_size = sizeof good, .url = "redis://127.0.0.1:1"};
    kvc_tier_redis_desc bad[5] = {good, good, good, good, good};
    (void)state;
    bad[0].connections = 65;
    bad[1].timeout_ms = -1;
    bad[2].lifetime_seconds = -1;
    bad[3].struct_size = 0;
    bad[4].url = NULL;
    for (int i = 0; i < 5; i++) {
        assert_fails(kvc_tier_redis_new(&tier, &tier_desc, &bad[i]), KVC_E_INVALID);
        assert_null(tier);
    }
    assert_fails(kvc_tier_redis_new(&tier, NULL, &good), KVC_E_INVALID);
    assert_fails(kvc_tier_redis_new(&tier, &tier_desc, NULL), KVC_E_INVALID);
    assert_fails(kvc_tier_redis_new(NULL, &tier_desc, &good), KVC_E_INVALID);
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &good)); /* it connects when asked */
    kvc_tier_free(tier);
}

#define SERVER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        SERVER_TEST(redis__values_come_back_and_are_replaced),
        SERVER_TEST(redis__a_large_batch_goes_over_all_connections),
        SERVER_TEST(redis__prefix_and_database_keep_values_apart),
        SERVER_TEST(redis__a_lifetime_is_the_server_s_to_keep),
        cmocka_unit_test_setup_teardown(redis__a_login_is_given_or_refused, setup_password,
                                        teardown),
        SERVER_TEST(redis__what_is_no_value_is_a_miss_and_can_be_replaced),
        SERVER_TEST(redis__a_value_of_another_key_is_a_miss),
        SERVER_TEST(redis__a_full_server_refuses_the_put_alone),
        SERVER_TEST(redis__threads_share_one),
        cmocka_unit_test(redis__urls_are_read),
        cmocka_unit_test(redis__bad_urls_are_refused_without_repeating_them),
        cmocka_unit_test(redis__what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("redis", tests, NULL, NULL);
}
