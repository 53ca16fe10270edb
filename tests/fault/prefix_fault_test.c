/* Every allocation fails once under a prefix tree. */
#include "cache/prefix.h"
#include "support/prefix_fixture.h"

static void new__that_fails_leaves_the_pool_of_blocks_without_a_tree(void **state) {
    const prefix_fixture *f = *state;
    kvc_blocks *blocks = prefix_blocks(f->base->pool, 8, 4);
    kvc_prefix *tree = f->tree;
    test_fault_arm(1, TEST_FAULT_ONCE);
    assert_fails(kvc_prefix_new(&tree, blocks), KVC_E_NOMEM);
    assert_true(test_fault_disarm());
    assert_null(tree);
    assert_ok(kvc_prefix_new(&tree, blocks));
    kvc_prefix_free(tree);
    kvc_blocks_free(blocks);
}

/* Inserts three blocks, with the nth allocation failing, into a tree that has `before` blocks. */
static bool fail_insert(const prefix_fixture *f, size_t nth, test_fault_span span, int32_t before) {
    prefix_fixture one = {.base = f->base, .blocks = prefix_blocks(f->base->pool, 600, 64)};
    int32_t tokens[3 * PREFIX_B] = {0}, ids[3], first;
    int64_t count;
    assert_ok(kvc_prefix_new(&one.tree, one.blocks));
    one.tree->host = &f->base->device.table; /* which fails when told */
    for (; tokens[0] < before; tokens[0]++) {
        assert_ok(kvc_blocks_take(one.blocks, 1, &first));
        assert_ok(kvc_prefix_insert(one.tree, NULL, tokens, PREFIX_B, &first, 0, NULL));
    }
    const int64_t n = prefix_tokens(tokens, "abc");
    const kvc_prefix_namespace space = prefix_space("tenant", "", "");
    assert_ok(kvc_blocks_take(one.blocks, 3, ids));
    test_fault_arm(nth, span);
    const kvc_status status = kvc_prefix_insert(one.tree, &space, tokens, n, ids, 0, &count);
    const bool struck = test_fault_disarm();
    assert_int_equal(status, struck ? KVC_E_NOMEM : KVC_OK);
    assert_int_equal(count, struck ? 0 : 3);
    assert_ok(kvc_prefix_check(one.tree));
    assert_int_equal(prefix_stats(one.tree).blocks, before + (struck ? 0 : 3));
    assert_int_equal(prefix_stats(one.tree).namespaces, (before > 0) + !struck);
    assert_ok(kvc_prefix_insert(one.tree, &space, tokens, n, ids, 0, &count));
    assert_int_equal(count, struck ? 3 : 0);
    /* Finding, releasing and evicting need no memory. */
    test_fault_arm(1, TEST_FAULT_FOREVER);
    const kvc_status found = kvc_prefix_match(one.tree, &space, tokens, n, ids, &count);
    const kvc_status released = kvc_blocks_release(one.blocks, ids, 3);
    const kvc_status released_twice = kvc_blocks_release(one.blocks, ids, 3);
    const uint64_t evicted = kvc_prefix_evict(one.tree, UINT64_MAX);
    assert_false(test_fault_disarm());
    assert_ok(found);
    assert_ok(released);
    assert_ok(released_twice);
    assert_int_equal(evicted, 3 * PREFIX_BLOCK_BYTES);
    kvc_prefix_free(one.tree);
    kvc_blocks_free(one.blocks);
    return struck;
}

static void insert__that_fails_anywhere_changes_nothing(void **state) {
    const prefix_fixture *f = *state;
    for (int span = 0; span < 2; span++) {
        /* Nodes and their list, the table, a name; a table that grows; a name alone. */
        const struct {
            int32_t before;
            size_t points;
        } cases[] = {{0, 4}, {28, 2}, {10, 1}};
        for (int i = 0; i < 3; i++) {
            size_t nth = 1;
            while (fail_insert(f, nth, (test_fault_span)span, cases[i].before)) nth++;
            assert_int_equal(nth - 1, cases[i].points);
        }
    }
}

static void check__says_when_it_has_no_memory(void **state) {
    const prefix_fixture *f = *state;
    test_fault_arm(1, TEST_FAULT_ONCE);
    assert_fails(kvc_prefix_check(f->tree), KVC_E_NOMEM);
    assert_true(test_fault_disarm());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        prefix_test(new__that_fails_leaves_the_pool_of_blocks_without_a_tree),
        prefix_test(insert__that_fails_anywhere_changes_nothing),
        prefix_test(check__says_when_it_has_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
