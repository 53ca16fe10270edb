/* The library's threads: each part once, each thread number to one at a time, results visible, at
 * any count, awake or asleep; and all undone when a start fails. ThreadSanitizer reads along.
 * Nothing here depends on how fast a worker wakes. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <kvcache/executor.h>

#include "support/fault.h"
#include "support/support.h"

enum { MOST_PARTS = 1000, MOST_THREADS = 8, CALLS = 10000, LONG_PAUSE_MS = 20 };

static const int thread_counts[] = {1, 2, 3, 7};

/* The linker (--wrap) sends the library's calls of pthread_create here, where they may fail. */
static int creations_left = -1; /* before one fails; -1: none does */

/* NOLINTBEGIN(bugprone-reserved-identifier): the linker makes the names */
int __real_pthread_create(pthread_t *out, const pthread_attr_t *how, void *(*run)(void *), void *x);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, void *(*run)(void *), void *x);
/* NOLINTEND(bugprone-reserved-identifier) */

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, void *(*run)(void *),
                          void *x) {
    if (creations_left == 0) return EAGAIN;
    if (creations_left > 0) creations_left--;
    return __real_pthread_create(out, how, run, x);
}

/* What tasks write: plain memory, so that a sanitizer sees what is not ordered. */
typedef struct record {
    int threads;
    pthread_t caller;
    int runs[MOST_PARTS];      /* of each part */
    int scratch[MOST_THREADS]; /* of each thread number */
    atomic_bool taken[MOST_THREADS];
    atomic_int wrong;
} record;

static void note(void *argument, int64_t index, int thread) {
    record *r = argument;
    if (thread < 0 || thread >= r->threads || index < 0 || index >= MOST_PARTS) {
        (void)atomic_fetch_add(&r->wrong, 1);
        return;
    }
    if (atomic_exchange_explicit(&r->taken[thread], true, memory_order_relaxed))
        (void)atomic_fetch_add_explicit(&r->wrong, 1, memory_order_relaxed);
    if ((thread == 0) != !!pthread_equal(pthread_self(), r->caller))
        (void)atomic_fetch_add_explicit(&r->wrong, 1, memory_order_relaxed);
    r->runs[index]++;
    r->scratch[thread]++;
    atomic_store_explicit(&r->taken[thread], false, memory_order_relaxed);
}

static kvc_threads *threads_of(int threads) {
    kvc_threads *pool;
    assert_ok(kvc_threads_new(&pool, threads));
    return pool;
}

/* Runs `count` parts and finds each run once. */
static void expect_each_once(kvc_threads *pool, int64_t count) {
    static record r;
    const kvc_executor e = kvc_threads_executor(pool);
    r = (record){.threads = e.threads, .caller = pthread_self()};
    e.parallel_for(e.context, count, note, &r);
    assert_int_equal(r.wrong, 0);
    for (int64_t i = 0; i < MOST_PARTS; i++)
        if (r.runs[i] != (i < count)) fail_msg("%d runs of part %d", r.runs[i], (int)i);
    int64_t sum = 0;
    for (int t = 0; t < MOST_THREADS; t++) sum += r.scratch[t];
    assert_int_equal(sum, count);
}

static void pause_ms(long ms) {
    const struct timespec pause = {0, ms * 1000000};
    (void)nanosleep(&pause, NULL);
}

static void threads__an_executor_has_its_size_and_its_threads(void **state) {
    (void)state;
    for (int n = 1; n <= MOST_THREADS; n++) {
        kvc_threads *pool = threads_of(n);
        const kvc_executor e = kvc_threads_executor(pool);
        assert_int_equal(e.struct_size, sizeof e);
        assert_int_equal(e.threads, n);
        assert_non_null(e.parallel_for);
        kvc_threads_free(pool);
    }
}

static void threads__zero_is_one_a_cpu(void **state) {
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    kvc_threads *pool = threads_of(0);
    assert_int_equal(kvc_threads_executor(pool).threads, CPU_COUNT(&set));
    kvc_threads_free(pool);
}

static void threads__what_is_no_number_of_threads_is_refused(void **state) {
    (void)state;
    kvc_threads *pool = (kvc_threads *)state;
    assert_fails(kvc_threads_new(&pool, -1), KVC_E_INVALID);
    assert_null(pool);
    assert_fails(kvc_threads_new(&pool, KVC_THREADS_MAX + 1), KVC_E_INVALID);
    assert_fails(kvc_threads_new(NULL, 1), KVC_E_INVALID);
    kvc_threads_free(NULL);
}

static void threads__every_part_runs_once_at_every_count(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; i++) {
        kvc_threads *pool = threads_of(thread_counts[i]);
        for (int64_t count = 0; count <= MOST_PARTS; count++) expect_each_once(pool, count);
        expect_each_once(pool, 0);
        kvc_threads_free(pool);
    }
}

static void threads__no_part_runs_for_a_negative_count(void **state) {
    (void)state;
    kvc_threads *pool = threads_of(2);
    const kvc_executor e = kvc_threads_executor(pool);
    record r = {.threads = 2};
    e.parallel_for(e.context, INT64_MIN, note, &r);
    assert_int_equal(r.runs[0], 0);
    kvc_threads_free(pool);
}

/* Part 0 ends when all others have: whoever has it, the others take the rest. Real tasks must not
 * wait for each other. */
typedef struct uneven {
    int64_t count;
    _Atomic int64_t done;
} uneven;

static void first_waits_for_all(void *argument, int64_t index, int thread) {
    uneven *u = argument;
    (void)thread;
    while (index == 0 && atomic_load(&u->done) < u->count - 1) pause_ms(0);
    (void)atomic_fetch_add(&u->done, 1);
}

static void threads__a_long_part_leaves_the_others_to_other_threads(void **state) {
    (void)state;
    for (int n = 2; n <= MOST_THREADS; n++) {
        kvc_threads *pool = threads_of(n);
        const kvc_executor e = kvc_threads_executor(pool);
        for (int64_t count = 2; count < 40; count++) {
            uneven u = {.count = count};
            e.parallel_for(e.context, count, first_waits_for_all, &u);
            assert_int_equal(u.done, count);
        }
        kvc_threads_free(pool);
    }
}

static void last_takes_long(void *argument, int64_t index, int thread) {
    if (index == 1) pause_ms(2);
    note(argument, index, thread);
}

static void threads__a_caller_that_slept_until_the_last_part_ended_sees_it(void **state) {
    (void)state;
    static record r;
    for (int n = 2; n <= 3; n++) {
        kvc_threads *pool = threads_of(n);
        const kvc_executor e = kvc_threads_executor(pool);
        for (int call = 0; call < 50; call++) {
            r = (record){.threads = n, .caller = pthread_self()};
            e.parallel_for(e.context, 2, last_takes_long, &r);
            assert_int_equal(r.wrong, 0);
            assert_int_equal(r.runs[0] + 10 * r.runs[1], 11);
        }
        kvc_threads_free(pool);
    }
}

/* Each part adds what the call before left to it: a task or a caller that read too early, or a
 * worker that came late from another call, would show in the sums. */
typedef struct chain {
    int64_t in[5], out[5];
} chain;

static void add_one(void *argument, int64_t index, int thread) {
    chain *c = argument;
    (void)thread;
    c->out[index] = c->in[index] + 1;
}

static void threads__ten_thousand_calls_each_see_the_one_before(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; i++) {
        kvc_threads *pool = threads_of(thread_counts[i]);
        const kvc_executor e = kvc_threads_executor(pool);
        chain c = {{0}, {0}};
        for (int call = 0; call < CALLS; call++) {
            const int64_t count = 1 + call % 5;
            e.parallel_for(e.context, count, add_one, &c);
            memcpy(c.in, c.out, sizeof c.in);
        }
        for (int64_t k = 0; k < 5; k++) assert_int_equal(c.in[k], CALLS / 5 * (5 - k));
        kvc_threads_free(pool);
    }
}

static void threads__workers_that_fell_asleep_wake_again(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; i++) {
        kvc_threads *pool = threads_of(thread_counts[i]);
        for (int64_t round = 0; round < 8; round++) {
            pause_ms(round % 2 ? LONG_PAUSE_MS : 0);
            expect_each_once(pool, 1 + 3 * round);
        }
        const kvc_executor e = kvc_threads_executor(pool);
        for (int round = 0; e.threads > 1 && round < 3; round++) {
            pause_ms(LONG_PAUSE_MS);
            uneven u = {.count = 2}; /* ends only if a sleeper wakes */
            e.parallel_for(e.context, 2, first_waits_for_all, &u);
            assert_int_equal(u.done, 2);
        }
        kvc_threads_free(pool);
    }
}

static void threads__free_ends_workers_awake_asleep_and_just_started(void **state) {
    (void)state;
    for (int n = 1; n <= MOST_THREADS; n++)
        for (int pause = 0; pause < 3; pause++) {
            kvc_threads *pool = threads_of(n);
            if (pause > 0) expect_each_once(pool, 20);
            if (pause > 1) pause_ms(LONG_PAUSE_MS);
            kvc_threads_free(pool);
        }
}

static void *call_and_end(void *context) {
    const kvc_executor e = kvc_threads_executor(context);
    static chain c;
    c = (chain){{1, 2, 3, 4, 5}, {0}};
    e.parallel_for(e.context, 5, add_one, &c);
    return &c;
}

static void threads__the_caller_may_be_another_thread_each_time(void **state) {
    (void)state;
    kvc_threads *pool = threads_of(3);
    for (int round = 0; round < 20; round++) {
        pthread_t other;
        void *result;
        assert_int_equal(pthread_create(&other, NULL, call_and_end, pool), 0);
        assert_int_equal(pthread_join(other, &result), 0);
        for (int i = 0; i < 5; i++) assert_int_equal(((const chain *)result)->out[i], i + 2);
        expect_each_once(pool, 100);
    }
    kvc_threads_free(pool);
}

static void note_signals(void *argument, int64_t index, int thread) {
    sigset_t *sets = argument;
    if (index == 0) pause_ms(LONG_PAUSE_MS); /* so that the other part is a worker's, if it can */
    (void)pthread_sigmask(SIG_SETMASK, NULL, &sets[thread]);
}

static void threads__signals_stay_with_the_threads_of_the_program(void **state) {
    (void)state;
    sigset_t sets[2];
    (void)sigfillset(&sets[0]);
    (void)sigfillset(&sets[1]);
    (void)sigdelset(&sets[1], SIGSEGV);
    kvc_threads *pool = threads_of(2);
    const kvc_executor e = kvc_threads_executor(pool);
    e.parallel_for(e.context, 2, note_signals, sets);
    kvc_threads_free(pool);
    assert_false(sigismember(&sets[0], SIGINT));
    assert_true(sigismember(&sets[1], SIGINT));
    assert_false(sigismember(&sets[1], SIGSEGV));
}

static void threads__calls_allocate_nothing(void **state) {
    (void)state;
    test_allocator_use(true);
    kvc_threads *pool = threads_of(3);
    const size_t calls = test_allocator_calls();
    for (int64_t count = 0; count < 100; count++) expect_each_once(pool, count);
    assert_int_equal(test_allocator_calls(), calls);
    kvc_threads_free(pool);
    test_allocator_use(false);
}

static void threads__new_nomem_leaves_nothing(void **state) {
    (void)state;
    test_allocator_use(true);
    bool failed = true;
    for (size_t nth = 1; failed; nth++) {
        kvc_threads *pool;
        test_fault_arm(nth, TEST_FAULT_ONCE);
        const kvc_status status = kvc_threads_new(&pool, 3);
        failed = test_fault_disarm();
        if (failed) {
            assert_int_equal(status, KVC_E_NOMEM);
            assert_null(pool);
        } else {
            assert_int_equal(status, KVC_OK);
            expect_each_once(pool, 10);
            kvc_threads_free(pool);
        }
        assert_int_equal(test_allocator_held(), 0);
    }
    test_allocator_use(false);
}

static void threads__a_thread_that_cannot_start_undoes_those_before(void **state) {
    (void)state;
    test_allocator_use(true);
    for (int started = 0; started < MOST_THREADS - 1; started++) {
        kvc_threads *pool;
        creations_left = started;
        const kvc_status status = kvc_threads_new(&pool, MOST_THREADS);
        creations_left = -1;
        assert_fails(status, KVC_E_NOMEM);
        assert_null(pool);
        assert_int_equal(test_allocator_held(), 0);
    }
    test_allocator_use(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads__an_executor_has_its_size_and_its_threads),
        cmocka_unit_test(threads__zero_is_one_a_cpu),
        cmocka_unit_test(threads__what_is_no_number_of_threads_is_refused),
        cmocka_unit_test(threads__every_part_runs_once_at_every_count),
        cmocka_unit_test(threads__no_part_runs_for_a_negative_count),
        cmocka_unit_test(threads__a_long_part_leaves_the_others_to_other_threads),
        cmocka_unit_test(threads__a_caller_that_slept_until_the_last_part_ended_sees_it),
        cmocka_unit_test(threads__ten_thousand_calls_each_see_the_one_before),
        cmocka_unit_test(threads__workers_that_fell_asleep_wake_again),
        cmocka_unit_test(threads__free_ends_workers_awake_asleep_and_just_started),
        cmocka_unit_test(threads__the_caller_may_be_another_thread_each_time),
        cmocka_unit_test(threads__signals_stay_with_the_threads_of_the_program),
        cmocka_unit_test(threads__calls_allocate_nothing),
        cmocka_unit_test(threads__new_nomem_leaves_nothing),
        cmocka_unit_test(threads__a_thread_that_cannot_start_undoes_those_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
