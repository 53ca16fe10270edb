/* What the prefix tree gives up, in which order, and what it keeps. */
#include <stdio.h>
#include <string.h>

#include "support/prefix_fixture.h"

static void evict__takes_the_least_recently_used_leaf(void **state) {
    const prefix_fixture *f = *state;
    (void)prefix_insert(f, "ab", 0);
    (void)prefix_insert(f, "ac", 0);
    (void)prefix_insert(f, "d", 0);
    assert_int_equal(prefix_use(f, "ab"), 2);
    assert_int_equal(kvc_prefix_evict(f->tree, 1), PREFIX_BLOCK_BYTES); /* a whole block */
    assert_int_equal(prefix_stored(f, "ac"), 1);
    (void)kvc_prefix_evict(f->tree, 1);
    assert_int_equal(prefix_stored(f, "d"), 0);
    (void)kvc_prefix_evict(f->tree, 1);
    assert_int_equal(prefix_stored(f, "ab"), 1); /* the leaf before the block before it */
    (void)kvc_prefix_evict(f->tree, 1);
    assert_int_equal(prefix_stored(f, "ab"), 0);
    assert_int_equal(kvc_prefix_evict(f->tree, 1), 0);
    assert_int_equal(prefix_stats(f->tree).evicted, 4);
}

static void evict__skips_what_is_in_use(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[2];
    assert_int_equal(prefix_insert_held(f, "ab", 0, ids), 2);
    (void)prefix_insert(f, "ac", 0);
    assert_int_equal(prefix_stats(f->tree).idle_blocks, 1);
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), PREFIX_BLOCK_BYTES);
    assert_int_equal(prefix_stored(f, "ab"), 2);
    /* The block before one in use is so too, although nobody holds it itself. */
    assert_ok(kvc_blocks_release(f->blocks, ids, 1));
    assert_int_equal(prefix_stats(f->tree).idle_blocks, 0);
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), 0);
    assert_ok(kvc_prefix_check(f->tree));
    assert_ok(kvc_blocks_release(f->blocks, ids + 1, 1));
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), 2 * PREFIX_BLOCK_BYTES);
}

static void evict__follows_release_in_either_order(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[4];
    for (int forward = 0; forward < 2; forward++) {
        assert_int_equal(prefix_insert_held(f, "abcd", 0, ids), 4);
        for (int i = 0; i < 4; i++)
            assert_ok(kvc_blocks_release(f->blocks, &ids[forward ? i : 3 - i], 1));
        assert_ok(kvc_prefix_check(f->tree));
        for (int64_t left = 4; left-- > 0;) {
            (void)kvc_prefix_evict(f->tree, 1);
            assert_int_equal(prefix_stored(f, "abcd"), left);
        }
    }
}

static void evict__takes_lower_priorities_first(void **state) {
    const prefix_fixture *f = *state;
    (void)prefix_insert(f, "ab", KVC_PREFIX_PRIORITIES - 1);
    (void)prefix_insert(f, "c", 1);
    (void)prefix_insert(f, "ax", 0); /* behind a block of a higher priority */
    (void)prefix_insert(f, "d", 1);
    const char *const order[] = {"ax", "c", "d", "ab", "a"};
    for (size_t i = 0; i < 5; i++) {
        const int64_t length = (int64_t)strlen(order[i]);
        assert_int_equal(prefix_stored(f, order[i]), length);
        (void)kvc_prefix_evict(f->tree, 1);
        assert_int_equal(prefix_stored(f, order[i]), length - 1);
        assert_ok(kvc_prefix_check(f->tree));
    }
}

static void insert__raises_the_priority_of_what_is_stored(void **state) {
    const prefix_fixture *f = *state;
    (void)prefix_insert(f, "ab", 0);
    (void)prefix_insert(f, "c", 1);
    assert_int_equal(prefix_insert(f, "ab", 2), 0);
    (void)prefix_insert(f, "ab", 1); /* never lowers it */
    assert_ok(kvc_prefix_check(f->tree));
    (void)kvc_prefix_evict(f->tree, 1);
    assert_int_equal(prefix_stored(f, "c"), 0);
    assert_int_equal(prefix_stored(f, "ab"), 2);
}

static void insert__of_what_is_stored_is_a_use(void **state) {
    const prefix_fixture *f = *state;
    (void)prefix_insert(f, "a", 0);
    (void)prefix_insert(f, "b", 0);
    assert_int_equal(prefix_insert(f, "a", 0), 0);
    (void)kvc_prefix_evict(f->tree, 1);
    assert_int_equal(prefix_stored(f, "a"), 1);
    assert_int_equal(prefix_stored(f, "b"), 0);
}

static void pin__keeps_a_prefix_until_its_last_unpin(void **state) {
    const prefix_fixture *f = *state;
    int32_t tokens[3 * PREFIX_B];
    int64_t count;
    const int64_t n = prefix_tokens(tokens, "abx");
    (void)prefix_insert(f, "abc", 0);
    assert_ok(kvc_prefix_pin(f->tree, NULL, tokens, n, &count));
    assert_int_equal(count, 2); /* as far as it is stored */
    assert_ok(kvc_prefix_pin(f->tree, NULL, tokens, n, &count));
    (void)prefix_insert(f, "abx", 0); /* what is stored later is not pinned */
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), 2 * PREFIX_BLOCK_BYTES);
    assert_int_equal(prefix_stored(f, "ab"), 2);
    (void)prefix_insert(f, "abx", 0);
    assert_fails(kvc_prefix_unpin(f->tree, NULL, tokens, n), KVC_E_INVALID);
    assert_fails(kvc_prefix_unpin(f->tree, NULL, tokens, PREFIX_B), KVC_E_INVALID);
    assert_fails(kvc_prefix_unpin(f->tree, NULL, tokens, 0), KVC_E_INVALID);
    assert_ok(kvc_prefix_unpin(f->tree, NULL, tokens, count * PREFIX_B));
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), PREFIX_BLOCK_BYTES);
    assert_ok(kvc_prefix_unpin(f->tree, NULL, tokens, count * PREFIX_B));
    assert_fails(kvc_prefix_unpin(f->tree, NULL, tokens, count * PREFIX_B), KVC_E_INVALID);
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), 2 * PREFIX_BLOCK_BYTES);
    assert_ok(kvc_prefix_pin(f->tree, NULL, tokens, n, &count));
    assert_int_equal(count, 0);
}

static void limit__is_kept_by_evicting(void **state) {
    const prefix_fixture *f = *state;
    assert_true(kvc_prefix_limit_set(f->tree, 4 * PREFIX_BLOCK_BYTES) == UINT64_MAX);
    assert_int_equal(prefix_insert(f, "abc", 0), 3);
    assert_int_equal(prefix_insert(f, "abde", 0), 2); /* "c" goes, what lies on the way stays */
    assert_int_equal(prefix_stored(f, "abc"), 2);
    assert_int_equal(prefix_stored(f, "abde"), 4);
    assert_int_equal(prefix_insert(f, "uvwxyz", 0), 4); /* the beginning is what can be found */
    assert_int_equal(prefix_stored(f, "uvwxyz"), 4);
    assert_int_equal(kvc_prefix_limit_set(f->tree, 2 * PREFIX_BLOCK_BYTES + 1),
                     4 * PREFIX_BLOCK_BYTES);
    assert_int_equal(prefix_stored(f, "uvwxyz"), 2);
    assert_int_equal(kvc_prefix_limit_set(f->tree, 0), 2 * PREFIX_BLOCK_BYTES + 1);
    assert_int_equal(prefix_stored(f, "u"), 0);
    assert_int_equal(prefix_insert(f, "a", 0), 0); /* nothing is stored, no name is left behind */
    assert_int_equal(prefix_stats(f->tree).namespaces, 0);
}

static void limit__below_what_is_in_use_holds_when_it_is_let_go(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[3];
    int64_t count;
    int32_t tokens[3 * PREFIX_B];
    (void)prefix_tokens(tokens, "abc");
    assert_int_equal(prefix_insert_held(f, "abc", 0, ids), 3);
    (void)kvc_prefix_limit_set(f->tree, PREFIX_BLOCK_BYTES);
    assert_int_equal(prefix_insert(f, "x", 0), 0);
    assert_int_equal(prefix_stats(f->tree).blocks, 3);
    assert_ok(kvc_prefix_pin(f->tree, NULL, tokens, 3 * PREFIX_B, &count));
    assert_ok(kvc_blocks_release(f->blocks, ids, 3));
    assert_int_equal(prefix_stats(f->tree).blocks, 3);
    assert_ok(kvc_prefix_unpin(f->tree, NULL, tokens, 3 * PREFIX_B));
    assert_int_equal(prefix_stored(f, "abc"), 1);
}

/* A pool of blocks that is full of what only the tree wants is not full. */
static void take__has_idle_blocks_evicted(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[4], more[29];
    (void)prefix_insert(f, "abcdefghijklmnopqrst", 0); /* 20 of 32 */
    (void)prefix_insert_held(f, "uvwx", 0, ids);
    assert_ok(kvc_blocks_take(f->blocks, 10, more));
    assert_int_equal(prefix_stored(f, "abcdefghijklmnopqrst"), 18);
    assert_int_equal(prefix_stored(f, "uvwx"), 4);
    assert_ok(kvc_blocks_release(f->blocks, more, 10));
    assert_fails(kvc_blocks_take(f->blocks, 29, more), KVC_E_LIMIT); /* in vain: none evicted */
    assert_int_equal(prefix_stored(f, "abcdefghijklmnopqrst"), 18);
    assert_ok(kvc_blocks_take(f->blocks, 28, more));
    assert_int_equal(prefix_stored(f, "a"), 0);
    assert_ok(kvc_blocks_release(f->blocks, more, 28));
    assert_ok(kvc_blocks_release(f->blocks, ids, 4));
}

static void take__evicts_where_the_buffer_pool_has_no_more(void **state) {
    const prefix_fixture *f = *state;
    int32_t ids[9];
    (void)kvc_pool_memory_limit_set(f->base->pool, 8 * PREFIX_BLOCK_BYTES);
    (void)prefix_insert(f, "abcdef", 0);
    assert_ok(kvc_blocks_take(f->blocks, 5, ids));
    assert_int_equal(prefix_stored(f, "abcdef"), 3);
    assert_fails(kvc_blocks_take(f->blocks, 4, ids + 5), KVC_E_LIMIT);
    assert_int_equal(prefix_stored(f, "abcdef"), 3);
    assert_ok(kvc_blocks_release(f->blocks, ids, 5));
}

/* Pitfall 16: evictable memory counted once, however many leaves share a trunk. */
static void idle__counts_a_shared_block_once(void **state) {
    const prefix_fixture *f = *state;
    (void)prefix_insert(f, "abx", 0);
    (void)prefix_insert(f, "aby", 0);
    (void)prefix_insert(f, "abz", 0);
    assert_int_equal(prefix_stats(f->tree).idle_blocks, 5);
    assert_int_equal(kvc_prefix_evict(f->tree, UINT64_MAX), 5 * PREFIX_BLOCK_BYTES);
}

typedef struct journal {
    char text[512];
} journal;

static void note(void *context, const kvc_prefix_event *event) {
    static const char kinds[] = "+-=";
    journal *j = context;
    char line[64];
    (void)snprintf(line, sizeof line, "%c%d<%d:%d%c ", kinds[event->kind], event->block,
                   event->parent, (int)(event->positions / PREFIX_B),
                   (char)(event->tokens[0] / 1000));
    assert_int_equal(event->tokens[PREFIX_B - 1], event->tokens[0] + PREFIX_B - 1);
    (void)strncat(j->text, line, sizeof j->text - strlen(j->text) - 1);
}

static void events__tell_what_happened_in_its_order(void **state) {
    const prefix_fixture *f = *state;
    journal j = {{0}};
    kvc_prefix_event_set(f->tree, note, &j);
    (void)prefix_insert(f, "ab", 0);
    (void)prefix_use(f, "abq");
    (void)prefix_use(f, "q");
    (void)prefix_stored(f, "ab");
    (void)kvc_prefix_limit_set(f->tree, 2 * PREFIX_BLOCK_BYTES);
    (void)prefix_insert(f, "cd", 0);
    kvc_prefix_event_set(f->tree, NULL, NULL);
    (void)prefix_insert(f, "e", 0);
    assert_string_equal(j.text, "+0<-1:1a +1<0:2b =1<0:2b -1<0:2b -0<-1:1a +2<-1:1c +3<2:2d ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        prefix_test(evict__takes_the_least_recently_used_leaf),
        prefix_test(evict__skips_what_is_in_use),
        prefix_test(evict__follows_release_in_either_order),
        prefix_test(evict__takes_lower_priorities_first),
        prefix_test(insert__raises_the_priority_of_what_is_stored),
        prefix_test(insert__of_what_is_stored_is_a_use),
        prefix_test(pin__keeps_a_prefix_until_its_last_unpin),
        prefix_test(limit__is_kept_by_evicting),
        prefix_test(limit__below_what_is_in_use_holds_when_it_is_let_go),
        prefix_test(take__has_idle_blocks_evicted),
        prefix_test(take__evicts_where_the_buffer_pool_has_no_more),
        prefix_test(idle__counts_a_shared_block_once),
        prefix_test(events__tell_what_happened_in_its_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
