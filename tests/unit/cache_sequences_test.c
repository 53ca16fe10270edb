/* Sequences of one cache: they differ in length, come and go, and become what others are. */
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/stories.h"
#include "support/support.h"

enum { BATCH = 4, LAYERS = 2, MOST = 400 };
static const kvc_layer_spec plain[LAYERS] = {
    {.kv_heads = 2, .key_dim = 4, .value_dim = 3, .dtype = KVC_F16},
    {.kv_heads = 1, .key_dim = 5, .dtype = KVC_F32}};
static const kvc_layer_spec hybrid[LAYERS] = {
    {.kv_heads = 2, .key_dim = 4, .value_dim = 3, .dtype = KVC_F16, .window = 12, .keep = 2},
    {.kv_heads = 1, .key_dim = 5, .dtype = KVC_F32}};
static const kvc_layer_spec packed[LAYERS] = {
    {.kv_heads = 2, .key_dim = 64, .dtype = KVC_F16, .kv_bits = 4, .kv_group = 32},
    {.kv_heads = 1, .key_dim = 32, .dtype = KVC_F32, .kv_bits = 8, .kv_group = 32, .window = 9}};

/* Every kind that a cache can be. */
static const struct kind {
    const kvc_layer_spec *specs;
    kvc_growth growth;
} kinds[] = {{plain, KVC_GROW_RESERVE}, {plain, KVC_GROW_CHUNK},    {plain, KVC_GROW_EXACT},
             {plain, KVC_GROW_PAGED},   {hybrid, KVC_GROW_RESERVE}, {hybrid, KVC_GROW_CHUNK},
             {hybrid, KVC_GROW_EXACT},  {packed, KVC_GROW_RESERVE}, {packed, KVC_GROW_CHUNK},
             {packed, KVC_GROW_EXACT}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static kvc_blocks *blocks_for(kvc_pool *pool, const struct kind *kind) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = LAYERS,
                                  .specs = kind->specs,
                                  .spec_count = LAYERS,
                                  .positions = 16};
    kvc_blocks *blocks = NULL;
    if (kind->growth == KVC_GROW_PAGED) assert_ok(kvc_blocks_new(&blocks, pool, &desc));
    return blocks;
}

static stories open_kind(const struct kind *kind) {
    kvc_pool *pool;
    kvc_cache *cache;
    stories s;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_blocks *blocks = blocks_for(pool, kind);
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = BATCH,
                                 .layers = LAYERS,
                                 .specs = kind->specs,
                                 .spec_count = LAYERS,
                                 .growth = kind->growth,
                                 .chunk = 16,
                                 .max_positions = MOST,
                                 .blocks = blocks,
                                 .slack = 2};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_blocks_free(blocks); /* the cache keeps both alive */
    kvc_pool_free(pool);
    stories_init(&s, cache);
    return s;
}

static void close_all(stories *s) {
    stories_check(s);
    kvc_cache_free(s->cache);
    stories_deinit(s);
}

static void append(stories *s, int64_t a, int64_t b, int64_t c, int64_t d) {
    stories_append_ragged(s, (const int64_t[]){a, b, c, d}, NULL);
}

static void append_ragged__sequences_advance_by_their_own_counts(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, 3, 0, 20, 1);
        append(&s, 0, 0, 0, 0);
        append(&s, 1, 1, 1, 1);
        append(&s, 17, 40, 0, 2);
        stories_check(&s);
        assert_int_equal(kvc_cache_sequence_length(s.cache, 0, 0), 21);
        assert_int_equal(kvc_cache_sequence_length(s.cache, 1, 1), 41);
        assert_int_equal(kvc_cache_sequence_length(s.cache, 1, 2), 21);
        assert_int_equal(kvc_cache_sequence_length(s.cache, 0, 3), 4);
        assert_int_equal(kvc_cache_length(s.cache, 0), 41); /* the longest */
        close_all(&s);
    }
}

static void append_ragged__counts_nothing_where_nothing_is_appended(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        kvc_cache_stats before = {.struct_size = sizeof before}, after = before;
        append(&s, 30, 2, 0, 1);
        kvc_cache_clear(s.cache);
        for (int b = 0; b < BATCH; b++) s.each[b].length = 0;
        assert_ok(kvc_cache_stats_get(s.cache, &before));
        append(&s, 0, 0, 0, 0);
        assert_ok(kvc_cache_stats_get(s.cache, &after));
        assert_memory_equal(&before, &after, sizeof before);
        close_all(&s);
    }
}

static void append_ragged__a_count_out_of_range_changes_nothing(void **state) {
    (void)state;
    static const float zeros[BATCH * 2 * 2 * 4] = {0};
    kvc_array k, v;
    stories s = open_kind(&kinds[0]);
    append(&s, 1, 2, 3, 4);
    assert_ok(kvc_array_borrow(&k, KVC_F32, 4, (const int64_t[]){BATCH, 2, 2, 4}, NULL, zeros));
    assert_ok(kvc_array_borrow(&v, KVC_F32, 4, (const int64_t[]){BATCH, 2, 2, 3}, NULL, zeros));
    assert_fails(kvc_cache_append_ragged(s.cache, 0, &k, &v, (const int64_t[]){1, 1, 3, 1}),
                 KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "counts[2]: 3 given, 0 to the 2 positions"));
    assert_fails(kvc_cache_append_ragged(s.cache, 0, &k, &v, (const int64_t[]){1, 1, 1, -1}),
                 KVC_E_RANGE);
    assert_fails(kvc_cache_append_ragged(s.cache, 0, &k, &v, NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_append_ragged(s.cache, 2, &k, &v, (const int64_t[]){1, 1, 1, 1}),
                 KVC_E_INVALID);
    close_all(&s);
}

static void append_ragged__the_longest_sequence_meets_the_limit(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, MOST - 1, 5, 0, 0);
        assert_fails(stories_append_layer(&s, 1, (const int64_t[]){2, 1, 1, 1}), KVC_E_RANGE);
        stories_check(&s);
        append(&s, 1, 5, MOST, 1);
        close_all(&s);
    }
}

/* Continuous batching: every sequence ends at a length of its own, and another takes its place. */
static void sequences__join_and_leave(void **state) {
    (void)state;
    uint64_t random = test_seed(31);
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        int64_t ends[BATCH];
        for (int b = 0; b < BATCH; b++) ends[b] = 1 + test_below(&random, 60);
        for (int step = 0; step < 200; step++) {
            int64_t counts[BATCH];
            for (int b = 0; b < BATCH; b++) {
                counts[b] = 1;
                if (s.each[b].length < ends[b]) continue;
                stories_clear_sequence(&s, b);
                ends[b] = 1 + test_below(&random, 60);
                counts[b] = 1 + test_below(&random, 30); /* a prompt */
            }
            stories_append_ragged(&s, counts, NULL);
            if (step % 10 == 0) stories_check(&s);
        }
        close_all(&s);
    }
}

static void fork__both_go_their_own_ways(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, 21, 2, 0, 9);
        append(&s, 1, 1, 0, 1);
        stories_fork(&s, 2, 0); /* into an empty one */
        stories_fork(&s, 1, 0); /* over a shorter one */
        stories_check(&s);
        append(&s, 1, 2, 3, 0);
        stories_check(&s);
        append(&s, 30, 0, 1, 0);
        stories_check(&s);
        stories_trim_sequence(&s, 2, 1);
        append(&s, 0, 0, 4, 0);
        stories_clear_sequence(&s, 0);
        stories_check(&s);
        stories_fork(&s, 1, 0); /* what is empty too */
        stories_fork(&s, 3, 3);
        close_all(&s);
    }
}

static void fork__names_the_sequence_that_there_is_not(void **state) {
    (void)state;
    stories s = open_kind(&kinds[0]);
    append(&s, 1, 2, 3, 4);
    assert_fails(kvc_cache_fork(s.cache, BATCH, 0), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "to: 4 given"));
    assert_fails(kvc_cache_fork(s.cache, 0, -1), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "from: -1 given"));
    assert_fails(kvc_cache_fork(NULL, 0, 0), KVC_E_INVALID);
    close_all(&s);
}

/* All 256 maps of four sequences: circles, chains into them, beams that come several times. */
static void reorder__every_map_of_four_sequences(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, 21, 2, 0, 9);
        for (int map = 0; map < 256; map++) {
            int64_t counts[BATCH];
            const int64_t from[BATCH] = {map & 3, map >> 2 & 3, map >> 4 & 3, map >> 6};
            stories_reorder(&s, from);
            stories_check(&s);
            for (int b = 0; b < BATCH; b++) {
                counts[b] = (map + b) % 3;
                if (s.each[b].length > 50 + 7 * b) stories_clear_sequence(&s, b);
            }
            stories_append_ragged(&s, counts, NULL);
        }
        close_all(&s);
    }
}

/* What a circle takes beside the cache is a sequence's rows, not the room for the longest. */
static void reorder__a_circle_takes_the_memory_of_what_it_moves(void **state) {
    (void)state;
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_pool_stats before = {.struct_size = sizeof before}, after = before;
    stories s;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = 2,
                                 .layers = 1,
                                 .specs = plain,
                                 .spec_count = 1,
                                 .max_positions = 1 << 20};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    stories_init(&s, cache);
    stories_append(&s, 10);
    kvc_pool_peak_reset(pool);
    assert_ok(kvc_pool_stats_get(pool, &before));
    stories_reorder(&s, (const int64_t[]){1, 0});
    assert_ok(kvc_pool_stats_get(pool, &after));
    assert_int_equal(after.peak_active_bytes - before.active_bytes, 2 * 10 * 4 * 2);
    close_all(&s);
    kvc_pool_free(pool);
}

static void trim_sequence__leaves_the_others(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, 8, 7, 9, 8);
        stories_trim_sequence(&s, 1, 7);
        stories_trim_sequence(&s, 2, 3);
        stories_trim_sequence(&s, 3, 0);
        stories_check(&s);
        assert_int_equal(kvc_cache_trimmable(s.cache), 0); /* the empty one binds */
        assert_fails(kvc_cache_trim(s.cache, 1), KVC_E_RANGE);
        assert_fails(kvc_cache_trim_sequence(s.cache, 0, 9), KVC_E_RANGE);
        assert_fails(kvc_cache_trim_sequence(s.cache, 0, -1), KVC_E_RANGE);
        assert_fails(kvc_cache_trim_sequence(s.cache, BATCH, 0), KVC_E_INVALID);
        stories_check(&s);
        append(&s, 0, 5, 1, 2);
        stories_trim(&s, 5);
        assert_int_equal(kvc_cache_sequence_length(s.cache, 1, 1), 0);
        close_all(&s);
    }
}

static void clear_sequence__the_others_stay_and_it_begins_anew(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        stories s = open_kind(&kinds[k]);
        append(&s, 30, 31, 32, 33);
        stories_clear_sequence(&s, 3); /* the longest */
        assert_int_equal(kvc_cache_length(s.cache, 0), 32);
        stories_check(&s);
        append(&s, 1, 0, 1, 50);
        stories_check(&s);
        assert_fails(kvc_cache_clear_sequence(s.cache, BATCH), KVC_E_INVALID);
        assert_fails(kvc_cache_clear_sequence(NULL, 0), KVC_E_INVALID);
        close_all(&s);
    }
}

static void prepare__sequences_of_several_lengths_have_no_room_to_lend(void **state) {
    (void)state;
    kvc_array k, v;
    stories s = open_kind(&kinds[0]);
    append(&s, 5, 5, 5, 5);
    assert_ok(kvc_cache_prepare(s.cache, 0, 2, &k, &v));
    kvc_array_release(&k);
    kvc_array_release(&v);
    append(&s, 1, 0, 0, 0);
    assert_fails(kvc_cache_prepare(s.cache, 0, 2, &k, &v), KVC_E_UNSUPPORTED);
    assert_string_equal(kvc_last_error(),
                        "layer 0: its sequences have several lengths, so that there is no room to "
                        "write to in place; kvc_cache_append wanted");
    assert_null(k.data);
    append(&s, 0, 1, 1, 1); /* of one length again */
    assert_ok(kvc_cache_prepare(s.cache, 0, 2, &k, &v));
    kvc_array_release(&k);
    kvc_array_release(&v);
    close_all(&s);
}

/* What was lent is void once sequences have changed. */
static void prepare__ends_with_the_next_change(void **state) {
    (void)state;
    for (int change = 0; change < 5; change++) {
        kvc_array k, v;
        stories s = open_kind(&kinds[1]);
        append(&s, 5, 5, 5, 5);
        assert_ok(kvc_cache_prepare(s.cache, 0, 2, &k, &v));
        if (change == 0) append(&s, 0, 1, 0, 0);
        if (change == 1) stories_trim(&s, 1);
        if (change == 2) stories_clear_sequence(&s, 2);
        if (change == 3) stories_fork(&s, 2, 1);
        if (change == 4) stories_reorder(&s, (const int64_t[]){1, 0, 2, 3});
        assert_fails(kvc_cache_commit(s.cache, 0, 1), KVC_E_RANGE);
        kvc_array_release(&k);
        kvc_array_release(&v);
        close_all(&s);
    }
}

static void sequence_length__is_minus_one_where_there_is_none(void **state) {
    (void)state;
    stories s = open_kind(&kinds[0]);
    append(&s, 1, 2, 3, 4);
    for (int64_t b = 0; b < BATCH; b++)
        assert_int_equal(kvc_cache_sequence_length(s.cache, 1, b), b + 1);
    assert_int_equal(kvc_cache_sequence_length(s.cache, LAYERS, 0), -1);
    assert_int_equal(kvc_cache_sequence_length(s.cache, 0, BATCH), -1);
    assert_int_equal(kvc_cache_sequence_length(s.cache, 0, -1), -1);
    assert_int_equal(kvc_cache_sequence_length(NULL, 0, 0), -1);
    assert_int_equal(kvc_cache_trimmable(NULL), -1);
    close_all(&s);
}

static void row_positions__tell_the_end_of_a_shorter_sequence(void **state) {
    (void)state;
    int64_t positions[4];
    stories s = open_kind(&kinds[0]);
    append(&s, 1, 2, 0, 4);
    assert_ok(kvc_cache_row_positions(s.cache, 0, 1, positions, 4));
    assert_memory_equal(positions, ((int64_t[]){0, 1, -1, -1}), sizeof positions);
    assert_fails(kvc_cache_row_positions(s.cache, 0, 0, positions, 3), KVC_E_RANGE);
    close_all(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_ragged__sequences_advance_by_their_own_counts),
        cmocka_unit_test(append_ragged__counts_nothing_where_nothing_is_appended),
        cmocka_unit_test(append_ragged__a_count_out_of_range_changes_nothing),
        cmocka_unit_test(append_ragged__the_longest_sequence_meets_the_limit),
        cmocka_unit_test(sequences__join_and_leave),
        cmocka_unit_test(fork__both_go_their_own_ways),
        cmocka_unit_test(fork__names_the_sequence_that_there_is_not),
        cmocka_unit_test(reorder__every_map_of_four_sequences),
        cmocka_unit_test(reorder__a_circle_takes_the_memory_of_what_it_moves),
        cmocka_unit_test(trim_sequence__leaves_the_others),
        cmocka_unit_test(clear_sequence__the_others_stay_and_it_begins_anew),
        cmocka_unit_test(prepare__sequences_of_several_lengths_have_no_room_to_lend),
        cmocka_unit_test(prepare__ends_with_the_next_change),
        cmocka_unit_test(sequence_length__is_minus_one_where_there_is_none),
        cmocka_unit_test(row_positions__tell_the_end_of_a_shorter_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
