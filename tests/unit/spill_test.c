#include <ftw.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/tier_disk.h>

#include "support/map_tier.h"
#include "support/spill_fixture.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = SPILL_B, BLOCKS = 40, N = BLOCKS * B };

static int32_t tokens[N];

/* Two maps with a tier each, and a process over both. */
typedef struct fixture {
    test_map *maps[2];
    kvc_tier *tiers[2];
    spill_machine m;
} fixture;

static int setup(void **state) {
    static fixture f;
    for (int32_t i = 0; i < N; i++) tokens[i] = i * 7919;
    for (int t = 0; t < 2; t++) {
        f.maps[t] = test_map_new();
        f.tiers[t] = test_map_open(f.maps[t]);
    }
    spill_machine_init(&f.m, 48, f.tiers, 2);
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    for (int t = 0; t < 2; t++) test_map_hold(f->maps[t], false);
    spill_machine_deinit(&f->m);
    for (int t = 0; t < 2; t++) {
        kvc_tier_free(f->tiers[t]);
        test_map_free(f->maps[t]);
    }
    return 0;
}

static void restart(fixture *f) {
    spill_machine_deinit(&f->m);
    spill_machine_init(&f->m, 48, f->tiers, 2);
}

static void spill__what_the_tree_has_no_tier_is_asked_for(void **state) {
    fixture *f = *state;
    assert_int_equal(spill_turn(&f->m, NULL, tokens, 5 * B + 3, NULL), 0);
    const kvc_spill_stats before = spill_stats(&f->m);
    assert_int_equal(spill_find(&f->m, NULL, tokens, 5 * B + 3), 5);
    const kvc_spill_stats after = spill_stats(&f->m);
    assert_int_equal(after.lookups, before.lookups + 1);
    assert_int_equal(after.lookup_blocks, before.lookup_blocks + 5);
    assert_int_equal(after.tree_blocks, before.tree_blocks + 5);
    assert_int_equal(after.tiers[0].asked_blocks, before.tiers[0].asked_blocks);
}

static void spill__evicted_blocks_are_found_again(void **state) {
    fixture *f = *state;
    (void)spill_turn(&f->m, "a", tokens, N, NULL);
    spill_forget(&f->m);
    assert_int_equal(spill_find(&f->m, "a", tokens, N), BLOCKS); /* more than a window of reads */
    kvc_spill_stats stats = spill_stats(&f->m);
    assert_int_equal(stats.tiers[0].put_blocks, BLOCKS);
    assert_int_equal(stats.tiers[1].put_blocks, BLOCKS);
    assert_int_equal(stats.tiers[0].asked_blocks, BLOCKS);
    assert_int_equal(stats.tiers[0].found_blocks, BLOCKS);
    assert_int_equal(stats.tiers[1].asked_blocks, 0);
    assert_int_equal(spill_find(&f->m, "a", tokens, N), BLOCKS); /* and are in the tree now */
    assert_int_equal(spill_stats(&f->m).tiers[0].asked_blocks, BLOCKS);
}

static void spill__tree_and_tier_join_in_the_middle(void **state) {
    fixture *f = *state;
    (void)spill_turn(&f->m, NULL, tokens, 9 * B, NULL);
    assert_true(kvc_spill_wait(f->m.spill, UINT64_MAX));
    assert_int_equal(kvc_prefix_evict(f->m.tree, UINT64_C(4) * 128), 4 * 128); /* its last four */
    assert_int_equal(spill_find(&f->m, NULL, tokens, 12 * B), 9);
    const kvc_spill_stats stats = spill_stats(&f->m);
    assert_int_equal(stats.tree_blocks, 5);
    assert_int_equal(stats.tiers[0].found_blocks, 4);
}

static void spill__blocks_outlive_the_process(void **state) {
    fixture *f = *state;
    (void)spill_turn(&f->m, "a", tokens, 7 * B, NULL);
    restart(f);
    assert_int_equal(spill_turn(&f->m, "a", tokens, 10 * B, NULL), 7);
    restart(f);
    assert_int_equal(spill_find(&f->m, "a", tokens, 10 * B), 10);
}

static void spill__tenants_never_see_each_other_s_blocks(void **state) {
    fixture *f = *state;
    static const char *const tenants[] = {NULL, "a", "ab", "b"};
    for (int t = 0; t < 4; t++) {
        assert_int_equal(spill_find(&f->m, tenants[t], tokens, 4 * B), 0);
        assert_int_equal(spill_turn(&f->m, tenants[t], tokens, 4 * B, NULL), 0);
    }
    spill_forget(&f->m);
    for (int t = 0; t < 4; t++) assert_int_equal(spill_find(&f->m, tenants[t], tokens, 4 * B), 4);
}

static void spill__another_fingerprint_has_other_keys(void **state) {
    fixture *f = *state;
    int32_t ids[4];
    int64_t count;
    (void)spill_turn(&f->m, NULL, tokens, 4 * B, NULL);
    spill_forget(&f->m);
    kvc_spill *other;
    const kvc_spill_desc desc = {
        .struct_size = sizeof desc, .tree = f->m.tree, .tiers = f->tiers, .tier_count = 2};
    assert_ok(kvc_spill_new(&other, &desc));
    assert_ok(kvc_spill_match(other, NULL, tokens, 4 * B, ids, &count));
    assert_int_equal(count, 0);
    kvc_spill_free(other);
}

static void spill__what_one_tier_lost_another_gives_and_it_is_put_again(void **state) {
    fixture *f = *state;
    (void)spill_turn(&f->m, NULL, tokens, 6 * B, NULL);
    spill_forget(&f->m);
    test_map_clear(f->maps[0]);
    assert_int_equal(spill_find(&f->m, NULL, tokens, 6 * B), 6);
    assert_int_equal(spill_stats(&f->m).tiers[1].found_blocks, 6);
    spill_forget(&f->m);
    assert_int_equal(test_map_count(f->maps[0]), 6);
    test_map_clear(f->maps[1]);
    assert_int_equal(spill_find(&f->m, NULL, tokens, 6 * B), 6);
    assert_int_equal(spill_stats(&f->m).tiers[0].found_blocks, 6);
}

static void spill__what_is_there_already_is_not_written_again(void **state) {
    fixture *f = *state;
    (void)spill_turn(&f->m, NULL, tokens, 6 * B, NULL);
    spill_forget(&f->m);
    int32_t ids[6];
    assert_ok(kvc_blocks_take(f->m.blocks, 6, ids)); /* computed by somebody who did not look */
    for (int64_t i = 0; i < 6; i++)
        spill_expected(spill_memory(&f->m, ids[i]), NULL, tokens, (i + 1) * B);
    assert_ok(kvc_spill_publish(f->m.spill, NULL, tokens, 6 * B, ids, 3));
    assert_ok(kvc_blocks_release(f->m.blocks, ids, 6));
    assert_true(kvc_spill_wait(f->m.spill, UINT64_MAX));
    const kvc_spill_stats stats = spill_stats(&f->m);
    assert_int_equal(stats.tiers[0].put_blocks, 6);
    assert_int_equal(stats.tiers[0].had_blocks, 6);
}

/* PITFALLS 20: a buffer must not be reused before the copy from it has ended. */
static void spill__blocks_are_retained_until_their_puts_have_ended(void **state) {
    fixture *f = *state;
    kvc_blocks_stats blocks = {.struct_size = sizeof blocks};
    int32_t ids[48];
    test_map_hold(f->maps[1], true);
    (void)spill_turn(&f->m, NULL, tokens, 20 * B, NULL);
    (void)kvc_prefix_evict(f->m.tree, UINT64_MAX);
    assert_false(kvc_spill_wait(f->m.spill, 1000000));
    assert_int_equal(spill_stats(&f->m).in_flight_blocks, 20);
    assert_ok(kvc_blocks_stats_get(f->m.blocks, &blocks));
    assert_int_equal(blocks.used_blocks, 20);
    assert_int_not_equal(kvc_blocks_take(f->m.blocks, 29, ids), KVC_OK); /* of 48 */
    assert_ok(kvc_blocks_take(f->m.blocks, 28, ids));
    for (int i = 0; i < 28; i++) memset(spill_memory(&f->m, ids[i]), 0xdd, 128);
    test_map_hold(f->maps[1], false);
    assert_true(kvc_spill_wait(f->m.spill, UINT64_MAX));
    assert_ok(kvc_blocks_release(f->m.blocks, ids, 28));
    spill_forget(&f->m);
    test_map_clear(f->maps[0]);
    assert_int_equal(spill_find(&f->m, NULL, tokens, 20 * B), 20);
}

static void spill__a_publish_never_waits_and_keeps_little_in_flight(void **state) {
    fixture *f = *state;
    kvc_spill *spill;
    kvc_spill_stats stats = {.struct_size = sizeof stats};
    int32_t ids[20];
    kvc_spill_desc desc = {.struct_size = sizeof desc,
                           .tree = f->m.tree,
                           .tiers = f->tiers,
                           .tier_count = 2,
                           .most_in_flight = 12};
    memset(desc.fingerprint, 0x5f, sizeof desc.fingerprint);
    assert_ok(kvc_spill_new(&spill, &desc));
    test_map_hold(f->maps[0], true);
    assert_ok(kvc_blocks_take(f->m.blocks, 20, ids));
    for (int64_t i = 0; i < 20; i++)
        spill_expected(spill_memory(&f->m, ids[i]), NULL, tokens, (i + 1) * B);
    assert_ok(kvc_spill_publish(spill, NULL, tokens, 20 * B, ids, 0));
    assert_ok(kvc_blocks_release(f->m.blocks, ids, 20));
    assert_ok(kvc_spill_stats_get(spill, &stats));
    assert_int_equal(stats.in_flight_blocks, 12);
    assert_int_equal(stats.skipped_blocks, 8);
    test_map_hold(f->maps[0], false);
    kvc_spill_free(spill);
    assert_int_equal(test_map_count(f->maps[0]), 12); /* the first ones: the others want them */
    assert_int_equal(spill_find(&f->m, NULL, tokens, 20 * B), 20); /* in the tree all are */
    spill_forget(&f->m);
    assert_int_equal(spill_find(&f->m, NULL, tokens, 20 * B), 12);
}

static void spill__a_pool_without_blocks_ends_the_prefix(void **state) {
    fixture *f = *state;
    int32_t ids[48], found[N / B];
    (void)spill_turn(&f->m, NULL, tokens, 30 * B, NULL);
    spill_forget(&f->m);
    assert_ok(kvc_blocks_take(f->m.blocks, 39, ids));
    assert_int_equal(spill_match_held(&f->m, NULL, tokens, 30 * B, found), 9);
    assert_ok(kvc_blocks_release(f->m.blocks, found, 9));
    assert_ok(kvc_blocks_release(f->m.blocks, ids, 39));
    assert_int_equal(spill_find(&f->m, NULL, tokens, 30 * B), 30);
}

static void spill__faults_of_tiers_are_misses_and_never_wrong(void **state) {
    fixture *f = *state;
    uint64_t seed = 3;
    for (int round = 0; round < 200; round++) {
        for (int t = 0; t < 2; t++)
            test_map_harm(f->maps[t], round % 20 == 19 ? 1 : 1 + (uint64_t)test_below(&seed, 30));
        const int64_t n = test_below(&seed, N + 1);
        (void)spill_turn(&f->m, NULL, tokens, n, NULL);
        if (round % 3 == 0) spill_forget(&f->m);
    }
    for (int t = 0; t < 2; t++) test_map_harm(f->maps[t], 0);
    /* Nothing stays broken. A turn mends what it reads, up to the first gap: a damaged value behind
     * it counts as there until a match gets so far. */
    int64_t found = 0;
    spill_forget(&f->m);
    for (int turn = 0; turn <= BLOCKS && found < BLOCKS; turn++) {
        const int64_t before = found;
        found = spill_turn(&f->m, NULL, tokens, N, NULL);
        assert_true(turn == 0 || found > before);
        spill_forget(&f->m);
    }
    assert_int_equal(found, BLOCKS);
}

static int flip(const char *path, const struct stat *about, int kind, struct FTW *where) {
    (void)where;
    if (kind != FTW_F || !strstr(path, ".kvb")) return 0;
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)about->st_size / 2 + 40, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    (void)fclose(file);
    return 0;
}

static void spill__damaged_files_are_computed_and_written_again(void **state) {
    char *folder = test_folder_new();
    kvc_tier *tier;
    spill_machine m;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {.struct_size = sizeof desc, .folder = folder};
    (void)state;
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    spill_machine_init(&m, 48, &tier, 1);
    (void)spill_turn(&m, NULL, tokens, 5 * B, NULL);
    spill_forget(&m);
    assert_int_equal(nftw(folder, flip, 16, FTW_PHYS), 0);
    assert_int_equal(spill_turn(&m, NULL, tokens, 5 * B, NULL), 0);
    spill_forget(&m);
    assert_int_equal(spill_find(&m, NULL, tokens, 5 * B), 5);
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
    test_folder_remove(folder);
}

static void spill__what_makes_no_sense_is_refused(void **state) {
    fixture *f = *state;
    kvc_spill *spill = (kvc_spill *)1;
    int32_t ids[4];
    int64_t count = 7;
    kvc_spill_desc desc = {
        .struct_size = sizeof desc, .tree = f->m.tree, .tiers = f->tiers, .tier_count = 2};
    kvc_tier *const none[] = {f->tiers[0], NULL};
    assert_fails(kvc_spill_new(NULL, &desc), KVC_E_INVALID);
    assert_fails(kvc_spill_new(&spill, NULL), KVC_E_INVALID);
    assert_null(spill);
    desc.tier_count = 0;
    assert_fails(kvc_spill_new(&spill, &desc), KVC_E_INVALID);
    desc.tier_count = KVC_SPILL_TIERS_MAX + 1;
    assert_fails(kvc_spill_new(&spill, &desc), KVC_E_INVALID);
    desc.tier_count = 2;
    desc.tiers = none;
    assert_fails(kvc_spill_new(&spill, &desc), KVC_E_INVALID);
    desc.tiers = f->tiers;
    desc.most_in_flight = -1;
    assert_fails(kvc_spill_new(&spill, &desc), KVC_E_INVALID);
    desc.most_in_flight = 0;
    desc.tree = NULL;
    assert_fails(kvc_spill_new(&spill, &desc), KVC_E_INVALID);

    assert_fails(kvc_spill_match(NULL, NULL, tokens, B, ids, &count), KVC_E_INVALID);
    assert_int_equal(count, 0);
    assert_fails(kvc_spill_match(f->m.spill, NULL, tokens, -1, ids, &count), KVC_E_INVALID);
    assert_fails(kvc_spill_match(f->m.spill, NULL, tokens, B, NULL, &count), KVC_E_INVALID);
    assert_fails(kvc_spill_match(f->m.spill, NULL, tokens, B, ids, NULL), KVC_E_INVALID);
    assert_ok(kvc_spill_match(f->m.spill, NULL, tokens, B - 1, NULL, &count));
    ids[0] = 3; /* nobody's */
    assert_fails(kvc_spill_publish(f->m.spill, NULL, tokens, B, ids, 0), KVC_E_INVALID);
    assert_fails(kvc_spill_publish(NULL, NULL, tokens, B, ids, 0), KVC_E_INVALID);
    assert_int_equal(spill_stats(&f->m).in_flight_blocks, 0);
    assert_true(kvc_spill_wait(NULL, 0));
    kvc_spill_free(NULL);
}

#define spill_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        spill_test(spill__what_the_tree_has_no_tier_is_asked_for),
        spill_test(spill__evicted_blocks_are_found_again),
        spill_test(spill__tree_and_tier_join_in_the_middle),
        spill_test(spill__blocks_outlive_the_process),
        spill_test(spill__tenants_never_see_each_other_s_blocks),
        spill_test(spill__another_fingerprint_has_other_keys),
        spill_test(spill__what_one_tier_lost_another_gives_and_it_is_put_again),
        spill_test(spill__what_is_there_already_is_not_written_again),
        spill_test(spill__blocks_are_retained_until_their_puts_have_ended),
        spill_test(spill__a_publish_never_waits_and_keeps_little_in_flight),
        spill_test(spill__a_pool_without_blocks_ends_the_prefix),
        spill_test(spill__faults_of_tiers_are_misses_and_never_wrong),
        spill_test(spill__damaged_files_are_computed_and_written_again),
        spill_test(spill__what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("spill", tests, NULL, NULL);
}
