/* The three loops of "Writing a Fast KV Cache", line by line: they make the same cache, one by
 * copying it at every step, two in place. */
#include <kvcache/array.h>

#include "support/arrays.h"
#include "support/reference.h"

enum { STEPS = 600, CHUNK = 256, KV_HEADS = 4, DIM = 16, AXIS = 2 };

/* The seed's caches are [1, d] and [1, 4, N, 512]; these are [1, KV_HEADS, positions, DIM]. */
static void shape_of(int64_t shape[4], int64_t positions) {
    shape[0] = 1;
    shape[1] = KV_HEADS;
    shape[2] = positions;
    shape[3] = DIM;
}

/* x: what a step appends. */
static kvc_array position(kvc_pool *pool, kvc_dtype dtype, int64_t step) {
    int64_t shape[4];
    double values[KV_HEADS * DIM];
    shape_of(shape, 1);
    for (int64_t i = 0; i < (int64_t)KV_HEADS * DIM; i++)
        values[i] = (double)((step * 31 + i * 7) % 509) / 8;
    return array_of(pool, dtype, 4, shape, values);
}

/* Counts of what the steps did. */
typedef struct tally {
    int64_t in_place, copied, grown;
} tally;

/* cache = mx.zeros((1, 0, d))
 * for x in steps:
 *     cache = mx.concatenate([cache, x], axis=1) */
static kvc_array by_concatenate(kvc_pool *pool, kvc_dtype dtype) {
    int64_t shape[4];
    kvc_array cache;
    shape_of(shape, 0);
    assert_ok(kvc_array_zeros(&cache, pool, dtype, 4, shape));
    for (int64_t step = 0; step < STEPS; step++) {
        kvc_array parts[2] = {cache, position(pool, dtype, step)};
        assert_ok(kvc_array_concatenate(&cache, pool, parts, 2, AXIS));
        assert_ok(kvc_sync(kvc_pool_device(pool)));
        for (int i = 0; i < 2; i++) kvc_array_release(&parts[i]);
    }
    return cache;
}

/*     if offset == cache.shape[1]:
 *         cache = mx.concatenate([cache, mx.zeros((1, chunk, d))], axis=1) */
static void grow(kvc_array *cache, kvc_pool *pool) {
    int64_t shape[4];
    kvc_array parts[2] = {*cache};
    shape_of(shape, CHUNK);
    assert_ok(kvc_array_zeros(&parts[1], pool, cache->dtype, 4, shape));
    assert_ok(kvc_array_concatenate(cache, pool, parts, 2, AXIS));
    for (int i = 0; i < 2; i++) kvc_array_release(&parts[i]);
}

/* cache = mx.zeros((1, chunk, d))
 * offset = 0
 * for x in steps:
 *     (grow when offset == cache.shape[1])
 *     cache = mx.slice_update(cache, x, mx.array(offset), (1,))
 *     offset += 1
 * keys = cache[:, :offset]
 *
 * indexed: cache[:, offset : offset + 1, :] = x in slice_update's place */
static kvc_array by_chunks(kvc_pool *pool, kvc_dtype dtype, bool indexed, tally *count) {
    const int64_t all = KVC_SLICE_ALL;
    const int axis = AXIS;
    int64_t shape[4], offset = 0;
    kvc_array cache;
    shape_of(shape, CHUNK);
    assert_ok(kvc_array_zeros(&cache, pool, dtype, 4, shape));
    for (int64_t step = 0; step < STEPS; step++) {
        kvc_array x = position(pool, dtype, step);
        kvc_update how;
        if (offset == cache.shape[AXIS]) {
            grow(&cache, pool);
            count->grown++;
        }
        if (indexed)
            assert_ok(kvc_array_assign(&cache, &x, I64(all, all, offset, all),
                                       I64(all, all, offset + 1, all), NULL, &how));
        else assert_ok(kvc_array_slice_update(&cache, &x, &offset, &axis, 1, &how));
        offset += 1;
        assert_ok(kvc_sync(kvc_pool_device(pool)));
        if (how == KVC_UPDATE_IN_PLACE) count->in_place++;
        else count->copied++;
        kvc_array_release(&x);
    }
    kvc_array keys = array_sliced(&cache, NULL, I64(all, all, offset, all), NULL);
    kvc_array_release(&cache);
    return keys;
}

static void expect_equal(const kvc_array *a, const kvc_array *b) {
    bool equal;
    assert_ok(kvc_array_equal(&equal, a, b));
    assert_true(equal);
}

static void seed__its_three_loops_make_the_same_cache(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    for (size_t d = 0; d < 3; d++) {
        const kvc_dtype dtype = reference_dtypes[d];
        tally updated = {0}, assigned = {0};
        kvc_array slow = by_concatenate(pool, dtype);
        kvc_array fast = by_chunks(pool, dtype, false, &updated);
        kvc_array indexed = by_chunks(pool, dtype, true, &assigned);
        assert_int_equal(slow.shape[AXIS], STEPS);
        expect_equal(&slow, &fast);
        expect_equal(&slow, &indexed);
        /* Every step in place, growth twice: ceil(600 / 256) chunks. */
        assert_int_equal(updated.in_place, STEPS);
        assert_int_equal(assigned.in_place, STEPS);
        assert_int_equal(updated.grown, 2);
        kvc_array last = array_sliced(&fast, I64(0, 0, STEPS - 1, 0), NULL, NULL);
        kvc_array x = position(pool, dtype, STEPS - 1);
        expect_equal(&last, &x);
        kvc_array_release(&last);
        kvc_array_release(&x);
        kvc_array_release(&slow);
        kvc_array_release(&fast);
        kvc_array_release(&indexed);
    }
    kvc_pool_free(pool);
}

/* "Because a growing cache has a new size at every step, each allocation typically comes from the
 * driver while freed buffers remain unused." Preallocated, what a step takes is always there. */
static void seed__concatenating_misses_the_pool_and_updating_does_not(void **state) {
    (void)state;
    tally count = {0};
    for (int slow = 0; slow < 2; slow++) {
        kvc_pool *pool;
        kvc_pool_stats stats = {.struct_size = sizeof stats};
        assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
        kvc_array cache =
            slow ? by_concatenate(pool, KVC_F32) : by_chunks(pool, KVC_F32, false, &count);
        assert_ok(kvc_pool_stats_get(pool, &stats));
        /* Slow: the cache of every step, and the first x. Fast: x, three capacities, and the first
         * chunk of zeros to grow by. */
        assert_int_equal(stats.misses, slow ? STEPS + 1 : 5);
        assert_int_equal(stats.hits, slow ? STEPS - 1 : STEPS);
        kvc_array_release(&cache);
        kvc_pool_free(pool);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed__its_three_loops_make_the_same_cache),
        cmocka_unit_test(seed__concatenating_misses_the_pool_and_updating_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
