#include <stdio.h>
#include <string.h>

#include "store/tier_value.h"
#include "support/support.h"

static const char payload[] = "kvcache";
enum { BYTES = sizeof payload - 1 };

/* The vector of docs/FORMAT.md, computed with xxhsum. */
static const char *const golden =
    "4b5643424c4f434b010000008000000007000000000000000001020304050607"
    "08090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627"
    "28292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fbb9e51e629cd3bf3"
    "657e6b84f18c69eb0000000000000000635087a8ea31f8a987b4a792cd76db71";

static uint8_t fingerprint[KVC_BLOCK_KEY_BYTES], key[KVC_BLOCK_KEY_BYTES];
static uint8_t header[KVC_TIER_HEADER_BYTES];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < KVC_BLOCK_KEY_BYTES; i++) {
        fingerprint[i] = (uint8_t)i;
        key[i] = (uint8_t)(i + KVC_BLOCK_KEY_BYTES);
    }
    kvc__tier_value_seal(header, fingerprint, key, payload, BYTES);
    return 0;
}

static kvc_tier_fault check(const void *data, size_t bytes) {
    return kvc__tier_value_check(header, fingerprint, key, data, bytes);
}

static void tier_value__the_header_is_the_document_s(void **state) {
    char digits[2 * KVC_TIER_HEADER_BYTES + 1];
    (void)state;
    for (int i = 0; i < KVC_TIER_HEADER_BYTES; i++)
        (void)snprintf(digits + 2 * i, 3, "%02x", header[i]);
    assert_string_equal(digits, golden);
    assert_int_equal(check(payload, BYTES), KVC_TIER_FINE);
}

static void tier_value__every_bit_counts(void **state) {
    char other[BYTES];
    (void)state;
    for (int i = 0; i < KVC_TIER_HEADER_BYTES * 8; i++) {
        header[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_not_equal(check(payload, BYTES), KVC_TIER_FINE);
        header[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    memcpy(other, payload, BYTES);
    for (int i = 0; i < BYTES * 8; i++) {
        other[i / 8] = (char)(other[i / 8] ^ 1 << i % 8);
        assert_int_equal(check(other, BYTES), KVC_TIER_BAD_CHECKSUM);
        other[i / 8] = (char)(other[i / 8] ^ 1 << i % 8);
    }
}

static void tier_value__what_was_asked_for_is_compared(void **state) {
    (void)state;
    assert_int_equal(check(payload, BYTES - 1), KVC_TIER_BAD_LENGTH);
    fingerprint[31]++;
    assert_int_equal(check(payload, BYTES), KVC_TIER_BAD_FINGERPRINT);
    fingerprint[31]--;
    key[0]++;
    assert_int_equal(check(payload, BYTES), KVC_TIER_BAD_KEY);
    key[0]--;
}

static void tier_value__nothing_is_a_value_too(void **state) {
    (void)state;
    kvc__tier_value_seal(header, fingerprint, key, NULL, 0);
    assert_int_equal(check(NULL, 0), KVC_TIER_FINE);
    assert_int_equal(check(payload, 1), KVC_TIER_BAD_LENGTH);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(tier_value__the_header_is_the_document_s, setup),
        cmocka_unit_test_setup(tier_value__every_bit_counts, setup),
        cmocka_unit_test_setup(tier_value__what_was_asked_for_is_compared, setup),
        cmocka_unit_test_setup(tier_value__nothing_is_a_value_too, setup),
    };
    return cmocka_run_group_tests_name("tier_value", tests, NULL, NULL);
}
