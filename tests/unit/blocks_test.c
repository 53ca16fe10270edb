/* The pool of blocks. Numbers of pitfalls are those that others ran into; each has a test here by
 * what is right. */
#include <pthread.h>
#include <string.h>

#include <kvcache/blocks.h>

#include "cache/blocks.h"
#include "support/pool_fixture.h"

enum { POSITIONS = 17, LAYERS = 3 };

/* A model of layers that differ, with rows whose bytes are no multiple of anything. */
static const kvc_layer_spec hybrid[LAYERS] = {
    {.kv_heads = 2, .key_dim = 5, .value_dim = 3, .dtype = KVC_F32},
    {.kv_heads = 1, .key_dim = 7, .dtype = KVC_BF16},
    {.kv_heads = 3, .key_dim = 1, .value_dim = 9, .dtype = KVC_F16},
};

/* 2 x 17 x 8 x 4, rounded up side by side; and so on. */
enum { HYBRID_BYTES = 704 + 448 + 256 + 256 + 128 + 960 };

static kvc_blocks_desc hybrid_desc(void) {
    return (kvc_blocks_desc){.struct_size = sizeof(kvc_blocks_desc),
                             .layers = LAYERS,
                             .specs = hybrid,
                             .spec_count = LAYERS,
                             .positions = POSITIONS,
                             .limit_bytes = 1 << 20,
                             .slab_bytes = (uint64_t)5 * HYBRID_BYTES};
}

/* Blocks of which `most` fit under the limit, four to a slab. */
static kvc_blocks *new_blocks(kvc_pool *pool, uint64_t most) {
    kvc_blocks *blocks;
    kvc_blocks_desc desc = hybrid_desc();
    desc.limit_bytes = most * HYBRID_BYTES + 1;
    assert_ok(kvc_blocks_new(&blocks, pool, &desc));
    return blocks;
}

static kvc_blocks_stats stats_of(kvc_blocks *blocks) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_stats_get(blocks, &stats));
    return stats;
}

static void assert_counts(kvc_blocks *blocks, uint64_t used, uint64_t spare) {
    const kvc_blocks_stats stats = stats_of(blocks);
    assert_ok(kvc_blocks_check(blocks));
    assert_int_equal(stats.used_blocks, used);
    assert_int_equal(stats.free_blocks, spare);
}

static void blocks__say_what_their_description_came_to(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    kvc_blocks_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_blocks_desc_get(blocks, &desc));
    assert_int_equal(desc.spec_count, LAYERS);
    assert_int_equal(desc.specs[1].value_dim, 7);
    const kvc_blocks_stats stats = stats_of(blocks);
    assert_int_equal(stats.block_bytes, HYBRID_BYTES);
    assert_int_equal(stats.most_blocks, 10);
    assert_int_equal(stats.resident_bytes, 0);
    kvc_blocks_free(blocks);

    desc = (kvc_blocks_desc){.struct_size = sizeof desc,
                             .layers = 4,
                             .specs = hybrid,
                             .spec_count = 1,
                             .limit_bytes = 1 << 20};
    assert_ok(kvc_blocks_new(&blocks, f->pool, &desc));
    assert_ok(kvc_blocks_desc_get(blocks, &desc));
    assert_int_equal(desc.positions, KVC_BLOCK_POSITIONS_DEFAULT);
    assert_int_equal(desc.spec_count, 4);
    assert_int_equal(stats_of(blocks).block_bytes, 4 * 2 * 64 * (5 + 3) * 4);
    kvc_blocks_free(blocks);
    kvc_blocks_free(NULL);
}

static void assert_refused(kvc_pool *pool, kvc_blocks_desc desc, kvc_status status,
                           const char *text) {
    kvc_blocks *blocks = (kvc_blocks *)pool;
    assert_fails(kvc_blocks_new(&blocks, pool, &desc), status);
    assert_null(blocks);
    if (!strstr(kvc_last_error(), text)) fail_msg("'%s' lacks '%s'", kvc_last_error(), text);
}

static void blocks__refuse_a_bad_description(void **state) {
    pool_fixture *f = *state;
    kvc_layer_spec bad[LAYERS];
    kvc_blocks *blocks;
    kvc_blocks_desc d;
#define REFUSE(status, text, ...)                                                                  \
    d = hybrid_desc();                                                                             \
    memcpy(bad, hybrid, sizeof bad);                                                               \
    __VA_ARGS__;                                                                                   \
    assert_refused(f->pool, d, status, text)
    REFUSE(KVC_E_INVALID, "struct_size", d.struct_size = 0);
    REFUSE(KVC_E_INVALID, "layers: 0", d.layers = 0);
    REFUSE(KVC_E_INVALID, "specs: 2 given, 1 or one for each of 3", d.spec_count = 2);
    REFUSE(KVC_E_INVALID, "specs: 0 given", d.specs = NULL);
    REFUSE(KVC_E_INVALID, "positions: 15 given, 16 to 256", d.positions = 15);
    REFUSE(KVC_E_INVALID, "positions: 257 given", d.positions = 257);
    REFUSE(KVC_E_INVALID, "limit_bytes: 2751 given, a block alone has 2752", d.limit_bytes = 2751);
    REFUSE(KVC_E_INVALID, "specs[1].kv_heads: 0", d.specs = bad; bad[1].kv_heads = 0);
    REFUSE(KVC_E_INVALID, "specs[2].value_dim: -9", d.specs = bad; bad[2].value_dim = -9);
    REFUSE(KVC_E_INVALID, "specs[0].dtype: i8", d.specs = bad; bad[0].dtype = KVC_I8);
    assert_fails(kvc_blocks_new(NULL, f->pool, &d), KVC_E_INVALID);
    assert_fails(kvc_blocks_new(&blocks, NULL, &d), KVC_E_INVALID);
    /* A device that does not say what it has wants a limit. */
    f->device.table.memory_bytes = 0;
    REFUSE(KVC_E_INVALID, "limit_bytes: 0 given", d.limit_bytes = 0);
}

/* Pitfall 4: sizes that wrap around in 32 bits, or in 64. */
static void blocks__whose_sizes_overflow_are_refused_with_the_sizes(void **state) {
    pool_fixture *f = *state;
    kvc_layer_spec bad[LAYERS];
    kvc_blocks_desc d;
    REFUSE(KVC_E_RANGE, "kv_heads 4611686018427387904", d.specs = bad;
           bad[0].kv_heads = (int64_t)1 << 62);
    REFUSE(KVC_E_RANGE, "layer 2", d.specs = bad; bad[2].value_dim = INT64_MAX / 60);
    REFUSE(KVC_E_INVALID, "a block alone has 584115693760", d.specs = bad; bad[1].kv_heads = 4096;
           bad[1].key_dim = 4096 * 1024; bad[1].value_dim = 1);
#undef REFUSE
}

/* A value that no other element of any block has in a low byte or two. */
static unsigned char mark_of(int32_t id, int64_t layer, int side, int64_t element, size_t byte) {
    uint64_t x = (uint64_t)id * 1000003 + (uint64_t)layer * 7919 + (uint64_t)side * 131 +
                 (uint64_t)element * 31 + byte;
    return (unsigned char)(test_random(&x) >> 17);
}

static void mark(const kvc_array *a, int32_t id, int64_t layer, int side) {
    const size_t element_bytes = kvc_dtype_size_bytes(a->dtype);
    unsigned char *data = a->data;
    for (size_t i = 0; i < kvc_array_nbytes(a); i++)
        data[i] = mark_of(id, layer, side, (int64_t)(i / element_bytes), i % element_bytes);
}

static void mark_block(kvc_blocks *blocks, int32_t id, int32_t as) {
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        kvc_array k, v;
        assert_ok(kvc_blocks_view(blocks, id, layer, &k, &v));
        mark(&k, as, layer, 0);
        mark(&v, as, layer, 1);
        kvc_array_release(&k);
        kvc_array_release(&v);
    }
}

/* Reads a side as a kernel would, by the address arithmetic of the header. */
static void expect_rows(const char *side, size_t head_bytes, size_t row_bytes, int64_t heads,
                        size_t element_bytes, int32_t as, int64_t layer, int which) {
    int64_t element = 0;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t r = 0; r < POSITIONS; r++) {
            const unsigned char *row =
                (const unsigned char *)side + (size_t)h * head_bytes + (size_t)r * row_bytes;
            for (size_t i = 0; i < row_bytes; i++)
                assert_int_equal(row[i],
                                 mark_of(as, layer, which, element + (int64_t)(i / element_bytes),
                                         i % element_bytes));
            element += (int64_t)(row_bytes / element_bytes);
        }
}

static void expect_block(kvc_blocks *blocks, int32_t id, int32_t as) {
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        kvc_blocks_layout l = {.struct_size = sizeof l};
        assert_ok(kvc_blocks_layout_get(blocks, layer, &l));
        const char *block = (const char *)l.slabs[id >> l.slab_shift] +
                            (size_t)(id & ((1 << l.slab_shift) - 1)) * l.block_bytes;
        const size_t element_bytes = kvc_dtype_size_bytes(hybrid[layer].dtype);
        assert_int_equal(((uintptr_t)block + l.k_offset_bytes) % KVC_ALIGNMENT_BYTES, 0);
        assert_int_equal(((uintptr_t)block + l.v_offset_bytes) % KVC_ALIGNMENT_BYTES, 0);
        expect_rows(block + l.k_offset_bytes, l.k_head_bytes, l.k_row_bytes, hybrid[layer].kv_heads,
                    element_bytes, as, layer, 0);
        expect_rows(block + l.v_offset_bytes, l.v_head_bytes, l.v_row_bytes, hybrid[layer].kv_heads,
                    element_bytes, as, layer, 1);
    }
}

static void layout__reaches_every_row_of_every_block(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[10];
    kvc_blocks_layout before = {.struct_size = sizeof before}, after = before;
    assert_ok(kvc_blocks_layout_get(blocks, 0, &before));
    assert_int_equal(before.slab_shift, 2);
    assert_ok(kvc_blocks_take(blocks, 3, ids));
    assert_ok(kvc_blocks_take(blocks, 7, ids + 3)); /* the third slab is short */
    assert_ok(kvc_blocks_layout_get(blocks, 0, &after));
    assert_ptr_equal(after.slabs, before.slabs);
    for (int i = 0; i < 10; i++) mark_block(blocks, ids[i], ids[i]);
    for (int i = 0; i < 10; i++) expect_block(blocks, ids[i], ids[i]);
    assert_int_equal(stats_of(blocks).resident_bytes, 10 * HYBRID_BYTES);
    assert_int_equal(f->device.held_bytes, 10 * HYBRID_BYTES);
    assert_ok(kvc_blocks_release(blocks, ids, 10));
    kvc_blocks_free(blocks);
}

static void layout__is_refused_for_what_is_not_there(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    kvc_blocks_layout l = {.struct_size = sizeof l};
    kvc_array k = {.ndim = 1}, v = {.ndim = 1};
    int32_t id;
    assert_fails(kvc_blocks_layout_get(blocks, LAYERS, &l), KVC_E_INVALID);
    assert_fails(kvc_blocks_layout_get(NULL, 0, &l), KVC_E_INVALID);
    assert_fails(kvc_blocks_view(blocks, 0, 0, &k, &v), KVC_E_INVALID);
    assert_int_equal(k.ndim + v.ndim, 0);
    assert_ok(kvc_blocks_take(blocks, 1, &id));
    assert_fails(kvc_blocks_view(blocks, id, -1, &k, &v), KVC_E_INVALID);
    assert_fails(kvc_blocks_view(blocks, id + 1, 0, &k, &v), KVC_E_INVALID);
    assert_fails(kvc_blocks_view(blocks, id, 0, NULL, &v), KVC_E_INVALID);
    kvc_blocks_free(blocks);
}

static void take__gives_all_or_none(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[11], more[4] = {9, 9, 9, 9};
    assert_fails(kvc_blocks_take(blocks, 11, ids), KVC_E_LIMIT);
    assert_counts(blocks, 0, 0);
    assert_ok(kvc_blocks_take(blocks, 7, ids));
    assert_fails(kvc_blocks_take(blocks, 4, more), KVC_E_LIMIT);
    for (int i = 0; i < 4; i++) assert_int_equal(more[i], KVC_BLOCK_NONE);
    assert_counts(blocks, 7, 1);
    assert_ok(kvc_blocks_take(blocks, 3, more)); /* the limit is exact, the last slab short */
    assert_counts(blocks, 10, 0);
    assert_fails(kvc_blocks_take(blocks, 1, more + 3), KVC_E_LIMIT);
    assert_ok(kvc_blocks_take(blocks, 0, NULL));
    assert_fails(kvc_blocks_take(blocks, -1, ids), KVC_E_INVALID);
    assert_fails(kvc_blocks_take(blocks, 1, NULL), KVC_E_INVALID);
    assert_fails(kvc_blocks_take(NULL, 1, ids), KVC_E_INVALID);
    assert_int_equal(stats_of(blocks).peak_blocks, 10);
    kvc_blocks_free(blocks);
}

static void take__past_the_buffer_pools_limit_takes_none(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 12);
    int32_t ids[12];
    (void)kvc_pool_memory_limit_set(f->pool, 9 * HYBRID_BYTES);
    assert_fails(kvc_blocks_take(blocks, 12, ids), KVC_E_LIMIT);
    assert_counts(blocks, 0, 4); /* one slab is kept */
    assert_ok(kvc_blocks_take(blocks, 8, ids));
    assert_fails(kvc_blocks_take(blocks, 1, ids + 8), KVC_E_LIMIT);
    assert_counts(blocks, 8, 0);
    (void)kvc_pool_memory_limit_set(f->pool, SIZE_MAX);
    assert_ok(kvc_blocks_take(blocks, 4, ids + 8));
    kvc_blocks_free(blocks);
}

static void references__are_counted(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[3];
    assert_ok(kvc_blocks_take(blocks, 2, ids));
    ids[2] = ids[0];
    assert_ok(kvc_blocks_retain(blocks, ids, 3));
    assert_int_equal(kvc_blocks_references(blocks, ids[0]), 3);
    assert_int_equal(kvc_blocks_references(blocks, ids[1]), 2);
    assert_ok(kvc_blocks_release(blocks, ids, 3));
    assert_int_equal(kvc_blocks_references(blocks, ids[0]), 1);
    assert_ok(kvc_blocks_release(blocks, ids, 2));
    assert_int_equal(kvc_blocks_references(blocks, ids[0]), 0);
    assert_int_equal(kvc_blocks_references(blocks, -1), 0);
    assert_int_equal(kvc_blocks_references(blocks, INT32_MAX), 0);
    assert_int_equal(kvc_blocks_references(NULL, 0), 0);
    assert_counts(blocks, 0, 4);
    kvc_blocks_free(blocks);
}

/* Pitfall 10: the whole table is validated before the first count changes. */
static void release__of_a_table_with_a_wrong_id_changes_nothing(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[4];
    const int32_t wrong[] = {-1, 10, INT32_MIN, INT32_MAX, 3};
    assert_ok(kvc_blocks_take(blocks, 3, ids));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ids[3] = wrong[i];
        assert_fails(kvc_blocks_release(blocks, ids, 4), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "ids[3]"));
        assert_fails(kvc_blocks_retain(blocks, ids, 4), KVC_E_INVALID);
        for (int j = 0; j < 3; j++) assert_int_equal(kvc_blocks_references(blocks, ids[j]), 1);
    }
    ids[3] = ids[1]; /* more often than it is held */
    assert_fails(kvc_blocks_release(blocks, ids, 4), KVC_E_INVALID);
    assert_counts(blocks, 3, 1);
    assert_fails(kvc_blocks_release(blocks, NULL, 1), KVC_E_INVALID);
    assert_fails(kvc_blocks_release(NULL, ids, 1), KVC_E_INVALID);
    assert_ok(kvc_blocks_release(blocks, ids, 3));
    assert_fails(kvc_blocks_release(blocks, ids, 1), KVC_E_INVALID); /* twice */
    kvc_blocks_free(blocks);
}

/* Pitfall 6: any free block serves, wherever it lies. */
static void blocks__released_here_and_there_serve_without_new_memory(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 16);
    int32_t ids[16];
    assert_ok(kvc_blocks_take(blocks, 16, ids));
    const size_t allocations = f->device.calls[TEST_ALLOCATE];
    for (int i = 0; i < 16; i += 2) assert_ok(kvc_blocks_release(blocks, &ids[i], 1));
    assert_counts(blocks, 8, 8);
    int32_t again[8];
    assert_ok(kvc_blocks_take(blocks, 8, again));
    assert_int_equal(f->device.calls[TEST_ALLOCATE], allocations);
    assert_counts(blocks, 16, 0);
    kvc_blocks_free(blocks);
}

static void slabs__that_are_empty_go_back_but_one(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 16);
    int32_t ids[16];
    assert_ok(kvc_blocks_take(blocks, 16, ids));
    assert_ok(kvc_blocks_release(blocks, ids + 4, 12));
    assert_counts(blocks, 4, 4);
    assert_int_equal(pool_stats(f->pool).active_bytes, 8 * HYBRID_BYTES);
    const uint64_t misses = pool_stats(f->pool).misses;
    for (int i = 0; i < 50; i++) { /* at a slab's edge nothing comes and goes */
        assert_ok(kvc_blocks_take(blocks, 4, ids + 4));
        assert_ok(kvc_blocks_release(blocks, ids + 4, 4));
    }
    assert_int_equal(pool_stats(f->pool).hits, 0);
    assert_ok(kvc_blocks_take(blocks, 12, ids + 4)); /* what went back comes from the pool */
    assert_int_equal(pool_stats(f->pool).misses, misses);
    assert_int_equal(pool_stats(f->pool).hits, 2);
    assert_counts(blocks, 16, 0);
    kvc_blocks_free(blocks);
}

/* Pitfall 5: who shares a block copies it, and then neither sees what the other writes. */
static void copy__parts_two_sequences_that_shared_a_block(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[2];
    assert_ok(kvc_blocks_take(blocks, 2, ids));
    mark_block(blocks, ids[0], 100);
    assert_ok(kvc_blocks_retain(blocks, ids, 1)); /* a fork */
    const size_t copies = f->device.calls[TEST_COPY];
    assert_ok(kvc_blocks_copy(blocks, ids[1], ids[0]));
    assert_int_equal(f->device.calls[TEST_COPY], copies + 1);
    expect_block(blocks, ids[1], 100);
    mark_block(blocks, ids[1], 101);
    expect_block(blocks, ids[0], 100);
    assert_ok(kvc_blocks_release(blocks, ids, 1));
    mark_block(blocks, ids[0], 102);
    expect_block(blocks, ids[1], 101);
    kvc_blocks_free(blocks);
}

static void copy__to_a_shared_block_is_refused(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[2];
    assert_ok(kvc_blocks_take(blocks, 2, ids));
    assert_ok(kvc_blocks_retain(blocks, ids, 1));
    assert_fails(kvc_blocks_copy(blocks, ids[0], ids[1]), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "with 2 references"));
    assert_fails(kvc_blocks_copy(blocks, ids[1], ids[1]), KVC_E_INVALID);
    assert_fails(kvc_blocks_copy(blocks, ids[1], ids[1] + 1), KVC_E_INVALID);
    assert_fails(kvc_blocks_copy(blocks, -1, ids[0]), KVC_E_INVALID);
    test_device_fail(&f->device, TEST_COPY, 1, 1);
    assert_int_equal(kvc_blocks_copy(blocks, ids[1], ids[0]), KVC_E_UNSUPPORTED);
    kvc_blocks_free(blocks);
}

static void view__outlives_the_pool_of_blocks(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    kvc_array k, v;
    int32_t id;
    assert_ok(kvc_blocks_take(blocks, 1, &id));
    assert_ok(kvc_blocks_view(blocks, id, 2, &k, &v));
    assert_true(kvc_array_is_contiguous(&k) && k.ndim == 3);
    assert_memory_equal(v.shape, ((int64_t[]){3, POSITIONS, 9}), 3 * sizeof *v.shape);
    kvc_blocks_free(blocks);
    memset(v.data, 1, kvc_array_nbytes(&v));
    kvc_array_release(&k);
    kvc_array_release(&v);
}

/* Pitfall 16: a count that is wrong is found, not carried on. */
static void check__finds_what_is_corrupt(void **state) {
    pool_fixture *f = *state;
    kvc_blocks *blocks = new_blocks(f->pool, 10);
    int32_t ids[6];
    assert_ok(kvc_blocks_take(blocks, 6, ids));
    kvc__slab *slab = blocks->slabs[1];
#define CORRUPT(what, as)                                                                          \
    do {                                                                                           \
        __typeof__(what) was = what;                                                               \
        (what) = (as);                                                                             \
        assert_fails(kvc_blocks_check(blocks), KVC_E_CORRUPT);                                     \
        (what) = was;                                                                              \
        assert_ok(kvc_blocks_check(blocks));                                                       \
    } while (0)
    CORRUPT(slab->used, 3);
    CORRUPT(slab->first_free, 0);
    CORRUPT(slab->first_free, 3);
    CORRUPT(slab->blocks[0].references, 0);
    CORRUPT(slab->list, &blocks->empty);
    CORRUPT(blocks->bases[0], NULL);
    CORRUPT(blocks->used_blocks, 5);
    CORRUPT(blocks->free_blocks, 1);
    CORRUPT(blocks->empties, 1);
    CORRUPT(blocks->resident_bytes, 0);
    assert_fails(kvc_blocks_check(NULL), KVC_E_INVALID);
    kvc_blocks_free(blocks);
}

enum { THREADS = 4, ROUNDS = 3000, HELD = 3 };

typedef struct crowd {
    kvc_blocks *blocks;
    atomic_int next, wrong, refused;
} crowd;

/* The bytes of a layer's keys by the kernel's arithmetic, without a lock. */
static unsigned char *keys_of(const kvc_blocks_layout *l, int32_t id) {
    return (unsigned char *)l->slabs[id >> l->slab_shift] +
           (size_t)(id & ((1 << l->slab_shift) - 1)) * l->block_bytes + l->k_offset_bytes;
}

static void *take_mark_and_release(void *context) {
    crowd *c = context;
    const int me = atomic_fetch_add(&c->next, 1);
    uint64_t random = (uint64_t)me + 77;
    kvc_blocks_layout l = {.struct_size = sizeof l};
    if (kvc_blocks_layout_get(c->blocks, 0, &l) != KVC_OK) (void)atomic_fetch_add(&c->wrong, 1);
    for (int round = 0; round < ROUNDS; round++) {
        int32_t ids[HELD];
        const int64_t n = 1 + (int64_t)(test_random(&random) % HELD);
        const kvc_status status = kvc_blocks_take(c->blocks, n, ids);
        if (status != KVC_OK) {
            (void)atomic_fetch_add(status == KVC_E_LIMIT ? &c->refused : &c->wrong, 1);
            continue;
        }
        for (int64_t i = 0; i < n; i++) memset(keys_of(&l, ids[i]), me, l.k_head_bytes);
        if (kvc_blocks_retain(c->blocks, ids, n) != KVC_OK) (void)atomic_fetch_add(&c->wrong, 1);
        if (kvc_blocks_release(c->blocks, ids, n) != KVC_OK) (void)atomic_fetch_add(&c->wrong, 1);
        for (int64_t i = 0; i < n; i++)
            for (size_t b = 0; b < l.k_head_bytes; b++)
                if (keys_of(&l, ids[i])[b] != me) (void)atomic_fetch_add(&c->wrong, 1);
        if (kvc_blocks_release(c->blocks, ids, n) != KVC_OK) (void)atomic_fetch_add(&c->wrong, 1);
    }
    return NULL;
}

/* No block serves two, and with room for all that four can hold nobody is refused, although the
 * last slab may be on its way to another. */
static void threads__take_mark_and_release_blocks(void **state) {
    pool_fixture *f = *state;
    crowd c = {.blocks = new_blocks(f->pool, THREADS * HELD)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_mark_and_release, &c), 0);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(c.wrong, 0);
    assert_int_equal(c.refused, 0);
    assert_int_equal(stats_of(c.blocks).used_blocks, 0);
    assert_ok(kvc_blocks_check(c.blocks));
    kvc_blocks_free(c.blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(blocks__say_what_their_description_came_to),
        pool_test(blocks__refuse_a_bad_description),
        pool_test(blocks__whose_sizes_overflow_are_refused_with_the_sizes),
        pool_test(layout__reaches_every_row_of_every_block),
        pool_test(layout__is_refused_for_what_is_not_there),
        pool_test(take__gives_all_or_none),
        pool_test(take__past_the_buffer_pools_limit_takes_none),
        pool_test(references__are_counted),
        pool_test(release__of_a_table_with_a_wrong_id_changes_nothing),
        pool_test(blocks__released_here_and_there_serve_without_new_memory),
        pool_test(slabs__that_are_empty_go_back_but_one),
        pool_test(copy__parts_two_sequences_that_shared_a_block),
        pool_test(copy__to_a_shared_block_is_refused),
        pool_test(view__outlives_the_pool_of_blocks),
        pool_test(check__finds_what_is_corrupt),
        pool_test(threads__take_mark_and_release_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
