/* What went wrong with caches elsewhere, for every kind: forks that alias, rollbacks that pass over
 * what is lost, checks that come after the first write, references without an owner. */
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/naive_batch.h"
#include "support/naive_cache.h"
#include "support/support.h"

enum { BATCH = 3, LAYERS = 2, HEADS = 2, DIM = 32, BLOCK = 16, WINDOW = 12, KEEP = 2 };

typedef struct fixture {
    kvc_pool *pool;
    kvc_blocks *blocks;
    kvc_cache *cache;
    naive_batch naive;
    uint64_t random;
} fixture;

typedef struct variant {
    kvc_growth growth;
    bool window, packed; /* of layer 0 */
} variant;

static const variant variants[] = {
    {KVC_GROW_RESERVE, false, false}, {KVC_GROW_CHUNK, false, false},
    {KVC_GROW_EXACT, false, false},   {KVC_GROW_PAGED, false, false},
    {KVC_GROW_CHUNK, true, false},    {KVC_GROW_RESERVE, true, false},
    {KVC_GROW_CHUNK, false, true},    {KVC_GROW_EXACT, true, true},
    {KVC_GROW_PAGED, false, true},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void open_blocks(fixture *f, const kvc_layer_spec *specs, uint64_t limit_bytes) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = LAYERS,
                                  .specs = specs,
                                  .spec_count = LAYERS,
                                  .positions = BLOCK,
                                  .limit_bytes = limit_bytes};
    assert_ok(kvc_blocks_new(&f->blocks, f->pool, &desc));
}

/* @param blocks  that there can be, where paged; 0: many */
static void open_all(fixture *f, const variant *how, int64_t max_positions, uint64_t blocks) {
    const kvc_layer_spec plain = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    kvc_layer_spec specs[LAYERS] = {plain, plain};
    if (how->packed) specs[0].kv_bits = 8;
    if (how->packed) specs[0].kv_group = 32;
    if (how->window) specs[0].window = WINDOW;
    if (how->window) specs[0].keep = KEEP;
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = BATCH,
                           .layers = LAYERS,
                           .specs = specs,
                           .spec_count = LAYERS,
                           .growth = how->growth,
                           .chunk = 8,
                           .max_positions = max_positions};
    const size_t block_bytes = (size_t)LAYERS * 2 * BLOCK * HEADS * DIM * sizeof(float);
    *f = (fixture){.random = 3};
    assert_ok(kvc_pool_new(&f->pool, kvc_device_cpu()));
    if (how->growth == KVC_GROW_PAGED)
        open_blocks(f, specs, blocks ? blocks * block_bytes : (uint64_t)1 << 26);
    desc.blocks = f->blocks;
    assert_ok(kvc_cache_new(&f->cache, f->pool, &desc));
    naive_batch_init(&f->naive, f->cache);
}

static void close_all(fixture *f) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_batch_equal(&f->naive, f->cache);
    naive_batch_deinit(&f->naive);
    kvc_cache_free(f->cache);
    if (f->blocks) {
        assert_ok(kvc_blocks_stats_get(f->blocks, &stats));
        assert_int_equal(stats.used_blocks, 0);
    }
    kvc_blocks_free(f->blocks);
    kvc_pool_free(f->pool);
}

/* To every layer, until one refuses. */
static kvc_status append(fixture *f, const int64_t *counts, int64_t n) {
    const int64_t shape[4] = {BATCH, HEADS, n, DIM};
    kvc_status status = KVC_OK;
    for (int64_t i = 0; status == KVC_OK && i < LAYERS; i++) {
        rows k, v;
        rows_init(&k, KVC_F32, ROWS_POSITION_MAJOR, shape, &f->random);
        rows_init(&v, KVC_F32, ROWS_POSITION_MAJOR, shape, &f->random);
        status = kvc_cache_append_ragged(f->cache, i, &k.array, &v.array, counts);
        if (status == KVC_OK) naive_batch_append(&f->naive, i, &k.array, &v.array, counts);
        rows_deinit(&k);
        rows_deinit(&v);
    }
    return status;
}

/* Pitfall 5. Each side writes, then the other, in the block or ring that both begin with. */
static void fork__both_sides_write_and_neither_sees_the_other(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++)
        for (int64_t held = BLOCK - 1; held <= BLOCK + 1; held++) {
            fixture f;
            open_all(&f, &variants[i], 100, 0);
            assert_ok(append(&f, (const int64_t[BATCH]){held, 5, 0}, held));
            assert_ok(kvc_cache_fork(f.cache, 2, 0));
            naive_batch_reorder(&f.naive, (const int64_t[BATCH]){0, 1, 0});
            assert_batch_equal(&f.naive, f.cache);
            assert_ok(append(&f, (const int64_t[BATCH]){0, 0, 3}, 3));
            assert_batch_equal(&f.naive, f.cache);
            assert_ok(append(&f, (const int64_t[BATCH]){3, 1, 0}, 3));
            assert_batch_equal(&f.naive, f.cache);
            assert_ok(kvc_cache_clear_sequence(f.cache, 0));
            naive_batch_clear(&f.naive, 0);
            close_all(&f);
        }
}

/* Pitfall 5: a trim gives the rows of the end back, which the other side still reads. */
static void fork__one_side_goes_back_and_writes_anew(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        fixture f;
        open_all(&f, &variants[i], 100, 0);
        assert_ok(append(&f, (const int64_t[BATCH]){WINDOW - 2, 5, 0}, WINDOW - 2));
        assert_ok(kvc_cache_fork(f.cache, 2, 0));
        naive_batch_reorder(&f.naive, (const int64_t[BATCH]){0, 1, 0});
        assert_ok(kvc_cache_trim_sequence(f.cache, 2, 6));
        naive_batch_trim(&f.naive, 2, 6);
        assert_ok(append(&f, (const int64_t[BATCH]){0, 0, 4}, 4));
        close_all(&f);
    }
}

/* Pitfall 9. The layer beside the window could go back, and does not. */
static void trim__past_what_a_ring_holds_is_refused_and_changes_no_layer(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        if (!variants[i].window) continue;
        fixture f;
        open_all(&f, &variants[i], 100, 0);
        assert_ok(append(&f, (const int64_t[BATCH]){30, 30, 4}, 30)); /* all of it still held */
        assert_ok(append(&f, (const int64_t[BATCH]){1, 1, 1}, 1));
        assert_int_equal(kvc_cache_trimmable(f.cache), 0);
        assert_fails(kvc_cache_trim(f.cache, 1), KVC_E_RANGE);
        assert_non_null(strstr(kvc_last_error(), "layer 0"));
        assert_fails(kvc_cache_trim_sequence(f.cache, 1, 1), KVC_E_RANGE);
        assert_batch_equal(&f.naive, f.cache);
        assert_ok(kvc_cache_trim_sequence(f.cache, 2, 5)); /* this one's ring has not turned */
        naive_batch_trim(&f.naive, 2, 5);
        close_all(&f);
    }
}

/* Pitfall 10. What is wrong with the last sequence is found before the first is written. */
static void append__is_validated_before_its_first_write(void **state) {
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        fixture f;
        open_all(&f, &variants[i], 40, 0);
        assert_ok(append(&f, (const int64_t[BATCH]){10, 20, 38}, 38));
        assert_fails(append(&f, (const int64_t[BATCH]){3, 3, 4}, 3), KVC_E_RANGE);
        assert_fails(append(&f, (const int64_t[BATCH]){3, 3, -1}, 3), KVC_E_RANGE);
        assert_batch_equal(&f.naive, f.cache);
        assert_fails(append(&f, (const int64_t[BATCH]){3, 3, 3}, 3), KVC_E_RANGE);
        assert_batch_equal(&f.naive, f.cache);
        assert_ok(append(&f, (const int64_t[BATCH]){3, 3, 2}, 3));
        close_all(&f);
    }
}

/* Pitfall 10: of four blocks three are held; the first sequence finds one and the next none. */
static void append__without_blocks_for_all_takes_none(void **state) {
    (void)state;
    const variant paged = {KVC_GROW_PAGED, false, false};
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    fixture f;
    open_all(&f, &paged, 0, 4);
    assert_ok(append(&f, (const int64_t[BATCH]){BLOCK, BLOCK, BLOCK}, BLOCK));
    assert_fails(append(&f, (const int64_t[BATCH]){1, 1, 0}, 1), KVC_E_LIMIT);
    assert_ok(kvc_blocks_stats_get(f.blocks, &stats));
    assert_int_equal(stats.used_blocks, BATCH);
    assert_batch_equal(&f.naive, f.cache);
    assert_ok(append(&f, (const int64_t[BATCH]){0, 1, 0}, 1));
    close_all(&f);
}

/* Pitfall 16. Two caches, forks in both, and a caller own one block: it counts each, once. */
static void blocks__count_every_owner_and_are_free_after_the_last(void **state) {
    (void)state;
    const variant paged = {KVC_GROW_PAGED, false, false};
    fixture f;
    kvc_cache *other;
    const int32_t *ids;
    int64_t count;
    open_all(&f, &paged, 0, 0);
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = 2,
                                 .growth = KVC_GROW_PAGED,
                                 .blocks = f.blocks};
    assert_ok(kvc_cache_new(&other, f.pool, &desc));
    assert_ok(append(&f, (const int64_t[BATCH]){BLOCK + 1, 0, 0}, BLOCK + 1));
    assert_ok(kvc_cache_block_table(f.cache, 0, &ids, &count));
    const int32_t first = ids[0];
    assert_int_equal(count, 2);
    assert_ok(kvc_blocks_retain(f.blocks, &first, 1));
    assert_ok(kvc_cache_fork(f.cache, 1, 0));
    naive_batch_reorder(&f.naive, (const int64_t[BATCH]){0, 0, 2});
    assert_ok(kvc_cache_adopt(other, 0, &first, 1));
    assert_ok(kvc_cache_reorder(other, (const int64_t[2]){0, 0}));
    assert_int_equal(kvc_blocks_references(f.blocks, first), 5);
    kvc_cache_clear(other);
    assert_int_equal(kvc_blocks_references(f.blocks, first), 3);
    kvc_cache_clear(f.cache);
    for (int64_t b = 0; b < BATCH; b++) naive_batch_clear(&f.naive, b);
    assert_int_equal(kvc_blocks_references(f.blocks, first), 1);
    assert_ok(kvc_cache_adopt(other, 1, &first, 1));
    assert_ok(kvc_blocks_release(f.blocks, &first, 1));
    assert_int_equal(kvc_blocks_references(f.blocks, first), 1);
    kvc_cache_free(other);
    assert_int_equal(kvc_blocks_references(f.blocks, first), 0);
    close_all(&f);
}

/* Pitfall 4. A window that no sequence can fill: its rows times their bytes wrap. */
static void window__wider_than_all_memory_holds_all(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        const kvc_layer_spec spec = {
            .kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .window = (int64_t)1 << 60};
        kvc_cache_desc desc = {.struct_size = sizeof desc,
                               .batch = BATCH,
                               .layers = LAYERS,
                               .specs = &spec,
                               .spec_count = 1,
                               .growth = growth,
                               .max_positions = 20000};
        fixture f = {0};
        assert_ok(kvc_pool_new(&f.pool, kvc_device_cpu()));
        assert_ok(kvc_cache_new(&f.cache, f.pool, &desc));
        naive_batch_init(&f.naive, f.cache);
        for (int i = 0; i < 3; i++)
            assert_ok(append(&f, (const int64_t[BATCH]){2000, 2000, 1}, 2000));
        close_all(&f);
    }
}

static void window__and_slack_must_add_up(void **state) {
    (void)state;
    kvc_layer_spec spec = {.kv_heads = 1, .key_dim = 4, .dtype = KVC_F32, .window = INT64_MAX};
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .layers = 1,
                           .specs = &spec,
                           .spec_count = 1,
                           .growth = KVC_GROW_CHUNK,
                           .slack = 1};
    kvc_pool *pool;
    kvc_cache *cache;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_fails(kvc_cache_new(&cache, pool, &desc), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "desc.specs[0].window"));
    desc.slack = 0;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fork__both_sides_write_and_neither_sees_the_other),
        cmocka_unit_test(fork__one_side_goes_back_and_writes_anew),
        cmocka_unit_test(trim__past_what_a_ring_holds_is_refused_and_changes_no_layer),
        cmocka_unit_test(append__is_validated_before_its_first_write),
        cmocka_unit_test(append__without_blocks_for_all_takes_none),
        cmocka_unit_test(blocks__count_every_owner_and_are_free_after_the_last),
        cmocka_unit_test(window__wider_than_all_memory_holds_all),
        cmocka_unit_test(window__and_slack_must_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
