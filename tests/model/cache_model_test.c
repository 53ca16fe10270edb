/* Random operations on caches of all three policies at once and on a naive one: what they hold is
 * the same to the bit, also after calls that failed. */
#include <time.h>

#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { POLICIES = 3, MAX_LAYERS = 4, VIEWS = 6 };

/* A view of one cache, what it showed when it was taken, and how much of that must still be there:
 * after a trim new positions may be written into it. */
typedef struct kept_view {
    int64_t layer; /* -1: the cache it was of is gone, so nothing is written there any more */
    int64_t stable;
    naive_layer seen;
    kvc_array k[POLICIES], v[POLICIES];
} kept_view;

typedef struct model {
    uint64_t random;
    test_device devices[POLICIES];
    kvc_pool *pools[POLICIES];
    kvc_cache *caches[POLICIES];
    naive_cache naive;
    kvc_layer_spec specs[MAX_LAYERS];
    kvc_cache_desc desc;
    kept_view views[VIEWS];
    uint64_t failures; /* injected, all policies */
} model;

#define FOR_EACH_POLICY for (int p = 0; p < POLICIES; p++)

static int64_t between(model *m, int64_t low, int64_t high) {
    return low + (int64_t)(test_random(&m->random) % (uint64_t)(high - low + 1));
}

static bool one_in(model *m, int64_t n) {
    return between(m, 1, n) == 1;
}

static const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};

static void random_desc(model *m) {
    const int64_t widest = one_in(m, 8) ? 2500 : 20;
    m->desc = (kvc_cache_desc){.struct_size = sizeof m->desc,
                               .batch = between(m, 1, 3),
                               .layers = between(m, 1, MAX_LAYERS),
                               .specs = m->specs,
                               .chunk = between(m, 1, 40),
                               .max_positions = between(m, 1, widest > 20 ? 15 : 120)};
    m->desc.spec_count = one_in(m, 2) ? 1 : m->desc.layers;
    for (int i = 0; i < MAX_LAYERS; i++)
        m->specs[i] = (kvc_layer_spec){.kv_heads = between(m, 1, 3),
                                       .key_dim = between(m, 1, widest),
                                       .value_dim = between(m, 0, widest),
                                       .dtype = dtypes[between(m, 0, 2)]};
}

/* Lets the next call fail at a random point, an allocation or a call of the device; or not at all.
 */
static void fail_somewhere(model *m) {
    if (!one_in(m, 6)) return;
    test_fault_arm((size_t)between(m, 1, 8), one_in(m, 4) ? TEST_FAULT_ONCE : TEST_FAULT_FOREVER);
}

/* Ends the fault; tells whether the call failed of it. The pool bears some. */
static bool struck(model *m, kvc_status status) {
    const bool failed = test_fault_disarm();
    if (status == KVC_OK) return false;
    assert_true(failed);
    assert_true(status == KVC_E_NOMEM || status == KVC_E_UNSUPPORTED); /* memory, or a copy */
    m->failures++;
    return true;
}

static void new_caches(model *m) {
    FOR_EACH_POLICY {
        kvc_status status;
        m->desc.growth = (kvc_growth)p;
        do {
            fail_somewhere(m);
            status = kvc_cache_new(&m->caches[p], m->pools[p], &m->desc);
            if (status != KVC_OK) assert_null(m->caches[p]);
        } while (struck(m, status));
    }
    naive_cache_init(&m->naive, m->caches[0]);
}

static void free_caches(model *m) {
    FOR_EACH_POLICY kvc_cache_free(m->caches[p]);
    naive_cache_deinit(&m->naive);
    for (int i = 0; i < VIEWS; i++) m->views[i].layer = -1;
}

/* Rows for a layer's append, keys and values. */
typedef struct sources {
    rows k, v;
} sources;

static void random_sources(model *m, sources *s, int64_t layer, int64_t n) {
    const kvc_layer_spec *spec = &m->naive.layer[layer].spec;
    const int64_t k[4] = {m->desc.batch, spec->kv_heads, n, spec->key_dim};
    const int64_t v[4] = {m->desc.batch, spec->kv_heads, n, spec->value_dim};
    rows_init(&s->k, dtypes[between(m, 0, 2)], (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), k,
              &m->random);
    rows_init(&s->v, dtypes[between(m, 0, 2)], (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), v,
              &m->random);
}

static void free_sources(sources *s) {
    rows_deinit(&s->k);
    rows_deinit(&s->v);
}

static int64_t random_count(model *m) {
    return one_in(m, 5) ? between(m, 0, m->desc.max_positions) : between(m, 0, 3);
}

static void append(model *m, int64_t layer) {
    sources s;
    const int64_t n = random_count(m);
    const int64_t after = m->naive.layer[layer].length + n;
    random_sources(m, &s, layer, n);
    FOR_EACH_POLICY {
        kvc_status status;
        do {
            fail_somewhere(m);
            status = kvc_cache_append(m->caches[p], layer, &s.k.array, &s.v.array);
            if (after > m->desc.max_positions) {
                assert_int_equal(status, KVC_E_RANGE);
                status = KVC_OK;
            }
            if (status != KVC_OK) assert_cache_equal(&m->naive, m->caches[p]);
        } while (struck(m, status));
    }
    if (after <= m->desc.max_positions)
        naive_cache_append(&m->naive, layer, &s.k.array, &s.v.array);
    free_sources(&s);
}

/* One cache's part of write_in_place. */
static void prepare_and_write(model *m, int p, int64_t layer, const sources *s, int64_t n) {
    kvc_array k, v;
    kvc_status status;
    do {
        fail_somewhere(m);
        status = kvc_cache_prepare(m->caches[p], layer, n, &k, &v);
        assert_cache_equal(&m->naive, m->caches[p]);
    } while (struck(m, status));
    write_rows(&k, &s->k.array);
    write_rows(&v, &s->v.array);
    kvc_array_release(&k);
    kvc_array_release(&v);
    if (one_in(m, 3)) { /* more room than that, and back: what was written stays */
        const int64_t most = m->desc.max_positions - kvc_cache_length(m->caches[p], layer);
        assert_ok(kvc_cache_prepare(m->caches[p], layer, between(m, n, most), &k, &v));
        kvc_array_release(&k);
        kvc_array_release(&v);
    }
}

static void write_in_place(model *m, int64_t layer) {
    sources s;
    const int64_t length = m->naive.layer[layer].length, left = m->desc.max_positions - length;
    const int64_t n = between(m, 0, left < 20 ? left : 20), kept = between(m, 0, n);
    random_sources(m, &s, layer, n);
    FOR_EACH_POLICY {
        prepare_and_write(m, p, layer, &s, n);
        assert_ok(kvc_cache_commit(m->caches[p], layer, kept));
        assert_fails(kvc_cache_commit(m->caches[p], layer, 1), KVC_E_RANGE);
    }
    s.k.array.shape[2] = s.v.array.shape[2] = kept;
    naive_cache_append(&m->naive, layer, &s.k.array, &s.v.array);
    free_sources(&s);
}

static int64_t shortest(const model *m) {
    int64_t length = INT64_MAX;
    for (int64_t i = 0; i < m->desc.layers; i++)
        if (m->naive.layer[i].length < length) length = m->naive.layer[i].length;
    return length;
}

/* Positions from `layer`'s length on may now be written again. */
static void unsettle_views(model *m) {
    for (int i = 0; i < VIEWS; i++) {
        kept_view *view = &m->views[i];
        if (view->layer >= 0 && view->stable > m->naive.layer[view->layer].length)
            view->stable = m->naive.layer[view->layer].length;
    }
}

static void trim(model *m) {
    const int64_t held = shortest(m), n = one_in(m, 4) ? held + 1 : between(m, 0, held);
    FOR_EACH_POLICY {
        if (n <= held) assert_ok(kvc_cache_trim(m->caches[p], n));
        else assert_fails(kvc_cache_trim(m->caches[p], n), KVC_E_RANGE);
    }
    if (n <= held) naive_cache_trim(&m->naive, n);
    unsettle_views(m);
}

static void clear(model *m) {
    FOR_EACH_POLICY kvc_cache_clear(m->caches[p]);
    naive_cache_clear(&m->naive);
    unsettle_views(m);
}

static void drop_view(kept_view *view) {
    FOR_EACH_POLICY {
        if (view->seen.k) assert_view_equal(&view->seen, &view->k[p], &view->v[p], view->stable);
        kvc_array_release(&view->k[p]);
        kvc_array_release(&view->v[p]);
    }
    naive_layer_deinit(&view->seen);
}

static void keep_view(model *m, int64_t layer) {
    kept_view *view = &m->views[between(m, 0, VIEWS - 1)];
    drop_view(view);
    FOR_EACH_POLICY
    assert_ok(kvc_cache_view(m->caches[p], layer, &view->k[p], &view->v[p]));
    naive_layer_copy(&view->seen, &m->naive.layer[layer]);
    view->layer = layer;
    view->stable = view->seen.length;
}

static void step(model *m) {
    const int64_t layer = between(m, 0, m->desc.layers - 1), what = between(m, 1, 100);
    if (what <= 55) append(m, layer);
    else if (what <= 75) write_in_place(m, layer);
    else if (what <= 83) trim(m);
    else if (what <= 95) keep_view(m, layer);
    else if (what <= 97) clear(m);
    else {
        if (one_in(m, 2)) random_desc(m); /* else the pool has what it wants */
        free_caches(m);
        new_caches(m);
    }
    FOR_EACH_POLICY assert_cache_equal(&m->naive, m->caches[p]);
}

/* After 100 steps nothing may be left: a model is opened and closed often. */
static void run(model *m, uint64_t seed) {
    *m = (model){.random = seed};
    for (int i = 0; i < VIEWS; i++) m->views[i].layer = -1;
    const size_t held = test_allocator_held();
    test_allocator_use(true);
    FOR_EACH_POLICY {
        test_device_init(&m->devices[p]);
        assert_ok(kvc_pool_new(&m->pools[p], &m->devices[p].table));
    }
    random_desc(m);
    new_caches(m);
    for (int i = 0; i < 100; i++) step(m);
    free_caches(m);
    for (int i = 0; i < VIEWS; i++) drop_view(&m->views[i]);
    FOR_EACH_POLICY {
        kvc_pool_free(m->pools[p]);
        test_device_deinit(&m->devices[p]);
    }
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), held);
}

static double seconds_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void cache__of_every_policy_holds_what_a_naive_one_does(void **state) {
    (void)state;
    static model m; /* too large for a stack that a failed assertion unwinds */
    uint64_t random = test_seed(20261129), runs = 0, failures = 0;
    const double end = seconds_now() + test_seconds(2);
    do {
        run(&m, test_random(&random));
        runs++;
        failures += m.failures;
    } while (seconds_now() < end);
    print_message("%llu runs of 100 operations, %llu injected failures\n", (unsigned long long)runs,
                  (unsigned long long)failures);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache__of_every_policy_holds_what_a_naive_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
