/* The pool against a naive one: a list of freed buffers, searched from end to end. */
#include <string.h>
#include <time.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

enum { HELD = 24, KEPT = 4096, STEPS = 40000 };

typedef struct kept {
    size_t bytes;
    const void *data;
} kept;

/* What the pool should hold, in the order of age. */
typedef struct model {
    kept kept[KEPT];
    size_t count;
    size_t cached, active, memory_limit, cache_limit;
    size_t hits, misses, evictions;
    size_t peak_active, peak_total;
} model;

static void drop(model *m, size_t index) {
    m->cached -= m->kept[index].bytes;
    memmove(&m->kept[index], &m->kept[index + 1], (--m->count - index) * sizeof *m->kept);
}

static void evict(model *m, size_t more) {
    while (m->count && (m->active + m->cached + more > m->memory_limit || //
                        m->cached > m->cache_limit)) {
        drop(m, 0);
        m->evictions++;
    }
}

static void note_peaks(model *m) {
    if (m->active > m->peak_active) m->peak_active = m->active;
    if (m->active + m->cached > m->peak_total) m->peak_total = m->active + m->cached;
}

/* The rule, as ANCHORS states it: the smallest that holds it, and only if near enough. Of several
 * of one size the newest. Returns its index, or count. */
static size_t find(const model *m, size_t bytes) {
    size_t best = m->count;
    for (size_t i = 0; i < m->count; i++)
        if (m->kept[i].bytes >= bytes &&
            (best == m->count || m->kept[i].bytes <= m->kept[best].bytes))
            best = i;
    if (best == m->count) return best;
    const size_t found = m->kept[best].bytes;
    return found < 2 * bytes && found < bytes + (size_t)2 * TEST_PAGE_BYTES ? best : m->count;
}

static void take(model *m, kvc_pool *pool, kvc_buffer **out, size_t bytes) {
    const size_t at = find(m, bytes);
    if (at < m->count) {
        const kept wanted = m->kept[at];
        assert_ok(kvc_buffer_new(out, pool, bytes));
        assert_ptr_equal(kvc_buffer_data(*out), wanted.data);
        assert_int_equal(kvc_buffer_capacity_bytes(*out), wanted.bytes);
        drop(m, at);
        m->active += wanted.bytes;
        m->hits++;
    } else if (m->active + bytes > m->memory_limit) {
        assert_fails(kvc_buffer_new(out, pool, bytes), KVC_E_LIMIT);
        assert_null(*out);
        m->misses++;
    } else {
        assert_ok(kvc_buffer_new(out, pool, bytes));
        assert_int_equal(kvc_buffer_capacity_bytes(*out), bytes);
        evict(m, bytes);
        m->active += bytes;
        m->misses++;
    }
    note_peaks(m);
}

static void give(model *m, kvc_buffer **held) {
    const kept k = {kvc_buffer_capacity_bytes(*held), kvc_buffer_data(*held)};
    kvc_buffer_release(*held);
    *held = NULL;
    m->active -= k.bytes;
    if (m->cache_limit == 0) return;
    m->kept[m->count++] = k;
    m->cached += k.bytes;
    evict(m, 0);
    note_peaks(m);
}

static void compare(const model *m, kvc_pool *pool, const test_device *device) {
    const kvc_pool_stats s = pool_stats(pool);
    assert_int_equal(s.active_bytes, m->active);
    assert_int_equal(s.cached_bytes, m->cached);
    assert_int_equal(s.hits, m->hits);
    assert_int_equal(s.misses, m->misses);
    assert_int_equal(s.evictions, m->evictions);
    assert_int_equal(s.peak_active_bytes, m->peak_active);
    assert_int_equal(s.peak_total_bytes, m->peak_total);
    assert_int_equal(device->held_bytes, m->active + m->cached);
    assert_int_equal(s.driver_calls, test_device_driver_calls(device));
}

static size_t random_size(uint64_t *random) {
    const uint64_t r = test_random(random);
    if (r % 4 == 0) return 1 + r / 8 % 64;
    if (r % 4 == 1) return 1 + r / 8 % 20000;
    return TEST_PAGE_BYTES * (1 + r / 8 % 24) - (r % 8 < 6 ? r / 256 % 3 : 0);
}

static size_t random_limit(uint64_t *random) {
    const uint64_t r = test_random(random);
    return r % 4 == 0 ? SIZE_MAX / 4 : r % 4 == 1 ? r / 8 % 50000 : 200000 + r / 8 % 800000;
}

static void set_limit(model *m, kvc_pool *pool, uint64_t *random) {
    const size_t limit = random_limit(random);
    if (test_random(random) % 2) {
        assert_int_equal(kvc_pool_memory_limit_set(pool, limit), m->memory_limit);
        m->memory_limit = limit;
    } else {
        assert_int_equal(kvc_pool_cache_limit_set(pool, limit), m->cache_limit);
        m->cache_limit = limit;
    }
    evict(m, 0);
}

static void pool__a_random_walk_holds_keeps_and_counts_what_the_naive_one_does(void **state) {
    pool_fixture *f = *state;
    static model m;
    m = (model){.memory_limit = SIZE_MAX / 4, .cache_limit = SIZE_MAX / 4};
    (void)kvc_pool_memory_limit_set(f->pool, m.memory_limit);
    (void)kvc_pool_cache_limit_set(f->pool, m.cache_limit);
    kvc_buffer *held[HELD] = {NULL};
    uint64_t random = test_seed(1);
    const double seconds = test_seconds(0);
    const time_t start = time(NULL);
    for (long step = 0; step < STEPS || difftime(time(NULL), start) < seconds; step++) {
        const size_t i = test_random(&random) % HELD;
        const uint64_t what = test_random(&random) % 200;
        if (what == 0) {
            set_limit(&m, f->pool, &random);
        } else if (what == 1) {
            kvc_pool_clear(f->pool);
            m.evictions += m.count;
            m.cached = m.count = 0;
        } else if (what == 2) {
            kvc_pool_peak_reset(f->pool);
            m.peak_active = m.active;
            m.peak_total = m.active + m.cached;
        } else if (held[i]) {
            give(&m, &held[i]);
        } else {
            take(&m, f->pool, &held[i], random_size(&random));
        }
        compare(&m, f->pool, &f->device);
        assert_true(m.count < KEPT - HELD);
    }
    assert_true(m.hits > 1000 && m.evictions > 1000); /* the walk went everywhere */
    for (size_t i = 0; i < HELD; i++) kvc_buffer_release(held[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(pool__a_random_walk_holds_keeps_and_counts_what_the_naive_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
