/* Every allocation and every device call of a cache fails once, alone or with all after it: the
 * status says so, nothing has changed, nothing leaks, and the same call then succeeds. */
#include <string.h>

#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

/* 4 heads of 350 and 3 floats: every few positions fill a unit, and CHUNK grows every 8. */
enum { LAYERS = 2, HEADS = 4, KEY_DIM = 350, VALUE_DIM = 3 };
static const int64_t chunk = 8, most = 60;

typedef struct fixture {
    test_device device;
    size_t held; /* objects of the allocator before */
    kvc_pool *pool;
    kvc_cache *cache;
    naive_cache naive;
    rows k, v; /* what the call under test appends */
    uint64_t random;
} fixture;

static const kvc_layer_spec spec = {
    .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_F32};

static kvc_status new_cache(fixture *f, kvc_growth growth) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = chunk,
                                 .max_positions = most};
    return kvc_cache_new(&f->cache, f->pool, &desc);
}

static void open_pool(fixture *f) {
    *f = (fixture){.random = 12, .held = test_allocator_held()};
    test_allocator_use(true);
    test_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, &f->device.table));
}

/* A cache that holds `held` positions, a pool that keeps nothing, and rows of n more. */
static void open_all(fixture *f, kvc_growth growth, int64_t held, int64_t n) {
    open_pool(f);
    assert_ok(new_cache(f, growth));
    naive_cache_init(&f->naive, f->cache);
    append_both(f->cache, &f->naive, 0, held, &f->random);
    append_both(f->cache, &f->naive, 1, held, &f->random);
    kvc_pool_clear(f->pool);
    rows_init(&f->k, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, KEY_DIM},
              &f->random);
    rows_init(&f->v, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, VALUE_DIM},
              &f->random);
}

static void close_pool(fixture *f) {
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), f->held);
}

/* Ends a test whose rows are live at last. */
static void close_all(fixture *f) {
    naive_cache_append(&f->naive, 1, &f->k.array, &f->v.array);
    assert_cache_equal(&f->naive, f->cache);
    naive_cache_deinit(&f->naive);
    rows_deinit(&f->k);
    rows_deinit(&f->v);
    kvc_cache_free(f->cache);
    close_pool(f);
}

/* All that a caller can see of a layer, but for its elements. */
typedef struct outside {
    int64_t length, capacity;
    const void *k, *v;
    kvc_cache_stats stats;
    kvc_cache_nbytes nbytes;
} outside;

static outside look(const fixture *f) {
    kvc_array k, v;
    outside o = {.length = kvc_cache_length(f->cache, 1),
                 .capacity = kvc_cache_capacity(f->cache, 1),
                 .stats.struct_size = sizeof o.stats,
                 .nbytes.struct_size = sizeof o.nbytes};
    assert_ok(kvc_cache_view(f->cache, 1, &k, &v));
    o.k = k.data;
    o.v = v.data;
    kvc_array_release(&k);
    kvc_array_release(&v);
    assert_ok(kvc_cache_stats_get(f->cache, &o.stats));
    assert_ok(kvc_cache_nbytes_get(f->cache, &o.nbytes));
    return o;
}

/* RESERVE keeps the pages that it had got before it got no more: they serve the next try. */
static void assert_unchanged(const fixture *f, const outside *before) {
    outside after = look(f);
    assert_true(after.nbytes.resident >= before->nbytes.resident);
    if (after.nbytes.reserved != after.nbytes.resident)
        after.nbytes.resident = before->nbytes.resident;
    assert_memory_equal(&after, before, sizeof after);
    assert_cache_equal(&f->naive, f->cache);
}

/* As much as holds when a copy fails after growth. */
static void assert_live_unchanged(const fixture *f, const outside *before) {
    const outside after = look(f);
    assert_int_equal(after.length, before->length);
    assert_int_equal(after.stats.appends, before->stats.appends);
    assert_int_equal(after.stats.appended_bytes, before->stats.appended_bytes);
    assert_cache_equal(&f->naive, f->cache);
}

#define FOR_EACH_GROWTH                                                                            \
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)

static kvc_status append(fixture *f) {
    return kvc_cache_append(f->cache, 1, &f->k.array, &f->v.array);
}

static kvc_status prepare(fixture *f) {
    kvc_array k = {.ndim = 1}, v = {.ndim = 1};
    const kvc_status status = kvc_cache_prepare(f->cache, 1, f->k.array.shape[2], &k, &v);
    if (status == KVC_OK) {
        write_rows(&k, &f->k.array);
        write_rows(&v, &f->v.array);
    } else {
        assert_int_equal(k.ndim + v.ndim, 0);
        assert_null(k.buffer);
        assert_null(v.buffer);
    }
    kvc_array_release(&k);
    kvc_array_release(&v);
    return status;
}

/* Fails the nth point of a call, for every n that there is. Returns how many there are. */
static size_t fail_each(kvc_growth growth, kvc_status (*call)(fixture *), int64_t n,
                        test_fault_span span) {
    for (size_t nth = 1;; nth++) {
        fixture f;
        open_all(&f, growth, chunk, n);
        const outside before = look(&f);
        test_fault_arm(nth, span);
        const kvc_status status = call(&f);
        const bool struck = test_fault_disarm();
        assert_true(struck || status == KVC_OK);
        if (status == KVC_E_NOMEM) assert_unchanged(&f, &before);
        if (status == KVC_E_UNSUPPORTED) assert_live_unchanged(&f, &before);
        if (status != KVC_OK) {
            assert_true(status == KVC_E_NOMEM || status == KVC_E_UNSUPPORTED);
            assert_string_not_equal(kvc_last_error(), "");
            assert_ok(call(&f));
        }
        if (call == prepare) assert_ok(kvc_cache_commit(f.cache, 1, n));
        close_all(&f);
        if (!struck) return nth - 1;
    }
}

static void append__that_fails_anywhere_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        /* A header and a call for memory a side, two copies of growth, two of the append; RESERVE
         * asks for pages and copies the rows. One position into the next chunk, then several. */
        const size_t points = growth == KVC_GROW_RESERVE ? 2 : 8;
        assert_true(fail_each(growth, append, 1, TEST_FAULT_FOREVER) >= points);
        assert_true(fail_each(growth, append, 3 * chunk + 1, TEST_FAULT_FOREVER) >= points);
        assert_true(fail_each(growth, append, 3 * chunk + 1, TEST_FAULT_ONCE) >= points);
    }
}

static void prepare__that_fails_anywhere_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        const size_t points = growth == KVC_GROW_RESERVE ? 2 : 6;
        assert_true(fail_each(growth, prepare, 3 * chunk + 1, TEST_FAULT_FOREVER) >= points);
        assert_true(fail_each(growth, prepare, 3 * chunk + 1, TEST_FAULT_ONCE) >= points);
    }
}

/* As fail_each, of kvc_cache_new. */
static size_t fail_each_of_new(kvc_growth growth, test_fault_span span) {
    for (size_t nth = 1;; nth++) {
        fixture f;
        open_pool(&f);
        const size_t held = test_allocator_held();
        test_fault_arm(nth, span);
        const kvc_status status = new_cache(&f, growth);
        const bool struck = test_fault_disarm();
        assert_true(struck || status == KVC_OK);
        if (status != KVC_OK) {
            assert_int_equal(status, KVC_E_NOMEM);
            assert_null(f.cache);
            kvc_pool_clear(f.pool); /* where address space that was taken lies, as after any free */
            assert_true(test_allocator_held() <= held + 1); /* the pool's own table */
            assert_int_equal(f.device.count, 0);
            assert_ok(new_cache(&f, growth));
        }
        assert_ok(kvc_cache_check(f.cache));
        kvc_cache_free(f.cache);
        close_pool(&f);
        if (!struck) return nth - 1;
    }
}

static void new__that_fails_anywhere_leaves_nothing_behind(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        /* The cache, its specs, layers, lengths; a header, a set of bits and a call for each side.
         */
        const size_t points = growth == KVC_GROW_RESERVE ? 4 + 6 * LAYERS : 4;
        assert_int_equal(fail_each_of_new(growth, TEST_FAULT_FOREVER), points);
        assert_true(fail_each_of_new(growth, TEST_FAULT_ONCE) >= points);
    }
}

/* A device that cannot copy (a dtype that it cannot convert): what was live is as it was, and
 * nothing is published. Pitfall 15's kind: half of the append lies over what was prepared. */
static void append__that_cannot_copy_voids_what_was_prepared(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        for (size_t side = 1; side <= 2; side++) {
            fixture f;
            open_all(&f, growth, chunk, 2 * chunk);
            assert_ok(prepare(&f)); /* all that the append wants, so that it only copies */
            const outside before = look(&f);
            test_device_fail(&f.device, TEST_COPY, side, 1);
            assert_fails(append(&f), KVC_E_UNSUPPORTED);
            assert_unchanged(&f, &before);
            assert_fails(kvc_cache_commit(f.cache, 1, 1), KVC_E_RANGE);
            assert_ok(append(&f));
            close_all(&f);
        }
    }
}

/* Pitfall 2. The copies of growth come after its memory, the swap after both. */
static void growth__that_cannot_copy_keeps_the_old_buffers(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_CHUNK; growth <= KVC_GROW_EXACT; growth++)
        for (size_t side = 1; side <= 2; side++) {
            fixture f;
            open_all(&f, growth, chunk, 2 * chunk);
            const outside before = look(&f);
            test_device_fail(&f.device, TEST_COPY, side, 1);
            assert_fails(append(&f), KVC_E_UNSUPPORTED);
            assert_unchanged(&f, &before);
            assert_ok(append(&f));
            close_all(&f);
        }
}

/* The limit lets the keys have their memory and not the values, or a part of the units. */
static void append__past_the_pools_limit_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        bool fits = false;
        for (size_t room = 0; !fits; room += 8 << 10) {
            fixture f;
            open_all(&f, growth, chunk, chunk + 1);
            const outside before = look(&f);
            kvc_pool_stats stats = {.struct_size = sizeof stats};
            assert_ok(kvc_pool_stats_get(f.pool, &stats));
            (void)kvc_pool_memory_limit_set(f.pool, (size_t)stats.active_bytes + room);
            const kvc_status status = append(&f);
            fits = status == KVC_OK;
            if (!fits) {
                assert_int_equal(status, KVC_E_LIMIT);
                assert_non_null(strstr(kvc_last_error(), "memory limit"));
                assert_unchanged(&f, &before);
                assert_int_equal(prepare(&f), KVC_E_LIMIT);
                assert_unchanged(&f, &before);
                (void)kvc_pool_memory_limit_set(f.pool, SIZE_MAX);
                assert_ok(append(&f));
            }
            assert_true(!fits || room > 0);
            close_all(&f);
        }
    }
}

static void prepare__that_fails_keeps_what_was_prepared_before(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        kvc_array k, v;
        open_all(&f, growth, chunk - 2, 2);
        assert_ok(prepare(&f));
        test_fault_arm(1, TEST_FAULT_FOREVER);
        assert_fails(kvc_cache_prepare(f.cache, 1, most - chunk, &k, &v), KVC_E_NOMEM);
        assert_true(test_fault_disarm());
        assert_ok(kvc_cache_commit(f.cache, 1, 2));
        close_all(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new__that_fails_anywhere_leaves_nothing_behind),
        cmocka_unit_test(append__that_fails_anywhere_changes_nothing),
        cmocka_unit_test(prepare__that_fails_anywhere_changes_nothing),
        cmocka_unit_test(append__that_cannot_copy_voids_what_was_prepared),
        cmocka_unit_test(growth__that_cannot_copy_keeps_the_old_buffers),
        cmocka_unit_test(append__past_the_pools_limit_changes_nothing),
        cmocka_unit_test(prepare__that_fails_keeps_what_was_prepared_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
