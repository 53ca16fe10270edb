#include <string.h>

#include <kvcache/block_key.h>

#include "support/support.h"

enum { B = 16, TOKENS = 70 };

static const uint8_t fingerprint[KVC_BLOCK_KEY_BYTES] = {1, 2, 3};
static int32_t tokens[TOKENS];
static uint8_t keys[TOKENS / B][KVC_BLOCK_KEY_BYTES];

static int setup(void **state) {
    (void)state;
    for (int32_t i = 0; i < TOKENS; i++) tokens[i] = i * i - 7;
    return kvc_block_keys(keys, NULL, fingerprint, B, tokens, TOKENS);
}

static kvc_bytes bytes_of(const char *text) {
    return (kvc_bytes){text, strlen(text)};
}

/* The key of the first block in a namespace. */
static void key_in(uint8_t *key, const char *tenant, const char *adapter, const char *model) {
    const kvc_prefix_namespace space = {.struct_size = sizeof space,
                                        .tenant = bytes_of(tenant),
                                        .adapter = bytes_of(adapter),
                                        .model = bytes_of(model)};
    assert_ok(
        kvc_block_keys((uint8_t(*)[KVC_BLOCK_KEY_BYTES])key, &space, fingerprint, B, tokens, B));
}

static void block_key__a_longer_sequence_keeps_the_keys_of_its_prefix(void **state) {
    uint8_t shorter[2][KVC_BLOCK_KEY_BYTES];
    (void)state;
    assert_ok(kvc_block_keys(shorter, NULL, fingerprint, B, tokens, 2 * B + B - 1));
    assert_memory_equal(shorter, keys, sizeof shorter);
}

static void block_key__every_token_before_changes_a_key(void **state) {
    uint8_t others[4][KVC_BLOCK_KEY_BYTES];
    (void)state;
    for (int i = 0; i < 4 * B; i++) {
        tokens[i] ^= 1 << i % 31;
        assert_ok(kvc_block_keys(others, NULL, fingerprint, B, tokens, TOKENS));
        tokens[i] ^= 1 << i % 31;
        for (int j = 0; j < 4; j++) {
            const int differs = memcmp(others[j], keys[j], sizeof keys[j]) != 0;
            assert_int_equal(differs, j >= i / B);
        }
    }
}

static void block_key__fields_do_not_run_into_each_other(void **state) {
    uint8_t all[8][KVC_BLOCK_KEY_BYTES];
    (void)state;
    key_in(all[0], "ab", "c", "");
    key_in(all[1], "a", "bc", "");
    key_in(all[2], "abc", "", "");
    key_in(all[3], "", "abc", "");
    key_in(all[4], "", "", "abc");
    key_in(all[5], "", "", "");
    key_in(all[6], "ab", "", "c");
    key_in(all[7], "", "ab", "c");
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(all[i], all[j], sizeof all[i]);
    assert_memory_equal(all[5], keys[0], sizeof all[5]); /* no namespace is the empty one */
}

static void block_key__fingerprint_and_block_size_change_every_key(void **state) {
    uint8_t others[8][KVC_BLOCK_KEY_BYTES], other[KVC_BLOCK_KEY_BYTES] = {1, 2, 4};
    (void)state;
    assert_ok(kvc_block_keys(others, NULL, other, B, tokens, TOKENS));
    for (int j = 0; j < 4; j++) assert_memory_not_equal(others[j], keys[j], sizeof keys[j]);
    assert_ok(kvc_block_keys(others, NULL, fingerprint, B / 2, tokens, TOKENS));
    for (int j = 0; j < 4; j++) assert_memory_not_equal(others[2 * j + 1], keys[j], sizeof keys[j]);
}

static void block_key__what_makes_no_sense_is_refused(void **state) {
    uint8_t out[4][KVC_BLOCK_KEY_BYTES];
    kvc_prefix_namespace space = {.struct_size = sizeof space, .tenant = {NULL, 3}};
    (void)state;
    assert_fails(kvc_block_keys(out, &space, fingerprint, B, tokens, B), KVC_E_INVALID);
    space.struct_size = 0;
    assert_fails(kvc_block_keys(out, &space, fingerprint, B, tokens, B), KVC_E_INVALID);
    assert_fails(kvc_block_keys(out, NULL, NULL, B, tokens, B), KVC_E_INVALID);
    assert_fails(kvc_block_keys(out, NULL, fingerprint, 0, tokens, B), KVC_E_INVALID);
    assert_fails(kvc_block_keys(out, NULL, fingerprint, B, tokens, -1), KVC_E_INVALID);
    assert_fails(kvc_block_keys(out, NULL, fingerprint, B, NULL, B), KVC_E_INVALID);
    assert_fails(kvc_block_keys(NULL, NULL, fingerprint, B, tokens, B), KVC_E_INVALID);
    assert_ok(kvc_block_keys(NULL, NULL, fingerprint, B, NULL, B - 1)); /* no full block */
}

static void block_key__a_fingerprint_depends_on_each_field(void **state) {
    uint8_t all[13][KVC_BLOCK_KEY_BYTES];
    kvc_layer_spec specs[2] = {{.kv_heads = 2, .key_dim = 64, .dtype = KVC_BF16},
                               {.kv_heads = 2, .key_dim = 64, .dtype = KVC_BF16}};
    kvc_blocks_desc desc = {
        .struct_size = sizeof desc, .layers = 2, .specs = specs, .spec_count = 2};
    const kvc_bytes model = bytes_of("m"), rope = bytes_of("r");
    int n = 0;
    (void)state;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    assert_ok(kvc_block_fingerprint(all[n++], rope, model, &desc));
    assert_ok(kvc_block_fingerprint(all[n++], bytes_of("mr"), bytes_of(""), &desc));
    desc.positions = 32;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    desc.positions = 0;
    specs[1].dtype = KVC_F16;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].kv_heads = 1;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].value_dim = 32;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].key_dim = 32;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].kv_bits = 4; /* packed and plain blocks never share a key */
    specs[1].kv_group = 32;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].kv_bits = 8;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].rotated = true;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    specs[1].kv_group = 64;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    desc.layers = desc.spec_count = 1;
    assert_ok(kvc_block_fingerprint(all[n++], model, rope, &desc));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(all[i], all[j], sizeof all[i]);
}

static void block_key__a_fingerprint_knows_what_defaults_mean(void **state) {
    uint8_t one[KVC_BLOCK_KEY_BYTES], two[KVC_BLOCK_KEY_BYTES];
    kvc_layer_spec specs[2] = {{.kv_heads = 2, .key_dim = 64, .dtype = KVC_BF16}};
    kvc_blocks_desc desc = {
        .struct_size = sizeof desc, .layers = 2, .specs = specs, .spec_count = 1};
    (void)state;
    assert_ok(kvc_block_fingerprint(one, bytes_of("m"), bytes_of(""), &desc));
    specs[0].value_dim = 64;
    specs[1] = specs[0];
    desc.spec_count = 2;
    desc.positions = KVC_BLOCK_POSITIONS_DEFAULT;
    desc.limit_bytes = 12345;
    assert_ok(kvc_block_fingerprint(two, bytes_of("m"), bytes_of(""), &desc));
    assert_memory_equal(one, two, sizeof one);
    desc.spec_count = 3;
    assert_fails(kvc_block_fingerprint(two, bytes_of("m"), bytes_of(""), &desc), KVC_E_INVALID);
    assert_fails(kvc_block_fingerprint(two, bytes_of("m"), bytes_of(""), NULL), KVC_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_key__a_longer_sequence_keeps_the_keys_of_its_prefix),
        cmocka_unit_test(block_key__every_token_before_changes_a_key),
        cmocka_unit_test(block_key__fields_do_not_run_into_each_other),
        cmocka_unit_test(block_key__fingerprint_and_block_size_change_every_key),
        cmocka_unit_test(block_key__what_makes_no_sense_is_refused),
        cmocka_unit_test(block_key__a_fingerprint_depends_on_each_field),
        cmocka_unit_test(block_key__a_fingerprint_knows_what_defaults_mean),
    };
    return cmocka_run_group_tests_name("block_key", tests, setup, NULL);
}
