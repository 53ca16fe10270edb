/* The prefix tree: what is found, and whose. Numbers of pitfalls are those that others ran into;
 * each has a test by what is right. Eviction: prefix_evict_test.c. */
#include <string.h>

#include "cache/prefix.h"
#include "support/prefix_fixture.h"

static void match__finds_the_longest_prefix_in_full_blocks(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[8 * PREFIX_B], ids[4], found[8];
    int64_t count;
    assert_int_equal(prefix_stored(f, "abcd"), 0);
    assert_int_equal(prefix_insert_held(f, "abcd", 0, ids), 4);
    const int64_t n = prefix_tokens(tokens, "abcdefgh");
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, found, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(found, ids, sizeof ids);
    for (int i = 0; i < 4; i++) /* the writer, the tree, the match */
        assert_int_equal(kvc_blocks_references(f->blocks, ids[i]), 3);
    assert_ok(kvc_blocks_release(f->blocks, found, 4));
    assert_ok(kvc_blocks_release(f->blocks, ids, 4));
    for (int i = 0; i < 4; i++) assert_int_equal(kvc_blocks_references(f->blocks, ids[i]), 1);
    assert_int_equal(prefix_stored(f, "abxd"), 2);
    assert_int_equal(prefix_stored(f, "bcd"), 0);
    assert_int_equal(prefix_stored(f, ""), 0);
}

static void match__compares_every_token(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[2 * PREFIX_B];
    int64_t count;
    assert_int_equal(prefix_insert(f, "ab", 0), 2);
    const int64_t n = prefix_tokens(tokens, "ab");
    for (int64_t i = 0; i < n; i++) {
        tokens[i] ^= 1 << (i % 31);
        assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, NULL, &count));
        assert_int_equal(count, i / PREFIX_B);
        tokens[i] ^= 1 << (i % 31);
    }
}

static void match__ignores_what_fills_no_block(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[3 * PREFIX_B], ids[2];
    int64_t count;
    (void)prefix_tokens(tokens, "abc");
    assert_ok(kvc_blocks_take(f->blocks, 2, ids));
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, 3 * PREFIX_B - 1, ids, 0, &count));
    assert_int_equal(count, 2);
    assert_ok(kvc_blocks_release(f->blocks, ids, 2));
    for (int64_t n = 0; n <= 3 * PREFIX_B; n++) {
        assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, NULL, &count));
        assert_int_equal(count, n / PREFIX_B < 2 ? n / PREFIX_B : 2);
    }
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, PREFIX_B - 1, NULL, 0, &count));
    assert_int_equal(count, 0);
}

static void insert__keeps_the_block_that_is_there(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[4 * PREFIX_B], first[3], second[4], found[4];
    int64_t count;
    assert_int_equal(prefix_insert_held(f, "abc", 0, first), 3);
    assert_int_equal(prefix_insert_held(f, "abxy", 0, second), 2);
    const int64_t n = prefix_tokens(tokens, "abxy");
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, found, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(found, first, 2 * sizeof *found);
    assert_memory_equal(found + 2, second + 2, 2 * sizeof *found);
    assert_int_equal(kvc_blocks_references(f->blocks, second[0]), 1); /* not needed */
    assert_int_equal(prefix_stats(f->tree).blocks, 5);
    assert_ok(kvc_blocks_release(f->blocks, found, 4));
    assert_ok(kvc_blocks_release(f->blocks, first, 3));
    assert_ok(kvc_blocks_release(f->blocks, second, 4));
    /* A table of stored and own blocks, as a turn after a match has it, inserts the own ones. */
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens, 3 * PREFIX_B, found, &count));
    assert_ok(kvc_blocks_take(f->blocks, 1, found + 3));
    (void)prefix_tokens(tokens, "abxz");
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, n, found, 0, &count));
    assert_int_equal(count, 1);
    assert_ok(kvc_blocks_release(f->blocks, found, 4));
}

static void figures__count_lookups_and_positions(void **state) {
    const prefix_fixture *f = *state;
    assert_int_equal(prefix_insert(f, "abc", 0), 3);
    assert_int_equal(prefix_use(f, "abcd"), 3);
    assert_int_equal(prefix_use(f, "x"), 0);
    assert_int_equal(prefix_stored(f, "ab"), 2); /* no lookup */
    const kvc_prefix_stats s = prefix_stats(f->tree);
    assert_int_equal(s.lookups, 2);
    assert_int_equal(s.hits, 1);
    assert_int_equal(s.lookup_positions, 5 * PREFIX_B);
    assert_int_equal(s.hit_positions, 3 * PREFIX_B);
    assert_int_equal(s.stored, 3);
    assert_int_equal(s.blocks, 3);
    assert_int_equal(s.block_bytes, 3 * PREFIX_BLOCK_BYTES);
    assert_int_equal(s.namespaces, 1);
    assert_true(s.index_bytes > 0);
    assert_true(s.limit_bytes == UINT64_MAX);
    assert_fails(kvc_prefix_stats_get(NULL, &(kvc_prefix_stats){.struct_size = sizeof s}),
                 KVC_E_INVALID);
}

/* Pitfall 12: hashes that collide. Two blocks whose 32 bits are equal are looked for, as many as a
 * birthday wants, and told apart. */
enum { BIRTHDAYS = 1 << 19 };

static uint32_t birthday_hash(const kvc_prefix *tree, int32_t root, int32_t number) {
    int32_t tokens[PREFIX_B] = {number};
    return kvc__prefix_hash(tree, root, tokens);
}

static bool find_collision(const kvc_prefix *tree, int32_t root, int32_t *a, int32_t *b) {
    static int32_t seen[4 * BIRTHDAYS]; /* number + 1 */
    const uint32_t mask = 4 * BIRTHDAYS - 1;
    memset(seen, 0, sizeof seen);
    for (*b = 0; *b < BIRTHDAYS; ++*b) {
        const uint32_t hash = birthday_hash(tree, root, *b);
        uint32_t i = hash & mask;
        for (; seen[i]; i = (i + 1) & mask) {
            *a = seen[i] - 1;
            if (birthday_hash(tree, root, *a) == hash) return true;
        }
        seen[i] = *b + 1;
    }
    return false;
}

static void match__tells_blocks_apart_whose_hashes_are_equal(void **state) {
    const prefix_fixture *f = *state;
    const kvc_prefix_namespace space = prefix_space("", "", "");
    int32_t ids[3], a = 0, b = 0;
    int64_t count;
    assert_int_equal(prefix_insert(f, "a", 0), 1); /* so that there is a root */
    const int32_t root = kvc__prefix_find_root(f->tree, &space);
    assert_true(find_collision(f->tree, root, &a, &b)); /* but for one time in e^32 */
    int32_t tokens[2][PREFIX_B] = {{a}, {b}};
    assert_ok(kvc_blocks_take(f->blocks, 2, ids));
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens[0], PREFIX_B, ids, 0, NULL));
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens[1], PREFIX_B, NULL, &count));
    assert_int_equal(count, 0);
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens[1], PREFIX_B, ids + 1, 0, NULL));
    for (int i = 0; i < 2; i++) {
        assert_ok(kvc_prefix_match(f->tree, NULL, tokens[i], PREFIX_B, ids + 2, &count));
        assert_int_equal(ids[2], ids[i]);
        assert_ok(kvc_blocks_release(f->blocks, ids + 2, 1));
    }
    assert_ok(kvc_prefix_check(f->tree));
    assert_ok(kvc_blocks_release(f->blocks, ids, 2));
    assert_int_equal(kvc_prefix_evict(f->tree, 2 * PREFIX_BLOCK_BYTES), 2 * PREFIX_BLOCK_BYTES);
    for (int i = 0; i < 2; i++) { /* "a" is gone, and of the two the one released first */
        assert_ok(kvc_prefix_match(f->tree, NULL, tokens[i], PREFIX_B, NULL, &count));
        assert_int_equal(count, i == 1);
    }
}

/* Pitfall 12: one tenant's adapter name equal to another's salt. Pitfall 13: tenants apart. */
static void namespaces__are_one_only_if_each_field_is(void **state) {
    const prefix_fixture *f = *state;
    const kvc_prefix_namespace spaces[] = {
        prefix_space("ab", "c", ""), prefix_space("a", "bc", ""),  prefix_space("abc", "", ""),
        prefix_space("", "ab", "c"), prefix_space("", "", "abc"),  prefix_space("", "", ""),
        prefix_space("ab", "", "c"), prefix_space("ab", "c", "x"), prefix_space("ab", "d", ""),
    };
    enum { SPACES = sizeof spaces / sizeof *spaces };
    int32_t tokens[2 * PREFIX_B], ids[2];
    int64_t count;
    const int64_t n = prefix_tokens(tokens, "ab");
    for (size_t i = 0; i < SPACES; i++) {
        for (size_t j = 0; j < SPACES; j++) {
            assert_ok(kvc_prefix_match(f->tree, &spaces[j], tokens, n, NULL, &count));
            assert_int_equal(count, j < i ? 2 : 0);
        }
        assert_ok(kvc_blocks_take(f->blocks, 2, ids));
        assert_ok(kvc_prefix_insert(f->tree, &spaces[i], tokens, n, ids, 0, &count));
        assert_int_equal(count, 2);
        assert_ok(kvc_blocks_release(f->blocks, ids, 2));
    }
    assert_int_equal(prefix_stats(f->tree).namespaces, SPACES);
    assert_int_equal(prefix_stored(f, "ab"), 2); /* NULL is the empty one */
    assert_ok(kvc_prefix_check(f->tree));
    (void)kvc_prefix_evict(f->tree, UINT64_MAX);
    assert_int_equal(prefix_stats(f->tree).namespaces, 0); /* names go with their last block */
}

/* Pitfall 14: what differs in layout or dtype lies in another pool, and that has another tree. */
static void tree__of_another_pool_of_blocks_finds_nothing_of_this_one(void **state) {
    const prefix_fixture *f = *state;
    prefix_fixture other = {.blocks = prefix_blocks(f->base->pool, 8, 4)};
    kvc_prefix *second = f->tree;
    assert_ok(kvc_prefix_new(&other.tree, other.blocks));
    assert_int_equal(prefix_insert(f, "ab", 0), 2);
    assert_int_equal(prefix_stored(&other, "ab"), 0);
    assert_fails(kvc_prefix_new(&second, f->blocks), KVC_E_INVALID);
    assert_null(second);
    kvc_blocks_free(other.blocks); /* the tree keeps it alive */
    assert_int_equal(prefix_insert(&other, "ab", 0), 2);
    kvc_prefix_free(other.tree);
    kvc_prefix_free(NULL);
}

/* Pitfall 15: what an append wrote and gave up is not found, nor is what was only half written. */
static void append__that_is_given_up_publishes_nothing(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[3], more[32];
    int64_t count;
    int32_t tokens[3 * PREFIX_B];
    const int64_t n = prefix_tokens(tokens, "abc");
    assert_ok(kvc_blocks_take(f->blocks, 3, ids));
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, 2 * PREFIX_B, ids, 0, &count)); /* so far */
    assert_ok(kvc_blocks_release(f->blocks, ids, 3)); /* the third is given up */
    assert_int_equal(prefix_stored(f, "abc"), 2);
    assert_int_equal(kvc_blocks_references(f->blocks, ids[2]), 0);
    /* Nor does an insert that is refused publish anything, before or after the block at fault. */
    assert_ok(kvc_blocks_take(f->blocks, 3, ids));
    const int32_t table[] = {ids[0], ids[1], KVC_BLOCK_NONE};
    (void)prefix_tokens(tokens, "xyz");
    assert_fails(kvc_prefix_insert(f->tree, NULL, tokens, n, table, 0, &count), KVC_E_INVALID);
    assert_int_equal(count, 0);
    assert_int_equal(prefix_stored(f, "xyz"), 0);
    assert_int_equal(prefix_stats(f->tree).stored, 2);
    assert_ok(kvc_prefix_check(f->tree));
    assert_ok(kvc_blocks_release(f->blocks, ids, 3));
    assert_ok(kvc_blocks_take(f->blocks, 32, more)); /* none has leaked */
    assert_ok(kvc_blocks_release(f->blocks, more, 32));
}

/* Pitfall 10: the table is validated as a whole before anything is stored. */
static void insert__of_a_wrong_table_changes_nothing(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[3 * PREFIX_B], ids[4], stored[1];
    int64_t count;
    const int64_t n = prefix_tokens(tokens, "xyz");
    assert_int_equal(prefix_insert_held(f, "a", 0, stored), 1);
    assert_ok(kvc_blocks_take(f->blocks, 4, ids));
    assert_ok(kvc_blocks_release(f->blocks, ids + 3, 1));
    const struct {
        int32_t third;
        const char *text;
    } wrong[] = {{ids[3], "holds wanted"},
                 {-7, "holds wanted"},
                 {99, "holds wanted"},
                 {ids[0], "comes twice"},
                 {stored[0], "stored under other tokens"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const int32_t table[] = {ids[0], ids[1], wrong[i].third};
        assert_fails(kvc_prefix_insert(f->tree, NULL, tokens, n, table, 0, &count), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "ids[2]"));
        assert_non_null(strstr(kvc_last_error(), wrong[i].text));
        assert_ok(kvc_prefix_check(f->tree));
        assert_int_equal(prefix_stored(f, "xyz"), 0);
    }
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, n, ids, 0, &count)); /* as it should be */
    assert_int_equal(count, 3);
    assert_ok(kvc_blocks_release(f->blocks, ids, 3));
    assert_ok(kvc_blocks_release(f->blocks, stored, 1));
}

static void calls__refuse_bad_arguments(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[PREFIX_B] = {0}, id;
    int64_t count = 7;
    kvc_prefix_namespace space = prefix_space("t", "", "");
    assert_fails(kvc_prefix_new(NULL, f->blocks), KVC_E_INVALID);
    assert_fails(kvc_prefix_new(&(kvc_prefix *){NULL}, NULL), KVC_E_INVALID);
    assert_fails(kvc_prefix_match(NULL, NULL, tokens, 1, &id, &count), KVC_E_INVALID);
    assert_int_equal(count, 0);
    assert_fails(kvc_prefix_match(f->tree, NULL, tokens, -1, &id, &count), KVC_E_INVALID);
    assert_fails(kvc_prefix_match(f->tree, NULL, NULL, 1, &id, &count), KVC_E_INVALID);
    assert_fails(kvc_prefix_match(f->tree, NULL, tokens, 1, &id, NULL), KVC_E_INVALID);
    assert_fails(kvc_prefix_pin(f->tree, NULL, tokens, 1, NULL), KVC_E_INVALID);
    assert_fails(kvc_prefix_insert(f->tree, NULL, tokens, PREFIX_B, NULL, 0, NULL), KVC_E_INVALID);
    assert_ok(kvc_blocks_take(f->blocks, 1, &id));
    for (int priority = -1; priority <= KVC_PREFIX_PRIORITIES;
         priority += KVC_PREFIX_PRIORITIES + 1)
        assert_fails(kvc_prefix_insert(f->tree, NULL, tokens, PREFIX_B, &id, priority, NULL),
                     KVC_E_INVALID);
    space.tenant.data = NULL;
    assert_fails(kvc_prefix_insert(f->tree, &space, tokens, PREFIX_B, &id, 0, NULL), KVC_E_INVALID);
    space.struct_size = 0;
    assert_fails(kvc_prefix_match(f->tree, &space, tokens, 1, &id, &count), KVC_E_INVALID);
    assert_fails(kvc_prefix_check(NULL), KVC_E_INVALID);
    assert_int_equal(kvc_prefix_evict(NULL, 1), 0);
    assert_int_equal(kvc_prefix_limit_set(NULL, 1), 0);
    assert_ok(kvc_blocks_release(f->blocks, &id, 1));
}

/* Pitfall 5: a stored block is shared, and so is not written to. */
static void block__that_is_stored_has_another_owner(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[2], other;
    assert_int_equal(prefix_insert_held(f, "ab", 0, ids), 2);
    assert_ok(kvc_blocks_take(f->blocks, 1, &other));
    assert_int_equal(kvc_blocks_references(f->blocks, ids[0]), 2);
    assert_fails(kvc_blocks_copy(f->blocks, ids[0], other), KVC_E_INVALID);
    assert_ok(kvc_blocks_copy(f->blocks, other, ids[0]));
    assert_ok(kvc_blocks_release(f->blocks, ids, 2));
    /* What only the tree holds, nobody else can take a reference to, or drop the tree's. */
    assert_fails(kvc_blocks_release(f->blocks, ids, 1), KVC_E_INVALID);
    assert_fails(kvc_blocks_retain(f->blocks, ids, 1), KVC_E_INVALID);
    assert_ok(kvc_blocks_release(f->blocks, &other, 1));
}

static void tree__that_ends_leaves_blocks_to_their_holders(void **state) {
    prefix_fixture *f = *state;
    int32_t ids[2];
    assert_int_equal(prefix_insert_held(f, "ab", 0, ids), 2);
    assert_int_equal(prefix_insert(f, "acd", 0), 2);
    kvc_prefix_free(f->tree);
    f->tree = NULL;
    assert_int_equal(kvc_blocks_references(f->blocks, ids[0]), 1);
    assert_ok(kvc_blocks_release(f->blocks, ids, 2));
    assert_ok(kvc_prefix_new(&f->tree, f->blocks)); /* the pool takes another */
    assert_int_equal(prefix_insert(f, "ab", 0), 2);
}

static void tree__grows_and_shrinks_by_thousands(void **state) {
    const prefix_fixture *f = *state;
    prefix_fixture big = {.blocks = prefix_blocks(f->base->pool, 6000, 1024)};
    int32_t tokens[PREFIX_B] = {0}, id;
    int64_t count;
    assert_ok(kvc_prefix_new(&big.tree, big.blocks));
    for (int round = 0; round < 2; round++) {
        for (tokens[0] = 0; tokens[0] < 6000; tokens[0]++) {
            assert_ok(kvc_blocks_take(big.blocks, 1, &id));
            assert_ok(kvc_prefix_insert(big.tree, NULL, tokens, PREFIX_B, &id, 0, NULL));
            assert_ok(kvc_blocks_release(big.blocks, &id, 1));
        }
        assert_ok(kvc_prefix_check(big.tree));
        assert_int_equal(kvc_prefix_evict(big.tree, (uint64_t)4500 * PREFIX_BLOCK_BYTES),
                         4500 * PREFIX_BLOCK_BYTES);
        assert_ok(kvc_prefix_check(big.tree));
        for (tokens[0] = 0; tokens[0] < 6000; tokens[0]++) {
            assert_ok(kvc_prefix_match(big.tree, NULL, tokens, PREFIX_B, NULL, &count));
            assert_int_equal(count, tokens[0] >= 4500);
        }
        (void)kvc_prefix_evict(big.tree, UINT64_MAX);
    }
    kvc_prefix_free(big.tree);
    kvc_blocks_free(big.blocks);
}

/* Pitfall 16: what is corrupt is found, not carried on. */
static void check__finds_what_is_corrupt(void **state) {
    const prefix_fixture *f = *state;
    const kvc_prefix_namespace space = prefix_space("", "", "");
    int32_t ids[3], tokens[PREFIX_B];
    kvc_prefix *t = f->tree;
    assert_int_equal(prefix_insert(f, "ab", 2), 2);
    assert_int_equal(prefix_insert_held(f, "axy", 0, ids), 2);
    (void)prefix_tokens(tokens, "a");
    const int32_t root = kvc__prefix_find_root(t, &space), a = kvc__prefix_find(t, root, tokens);
    (void)prefix_tokens(tokens, "b");
    kvc__prefix_node *b = kvc__prefix_at(t, kvc__prefix_find(t, a, tokens));
#define CORRUPT(what, as)                                                                          \
    do {                                                                                           \
        __typeof__(what) was = what;                                                               \
        (what) = (as);                                                                             \
        assert_fails(kvc_prefix_check(t), KVC_E_CORRUPT);                                          \
        (what) = was;                                                                              \
        assert_ok(kvc_prefix_check(t));                                                            \
    } while (0)
    CORRUPT(b->hash, b->hash + 1);
    CORRUPT(b->depth, 1);
    CORRUPT(b->pins, 1);
    CORRUPT(b->holds, 1);
    CORRUPT(b->lent, true);
    CORRUPT(b->priority, 3);
    CORRUPT(b->block, ids[1]);
    CORRUPT(b->children, 1);
    CORRUPT(b->newer, -1);
    CORRUPT(b->listed, false);
    CORRUPT(kvc__prefix_tokens(b)[5], 1);
    CORRUPT(kvc__prefix_at(t, a)->children, 1);
    CORRUPT(kvc__prefix_at(t, root)->block, 0);
    CORRUPT(t->idle[2].newest, -1);
    CORRUPT(t->idle[2].oldest, -1);
    CORRUPT(t->stored, 3);
    CORRUPT(t->roots, 2);
    CORRUPT(t->limit_blocks, 3);
    CORRUPT(t->blocks->tree.idle_blocks, 2);
    CORRUPT(t->blocks->tree.tree, NULL);
    CORRUPT(kvc__blocks_find(t->blocks, ids[0])->node, a); /* private, says it is stored */
    assert_ok(kvc_blocks_release(f->blocks, ids, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        prefix_test(match__finds_the_longest_prefix_in_full_blocks),
        prefix_test(match__compares_every_token),
        prefix_test(match__ignores_what_fills_no_block),
        prefix_test(match__tells_blocks_apart_whose_hashes_are_equal),
        prefix_test(insert__keeps_the_block_that_is_there),
        prefix_test(insert__of_a_wrong_table_changes_nothing),
        prefix_test(figures__count_lookups_and_positions),
        prefix_test(namespaces__are_one_only_if_each_field_is),
        prefix_test(tree__of_another_pool_of_blocks_finds_nothing_of_this_one),
        prefix_test(append__that_is_given_up_publishes_nothing),
        prefix_test(calls__refuse_bad_arguments),
        prefix_test(block__that_is_stored_has_another_owner),
        prefix_test(tree__that_ends_leaves_blocks_to_their_holders),
        prefix_test(tree__grows_and_shrinks_by_thousands),
        prefix_test(check__finds_what_is_corrupt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
