/* Threads that share a prefix tree; ThreadSanitizer reads along. Each writes blocks before it
 * inserts them, and reads, without a lock, what a match lends: so a block that were published too
 * early, or reused while lent, would show. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "support/prefix_fixture.h"

enum { THREADS = 2, TURNS = 4000, DEPTH = 5, MOST = 24, LETTERS = 3 };

typedef struct crowd {
    kvc_blocks *blocks;
    kvc_prefix *tree;
    kvc_blocks_layout layout;
    atomic_int next, wrong;
    atomic_long hits, evicted;
} crowd;

static void expect(crowd *c, bool right) {
    if (!right) (void)atomic_fetch_add(&c->wrong, 1);
}

static unsigned char *keys_of(const crowd *c, int32_t id) {
    const kvc_blocks_layout *l = &c->layout;
    return (unsigned char *)l->slabs[id >> l->slab_shift] +
           (size_t)(id & ((1 << l->slab_shift) - 1)) * l->block_bytes;
}

/* What the keys of a block are: a sum over all letters up to it. */
static unsigned char contents(const char *letters, int64_t block) {
    unsigned sum = 1;
    for (int64_t i = 0; i <= block; i++) sum = 31 * sum + (unsigned char)letters[i];
    return (unsigned char)sum;
}

static void turn(crowd *c, uint64_t *random) {
    char letters[DEPTH + 1] = {0};
    int32_t tokens[DEPTH * PREFIX_B], ids[DEPTH];
    int64_t found = 0;
    const int64_t blocks = 1 + (int64_t)(test_random(random) % DEPTH);
    for (int64_t i = 0; i < blocks; i++) letters[i] = (char)('a' + test_random(random) % LETTERS);
    const int64_t n = prefix_tokens(tokens, letters);
    expect(c, kvc_prefix_match(c->tree, NULL, tokens, n, ids, &found) == KVC_OK);
    for (int64_t i = 0; i < found; i++)
        for (size_t b = 0; b < c->layout.k_head_bytes; b++)
            expect(c, keys_of(c, ids[i])[b] == contents(letters, i));
    (void)atomic_fetch_add(&c->hits, (long)found);
    int64_t have = found;
    if (kvc_blocks_take(c->blocks, blocks - found, ids + found) == KVC_OK) have = blocks;
    for (int64_t i = found; i < have; i++)
        memset(keys_of(c, ids[i]), contents(letters, i), c->layout.k_head_bytes);
    if (test_random(random) % 4) /* else it is given up */
        expect(c, kvc_prefix_insert(c->tree, NULL, tokens, have * PREFIX_B, ids,
                                    (int)(test_random(random) % 3), NULL) == KVC_OK);
    if (test_random(random) % 64 == 0) (void)kvc_prefix_evict(c->tree, 5 * PREFIX_BLOCK_BYTES);
    if (test_random(random) % 256 == 0) expect(c, kvc_prefix_check(c->tree) == KVC_OK);
    expect(c, kvc_blocks_release(c->blocks, ids, have) == KVC_OK);
}

static void count_evicted(void *context, const kvc_prefix_event *event) {
    if (event->kind == KVC_PREFIX_EVICTED) (void)atomic_fetch_add(&((crowd *)context)->evicted, 1);
}

static void *take_turns(void *context) {
    crowd *c = context;
    uint64_t random = 40 + (uint64_t)atomic_fetch_add(&c->next, 1);
    for (int i = 0; i < TURNS; i++) turn(c, &random);
    return NULL;
}

static void threads__share_a_tree(void **state) {
    pool_fixture *f = *state;
    crowd c = {.blocks = prefix_blocks(f->pool, MOST, 4),
               .layout = {.struct_size = sizeof c.layout}};
    pthread_t threads[THREADS];
    assert_ok(kvc_prefix_new(&c.tree, c.blocks));
    assert_ok(kvc_blocks_layout_get(c.blocks, 0, &c.layout));
    kvc_prefix_event_set(c.tree, count_evicted, &c);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &c), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(c.wrong, 0);
    assert_true(c.hits > TURNS / 10 && c.evicted > TURNS / 10);
    assert_ok(kvc_prefix_check(c.tree));
    const kvc_prefix_stats s = prefix_stats(c.tree);
    assert_int_equal(s.idle_blocks, s.blocks);
    assert_int_equal(s.evicted, c.evicted);
    (void)kvc_prefix_evict(c.tree, UINT64_MAX);
    assert_int_equal(prefix_stats(c.tree).blocks, 0);
    kvc_prefix_free(c.tree);
    kvc_blocks_free(c.blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(threads__share_a_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
