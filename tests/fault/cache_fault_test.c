/* Every allocation and every device call of a cache fails once: the status says so, nothing has
 * changed, nothing leaks, and the same call then succeeds. */
#include <string.h>

#include <kvcache/cache.h>

#include "support/faulty_device.h"
#include "support/faulty_heap.h"
#include "support/naive_cache.h"
#include "support/support.h"

/* 4 heads of 350 and 3 floats: every few positions fill a unit, and CHUNK grows every 8. */
enum { LAYERS = 2, HEADS = 4, KEY_DIM = 350, VALUE_DIM = 3, CHUNK = 8, MAX = 60 };

typedef struct fixture {
    faulty_heap heap;
    faulty_device device;
    kvc_pool *pool;
    kvc_cache *cache;
    naive_cache naive;
    rows k, v; /* what the call under test appends */
    uint64_t random;
} fixture;

static const kvc_layer_spec spec = {HEADS, KEY_DIM, VALUE_DIM, KVC_F32};

static kvc_status new_cache(fixture *f, kvc_growth growth) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = CHUNK,
                                 .max_positions = MAX};
    return kvc_cache_new(&f->cache, f->pool, &desc);
}

static void open_pool(fixture *f) {
    *f = (fixture){.random = 12};
    faulty_heap_install(&f->heap);
    faulty_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, &f->device.device));
}

/* A cache that holds `held` positions, and rows of n more. */
static void open_all(fixture *f, kvc_growth growth, int64_t held, int64_t n) {
    open_pool(f);
    assert_ok(new_cache(f, growth));
    naive_cache_init(&f->naive, f->cache);
    append_both(f->cache, &f->naive, 0, held, &f->random);
    append_both(f->cache, &f->naive, 1, held, &f->random);
    rows_init(&f->k, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, KEY_DIM},
              &f->random);
    rows_init(&f->v, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, VALUE_DIM},
              &f->random);
}

static void close_pool(fixture *f) {
    kvc_pool_free(f->pool);
    assert_int_equal(f->device.held_bytes, 0);
    faulty_heap_uninstall(&f->heap);
}

static void close_all(fixture *f) {
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

/* RESERVE may keep the pages that it had got before it got no more: they serve the next try. */
static void assert_unchanged(const fixture *f, const outside *before) {
    outside after = look(f);
    assert_true(after.nbytes.resident >= before->nbytes.resident);
    if (after.nbytes.reserved != after.nbytes.resident)
        after.nbytes.resident = before->nbytes.resident;
    assert_memory_equal(&after, before, sizeof after);
    assert_cache_equal(&f->naive, f->cache);
}

/* Sets what fails: all after `good` calls more. */
typedef void (*fault_fn)(fixture *f, uint64_t good);

static void heap_fault(fixture *f, uint64_t good) {
    faulty_heap_fail_after(&f->heap, good);
}

static void device_fault(fixture *f, uint64_t good) {
    faulty_device_fail_after(&f->device, good);
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

/* Fails the n-th call of `call`'s own, for every n that it gets to. Returns how many. */
static uint64_t fail_each(kvc_growth growth, fault_fn fault, kvc_status (*call)(fixture *),
                          int64_t held, int64_t n) {
    for (uint64_t good = 0;; good++) {
        fixture f;
        open_all(&f, growth, held, n);
        kvc_pool_clear(f.pool); /* what was freed must not help */
        const outside before = look(&f);
        fault(&f, good);
        const kvc_status status = call(&f);
        fault(&f, UINT64_MAX);
        if (status != KVC_OK) {
            assert_int_equal(status, KVC_E_NOMEM);
            assert_string_not_equal(kvc_last_error(), "");
            assert_unchanged(&f, &before);
            assert_ok(call(&f));
        }
        if (call == prepare) assert_ok(kvc_cache_commit(f.cache, 1, n));
        naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
        close_all(&f);
        if (status == KVC_OK) return good;
    }
}

/* As fail_each, of kvc_cache_new. */
static uint64_t fail_each_of_new(kvc_growth growth, fault_fn fault) {
    for (uint64_t good = 0;; good++) {
        fixture f;
        open_pool(&f);
        const uint64_t live = f.heap.live;
        fault(&f, good);
        const kvc_status status = new_cache(&f, growth);
        fault(&f, UINT64_MAX);
        if (status != KVC_OK) {
            assert_int_equal(status, KVC_E_NOMEM);
            assert_null(f.cache);
            kvc_pool_clear(f.pool); /* where address space that was taken lies, as after any free */
            assert_true(f.heap.live <= live + 1); /* the pool's own table */
            assert_int_equal(f.device.held_bytes, 0);
            assert_ok(new_cache(&f, growth));
        }
        assert_ok(kvc_cache_check(f.cache));
        kvc_cache_free(f.cache);
        close_pool(&f);
        if (status == KVC_OK) return good;
    }
}

static void new__that_fails_anywhere_leaves_nothing_behind(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        const bool reserves = growth == KVC_GROW_RESERVE;
        /* The cache, its specs, its layers; a header and a set of bits for each side. */
        assert_int_equal(fail_each_of_new(growth, heap_fault), reserves ? 3 + 4 * LAYERS : 3);
        assert_int_equal(fail_each_of_new(growth, device_fault), reserves ? 2 * LAYERS : 0);
    }
}

static void append__nomem_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        /* One position into the next chunk, and many. */
        const uint64_t one = fail_each(growth, heap_fault, append, CHUNK, 1);
        const uint64_t many = fail_each(growth, heap_fault, append, CHUNK, 3 * CHUNK + 1);
        assert_int_equal(one, growth == KVC_GROW_RESERVE ? 0 : 2); /* a header a side */
        assert_int_equal(many, one);
    }
}

static void prepare__nomem_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        const uint64_t failed = fail_each(growth, heap_fault, prepare, CHUNK, CHUNK + 1);
        assert_int_equal(failed, growth == KVC_GROW_RESERVE ? 0 : 2);
    }
}

/* The device's calls in order are two for memory, two copies of growth (chunk, exact); the copies
 * of the append itself come last and are another test's. */
static void append__of_a_device_without_memory_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        for (uint64_t good = 0;; good++) {
            fixture f;
            open_all(&f, growth, CHUNK, 2 * CHUNK);
            kvc_pool_clear(f.pool);
            const outside before = look(&f);
            const uint64_t memory_calls = faulty_device_memory_calls(&f.device);
            faulty_device_fail_after(&f.device, good);
            const kvc_status status = append(&f);
            faulty_device_fail_after(&f.device, UINT64_MAX);
            const bool of_memory = status == KVC_E_NOMEM;
            if (of_memory) {
                assert_true(faulty_device_memory_calls(&f.device) > memory_calls);
                assert_unchanged(&f, &before);
            }
            if (status != KVC_OK) assert_ok(append(&f));
            naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
            close_all(&f);
            if (!of_memory) {
                assert_true(good >= 2); /* each side's */
                break;
            }
        }
    }
}

static void prepare__of_a_device_without_memory_changes_nothing(void **state) {
    (void)state;
    const uint64_t failed = fail_each(KVC_GROW_RESERVE, device_fault, prepare, CHUNK, CHUNK + 1);
    assert_true(failed >= 2);
}

/* A device that cannot copy (a dtype that it cannot convert): what was live is as it was, nothing
 * is published, and growth that had been done before stays done. */
static void append__that_cannot_copy_leaves_what_was_live(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        for (uint64_t copies = 0, failed = 1; failed; copies++) {
            fixture f;
            open_all(&f, growth, CHUNK, 2 * CHUNK);
            const outside before = look(&f);
            /* All memory that the call wants is there already: only copies can fail. */
            kvc_array k, v;
            assert_ok(kvc_cache_prepare(f.cache, 1, 2 * CHUNK, &k, &v));
            kvc_array_release(&k);
            kvc_array_release(&v);
            faulty_device_fail_after(&f.device, copies);
            const kvc_status status = append(&f);
            faulty_device_fail_after(&f.device, UINT64_MAX);
            failed = status != KVC_OK;
            if (failed) {
                assert_int_equal(status, KVC_E_UNSUPPORTED);
                assert_cache_equal(&f.naive, f.cache);
                const outside after = look(&f);
                assert_int_equal(after.stats.appends, before.stats.appends);
                assert_int_equal(after.stats.appended_bytes, before.stats.appended_bytes);
                /* Pitfall 15's kind: half of it is written over what was prepared. */
                assert_fails(kvc_cache_commit(f.cache, 1, 1), KVC_E_RANGE);
                assert_ok(append(&f));
            }
            naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
            close_all(&f);
        }
    }
}

/* Pitfall 2. The copies of growth come after its memory, the swap after both. */
static void growth__that_cannot_copy_keeps_the_old_buffers(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_CHUNK; growth <= KVC_GROW_EXACT; growth++) {
        const uint64_t calls = 4; /* two of memory, two copies */
        for (uint64_t good = 2; good < calls; good++) {
            fixture f;
            open_all(&f, growth, CHUNK, 2 * CHUNK);
            kvc_pool_clear(f.pool);
            const outside before = look(&f);
            faulty_device_fail_after(&f.device, good);
            assert_int_equal(append(&f), KVC_E_UNSUPPORTED);
            faulty_device_fail_after(&f.device, UINT64_MAX);
            assert_unchanged(&f, &before);
            assert_ok(append(&f));
            naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
            close_all(&f);
        }
    }
}

/* The limit lets the keys have their memory and not the values, or a part of the units. */
static void append__past_the_pools_limit_changes_nothing(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        bool fits = false;
        for (size_t room = 0; !fits; room += 8 << 10) {
            fixture f;
            open_all(&f, growth, CHUNK, CHUNK + 1);
            kvc_pool_clear(f.pool);
            const outside before = look(&f);
            kvc_pool_stats stats = {.struct_size = sizeof stats};
            assert_ok(kvc_pool_stats_get(f.pool, &stats));
            (void)kvc_pool_memory_limit_set(f.pool, (size_t)stats.active_bytes + room);
            kvc_status status = append(&f);
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
            naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
            close_all(&f);
        }
    }
}

/* A prepared row outlives a larger prepare that fails. */
static void prepare__that_fails_keeps_what_was_prepared_before(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        kvc_array k, v;
        open_all(&f, growth, CHUNK - 2, 2);
        assert_ok(prepare(&f));
        kvc_pool_clear(f.pool);
        faulty_device_fail_after(&f.device, 0);
        assert_fails(kvc_cache_prepare(f.cache, 1, MAX - CHUNK, &k, &v), KVC_E_NOMEM);
        faulty_device_fail_after(&f.device, UINT64_MAX);
        assert_ok(kvc_cache_commit(f.cache, 1, 2));
        naive_cache_append(&f.naive, 1, &f.k.array, &f.v.array);
        close_all(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new__that_fails_anywhere_leaves_nothing_behind),
        cmocka_unit_test(append__nomem_changes_nothing),
        cmocka_unit_test(prepare__nomem_changes_nothing),
        cmocka_unit_test(append__of_a_device_without_memory_changes_nothing),
        cmocka_unit_test(prepare__of_a_device_without_memory_changes_nothing),
        cmocka_unit_test(append__that_cannot_copy_leaves_what_was_live),
        cmocka_unit_test(growth__that_cannot_copy_keeps_the_old_buffers),
        cmocka_unit_test(append__past_the_pools_limit_changes_nothing),
        cmocka_unit_test(prepare__that_fails_keeps_what_was_prepared_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
