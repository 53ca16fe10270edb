/* Every allocation and every call on the device fails once under a pool of blocks. */
#include <kvcache/blocks.h>

#include "support/pool_fixture.h"

static const kvc_layer_spec spec = {.kv_heads = 2, .key_dim = 8, .dtype = KVC_F32};

/* A block has 2048 bytes, a slab two blocks. */
static kvc_status new_blocks(kvc_blocks **out, kvc_pool *pool) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = 1,
                                  .specs = &spec,
                                  .spec_count = 1,
                                  .positions = 16,
                                  .limit_bytes = 20480,
                                  .slab_bytes = 4096};
    return kvc_blocks_new(out, pool, &desc);
}

static void new__that_fails_anywhere_leaves_nothing_behind(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks;
    size_t nth = 1;
    for (;; nth++) {
        const size_t held = test_allocator_held();
        test_fault_arm(nth, TEST_FAULT_ONCE);
        const kvc_status status = new_blocks(&blocks, f->pool);
        const bool struck = test_fault_disarm();
        assert_int_equal(status, struck ? KVC_E_NOMEM : KVC_OK);
        if (struck) assert_null(blocks);
        kvc_blocks_free(blocks);
        assert_int_equal(test_allocator_held(), held);
        if (!struck) break;
    }
    assert_int_equal(nth, 6); /* itself, specs, layers and two tables */
}

static void take__that_fails_anywhere_takes_none(void **state) {
    pool_fixture *f = *state;
    for (int span = 0; span < 2; span++)
        for (size_t nth = 1;; nth++) {
            kvc_blocks *blocks;
            int32_t ids[8];
            kvc_blocks_stats stats = {.struct_size = sizeof stats};
            assert_ok(new_blocks(&blocks, f->pool));
            assert_ok(kvc_blocks_take(blocks, 1, ids));
            kvc_pool_clear(f->pool);
            test_fault_arm(nth, (test_fault_span)span);
            const kvc_status status = kvc_blocks_take(blocks, 7, ids + 1);
            const bool struck = test_fault_disarm();
            assert_true(struck || status == KVC_OK);
            assert_ok(kvc_blocks_check(blocks));
            if (status != KVC_OK) {
                assert_int_equal(status, KVC_E_NOMEM);
                assert_int_equal(ids[1], KVC_BLOCK_NONE);
                assert_ok(kvc_blocks_stats_get(blocks, &stats));
                assert_int_equal(stats.used_blocks, 1);
                assert_true(stats.free_blocks <= 3); /* of its slab one, and a slab that is kept */
                assert_ok(kvc_blocks_take(blocks, 7, ids + 1));
            }
            assert_ok(kvc_blocks_release(blocks, ids, 8));
            kvc_blocks_free(blocks);
            if (!struck) {
                assert_true(nth > 9); /* three slabs, their buffers and calls */
                break;
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(new__that_fails_anywhere_leaves_nothing_behind),
        pool_test(take__that_fails_anywhere_takes_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
