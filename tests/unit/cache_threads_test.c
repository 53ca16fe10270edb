/* Many readers of one cache, and many caches of one pool, at the same time. What goes wrong here is
 * seen by ThreadSanitizer. */
#include <pthread.h>

#include <kvcache/cache.h>

#include "support/support.h"

enum { THREADS = 4, LAYERS = 2, HEADS = 2, DIM = 16, CHUNK = 8, MAX = 200 };

static kvc_cache *new_cache(kvc_pool *pool, kvc_growth growth) {
    kvc_cache *cache;
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = CHUNK,
                                 .max_positions = MAX};
    return kvc_cache_new(&cache, pool, &desc) == KVC_OK ? cache : NULL;
}

static const float ones[HEADS * DIM] = {1};

/* Threads do not assert, as cmocka jumps: they return NULL when all was right. */
static void *failed(void) {
    return (void *)kvc_last_error();
}

static void *read_all(void *context) {
    const kvc_cache *cache = context;
    for (int i = 0; i < 200; i++) {
        kvc_array k, v;
        kvc_cache_stats stats = {.struct_size = sizeof stats};
        kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
        const int64_t layer = i % LAYERS;
        if (kvc_cache_view(cache, layer, &k, &v) != KVC_OK) return failed();
        const kvc_array kept = kvc_array_retain(&k);
        const uint16_t word = *(const uint16_t *)kept.data;
        kvc_array_release(&k);
        kvc_array_release(&v);
        k = kept;
        kvc_array_release(&k);
        if (word != 0x3f80 || kvc_cache_length(cache, layer) != 20) return failed();
        if (kvc_cache_capacity(cache, LAYERS) != -1) return failed(); /* sets this thread's error */
        if (kvc_cache_stats_get(cache, &stats) != KVC_OK) return failed();
        if (kvc_cache_nbytes_get(cache, &nbytes) != KVC_OK) return failed();
        if (kvc_cache_check(cache) != KVC_OK) return failed();
    }
    return NULL;
}

static kvc_status append(kvc_cache *cache, int64_t layer) {
    kvc_array row;
    const int64_t shape[4] = {1, HEADS, 1, DIM};
    const kvc_status status = kvc_array_borrow(&row, KVC_F32, 4, shape, NULL, ones);
    return status != KVC_OK ? status : kvc_cache_append(cache, layer, &row, &row);
}

/* Caches one after another, each filled from memory that the others' gave back. */
static void *fill_all(void *context) {
    for (int i = 0; i < 6; i++) {
        kvc_cache *cache = new_cache(context, (kvc_growth)(i % 3));
        if (!cache) return failed();
        for (int64_t n = 0; n < MAX; n++)
            if (append(cache, n % LAYERS) != KVC_OK) return failed();
        if (kvc_cache_check(cache) != KVC_OK) return failed();
        kvc_cache_free(cache);
    }
    return NULL;
}

static void run_threads(void *(*work)(void *), void *context) {
    pthread_t threads[THREADS];
    void *result;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, context), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
}

static void cache__is_read_by_many_threads_at_once(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        kvc_pool *pool;
        assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
        kvc_cache *cache = new_cache(pool, growth);
        assert_non_null(cache);
        for (int i = 0; i < 20 * LAYERS; i++) assert_ok(append(cache, i % LAYERS));
        run_threads(read_all, cache);
        kvc_cache_free(cache);
        kvc_pool_free(pool);
    }
}

static void cache__of_each_thread_grows_from_one_pool(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    run_threads(fill_all, pool);
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache__is_read_by_many_threads_at_once),
        cmocka_unit_test(cache__of_each_thread_grows_from_one_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
