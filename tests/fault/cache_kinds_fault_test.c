/* Every allocation and device call under each kind of cache fails once, alone or with all after it:
 * the status says so, nothing has changed, nothing leaks, and the same call then succeeds. */
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/naive_batch.h"
#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { LAYERS = 2, BATCH = 3, HEADS = 2, DIM = 32, BLOCK = 16, LONG = 300 };

typedef struct cache_kind {
    const char *name;
    kvc_growth growth;
    bool window, packed;
    bool test_device; /* whose calls fail too; neither windows nor packed rows */
} cache_kind;

static const cache_kind kinds[] = {
    {"reserve", KVC_GROW_RESERVE, false, false, true},
    {"chunk", KVC_GROW_CHUNK, false, false, true},
    {"exact", KVC_GROW_EXACT, false, false, true},
    {"paged", KVC_GROW_PAGED, false, false, true},
    {"window, reserve", KVC_GROW_RESERVE, true, false, false},
    {"window, chunk", KVC_GROW_CHUNK, true, false, false},
    {"window, exact", KVC_GROW_EXACT, true, false, false},
    {"packed, chunk", KVC_GROW_CHUNK, false, true, false},
    {"packed window, chunk", KVC_GROW_CHUNK, true, true, false},
    {"packed, paged", KVC_GROW_PAGED, false, true, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct fixture {
    const cache_kind *kind;
    size_t allocated; /* objects of the allocator before */
    test_device device;
    kvc_pool *pool;
    kvc_layer_spec specs[LAYERS];
    kvc_blocks *blocks; /* of the kind, or of the caches that are copied to */
    kvc_cache *cache, *other;
    naive_batch naive, other_naive;
    int64_t held; /* positions at first; sequence 1 has one more */
    rows k, v;    /* what the call under test appends */
    int64_t counts[BATCH];
    int32_t id; /* a block that the test holds, or KVC_BLOCK_NONE */
} fixture;

/* The second layer is plain but in blocks, whose layers are alike here: a hybrid. */
static void describe(kvc_cache_desc *desc, const fixture *f, const cache_kind *kind,
                     kvc_layer_spec specs[LAYERS]) {
    for (int i = 0; i < LAYERS; i++)
        specs[i] = (kvc_layer_spec){.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F16};
    if (kind->window) specs[0].window = 12;
    if (kind->window) specs[0].keep = 2;
    if (kind->packed) specs[0].kv_bits = 4;
    if (kind->packed) specs[0].kv_group = 32;
    *desc = (kvc_cache_desc){.struct_size = sizeof *desc,
                             .batch = BATCH,
                             .layers = LAYERS,
                             .specs = specs,
                             .spec_count = LAYERS,
                             .growth = kind->growth,
                             .chunk = 8,
                             .slack = 2};
    if (kind->growth == KVC_GROW_RESERVE) desc->max_positions = 2 * LONG;
    if (kind->growth == KVC_GROW_PAGED) desc->blocks = f->blocks;
}

static kvc_status new_cache(kvc_cache **out, const fixture *f, const cache_kind *kind) {
    kvc_layer_spec specs[LAYERS];
    kvc_cache_desc desc;
    describe(&desc, f, kind, specs);
    return kvc_cache_new(out, f->pool, &desc);
}

static void open_pool(fixture *f, const cache_kind *kind) {
    kvc_cache_desc desc;
    *f = (fixture){.kind = kind, .allocated = test_allocator_held(), .id = KVC_BLOCK_NONE};
    test_allocator_use(true);
    test_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, kind->test_device ? &f->device.table : kvc_device_cpu()));
    describe(&desc, f, kind, f->specs);
    for (int i = 0; i < LAYERS; i++) f->specs[i].window = f->specs[i].keep = 0;
    const kvc_blocks_desc blocks = {.struct_size = sizeof blocks,
                                    .layers = LAYERS,
                                    .specs = f->specs,
                                    .spec_count = LAYERS,
                                    .positions = BLOCK,
                                    .limit_bytes = (uint64_t)1 << 26,
                                    .slab_bytes = 30000};
    assert_ok(kvc_blocks_new(&f->blocks, f->pool, &blocks));
}

static void append_rows(fixture *f, int64_t layer, const int64_t *counts, int64_t n) {
    const int64_t shape[4] = {BATCH, HEADS, n, DIM};
    uint64_t random = 7;
    rows k, v;
    rows_init(&k, KVC_F32, ROWS_POSITION_MAJOR, shape, &random);
    rows_init(&v, KVC_F32, ROWS_POSITION_MAJOR, shape, &random);
    assert_ok(kvc_cache_append_ragged(f->cache, layer, &k.array, &v.array, counts));
    naive_batch_append(&f->naive, layer, &k.array, &v.array, counts);
    rows_deinit(&k);
    rows_deinit(&v);
}

/* A cache with some positions, a pool that keeps nothing, and rows of n more. */
static void open_all(fixture *f, const cache_kind *kind, int64_t held, int64_t n) {
    const int64_t counts[BATCH] = {held, held ? held + 1 : 0, held};
    const int64_t shape[4] = {BATCH, HEADS, n, DIM};
    uint64_t random = 5;
    open_pool(f, kind);
    assert_ok(new_cache(&f->cache, f, kind));
    naive_batch_init(&f->naive, f->cache);
    for (int64_t i = 0; i < LAYERS; i++) append_rows(f, i, counts, held + 1);
    rows_init(&f->k, KVC_F32, ROWS_POSITION_MAJOR, shape, &random);
    rows_init(&f->v, KVC_F32, ROWS_POSITION_MAJOR, shape, &random);
    f->counts[0] = n;
    f->counts[1] = n > 1;
    f->counts[2] = n < 5 ? n : 5;
    kvc_pool_clear(f->pool);
}

static kvc_blocks_stats blocks_stats(const fixture *f) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_stats_get(f->blocks, &stats));
    return stats;
}

static void close_all(fixture *f) {
    if (f->cache) naive_batch_deinit(&f->naive);
    if (f->other) naive_batch_deinit(&f->other_naive);
    rows_deinit(&f->k);
    rows_deinit(&f->v);
    kvc_cache_free(f->cache);
    kvc_cache_free(f->other);
    if (f->id != KVC_BLOCK_NONE) assert_ok(kvc_blocks_release(f->blocks, &f->id, 1));
    assert_ok(kvc_blocks_check(f->blocks));
    assert_int_equal(blocks_stats(f).used_blocks, 0);
    kvc_blocks_free(f->blocks);
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), f->allocated);
}

/* A call under test, and what it does to the naive cache. */
typedef struct operation {
    kvc_status (*call)(fixture *f);
    void (*naive)(fixture *f);
    void (*prepare)(fixture *f); /* before: or NULL */
    void (*not_copied)(
        fixture *f); /* to the naive cache, where the device does not copy: or NULL */
    int64_t held, n;
} operation;

static void assert_unchanged(const fixture *f, const kvc_cache_stats *before, uint64_t used,
                             kvc_status status) {
    kvc_cache_stats after = {.struct_size = sizeof after};
    assert_true(status == KVC_E_NOMEM || (status == KVC_E_UNSUPPORTED && f->kind->test_device));
    assert_string_not_equal(kvc_last_error(), "");
    assert_batch_equal(&f->naive, f->cache);
    if (f->other) assert_batch_equal(&f->other_naive, f->other);
    assert_ok(kvc_cache_stats_get(f->cache, &after));
    assert_int_equal(after.appends, before->appends);
    assert_int_equal(after.appended_bytes, before->appended_bytes);
    const kvc_blocks_stats stats = blocks_stats(f);
    const uint64_t copied = f->kind->growth == KVC_GROW_PAGED /* of shared ones, which are kept */
                                ? (after.copied_bytes - before->copied_bytes) / stats.block_bytes
                                : 0;
    assert_int_equal(stats.used_blocks, used + copied);
    assert_ok(kvc_blocks_check(f->blocks));
}

/* Fails the nth point of a call, for every n that there is. Returns how many there are. */
static size_t fail_each(const cache_kind *kind, const operation *op, test_fault_span span) {
    for (size_t nth = 1;; nth++) {
        static fixture f; /* the device is large */
        kvc_cache_stats before = {.struct_size = sizeof before};
        open_all(&f, kind, op->held, op->n);
        if (op->prepare) op->prepare(&f);
        assert_ok(kvc_cache_stats_get(f.cache, &before));
        const uint64_t used = blocks_stats(&f).used_blocks;
        test_fault_arm(nth, span);
        kvc_status status = op->call(&f);
        const bool struck = test_fault_disarm();
        assert_true(struck || status == KVC_OK);
        if (status == KVC_E_UNSUPPORTED && op->not_copied) op->not_copied(&f);
        if (status != KVC_OK) {
            assert_unchanged(&f, &before, used, status);
            status = op->call(&f);
        }
        assert_ok(status);
        op->naive(&f);
        assert_batch_equal(&f.naive, f.cache);
        if (f.other) assert_batch_equal(&f.other_naive, f.other);
        close_all(&f);
        if (!struck) return nth - 1;
    }
}

/* Both spans. Returns how many points failed for good. */
static size_t fail_all(const cache_kind *kind, const operation *op) {
    (void)fail_each(kind, op, TEST_FAULT_ONCE);
    return fail_each(kind, op, TEST_FAULT_FOREVER);
}

/* -- New -- */

static void new__of_any_kind_that_fails_leaves_nothing_behind(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++)
        for (size_t nth = 1;; nth++) {
            static fixture f;
            open_pool(&f, &kinds[i]);
            const size_t held = test_allocator_held();
            test_fault_arm(nth, nth % 2 ? TEST_FAULT_ONCE : TEST_FAULT_FOREVER);
            const kvc_status status = new_cache(&f.cache, &f, f.kind);
            const bool struck = test_fault_disarm();
            assert_int_equal(status, struck ? KVC_E_NOMEM : KVC_OK);
            if (struck) {
                assert_string_not_equal(kvc_last_error(), "");
                assert_null(f.cache);
                kvc_pool_clear(f.pool);
                assert_true(test_allocator_held() <= held + 1); /* the pool's own table */
            } else {
                /* Itself, specs, layers, lengths; rings; tables and their lengths. */
                const size_t tables = f.kind->growth == KVC_GROW_PAGED ? 2 : 0;
                assert_true(nth - 1 >= (size_t)(4 + f.kind->window) + tables);
                naive_batch_init(&f.naive, f.cache);
            }
            close_all(&f);
            if (!struck) break;
        }
}

/* -- Append -- */

static kvc_status append(fixture *f) {
    return kvc_cache_append_ragged(f->cache, 0, &f->k.array, &f->v.array, f->counts);
}

static void append_naive(fixture *f) {
    naive_batch_append(&f->naive, 0, &f->k.array, &f->v.array, f->counts);
}

static void append__of_any_kind_that_fails_changes_nothing(void **state) {
    (void)state;
    const operation prompt = {append, append_naive, NULL, NULL, 0, LONG};
    const operation step = {append, append_naive, NULL, NULL, 16, 1};
    const operation more = {append, append_naive, NULL, NULL, 30, 50};
    for (int i = 0; i < KINDS; i++) {
        const bool commits = kinds[i].growth == KVC_GROW_RESERVE;
        assert_true(fail_all(&kinds[i], &prompt) > 0 || (commits && !kinds[i].test_device));
        (void)fail_all(&kinds[i], &step);
        assert_true(fail_all(&kinds[i], &more) > 0 || (commits && !kinds[i].test_device));
    }
}

/* Sequence 2 becomes a fork of 0, and both then write to the block that they share. */
static void share(fixture *f) {
    assert_ok(kvc_cache_fork(f->cache, 2, 0));
    naive_batch_reorder(&f->naive, (const int64_t[BATCH]){0, 1, 0});
    kvc_pool_clear(f->pool);
}

static void append__to_a_shared_block_that_fails_changes_neither_side(void **state) {
    (void)state;
    const operation op = {append, append_naive, share, NULL, 20, 1};
    for (int i = 0; i < KINDS; i++) {
        const size_t points = fail_all(&kinds[i], &op);
        if (kinds[i].growth == KVC_GROW_PAGED && kinds[i].test_device)
            assert_true(points >= 4); /* its copy, and those of rows */
    }
}

/* -- Fork, reorder -- */

static kvc_status fork_last(fixture *f) {
    return kvc_cache_fork(f->cache, 2, 1);
}

static void fork_naive(fixture *f) {
    naive_batch_reorder(&f->naive, (const int64_t[BATCH]){0, 1, 1});
}

static void clear_last(fixture *f) {
    naive_batch_clear(&f->naive, 2);
}

/* The same call again then forks what is there. */
static void fork__fails_only_where_the_device_cannot_copy(void **state) {
    (void)state;
    const operation op = {fork_last, fork_naive, NULL, clear_last, 20, 0};
    for (int i = 0; i < KINDS; i++) {
        const bool copies = kinds[i].test_device && kinds[i].growth != KVC_GROW_PAGED;
        assert_int_equal(fail_all(&kinds[i], &op), copies ? 2 * LAYERS : 0);
    }
}

/* 0 and 1 change places: a circle. 2 becomes what 1 was. */
static const int64_t circle[BATCH] = {1, 0, 1};

static kvc_status reorder(fixture *f) {
    return kvc_cache_reorder(f->cache, circle);
}

static void reorder_naive(fixture *f) {
    naive_batch_reorder(&f->naive, circle);
}

static void clear_all(fixture *f) {
    for (int64_t b = 0; b < BATCH; b++) naive_batch_clear(&f->naive, b);
}

static void reorder__in_a_circle_that_fails_changes_nothing(void **state) {
    (void)state;
    const operation op = {reorder, reorder_naive, NULL, clear_all, 20, 0};
    const operation of_nothing = {reorder, reorder_naive, NULL, clear_all, 0, 0};
    for (int i = 0; i < KINDS; i++) {
        /* The moves; a place aside, or tables. */
        assert_true(fail_all(&kinds[i], &op) >= 2);
        assert_true(fail_all(&kinds[i], &of_nothing) >= 1);
    }
}

/* -- Adopt -- */

enum { ADOPTED = 40 }; /* more than tables have room for at first */

/* The first block of sequence 0, which is whole; sequence 2 leaves. */
static void hold_block(fixture *f) {
    const int32_t *ids;
    int64_t count;
    assert_ok(kvc_cache_block_table(f->cache, 0, &ids, &count));
    f->id = ids[0];
    assert_ok(kvc_blocks_retain(f->blocks, &f->id, 1));
    assert_ok(kvc_cache_clear_sequence(f->cache, 2));
    naive_batch_clear(&f->naive, 2);
}

static kvc_status adopt(fixture *f) {
    int32_t ids[ADOPTED];
    for (int i = 0; i < ADOPTED; i++) ids[i] = f->id;
    const int64_t references = kvc_blocks_references(f->blocks, f->id);
    const kvc_status status = kvc_cache_adopt(f->cache, 2, ids, ADOPTED);
    assert_int_equal(kvc_blocks_references(f->blocks, f->id),
                     references + (status == KVC_OK ? ADOPTED : 0));
    return status;
}

static void adopt_naive(fixture *f) {
    for (int64_t i = 0; i < LAYERS; i++)
        for (int n = 0; n < ADOPTED; n++)
            naive_list_append(naive_batch_list(&f->naive, i, 2),
                              naive_batch_list(&f->naive, i, 0)->bytes, BLOCK);
}

static void adopt__that_fails_takes_no_reference(void **state) {
    (void)state;
    const operation op = {adopt, adopt_naive, hold_block, NULL, 20, 0};
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].growth == KVC_GROW_PAGED) assert_int_equal(fail_all(&kinds[i], &op), 1);
}

/* -- Copy -- */

static const cache_kind *copied_to;

static void open_other(fixture *f) {
    assert_ok(new_cache(&f->other, f, copied_to));
    naive_batch_init(&f->other_naive, f->other);
}

static kvc_status copy(fixture *f) {
    return kvc_cache_copy(f->other, f->cache);
}

static void copy_naive(fixture *f) {
    naive_batch_copy(&f->other_naive, &f->naive);
}

/* On the same device, and in blocks where the blocks are of its kind. */
static bool can_copy(const cache_kind *from, const cache_kind *to) {
    return from->test_device == to->test_device && !(from->window && !to->window) &&
           (to->growth != KVC_GROW_PAGED || to->packed == from->packed);
}

static void copy__to_any_kind_that_fails_leaves_it_empty(void **state) {
    (void)state;
    const operation op = {copy, copy_naive, open_other, NULL, 18, 0};
    for (int from = 0; from < KINDS; from++)
        for (int to = 0; to < KINDS; to++) {
            copied_to = &kinds[to];
            if (can_copy(&kinds[from], copied_to))
                assert_true(fail_all(&kinds[from], &op) >= 1); /* counts, and what it takes */
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new__of_any_kind_that_fails_leaves_nothing_behind),
        cmocka_unit_test(append__of_any_kind_that_fails_changes_nothing),
        cmocka_unit_test(append__to_a_shared_block_that_fails_changes_neither_side),
        cmocka_unit_test(fork__fails_only_where_the_device_cannot_copy),
        cmocka_unit_test(reorder__in_a_circle_that_fails_changes_nothing),
        cmocka_unit_test(adopt__that_fails_takes_no_reference),
        cmocka_unit_test(copy__to_any_kind_that_fails_leaves_it_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
