/* Sequences in blocks: tables, sharing, and who may write where. */
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/prefix.h>

#include "support/pool_fixture.h"
#include "support/stories.h"

enum { B = 16, HEADS = 2, KEY_DIM = 4, VALUE_DIM = 3 };

/* What *state points to: the pool's fixture, and a cache of four sequences in two layers. */
typedef struct fixture {
    pool_fixture *base;
    kvc_blocks *blocks;
    stories s;
} fixture;

static const kvc_layer_spec specs[2] = {
    {.kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_BF16},
    {.kv_heads = 1, .key_dim = 5, .dtype = KVC_F32},
};

/* Bytes of a block of all layers: keys and values, each aligned. */
enum { BLOCK_BYTES = 256 + 192 + 320 + 320 };

static kvc_blocks *new_blocks(kvc_pool *pool, uint64_t most) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = 2,
                                  .specs = specs,
                                  .spec_count = 2,
                                  .positions = B,
                                  .limit_bytes = most * BLOCK_BYTES,
                                  .slab_bytes = 8 * BLOCK_BYTES};
    kvc_blocks *blocks;
    assert_ok(kvc_blocks_new(&blocks, pool, &desc));
    return blocks;
}

static kvc_cache *new_cache(kvc_blocks *blocks, kvc_pool *pool, int64_t batch,
                            int64_t max_positions) {
    kvc_cache *cache;
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .growth = KVC_GROW_PAGED,
                                 .max_positions = max_positions,
                                 .blocks = blocks};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    return cache;
}

static int setup(void **state) {
    static fixture f;
    void *base;
    if (pool_fixture_setup(&base) != 0) return 1;
    f = (fixture){.base = base};
    f.blocks = new_blocks(f.base->pool, 1000);
    stories_init(&f.s, new_cache(f.blocks, f.base->pool, 4, 0));
    *state = &f;
    return 0;
}

static int64_t used_blocks(const fixture *f) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_stats_get(f->blocks, &stats));
    return (int64_t)stats.used_blocks;
}

static int teardown(void **state) {
    fixture *f = *state;
    void *base = f->base;
    stories_check(&f->s);
    assert_ok(kvc_blocks_check(f->blocks));
    kvc_cache_free(f->s.cache);
    stories_deinit(&f->s);
    assert_int_equal(used_blocks(f), 0); /* nobody holds one that is not freed */
    assert_ok(kvc_blocks_check(f->blocks));
    kvc_blocks_free(f->blocks);
    return pool_fixture_teardown(&base);
}

#define paged_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* A sequence's table. */
typedef struct table {
    const int32_t *ids;
    int64_t count;
} table;

static table table_of(const fixture *f, int64_t sequence) {
    table t;
    assert_ok(kvc_cache_block_table(f->s.cache, sequence, &t.ids, &t.count));
    return t;
}

static int32_t block_of(const fixture *f, int64_t sequence, int64_t i) {
    const table t = table_of(f, sequence);
    assert_true(i < t.count);
    return t.ids[i];
}

static int64_t references(const fixture *f, int64_t sequence, int64_t i) {
    return kvc_blocks_references(f->blocks, block_of(f, sequence, i));
}

static kvc_cache_stats stats_of(const fixture *f) {
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_cache_stats_get(f->s.cache, &stats));
    return stats;
}

static void append(fixture *f, int64_t a, int64_t b, int64_t c, int64_t d) {
    stories_append_ragged(&f->s, (const int64_t[]){a, b, c, d}, NULL);
}

/* Keys of a block's layer 0, by the layout that kernels are told. */
static uint16_t first_key(const fixture *f, int32_t id, int64_t head, int64_t row) {
    kvc_blocks_layout l = {.struct_size = sizeof l};
    uint16_t key;
    assert_ok(kvc_blocks_layout_get(f->blocks, 0, &l));
    const char *block = (const char *)l.slabs[id >> l.slab_shift] +
                        (size_t)(id & ((1 << l.slab_shift) - 1)) * l.block_bytes;
    memcpy(&key,
           block + l.k_offset_bytes + (size_t)head * l.k_head_bytes + (size_t)row * l.k_row_bytes,
           sizeof key);
    return key;
}

static float of_bf16(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

static void paged__a_table_leads_a_kernel_to_every_position(void **state) {
    fixture *f = *state;
    append(f, 1, B - 1, B, 2 * B + 1);
    static const int64_t lengths[] = {1, B - 1, B, 2 * B + 1};
    for (int64_t b = 0; b < 4; b++) {
        const table t = table_of(f, b);
        assert_int_equal(t.count, (lengths[b] + B - 1) / B);
        for (int64_t p = 0; p < lengths[b]; p++)
            for (int64_t h = 0; h < HEADS; h++)
                assert_float_equal(of_bf16(first_key(f, t.ids[p / B], h, p % B)),
                                   story_element(f->s.each[b].tags[p], 0, 0, h, 0), 0);
    }
    assert_int_equal(used_blocks(f), 1 + 1 + 1 + 3);
    assert_int_equal(kvc_cache_capacity(f->s.cache, 0), B);
}

static void fork__shares_every_block_and_copies_none(void **state) {
    fixture *f = *state;
    append(f, 3 * B + 5, 2, 0, 0);
    const kvc_cache_stats before = stats_of(f);
    stories_fork(&f->s, 1, 0);
    stories_fork(&f->s, 2, 0);
    assert_int_equal(used_blocks(f), 4);
    for (int64_t i = 0; i < 4; i++) {
        assert_int_equal(block_of(f, 1, i), block_of(f, 0, i));
        assert_int_equal(references(f, 0, i), 3);
    }
    assert_int_equal(stats_of(f).copied_bytes, before.copied_bytes);
    stories_check(&f->s);
    stories_fork(&f->s, 0, 0);
    assert_int_equal(references(f, 0, 0), 3);
    stories_fork(&f->s, 2, 3); /* an empty one */
    assert_int_equal(references(f, 0, 3), 2);
}

/* Pitfall 5: whoever writes first gets a copy; the other's rows stay. */
static void fork__either_side_may_write_first(void **state) {
    fixture *f = *state;
    for (int original_writes = 0; original_writes < 2; original_writes++) {
        append(f, B + 5, 0, 0, 0);
        stories_fork(&f->s, 1, 0);
        const int32_t shared = block_of(f, 0, 1);
        append(f, original_writes, !original_writes, 0, 0);
        stories_check(&f->s);
        assert_int_equal(block_of(f, original_writes ? 1 : 0, 1), shared);
        assert_int_not_equal(block_of(f, original_writes ? 0 : 1, 1), shared);
        assert_int_equal(references(f, 0, 0), 2); /* the full one stays shared */
        assert_int_equal(references(f, 0, 1), 1);
        assert_int_equal(references(f, 1, 1), 1);
        const uint64_t copied = stats_of(f).copied_bytes - stats_of(f).appended_bytes;
        append(f, !original_writes, original_writes, 0, 0); /* who is last has it alone */
        assert_int_equal(stats_of(f).copied_bytes - stats_of(f).appended_bytes, copied);
        stories_check(&f->s);
        append(f, 2 * B, B, 0, 0);
        stories_check(&f->s);
        stories_clear_sequence(&f->s, 0);
        stories_check(&f->s);
        stories_clear_sequence(&f->s, 1);
    }
}

static void fork__full_blocks_are_not_copied_by_an_append(void **state) {
    fixture *f = *state;
    append(f, 2 * B, 0, 0, 0);
    stories_fork(&f->s, 1, 0);
    append(f, 1, 1, 0, 0);
    assert_int_equal(stats_of(f).copied_bytes, stats_of(f).appended_bytes);
    assert_int_equal(used_blocks(f), 4);
}

/* A full block that is shared is written again after a trim into it. */
static void fork__a_trim_into_a_shared_block_leaves_the_others_rows(void **state) {
    fixture *f = *state;
    append(f, 2 * B, 0, 0, 0);
    stories_fork(&f->s, 1, 0);
    stories_trim_sequence(&f->s, 0, B + 3);
    assert_int_equal(table_of(f, 0).count, 1);
    assert_int_equal(references(f, 1, 1), 1);
    append(f, 10, 0, 0, 0);
    stories_check(&f->s);
    assert_int_equal(references(f, 1, 0), 1);
}

static void trim__gives_blocks_back(void **state) {
    fixture *f = *state;
    append(f, 4 * B, 4 * B, 4 * B, 4 * B);
    assert_int_equal(used_blocks(f), 16);
    stories_trim(&f->s, 1);
    assert_int_equal(used_blocks(f), 16);
    stories_trim(&f->s, B - 1);
    assert_int_equal(used_blocks(f), 12);
    stories_trim_sequence(&f->s, 2, 3 * B);
    assert_int_equal(used_blocks(f), 9);
    assert_int_equal(kvc_cache_trimmable(f->s.cache), 0);
    stories_clear_sequence(&f->s, 0);
    assert_int_equal(used_blocks(f), 6);
    kvc_cache_clear(f->s.cache);
    for (int b = 0; b < 4; b++) f->s.each[b].length = 0;
    assert_int_equal(used_blocks(f), 0);
    append(f, 1, 2, 3, 4);
}

/* A step appends to one layer after another, in whatever order. */
static void paged__layers_may_come_in_any_order(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 3 * B; i++) {
        const int64_t order[2] = {i % 2, 1 - i % 2};
        stories_append_ragged(&f->s, (const int64_t[]){1, i % 2, 3, 0}, order);
        stories_check(&f->s);
    }
}

/* A fork in the middle of a step: the layer that comes later writes to what is shared. */
static void paged__a_fork_between_layers_is_no_way_into_anothers_block(void **state) {
    fixture *f = *state;
    const int64_t ahead[4] = {B + 2, 0, 0, 0};
    assert_ok(stories_append_layer(&f->s, 0, ahead));
    assert_int_equal(table_of(f, 0).count, 2); /* that of the longest layer */
    assert_ok(kvc_cache_check(f->s.cache));
    assert_ok(kvc_cache_fork(f->s.cache, 1, 0));
    assert_ok(stories_append_layer(&f->s, 1, ahead));
    assert_ok(kvc_cache_check(f->s.cache));
    stories_note(&f->s, ahead);
    assert_int_equal(kvc_cache_sequence_length(f->s.cache, 0, 1), B + 2);
    assert_int_equal(kvc_cache_sequence_length(f->s.cache, 1, 1), 0);
    for (int64_t i = 0; i < 2; i++) assert_int_not_equal(block_of(f, 0, i), block_of(f, 1, i));
    for (int64_t h = 0; h < HEADS; h++) /* the fork has layer 0 still */
        assert_float_equal(of_bf16(first_key(f, block_of(f, 1, 1), h, 1)),
                           story_element(f->s.each[0].tags[B + 1], 0, 0, h, 0), 0);
    stories_clear_sequence(&f->s, 1);
}

static void reorder__moves_beams_by_their_tables(void **state) {
    static const int64_t orders[][4] = {
        {0, 1, 2, 3}, {1, 0, 2, 3}, {1, 2, 3, 0}, {0, 0, 0, 0}, {3, 3, 1, 1},
        {2, 2, 2, 1}, {1, 1, 3, 3}, {3, 2, 1, 0}, {0, 0, 1, 2},
    };
    fixture *f = *state;
    append(f, 5, B, 2 * B + 1, 0);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        const uint64_t copied = stats_of(f).copied_bytes;
        stories_reorder(&f->s, orders[i]);
        assert_int_equal(stats_of(f).copied_bytes, copied);
        stories_check(&f->s);
        for (int64_t b = 0; b < 4; b++) { /* each block has as many holders as tables have it */
            const table t = table_of(f, b);
            for (int64_t j = 0; j < t.count; j++) {
                int64_t holders = 0;
                for (int64_t other = 0; other < 4; other++) {
                    const table o = table_of(f, other);
                    holders += j < o.count && o.ids[j] == t.ids[j];
                }
                assert_int_equal(references(f, b, j), holders);
            }
        }
        append(f, 3, 0, 1, 7);
        stories_check(&f->s);
    }
}

static void reorder__a_dropped_beam_gives_its_blocks_back(void **state) {
    fixture *f = *state;
    append(f, B, 2 * B, 3 * B, 4 * B);
    stories_reorder(&f->s, (const int64_t[]){3, 3, 3, 3});
    assert_int_equal(used_blocks(f), 4);
    assert_fails(kvc_cache_reorder(f->s.cache, (const int64_t[]){0, 1, 2, 4}), KVC_E_INVALID);
    assert_fails(kvc_cache_reorder(f->s.cache, NULL), KVC_E_INVALID);
    assert_int_equal(used_blocks(f), 4);
}

/* From one sequence to the prefix tree, and from there to another, which appends: what is shared
 * is not touched. */
static void adopt__a_sequence_begins_with_what_a_prefix_tree_found(void **state) {
    fixture *f = *state;
    kvc_prefix *tree;
    int32_t tokens[3 * B], found[3];
    int64_t count, stored;
    for (int i = 0; i < 3 * B; i++) tokens[i] = i;
    assert_ok(kvc_prefix_new(&tree, f->blocks));
    append(f, 2 * B + 7, 0, 0, 0);
    assert_ok(kvc_prefix_insert(tree, NULL, tokens, 2 * B + 7, table_of(f, 0).ids, 0, &stored));
    assert_int_equal(stored, 2);
    assert_ok(kvc_prefix_match(tree, NULL, tokens, 3 * B, found, &count));
    assert_int_equal(count, 2);
    assert_int_equal(references(f, 0, 0), 3); /* the sequence, the tree, who asked */
    stories_fork(&f->s, 3, 0);                /* the story of the two blocks, without them */
    stories_trim_sequence(&f->s, 3, 7);
    assert_ok(kvc_cache_clear_sequence(f->s.cache, 3));
    assert_ok(kvc_cache_adopt(f->s.cache, 3, found, count));
    assert_ok(kvc_blocks_release(f->blocks, found, count));
    stories_check(&f->s);
    append(f, 0, 0, 0, B + 1);
    stories_check(&f->s);
    for (int64_t i = 0; i < 2; i++) {
        assert_int_equal(block_of(f, 3, i), found[i]);
        assert_int_equal(block_of(f, 0, i), found[i]);
    }
    stories_trim_sequence(&f->s, 3, B + 1 + 3); /* into what the tree has stored */
    append(f, 0, 0, 0, 1);
    assert_int_not_equal(block_of(f, 3, 1), found[1]);
    assert_ok(kvc_prefix_check(tree));
    stories_check(&f->s);
    kvc_prefix_free(tree);
}

static void adopt__is_refused_with_its_reason(void **state) {
    fixture *f = *state;
    append(f, B, 0, 0, 0);
    const int32_t mine = block_of(f, 0, 0), none[] = {mine, 12345};
    kvc_cache *cache = f->s.cache;
    assert_fails(kvc_cache_adopt(cache, 0, &mine, 1), KVC_E_RANGE); /* not empty */
    assert_fails(kvc_cache_adopt(cache, 1, &mine, -1), KVC_E_RANGE);
    assert_fails(kvc_cache_adopt(cache, 1, NULL, 1), KVC_E_INVALID);
    assert_fails(kvc_cache_adopt(cache, 1, none, 2), KVC_E_INVALID);
    assert_fails(kvc_cache_adopt(cache, 4, &mine, 1), KVC_E_INVALID);
    assert_fails(kvc_cache_adopt(NULL, 0, &mine, 1), KVC_E_INVALID);
    assert_int_equal(references(f, 0, 0), 1);
    assert_ok(kvc_cache_adopt(cache, 1, NULL, 0));
    assert_int_equal(kvc_cache_sequence_length(cache, 0, 1), 0);
}

static void limit__a_refused_append_leaves_all_as_it_was(void **state) {
    fixture *f = *state;
    kvc_blocks *few = new_blocks(f->base->pool, 4);
    stories s;
    stories_init(&s, new_cache(few, f->base->pool, 3, 0));
    stories_append_ragged(&s, (const int64_t[]){B + 1, 1, 0}, NULL);
    stories_fork(&s, 2, 0);
    /* The first sequence finds its copy, the second a block, the third finds none. */
    for (int64_t layer = 0; layer < 2; layer++) {
        assert_fails(stories_append_layer(&s, layer, (const int64_t[]){1, B, B}), KVC_E_LIMIT);
        stories_check(&s);
        assert_ok(kvc_blocks_check(few));
    }
    assert_fails(stories_append_layer(&s, 0, (const int64_t[]){3 * B, 0, 0}), KVC_E_LIMIT);
    stories_check(&s);
    stories_clear_sequence(&s, 2);
    stories_append_ragged(&s, (const int64_t[]){1, B, 0}, NULL);
    stories_check(&s);
    kvc_cache_free(s.cache);
    stories_deinit(&s);
    kvc_blocks_free(few);
}

/* Nothing is left of an append whose copy failed, blocks neither. */
static void paged__a_failed_write_leaves_the_tables_as_they_were(void **state) {
    fixture *f = *state;
    append(f, 3, B, 0, 0);
    test_device_fail(&f->base->device, TEST_COPY, 2, 1);
    assert_fails(stories_append_layer(&f->s, 0, (const int64_t[]){B, 1, 1, 0}), KVC_E_UNSUPPORTED);
    stories_check(&f->s);
    assert_int_equal(used_blocks(f), 2);
    append(f, B, 1, 1, 0);
}

static void paged__the_most_positions_bind_a_sequence(void **state) {
    fixture *f = *state;
    stories s;
    stories_init(&s, new_cache(f->blocks, f->base->pool, 2, 2 * B + 3));
    stories_append(&s, 2 * B + 2);
    assert_fails(stories_append_layer(&s, 0, (const int64_t[]){0, 2}), KVC_E_RANGE);
    stories_append(&s, 1);
    assert_fails(stories_append_layer(&s, 1, (const int64_t[]){1, 0}), KVC_E_RANGE);
    stories_check(&s);
    int32_t three[3];
    assert_ok(kvc_blocks_take(f->blocks, 3, three));
    stories_clear_sequence(&s, 1);
    assert_fails(kvc_cache_adopt(s.cache, 1, three, 3), KVC_E_RANGE);
    assert_ok(kvc_blocks_release(f->blocks, three, 3));
    stories_check(&s);
    kvc_cache_free(s.cache);
    stories_deinit(&s);
}

static void paged__tables_grow_where_no_most_is_told(void **state) {
    fixture *f = *state;
    append(f, 1, 1, 1, 1);
    append(f, 40 * B, 0, 15 * B - 1, 0);
    stories_check(&f->s);
    append(f, 1, 1, 1, 100 * B);
    assert_int_equal(table_of(f, 3).count, 101);
    assert_int_equal(table_of(f, 0).count, 41);
}

/* Issue 4: less than 4 % of the memory of sixteen sequences of 100 to 8000 positions. */
static void paged__waste_is_a_part_of_a_block_a_sequence(void **state) {
    fixture *f = *state;
    static const kvc_layer_spec usual = {.kv_heads = 2, .key_dim = 16, .dtype = KVC_BF16};
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = 2,
                                  .specs = &usual,
                                  .spec_count = 1,
                                  .positions = 64,
                                  .limit_bytes = TEST_ROOM_BYTES};
    kvc_blocks *blocks;
    stories s;
    int64_t counts[16];
    uint64_t random = test_seed(11);
    assert_ok(kvc_blocks_new(&blocks, f->base->pool, &desc));
    stories_init(&s, new_cache(blocks, f->base->pool, 16, 0));
    for (int b = 0; b < 16; b++) counts[b] = 100 + test_below(&random, 7901);
    stories_append_ragged(&s, counts, NULL);
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_nbytes_get(s.cache, &nbytes));
    uint64_t positions = 0;
    for (int b = 0; b < 16; b++) positions += (uint64_t)counts[b];
    assert_int_equal(nbytes.used, positions * 2 * 2 * 2 * 16 * 2);
    assert_true(nbytes.resident >= nbytes.used);
    assert_true((double)(nbytes.resident - nbytes.used) < 0.04 * (double)nbytes.resident);
    kvc_cache_free(s.cache);
    stories_deinit(&s);
    kvc_blocks_free(blocks);
}

static void paged__rows_are_neither_viewed_nor_lent(void **state) {
    fixture *f = *state;
    kvc_array k, v;
    kvc_quantized kq, vq;
    int64_t positions[1];
    append(f, 1, 1, 1, 1);
    assert_fails(kvc_cache_view(f->s.cache, 0, &k, &v), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "kvc_cache_block_table"));
    assert_fails(kvc_cache_view_quantized(f->s.cache, 0, &kq, &vq), KVC_E_UNSUPPORTED);
    assert_fails(kvc_cache_prepare(f->s.cache, 0, 1, &k, &v), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "blocks"));
    assert_fails(kvc_cache_row_positions(f->s.cache, 0, 0, positions, 1), KVC_E_UNSUPPORTED);
}

static void paged__a_cache_takes_the_layers_of_its_blocks(void **state) {
    fixture *f = *state;
    kvc_layer_spec own[2];
    kvc_cache *cache;
    memset(own, 0xff, sizeof own); /* what lies between members is nobody's */
    for (int i = 0; i < 2; i++) {
        own[i].kv_heads = specs[i].kv_heads;
        own[i].key_dim = specs[i].key_dim;
        own[i].value_dim = specs[i].value_dim;
        own[i].dtype = specs[i].dtype;
        own[i].window = own[i].keep = 0;
        own[i].kv_bits = own[i].kv_group = 0;
        own[i].keys_per_channel = own[i].rotated = false;
    }
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .layers = 2,
                           .specs = own,
                           .spec_count = 2,
                           .growth = KVC_GROW_PAGED,
                           .blocks = f->blocks};
    assert_ok(kvc_cache_new(&cache, f->base->pool, &desc));
    kvc_cache_free(cache);
    desc.spec_count = 1; /* the second layer differs */
    assert_fails(kvc_cache_new(&cache, f->base->pool, &desc), KVC_E_INVALID);
    desc.spec_count = 0;
    assert_fails(kvc_cache_new(&cache, f->base->pool, &desc), KVC_E_INVALID);
    desc.spec_count = 2;
    own[1].dtype = KVC_F16;
    assert_fails(kvc_cache_new(&cache, f->base->pool, &desc), KVC_E_INVALID);
    desc.specs = NULL;
    desc.layers = 3;
    assert_fails(kvc_cache_new(&cache, f->base->pool, &desc), KVC_E_INVALID);
    desc.layers = 2;
    desc.blocks = NULL;
    assert_fails(kvc_cache_new(&cache, f->base->pool, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "desc.blocks"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        paged_test(paged__a_table_leads_a_kernel_to_every_position),
        paged_test(fork__shares_every_block_and_copies_none),
        paged_test(fork__either_side_may_write_first),
        paged_test(fork__full_blocks_are_not_copied_by_an_append),
        paged_test(fork__a_trim_into_a_shared_block_leaves_the_others_rows),
        paged_test(trim__gives_blocks_back),
        paged_test(paged__layers_may_come_in_any_order),
        paged_test(paged__a_fork_between_layers_is_no_way_into_anothers_block),
        paged_test(reorder__moves_beams_by_their_tables),
        paged_test(reorder__a_dropped_beam_gives_its_blocks_back),
        paged_test(adopt__a_sequence_begins_with_what_a_prefix_tree_found),
        paged_test(adopt__is_refused_with_its_reason),
        paged_test(limit__a_refused_append_leaves_all_as_it_was),
        paged_test(paged__a_failed_write_leaves_the_tables_as_they_were),
        paged_test(paged__the_most_positions_bind_a_sequence),
        paged_test(paged__tables_grow_where_no_most_is_told),
        paged_test(paged__waste_is_a_part_of_a_block_a_sequence),
        paged_test(paged__rows_are_neither_viewed_nor_lent),
        paged_test(paged__a_cache_takes_the_layers_of_its_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
