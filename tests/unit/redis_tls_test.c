/* TLS to Redis: where hiredis has it, against a server with a certificate made for the test; where
 * not, rediss:// is refused when a tier is made, never spoken in the clear. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/tier_redis.h>

#include "support/redis_server.h"
#include "support/support.h"
#include "support/tier_fixture.h"

static kvc_tier_redis_desc desc_of(const char *url) {
    return (kvc_tier_redis_desc){
        .struct_size = sizeof(kvc_tier_redis_desc), .url = url, .timeout_ms = 20000};
}

#ifdef KVC_HIREDIS_SSL

static test_redis server;
static char ca_file[512];

static void make_certificate(void) {
    char command[2048];
    (void)snprintf(command, sizeof command,
                   "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test "
                   "-addext subjectAltName=DNS:localhost -keyout %s/key.pem -out %s/cert.pem "
                   ">/dev/null 2>&1",
                   server.folder, server.folder);
    if (system(command) != 0) { // NOLINT(cert-env33-c): a test's own words
        print_message("skipped: openssl makes no certificate\n");
        skip();
    }
    (void)snprintf(ca_file, sizeof ca_file, "%s/cert.pem", server.folder);
}

static int setup(void **state) {
    (void)state;
    server = (test_redis){0};
    server.folder = test_folder_new();
    make_certificate();
    test_redis_init_tls(&server);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_redis_deinit(&server);
    return 0;
}

/* What a put gives through a URL's host, trusting a file. */
static kvc_tier_result put_through(const char *scheme, const char *host, const char *trusted) {
    char url[128];
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    (void)snprintf(url, sizeof url, "%s://%s:%d", scheme, host, server.port);
    kvc_tier_redis_desc desc = desc_of(url);
    desc.ca_file = trusted;
    assert_ok(kvc_tier_redis_new(&tier, &tier_desc, &desc));
    const kvc_tier_result result = test_tier_put(tier, 1, 1, 300000);
    if (result == KVC_TIER_HIT) assert_int_equal(test_tier_get(tier, 1, 1, 300000), KVC_TIER_HIT);
    kvc_tier_free(tier);
    return result;
}

static void redis_tls__values_come_back_from_whom_we_trust_alone(void **state) {
    (void)state;
    assert_int_equal(put_through("rediss", "localhost", ca_file), KVC_TIER_HIT);
    assert_int_equal(put_through("rediss", "localhost", NULL), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REFUSED); /* signed by nobody known */
    assert_int_equal(put_through("rediss", "127.0.0.1", ca_file), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REFUSED); /* another name's certificate */
    assert_int_equal(put_through("redis", "localhost", NULL), KVC_TIER_FAULT);
}

static void redis_tls__files_that_are_not_there_are_refused(void **state) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    kvc_tier_redis_desc desc = desc_of("rediss://localhost");
    (void)state;
    desc.ca_file = "/no/such/file";
    assert_fails(kvc_tier_redis_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
    desc.ca_file = NULL;
    desc.cert_file = "/no/such/file";
    assert_fails(kvc_tier_redis_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(redis_tls__values_come_back_from_whom_we_trust_alone, setup,
                                        teardown),
        cmocka_unit_test(redis_tls__files_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests_name("redis_tls", tests, NULL, NULL);
}

#else

static void redis_tls__is_refused_where_hiredis_has_none(void **state) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_redis_desc desc = desc_of("rediss://localhost");
    (void)state;
    assert_fails(kvc_tier_redis_new(&tier, &tier_desc, &desc), KVC_E_UNSUPPORTED);
    assert_null(tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(redis_tls__is_refused_where_hiredis_has_none),
    };
    return cmocka_run_group_tests_name("redis_tls", tests, NULL, NULL);
}

#endif
