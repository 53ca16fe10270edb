/* A namespace isolates in every tier, since it seeds the keys: the same tokens of two tenants share
 * nothing. */
#include <stdio.h>
#include <string.h>

#include <kvcache/block_key.h>
#include <kvcache/tier_disk.h>

#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = 16, BLOCKS = 4, BYTES = 100 };

static const char *const tenants[] = {"", "a", "ab", "b"};
static uint8_t keys[4][BLOCKS][KVC_BLOCK_KEY_BYTES];

static void tier__tenants_never_see_each_other_s_blocks(void **state) {
    int32_t tokens[B * BLOCKS];
    char data[BYTES];
    kvc_tier *tier;
    (void)state;
    char *folder = test_folder_new();
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {.struct_size = sizeof desc, .folder = folder};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    for (int32_t i = 0; i < B * BLOCKS; i++) tokens[i] = i;
    for (int t = 0; t < 4; t++) {
        const kvc_prefix_namespace space = {.struct_size = sizeof space,
                                            .tenant = {tenants[t], strlen(tenants[t])}};
        assert_ok(kvc_block_keys(keys[t], &space, tier_desc.fingerprint, B, tokens, B * BLOCKS));
    }
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < BLOCKS; i++) {
            kvc_tier_item item = {.key = keys[t][i], .data = data, .size_bytes = BYTES};
            assert_ok(kvc_tier_exists_many(tier, &item, 1));
            assert_int_equal(item.result, KVC_TIER_MISS); /* whoever put the same tokens before */
            assert_ok(kvc_tier_get_into_many(tier, &item, 1));
            assert_int_equal(item.result, KVC_TIER_MISS);
            memset(data, t * BLOCKS + i, BYTES);
            assert_ok(kvc_tier_put_many(tier, &item, 1));
        }
    }
    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < BLOCKS; i++) {
            kvc_tier_item item = {.key = keys[t][i], .data = data, .size_bytes = BYTES};
            assert_ok(kvc_tier_get_into_many(tier, &item, 1));
            assert_int_equal(item.result, KVC_TIER_HIT);
            for (int b = 0; b < BYTES; b++) assert_int_equal(data[b], t * BLOCKS + i);
        }
    }
    kvc_tier_free(tier);
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tier__tenants_never_see_each_other_s_blocks),
    };
    return cmocka_run_group_tests_name("tier_tenants", tests, NULL, NULL);
}
