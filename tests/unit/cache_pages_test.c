/* RESERVE's commits: enough before every write, never much more than that, and evenly spread. The
 * device's memory traps where it is not committed, so each append also proves that it may write. */
#include <kvcache/cache.h>

#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

typedef struct fixture {
    test_device device;
    kvc_pool *pool;
    kvc_cache *cache;
    naive_cache naive;
    kvc_cache_desc desc;
    kvc_layer_spec spec;
    size_t unit_bytes;
} fixture;

static void open_all(fixture *f) {
    test_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, &f->device.table));
    f->unit_bytes = kvc_buffer_commit_unit_bytes(f->pool);
    f->desc.struct_size = sizeof f->desc;
    f->desc.specs = &f->spec;
    f->desc.spec_count = 1;
    assert_ok(kvc_cache_new(&f->cache, f->pool, &f->desc));
    naive_cache_init(&f->naive, f->cache);
}

static void close_all(fixture *f) {
    assert_cache_equal(&f->naive, f->cache);
    naive_cache_deinit(&f->naive);
    kvc_cache_free(f->cache);
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
}

static uint64_t resident(const fixture *f) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_nbytes_get(f->cache, &nbytes));
    return nbytes.resident;
}

/* One side's numbers, as grow.c has them. */
typedef struct side {
    size_t ranges, row_bytes;
    bool aligned; /* ranges start where units do */
} side;

static side side_of(const fixture *f, int64_t dim) {
    const size_t row_bytes = (size_t)dim * kvc_dtype_size_bytes(f->spec.dtype);
    const size_t range_bytes = (size_t)kvc_cache_capacity(f->cache, 0) * row_bytes;
    return (side){(size_t)(f->desc.batch * f->spec.kv_heads), row_bytes,
                  range_bytes % f->unit_bytes == 0};
}

/* Most units that are resident for a length: floor(x + phase) + ranges are asked for, each range's
 * in a row; where a range starts within a unit, its row covers one more. */
static size_t most_units(const fixture *f, const side *s, int64_t length) {
    const size_t x = s->ranges * (size_t)length * s->row_bytes / f->unit_bytes;
    return x + 1 + s->ranges + (s->aligned ? 0 : s->ranges);
}

/* Most units that one more position asks for, after the first position. */
static size_t most_units_a_step(const fixture *f, const side *s) {
    return s->ranges * s->row_bytes / f->unit_bytes + 1;
}

static int64_t between(uint64_t *random, int64_t low, int64_t high) {
    return low + (int64_t)(test_random(random) % (uint64_t)(high - low + 1));
}

/* Rows of a few bytes and rows of several units; ranges below a unit and of many. */
static void random_geometry(fixture *f, uint64_t *random) {
    const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};
    const int64_t widest = between(random, 0, 4) == 0 ? 6000 : 200;
    *f = (fixture){0};
    f->spec = (kvc_layer_spec){.kv_heads = between(random, 1, 5),
                               .key_dim = between(random, 1, widest),
                               .value_dim = between(random, 1, widest),
                               .dtype = dtypes[between(random, 0, 2)]};
    f->desc.batch = between(random, 1, 3);
    f->desc.layers = 1;
    f->desc.chunk = between(random, 1, 70);
    f->desc.max_positions = between(random, 1, widest > 200 ? 12 : 200);
}

static void append_and_check(fixture *f, int64_t n, uint64_t *random) {
    const side k = side_of(f, f->spec.key_dim), v = side_of(f, f->spec.value_dim);
    const uint64_t before = resident(f);
    const bool first = kvc_cache_length(f->cache, 0) == 0;
    append_both(f->cache, &f->naive, 0, n, random);
    assert_ok(kvc_cache_check(f->cache)); /* every live byte is committed */
    const int64_t length = kvc_cache_length(f->cache, 0);
    const uint64_t after = resident(f);
    assert_true(after <= (most_units(f, &k, length) + most_units(f, &v, length)) * f->unit_bytes);
    if (n == 1 && !first)
        assert_true(after - before <=
                    (most_units_a_step(f, &k) + most_units_a_step(f, &v)) * f->unit_bytes);
}

static void reserve__commits_what_is_live_and_little_more_for_any_geometry(void **state) {
    (void)state;
    uint64_t random = test_seed(8);
    for (int i = 0; i < 30; i++) {
        fixture f;
        random_geometry(&f, &random);
        open_all(&f);
        const int64_t longest = between(&random, 0, 1) ? 1 : 1 + f.desc.max_positions / 4;
        while (kvc_cache_length(f.cache, 0) < f.desc.max_positions) {
            const int64_t left = f.desc.max_positions - kvc_cache_length(f.cache, 0);
            const int64_t n = between(&random, 1, longest);
            append_and_check(&f, n < left ? n : left, &random);
        }
        assert_int_equal(resident(&f), f.device.committed_bytes);
        close_all(&f);
    }
}

/* A cache that shrank and one that took over another's memory have more than they need already. */
static void reserve__commits_nothing_twice(void **state) {
    (void)state;
    uint64_t random = test_seed(9);
    for (int i = 0; i < 8; i++) {
        fixture f;
        random_geometry(&f, &random);
        open_all(&f);
        const int64_t max = f.desc.max_positions;
        append_both(f.cache, &f.naive, 0, max, &random);
        const uint64_t committed = f.device.committed_bytes;
        assert_ok(kvc_cache_trim(f.cache, max / 2));
        naive_cache_trim(&f.naive, max / 2);
        append_both(f.cache, &f.naive, 0, max / 2, &random);
        kvc_cache_clear(f.cache);
        naive_cache_clear(&f.naive);
        for (int64_t p = 0; p < max; p++) append_both(f.cache, &f.naive, 0, 1, &random);
        assert_cache_equal(&f.naive, f.cache);

        naive_cache_deinit(&f.naive);
        kvc_cache_free(f.cache);
        assert_ok(kvc_cache_new(&f.cache, f.pool, &f.desc));
        naive_cache_init(&f.naive, f.cache);
        for (int64_t p = 0; p < max; p++) append_both(f.cache, &f.naive, 0, 1, &random);
        assert_int_equal(f.device.committed_bytes, committed);
        close_all(&f);
    }
}

/* The seed's table: 20 caches [1,4,N,512] in bf16, all appending a position at each step. A step
 * fills 160 KiB; the commits of the 40 sides are so spread that each step commits just that. */
static void reserve__layers_in_lockstep_commit_the_same_at_every_step(void **state) {
    (void)state;
    enum { LAYERS = 20, HEADS = 4, DIM = 512, STEPS = 64 };
    static const float zeros[HEADS * DIM];
    const size_t step_bytes = (size_t)LAYERS * 2 * HEADS * DIM * 2;
    kvc_array row;
    fixture f = {.spec = {.kv_heads = HEADS, .key_dim = DIM, .value_dim = DIM, .dtype = KVC_BF16},
                 .desc = {.layers = LAYERS, .max_positions = 4096}};
    assert_ok(
        kvc_array_borrow(&row, KVC_F32, 4, (const int64_t[4]){1, HEADS, 1, DIM}, NULL, zeros));
    open_all(&f);
    for (int step = 0; step < STEPS; step++) {
        const size_t before = f.device.committed_bytes;
        for (int64_t layer = 0; layer < LAYERS; layer++)
            assert_ok(kvc_cache_append(f.cache, layer, &row, &row));
        if (step > 0) assert_int_equal(f.device.committed_bytes - before, step_bytes);
    }
    kvc_cache_clear(f.cache); /* the naive one has not been told */
    close_all(&f);
}

/* The pool lends the newest first. A cache gives its buffers back so that the next cache's layers
 * find their own: each side has committed to a phase of its own, another's has a unit too few. */
static void reserve__each_side_finds_its_own_pages_again(void **state) {
    (void)state;
    uint64_t random = 13;
    fixture f = {.spec = {.kv_heads = 2, .key_dim = 64, .value_dim = 64, .dtype = KVC_F32},
                 .desc = {.layers = 5, .max_positions = 4096}};
    open_all(&f);
    for (int64_t steps = 1; steps < 300; steps += 37) {
        size_t committed = 0;
        for (int again = 0; again < 3; again++) {
            for (int64_t p = 0; p < steps; p++)
                for (int64_t layer = 0; layer < 5; layer++)
                    append_both(f.cache, &f.naive, layer, 1, &random);
            if (again > 0) assert_int_equal(f.device.committed_bytes, committed);
            committed = f.device.committed_bytes;
            naive_cache_deinit(&f.naive);
            kvc_cache_free(f.cache);
            assert_ok(kvc_cache_new(&f.cache, f.pool, &f.desc));
            naive_cache_init(&f.naive, f.cache);
        }
    }
    close_all(&f);
}

/* A prompt is one append: it asks for each range's units in one call, and is followed evenly. */
static void reserve__many_positions_cost_one_commit_a_range(void **state) {
    (void)state;
    uint64_t random = 11;
    fixture f = {.spec = {.kv_heads = 4, .key_dim = 32, .value_dim = 32, .dtype = KVC_F16},
                 .desc = {.layers = 1, .max_positions = 4096}};
    open_all(&f);
    append_both(f.cache, &f.naive, 0, 2000, &random);
    /* Two sides of four ranges; the last units are not of every range and are asked for singly. */
    assert_true(f.device.calls[TEST_COMMIT] <= 16);
    close_all(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve__commits_what_is_live_and_little_more_for_any_geometry),
        cmocka_unit_test(reserve__commits_nothing_twice),
        cmocka_unit_test(reserve__layers_in_lockstep_commit_the_same_at_every_step),
        cmocka_unit_test(reserve__each_side_finds_its_own_pages_again),
        cmocka_unit_test(reserve__many_positions_cost_one_commit_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
