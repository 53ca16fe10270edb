/* Threads that share a spill, with a tier that lies now and then; ThreadSanitizer reads along. Each
 * reads the blocks that it is given without a lock, while puts read others and the pool, which is
 * small, reuses all that are let go. */
#include <pthread.h>

#include "support/map_tier.h"
#include "support/spill_fixture.h"
#include "support/support.h"

enum { THREADS = 2, TURNS = 300, DEPTH = 6, B = SPILL_B };

typedef struct crowd {
    spill_machine m;
    test_map *map;
    _Atomic uint64_t next;
} crowd;

static void *run(void *argument) {
    crowd *c = argument;
    uint64_t random = 7 + c->next++;
    for (int i = 0; i < TURNS; i++) {
        int32_t tokens[DEPTH * B];
        const int64_t blocks = 1 + test_below(&random, DEPTH);
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t letter = test_below(&random, 2);
            for (int64_t j = 0; j < B; j++) tokens[b * B + j] = (int32_t)(100 * letter + j);
        }
        (void)spill_turn(&c->m, test_below(&random, 2) ? "a" : NULL, tokens, blocks * B, NULL);
        if (i % 16 == 0) (void)kvc_prefix_evict(c->m.tree, UINT64_MAX);
        if (i % 64 == 0) (void)kvc_spill_wait(c->m.spill, UINT64_MAX);
        if (i % 32 == 0) test_map_harm(c->map, (uint64_t)test_below(&random, 8));
    }
    return NULL;
}

static void spill_threads__each_finds_its_own_blocks_right(void **state) {
    crowd c = {.map = test_map_new()};
    pthread_t threads[THREADS];
    (void)state;
    kvc_tier *tier = test_map_open(c.map);
    spill_machine_init(&c.m, 20, &tier, 1);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &c), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    const kvc_spill_stats stats = spill_stats(&c.m);
    assert_int_equal(stats.lookups, THREADS * TURNS);
    assert_true(stats.tree_blocks > 0 && stats.tiers[0].found_blocks > 0);
    spill_machine_deinit(&c.m);
    kvc_tier_free(tier);
    test_map_free(c.map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spill_threads__each_finds_its_own_blocks_right),
    };
    return cmocka_run_group_tests_name("spill_threads", tests, NULL, NULL);
}
