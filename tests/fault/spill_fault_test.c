/* Every allocation fails once under a spill: a new one is refused, a match and a publish do with
 * less. */
#include <string.h>

#include "support/fault.h"
#include "support/map_tier.h"
#include "support/spill_fixture.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = SPILL_B, BLOCKS = 6, N = BLOCKS * B };

static int32_t tokens[N];

static int setup(void **state) {
    (void)state;
    for (int32_t i = 0; i < N; i++) tokens[i] = i;
    test_allocator_use(true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    const size_t held = test_allocator_held();
    test_allocator_use(false);
    return held == 0 ? 0 : 1;
}

static void new__that_fails_leaves_nothing(void **state) {
    test_map *map = test_map_new();
    kvc_tier *tier = test_map_open(map);
    spill_machine m;
    kvc_spill *spill;
    (void)state;
    spill_machine_init(&m, 16, &tier, 1);
    const kvc_spill_desc desc = {
        .struct_size = sizeof desc, .tree = m.tree, .tiers = &tier, .tier_count = 1};
    test_fault_arm(1, TEST_FAULT_ONCE);
    const kvc_status status = kvc_spill_new(&spill, &desc);
    assert_true(test_fault_disarm());
    assert_int_equal(status, KVC_E_NOMEM);
    assert_null(spill);
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
    test_map_free(map);
}

/* A turn over what a tier has, with the nth allocation failing in the match, then in the publish;
 * false when there was no nth in either. */
static bool fail_turn(size_t nth, test_fault_span span) {
    test_map *map = test_map_new();
    kvc_tier *tier = test_map_open(map);
    spill_machine m;
    int32_t ids[BLOCKS];
    int64_t count;
    spill_machine_init(&m, 16, &tier, 1);
    (void)spill_turn(&m, NULL, tokens, 4 * B, NULL);
    spill_forget(&m);
    test_fault_arm(nth, span);
    const kvc_status matched = kvc_spill_match(m.spill, NULL, tokens, N, ids, &count);
    const bool in_match = test_fault_disarm();
    assert_int_equal(matched, KVC_OK); /* a miss is no error */
    if (!in_match) assert_int_equal(count, 4);
    for (int64_t i = 0; i < count; i++) {
        char right[128];
        spill_expected(right, NULL, tokens, (i + 1) * B);
        assert_memory_equal(spill_memory(&m, ids[i]), right, sizeof right);
    }
    assert_ok(kvc_blocks_take(m.blocks, BLOCKS - count, ids + count));
    for (int64_t i = count; i < BLOCKS; i++)
        spill_expected(spill_memory(&m, ids[i]), NULL, tokens, (i + 1) * B);
    assert_true(kvc_spill_wait(m.spill, UINT64_MAX));
    test_fault_arm(nth, span);
    const kvc_status status = kvc_spill_publish(m.spill, NULL, tokens, N, ids, 0);
    assert_true(kvc_spill_wait(m.spill, UINT64_MAX));
    const bool in_publish = test_fault_disarm();
    assert_true(status == KVC_OK || (in_publish && status == KVC_E_NOMEM));
    assert_ok(kvc_blocks_release(m.blocks, ids, BLOCKS));
    if (status == KVC_OK) assert_int_equal(spill_find(&m, NULL, tokens, N), BLOCKS);
    const kvc_spill_stats stats = spill_stats(&m);
    if (!in_publish) assert_int_equal(stats.skipped_blocks, 0);
    assert_ok(kvc_prefix_check(m.tree));
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
    test_map_free(map);
    return in_match || in_publish;
}

static void turns__go_on_without_memory(void **state) {
    (void)state;
    for (int span = 0; span < 2; span++) {
        size_t nth = 1;
        while (fail_turn(nth, (test_fault_span)span)) nth++;
        assert_true(nth > 2); /* lists of a search, and of blocks to be put */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(new__that_fails_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(turns__go_on_without_memory, setup, teardown),
    };
    return cmocka_run_group_tests_name("spill_fault", tests, NULL, NULL);
}
