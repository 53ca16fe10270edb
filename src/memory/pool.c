#include "memory/pool.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/trace.h"
#include "memory/device.h"

enum { PRESSURE_TRIES = 8, COMMIT_UNIT_BYTES = 16 << 10 };

static uint64_t largest(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static void note_peaks(kvc_pool *pool) {
    kvc_pool_stats *s = &pool->stats;
    s->peak_active_bytes = largest(s->peak_active_bytes, s->active_bytes);
    s->peak_total_bytes = largest(s->peak_total_bytes, s->active_bytes + s->cached_bytes);
}

/* What was charged for a call that took memory is there only now. */
void kvc__pool_count_driver(kvc_pool *pool, uint64_t ns, bool took) {
    (void)pthread_mutex_lock(&pool->lock);
    pool->stats.driver_calls++;
    pool->stats.driver_ns += ns;
    if (took) note_peaks(pool);
    (void)pthread_mutex_unlock(&pool->lock);
}

/* Takes the oldest off the shelf, into a list through links.older that give_back frees unlocked. */
static void evict_oldest(kvc_pool *pool, kvc_buffer **list) {
    kvc_buffer *b = kvc__shelf_take_oldest(&pool->shelf);
    pool->stats.cached_bytes -= b->resident_bytes;
    pool->stats.evictions++;
    b->links.older = *list;
    *list = b;
}

/* Evicts until `more` bytes fit beside what is active and cached; as much as there is. */
static void evict_for(kvc_pool *pool, size_t more, kvc_buffer **list) {
    const kvc_pool_stats *s = &pool->stats;
    const uint64_t limit = pool->memory_limit_bytes;
    while (pool->shelf.oldest && (s->active_bytes + s->cached_bytes > limit ||
                                  more > limit - (s->active_bytes + s->cached_bytes)))
        evict_oldest(pool, list);
    while (pool->shelf.oldest && s->cached_bytes > pool->cache_limit_bytes)
        evict_oldest(pool, list);
}

/* Gives one buffer to the device, without the lock. */
static void free_buffer(kvc_pool *pool, kvc_buffer *b) {
    const bool reserved = b->committed != NULL;
    const kvc_device *device = pool->device;
    if (b->data) {
        const uint64_t start_ns = kvc__now_ns();
        (reserved ? device->release : device->deallocate)(device->context, b->data,
                                                          b->capacity_bytes);
        kvc__pool_count_driver(pool, kvc__now_ns() - start_ns, false);
        if (kvc__span_begin())
            kvc__span_end(start_ns, KVC_SPAN_RELEASE, "release", b->resident_bytes);
    }
    if (reserved) {
        kvc__free(b->committed, kvc__committed_words(b), sizeof *b->committed);
        (void)pthread_mutex_lock(&pool->lock);
        pool->stats.reserved_bytes -= b->capacity_bytes;
        (void)pthread_mutex_unlock(&pool->lock);
    }
    kvc__free(b, 1, sizeof *b);
}

static void give_back(kvc_pool *pool, kvc_buffer *list) {
    while (list) {
        kvc_buffer *next = list->links.older;
        free_buffer(pool, list);
        list = next;
    }
}

/* Gives all that is cached back; false when there was nothing. */
static bool evict_all(kvc_pool *pool) {
    kvc_buffer *list = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    while (pool->shelf.oldest) evict_oldest(pool, &list);
    (void)pthread_mutex_unlock(&pool->lock);
    const bool any = list != NULL;
    give_back(pool, list);
    return any;
}

static bool ask_under_pressure(kvc_pool *pool, size_t bytes) {
    (void)pthread_mutex_lock(&pool->lock);
    const kvc_pressure_fn ask = pool->pressure;
    void *context = pool->pressure_context;
    (void)pthread_mutex_unlock(&pool->lock);
    return ask && ask(context, bytes);
}

kvc_buffer *kvc__pool_take(kvc_pool *pool, size_t bytes, bool reserved) {
    size_t twice, near;
    if (!kvc__mul(&twice, bytes, 2)) twice = SIZE_MAX;
    if (!kvc__add(&near, bytes, 2 * pool->device->page_bytes)) near = SIZE_MAX;
    (void)pthread_mutex_lock(&pool->lock);
    kvc_buffer *b = kvc__shelf_take(&pool->shelf, reserved, bytes, twice < near ? twice : near);
    pool->holds++;
    if (b) {
        pool->stats.hits++;
        pool->stats.cached_bytes -= b->resident_bytes;
        pool->stats.active_bytes += b->resident_bytes;
        note_peaks(pool);
    } else if (bytes) { /* no device is asked for 0 bytes */
        pool->stats.misses++;
    }
    KVC_ASSERT_SLOW(kvc__shelf_is_valid(&pool->shelf, pool->stats.cached_bytes));
    (void)pthread_mutex_unlock(&pool->lock);
    return b;
}

/* Counts bytes as active when they fit beside the active ones; tells the limit and what it left. */
static bool try_charge(kvc_pool *pool, size_t bytes, size_t *limit, size_t *left) {
    kvc_buffer *evicted = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    *limit = pool->memory_limit_bytes;
    *left = *limit > pool->stats.active_bytes ? *limit - pool->stats.active_bytes : 0;
    const bool fits = bytes <= *left;
    if (fits) {
        evict_for(pool, bytes, &evicted);
        pool->stats.active_bytes += bytes;
    }
    KVC_ASSERT_SLOW(kvc__shelf_is_valid(&pool->shelf, pool->stats.cached_bytes));
    (void)pthread_mutex_unlock(&pool->lock);
    give_back(pool, evicted);
    return fits;
}

kvc_status kvc__pool_charge(kvc_pool *pool, size_t bytes) {
    size_t limit, left;
    for (int asked = 0; !try_charge(pool, bytes, &limit, &left); asked++)
        if (asked == PRESSURE_TRIES || !ask_under_pressure(pool, bytes))
            return kvc__fail(KVC_E_LIMIT,
                             "pool: %zu bytes asked for, %zu left under the memory limit of %zu: "
                             "free buffers or raise it with kvc_pool_memory_limit_set",
                             bytes, left, limit);
    return KVC_OK;
}

void kvc__pool_uncharge(kvc_pool *pool, size_t bytes) {
    (void)pthread_mutex_lock(&pool->lock);
    pool->stats.active_bytes -= bytes;
    (void)pthread_mutex_unlock(&pool->lock);
}

static kvc_status drive_once(kvc_pool *pool, const kvc__driver_call *call, void **memory,
                             size_t bytes) {
    const uint64_t start_ns = kvc__now_ns();
    const kvc_status status = call->run(pool->device, memory, bytes);
    kvc__pool_count_driver(pool, kvc__now_ns() - start_ns, status == KVC_OK);
    if (kvc__span_begin()) kvc__span_end(start_ns, call->kind, call->name, bytes);
    return status;
}

kvc_status kvc__pool_drive(kvc_pool *pool, const kvc__driver_call *call, void **memory,
                           size_t bytes) {
    for (int asked = 0;; asked++) {
        if (drive_once(pool, call, memory, bytes) == KVC_OK) return KVC_OK;
        if (evict_all(pool) && drive_once(pool, call, memory, bytes) == KVC_OK) return KVC_OK;
        if (asked == PRESSURE_TRIES || !ask_under_pressure(pool, bytes))
            return kvc__fail(KVC_E_NOMEM, "device '%s': no memory to %s %zu bytes",
                             pool->device->name, call->name, bytes);
    }
}

/* Nothing is cached any more: kvc_pool_free saw to that before its hold ended. */
static void destroy(kvc_pool *pool) {
    kvc__shelf_deinit(&pool->shelf);
    (void)pthread_mutex_destroy(&pool->lock);
    kvc__free(pool, 1, sizeof *pool);
}

void kvc__pool_hold(kvc_pool *pool) {
    (void)pthread_mutex_lock(&pool->lock);
    pool->holds++;
    (void)pthread_mutex_unlock(&pool->lock);
}

void kvc__pool_drop_hold(kvc_pool *pool) {
    (void)pthread_mutex_lock(&pool->lock);
    const bool last = --pool->holds == 0;
    (void)pthread_mutex_unlock(&pool->lock);
    if (last) destroy(pool);
}

void kvc__pool_give(kvc_pool *pool, kvc_buffer *b) {
    kvc_buffer *evicted = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    pool->stats.active_bytes -= b->resident_bytes;
    const bool keep = b->data && !b->mapped && !pool->freed && pool->cache_limit_bytes > 0 &&
                      kvc__shelf_put(&pool->shelf, b);
    if (keep) {
        pool->stats.cached_bytes += b->resident_bytes;
        evict_for(pool, 0, &evicted);
        note_peaks(pool);
    }
    const bool done = keep && !evicted;
    if (done) pool->holds--; /* not the last: a pool that keeps buffers has its owner */
    KVC_ASSERT_SLOW(kvc__shelf_is_valid(&pool->shelf, pool->stats.cached_bytes));
    (void)pthread_mutex_unlock(&pool->lock);
    if (done) return;

    if (!keep) free_buffer(pool, b);
    give_back(pool, evicted);
    kvc__pool_drop_hold(pool); /* only now: until here the pool must live */
}

kvc_status kvc_pool_new(kvc_pool **out, const kvc_device *device) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__device_check(device));
    void *memory;
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_pool), "pool"));
    kvc_pool *pool = memory;
    pool->device = device;
    pool->commit_unit_bytes =
        device->page_bytes > COMMIT_UNIT_BYTES ? device->page_bytes : COMMIT_UNIT_BYTES;
    pool->holds = 1;
    pool->memory_limit_bytes = SIZE_MAX;
    pool->cache_limit_bytes = device->memory_bytes ? device->memory_bytes / 4 : SIZE_MAX;
    (void)pthread_mutex_init(&pool->lock, NULL); /* a default mutex: cannot fail on Linux */
    *out = pool;
    return KVC_OK;
}

void kvc_pool_free(kvc_pool *pool) {
    if (!pool) return;
    (void)pthread_mutex_lock(&pool->lock);
    KVC_ASSERT(!pool->freed);
    pool->freed = true;
    (void)pthread_mutex_unlock(&pool->lock);
    (void)evict_all(pool);
    kvc__pool_drop_hold(pool);
}

const kvc_device *kvc_pool_device(const kvc_pool *pool) {
    return pool->device;
}

kvc_status kvc_pool_stats_get(kvc_pool *pool, kvc_pool_stats *out) {
    (void)pthread_mutex_lock(&pool->lock);
    const kvc_pool_stats stats = pool->stats;
    (void)pthread_mutex_unlock(&pool->lock);
    return kvc__struct_out(out, &stats, sizeof stats, "kvc_pool_stats");
}

void kvc_pool_peak_reset(kvc_pool *pool) {
    (void)pthread_mutex_lock(&pool->lock);
    pool->stats.peak_active_bytes = pool->stats.peak_total_bytes = 0;
    note_peaks(pool);
    (void)pthread_mutex_unlock(&pool->lock);
}

void kvc_pool_clear(kvc_pool *pool) {
    (void)evict_all(pool);
}

static size_t set_limit(kvc_pool *pool, size_t *limit, size_t bytes) {
    kvc_buffer *evicted = NULL;
    (void)pthread_mutex_lock(&pool->lock);
    const size_t previous = *limit;
    *limit = bytes;
    evict_for(pool, 0, &evicted);
    if (pool->cache_limit_bytes == 0) /* pooling is off: buffers without memory go too */
        while (pool->shelf.oldest) evict_oldest(pool, &evicted);
    KVC_ASSERT_SLOW(kvc__shelf_is_valid(&pool->shelf, pool->stats.cached_bytes));
    (void)pthread_mutex_unlock(&pool->lock);
    give_back(pool, evicted);
    return previous;
}

size_t kvc_pool_memory_limit_set(kvc_pool *pool, size_t bytes) {
    return set_limit(pool, &pool->memory_limit_bytes, bytes);
}

size_t kvc_pool_cache_limit_set(kvc_pool *pool, size_t bytes) {
    return set_limit(pool, &pool->cache_limit_bytes, bytes);
}

void kvc_pool_pressure_set(kvc_pool *pool, kvc_pressure_fn fn, void *context) {
    (void)pthread_mutex_lock(&pool->lock);
    pool->pressure = fn;
    pool->pressure_context = context;
    (void)pthread_mutex_unlock(&pool->lock);
}
