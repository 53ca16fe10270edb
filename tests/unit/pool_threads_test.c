/* The pool under eight threads; ThreadSanitizer reads along. Every holder writes a pattern and
 * finds it again before it lets go, so that memory lent twice would show in any build. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <kvcache/pool.h>

#include "support/pool_fixture.h"

enum { THREADS = 8, SLOTS = 6, MAILBOXES = 4, LARGEST = 40000, ROUNDS = 60 };

/* A buffer, and what its holders find in its first bytes. */
typedef struct holding {
    kvc_buffer *buffer;
    size_t bytes;
    unsigned char pattern;
} holding;

typedef struct crowd {
    kvc_pool *pool;
    double seconds;
    uint64_t seed;
    atomic_uint next_thread, wrong, served;
    pthread_mutex_t lock; /* over the mailboxes: references go from thread to thread through them */
    holding mailboxes[MAILBOXES];
    pthread_barrier_t start;
} crowd;

static bool elapsed(const struct timespec *start, double seconds) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec) >
           seconds;
}

static void let_go(crowd *c, holding *h) {
    if (!h->buffer) return;
    const unsigned char *data = kvc_buffer_data(h->buffer);
    for (size_t i = 0; i < h->bytes; i++)
        if (data[i] != h->pattern) {
            (void)atomic_fetch_add(&c->wrong, 1);
            break;
        }
    kvc_buffer_release(h->buffer);
    *h = (holding){0};
}

/* Takes a buffer, plain or reserved; under a low limit there may be none. */
static holding take(crowd *c, uint64_t *random) {
    holding h = {.bytes = 1 + test_random(random) % LARGEST,
                 .pattern = (unsigned char)test_random(random)};
    kvc_status status;
    if (test_random(random) % 4) {
        status = kvc_buffer_new(&h.buffer, c->pool, h.bytes);
    } else {
        status = kvc_buffer_reserve(&h.buffer, c->pool, h.bytes);
        if (status == KVC_OK) status = kvc_buffer_commit(h.buffer, 0, h.bytes);
    }
    if (status != KVC_OK) {
        if (status != KVC_E_LIMIT) (void)atomic_fetch_add(&c->wrong, 1);
        kvc_buffer_release(h.buffer);
        return (holding){0};
    }
    if (!kvc_buffer_is_sole(h.buffer)) (void)atomic_fetch_add(&c->wrong, 1);
    memset(kvc_buffer_data(h.buffer), h.pattern, h.bytes);
    (void)atomic_fetch_add(&c->served, 1);
    return h;
}

/* Gives a second reference to whoever comes by, and takes what lay there. */
static void pass_on(crowd *c, const holding *mine, uint64_t *random) {
    holding other = *mine;
    (void)kvc_buffer_retain(other.buffer);
    (void)pthread_mutex_lock(&c->lock);
    holding *box = &c->mailboxes[test_random(random) % MAILBOXES];
    const holding found = *box;
    *box = other;
    (void)pthread_mutex_unlock(&c->lock);
    other = found;
    let_go(c, &other);
}

static bool nothing_to_spare(void *context, size_t bytes) {
    (void)context;
    (void)bytes;
    return false;
}

static void disturb(crowd *c, uint64_t *random) {
    const uint64_t r = test_random(random);
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    switch (r % 6) {
    case 0: kvc_pool_clear(c->pool); break;
    case 1: (void)kvc_pool_memory_limit_set(c->pool, r & 64 ? SIZE_MAX : r / 128 % 500000); break;
    case 2: (void)kvc_pool_cache_limit_set(c->pool, r & 64 ? SIZE_MAX : r / 128 % 300000); break;
    case 3: kvc_pool_peak_reset(c->pool); break;
    case 4: kvc_pool_pressure_set(c->pool, r & 64 ? nothing_to_spare : NULL, NULL); break;
    default: break;
    }
    if (kvc_pool_stats_get(c->pool, &stats) != KVC_OK ||
        stats.peak_total_bytes < stats.peak_active_bytes)
        (void)atomic_fetch_add(&c->wrong, 1);
}

static void *work(void *context) {
    crowd *c = context;
    uint64_t random = c->seed + atomic_fetch_add(&c->next_thread, 1);
    holding held[SLOTS] = {{0}};
    struct timespec start;
    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    while (!elapsed(&start, c->seconds)) {
        holding *h = &held[test_random(&random) % SLOTS];
        const uint64_t what = test_random(&random) % 16;
        if (what == 0) disturb(c, &random);
        else if (what < 6) pass_on(c, h, &random);
        else if (h->buffer) let_go(c, h);
        else *h = take(c, &random);
    }
    for (size_t i = 0; i < SLOTS; i++) let_go(c, &held[i]);
    return NULL;
}

static void threads__eight_take_give_and_share_while_limits_change(void **state) {
    pool_fixture *f = *state;
    static crowd c;
    c = (crowd){.pool = f->pool, .seconds = test_seconds(1), .seed = test_seed(6)};
    (void)pthread_mutex_init(&c.lock, NULL);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &c), 0);
    for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (size_t i = 0; i < MAILBOXES; i++) let_go(&c, &c.mailboxes[i]);
    (void)pthread_mutex_destroy(&c.lock);
    assert_int_equal(c.wrong, 0);
    assert_true(c.served > 100);

    kvc_pool_clear(f->pool);
    const kvc_pool_stats s = pool_stats(f->pool);
    assert_int_equal(s.active_bytes, 0);
    assert_int_equal(s.cached_bytes, 0);
    assert_int_equal(s.reserved_bytes, 0);
    assert_int_equal(s.driver_calls, test_device_driver_calls(&f->device));
    assert_int_equal(f->device.count, 0);
}

static void *hold_to_the_end(void *context) {
    crowd *c = context;
    uint64_t random = c->seed + atomic_fetch_add(&c->next_thread, 1);
    holding held[SLOTS] = {{0}};
    for (size_t i = 0; i < SLOTS; i++) held[i] = take(c, &random);
    (void)pthread_barrier_wait(&c->start);
    for (size_t i = 0; i < SLOTS; i++) let_go(c, &held[i]);
    return NULL;
}

static void threads__a_pool_may_end_while_others_let_go_of_its_buffers(void **state) {
    pool_fixture *f = *state;
    static crowd c;
    const uint64_t seed = test_seed(7);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        c = (crowd){.seed = seed + 100 * round};
        assert_ok(kvc_pool_new(&c.pool, &f->device.table));
        (void)pthread_barrier_init(&c.start, NULL, THREADS + 1);
        pthread_t threads[THREADS];
        for (size_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, hold_to_the_end, &c), 0);
        (void)pthread_barrier_wait(&c.start);
        kvc_pool_free(c.pool);
        for (size_t i = 0; i < THREADS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
        (void)pthread_barrier_destroy(&c.start);
        assert_int_equal(c.wrong, 0);
        assert_int_equal(c.served, THREADS * SLOTS);
        assert_int_equal(f->device.count, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(threads__eight_take_give_and_share_while_limits_change),
        pool_test(threads__a_pool_may_end_while_others_let_go_of_its_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
