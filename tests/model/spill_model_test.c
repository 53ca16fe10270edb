/* Random turns of engines over a tree and tiers, against a naive list of what was published. */
#include <string.h>

#include <kvcache/tier_disk.h>

#include "support/map_tier.h"
#include "support/spill_fixture.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = SPILL_B, DEPTH = 10, LETTERS = 2, TENANTS = 3, PUBLISHED = 1 << 16, TURNS = 60 };

static const char *const tenants[TENANTS] = {NULL, "a", "b"};

/* What was published: for each tenant, the prefixes of whole blocks by their letters, as the number
 * whose binary digits these are, behind a leading 1. */
static bool published[TENANTS][PUBLISHED];

typedef struct sequence {
    int tenant;
    int64_t n;
    int32_t tokens[(DEPTH + 1) * B];
    int64_t paths[DEPTH + 1]; /* of its prefixes */
} sequence;

static sequence some_sequence(uint64_t *random) {
    sequence s = {.tenant = (int)test_below(random, TENANTS)};
    int64_t path = 1;
    const int64_t blocks = test_below(random, DEPTH + 1);
    s.n = blocks * B + test_below(random, B); /* a part of a block is ignored */
    for (int64_t i = 0; i <= blocks && i <= DEPTH; i++) {
        const int64_t letter = test_below(random, LETTERS);
        for (int64_t j = 0; j < B; j++) s.tokens[i * B + j] = (int32_t)(1000 * letter + j);
        if (i < DEPTH) s.paths[i] = path = path * LETTERS + letter;
    }
    return s;
}

static int64_t naive_match(const sequence *s) {
    int64_t count = 0;
    while (count < s->n / B && published[s->tenant][s->paths[count]]) count++;
    return count;
}

/* One turn. Where nothing may be lost, exactly what was published is found once puts have ended:
 * until then the blocks that they retain may leave none to read into. */
static void turn(const spill_machine *m, uint64_t *random, bool keeps) {
    const sequence s = some_sequence(random);
    const bool waits = test_below(random, 2);
    int64_t count;
    if (waits) assert_true(kvc_spill_wait(m->spill, UINT64_MAX));
    const int64_t right = naive_match(&s);
    if (test_below(random, 3) == 0) {
        count = spill_find(m, tenants[s.tenant], s.tokens, s.n);
    } else {
        int64_t end;
        count = spill_turn(m, tenants[s.tenant], s.tokens, s.n, &end);
        for (int64_t i = 0; i < end; i++) published[s.tenant][s.paths[i]] = true;
    }
    assert_in_range(count, 0, right);
    if (keeps && waits) assert_int_equal(count, right);
    if (test_below(random, 8) == 0)
        (void)kvc_prefix_evict(m->tree, (uint64_t)test_below(random, 4) * 128);
}

static kvc_tier *open_disk(const char *folder, uint64_t limit_bytes) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {
        .struct_size = sizeof desc, .folder = folder, .limit_bytes = limit_bytes};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

/* Rounds of turns over a small pool and a smaller tree, each begun anew as after a restart. */
static void run(uint64_t seed, uint64_t limit_bytes, test_map *map) {
    const double end = test_now() + test_seconds(0.7);
    char *folder = test_folder_new();
    memset(published, 0, sizeof published);
    do {
        spill_machine m;
        kvc_tier *tiers[2] = {open_disk(folder, limit_bytes), map ? test_map_open(map) : NULL};
        spill_machine_init(&m, 14 + (uint64_t)test_below(&seed, 20), tiers, map ? 2 : 1);
        (void)kvc_prefix_limit_set(m.tree, (4 + (uint64_t)test_below(&seed, 20)) * 128);
        for (int i = 0; i < TURNS; i++) {
            if (map) test_map_harm(map, (uint64_t)test_below(&seed, 6));
            turn(&m, &seed, limit_bytes == 0 && !map);
            if (i % 10 == 0) assert_ok(kvc_prefix_check(m.tree));
        }
        spill_machine_deinit(&m);
        kvc_tier_free(tiers[0]);
        kvc_tier_free(tiers[1]);
    } while (test_now() < end);
    test_folder_remove(folder);
}

static void spill__finds_whatever_was_published_by_any_process_before(void **state) {
    (void)state;
    run(test_seed(61), 0, NULL);
}

static void spill__over_a_tier_that_forgets_is_never_wrong(void **state) {
    (void)state;
    run(test_seed(62), 20000, NULL);
}

static void spill__over_a_tier_that_lies_is_never_wrong(void **state) {
    test_map *map = test_map_new();
    (void)state;
    run(test_seed(63), 8000, map);
    test_map_free(map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spill__finds_whatever_was_published_by_any_process_before),
        cmocka_unit_test(spill__over_a_tier_that_forgets_is_never_wrong),
        cmocka_unit_test(spill__over_a_tier_that_lies_is_never_wrong),
    };
    return cmocka_run_group_tests_name("spill_model", tests, NULL, NULL);
}
