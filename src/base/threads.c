#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include <kvcache/executor.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/trace.h"

/* One word, `state`, says all: which job is the latest (its generation), whether it may be joined
 * (OPEN), how many workers are in it (ACTIVE), whether the caller sleeps until they have left
 * (AWAITED), whether all shall end (STOP).
 *
 * The caller writes the job's fields, opens it, takes part, closes it and waits for ACTIVE == 0.
 * A worker joins by adding itself to ACTIVE while the job is OPEN. So the fields change only while
 * nobody can read them, and a worker that comes too late costs the caller nothing.
 *
 * Order. Opening is a release and joining an acquire: a worker sees the fields and all that the
 * caller wrote before. Joining and leaving are read-modify-writes, which carry a release on to
 * whoever acquires the word later. Leaving is a release, and seeing ACTIVE == 0 an acquire: the
 * caller sees what the tasks wrote. `next` only hands out numbers, so it is relaxed. Opening, and
 * counting oneself a sleeper, are sequentially consistent together with the loads that follow them:
 * either the caller sees the sleeper or the sleeper sees the job. */
#define ACTIVE     UINT64_C(0xffff) /* a count: KVC_THREADS_MAX fits */
#define OPEN       (UINT64_C(1) << 16)
#define AWAITED    (UINT64_C(1) << 17)
#define STOP       (UINT64_C(1) << 18)
#define GENERATION (~UINT64_C(0) << 19) /* of 2^45 jobs */
#define ONE_JOB    (UINT64_C(1) << 19)

enum {
    SPIN_NS = 50000, /* about what going to sleep and waking may cost on a busy machine */
    LINE_BYTES = 128 /* two cache lines, as they are fetched in pairs */
};

typedef struct worker {
    kvc_threads *pool;
    pthread_t handle;
    int number; /* the caller is 0 */
} worker;

struct kvc_threads {
    int threads;      /* with the caller */
    int started;      /* workers that there are to join: threads - 1, but while starting */
    uint64_t spin_ns; /* before a thread that waits goes to sleep */

    kvc_task_fn task; /* the job */
    void *argument;
    int64_t count;

    char before_state[LINE_BYTES];
    _Atomic uint64_t state;
    char before_next[LINE_BYTES];
    _Atomic int64_t next; /* index to hand out */
    char before_sleepers[LINE_BYTES];
    _Atomic int sleepers; /* changes under the lock */
    pthread_mutex_t lock; /* between looking at state and sleeping */
    pthread_cond_t wake;  /* sleepers: another generation */
    pthread_cond_t left;  /* the caller: ACTIVE == 0 */

    worker workers[]; /* [threads - 1] */
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* One turn of a wait; false when it has lasted long enough. *start_ns is 0 at first. */
static bool spin(const kvc_threads *pool, uint64_t *start_ns) {
    if (pool->spin_ns == 0) return false;
    relax();
    const uint64_t now_ns = kvc__now_ns();
    if (*start_ns == 0) *start_ns = now_ns;
    return now_ns - *start_ns < pool->spin_ns;
}

/* Waits for a generation other than seen; returns the state that has it. */
static uint64_t await_job(kvc_threads *pool, uint64_t seen) {
    uint64_t state, start_ns = 0;
    do {
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
        if ((state & GENERATION) != seen) return state;
    } while (spin(pool, &start_ns));

    (void)pthread_mutex_lock(&pool->lock);
    (void)atomic_fetch_add(&pool->sleepers, 1);
    while (((state = atomic_load(&pool->state)) & GENERATION) == seen)
        (void)pthread_cond_wait(&pool->wake, &pool->lock);
    (void)atomic_fetch_sub(&pool->sleepers, 1);
    (void)pthread_mutex_unlock(&pool->lock);
    return state;
}

static void take_part(kvc_threads *pool, int thread) {
    for (;;) {
        const int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= pool->count) return;
        pool->task(pool->argument, i, thread);
    }
}

/* The last one out wakes the caller, if that has gone to sleep. */
static void leave(kvc_threads *pool) {
    const uint64_t before = atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release);
    if (!(before & AWAITED) || (before & ACTIVE) != 1) return;
    (void)pthread_mutex_lock(&pool->lock);
    (void)pthread_cond_signal(&pool->left);
    (void)pthread_mutex_unlock(&pool->lock);
}

static void *work(void *context) {
    const worker *self = context;
    kvc_threads *pool = self->pool;
    for (uint64_t seen = 0;;) {
        uint64_t state = await_job(pool, seen);
        while ((state & OPEN) &&
               !atomic_compare_exchange_weak_explicit(&pool->state, &state, state + 1,
                                                      memory_order_acquire, memory_order_acquire))
            relax();
        if (state & STOP) return NULL;
        seen = state & GENERATION;
        if (!(state & OPEN)) continue; /* over already */
        take_part(pool, self->number);
        leave(pool);
    }
}

/* Makes the next generation, then wakes as many sleepers as `wanted` workers need. */
static void announce(kvc_threads *pool, uint64_t flags, int64_t wanted) {
    const uint64_t state = atomic_load_explicit(&pool->state, memory_order_relaxed);
    atomic_store(&pool->state, ((state & GENERATION) + ONE_JOB) | flags);
    const int sleepers = atomic_load(&pool->sleepers);
    const int64_t short_of = wanted - (pool->started - sleepers);
    if (sleepers == 0 || short_of <= 0) return;
    /* Who counted itself before has looked at state by the end of this, and waits, or sees it. */
    (void)pthread_mutex_lock(&pool->lock);
    (void)pthread_mutex_unlock(&pool->lock);
    if (short_of >= sleepers) (void)pthread_cond_broadcast(&pool->wake);
    else
        for (int64_t i = 0; i < short_of; i++) (void)pthread_cond_signal(&pool->wake);
}

/* Lets no more workers in, and waits until those within have left. */
static void close_job(kvc_threads *pool) {
    uint64_t start_ns = 0;
    uint64_t state = atomic_fetch_and_explicit(&pool->state, ~OPEN, memory_order_acquire);
    while (state & ACTIVE) {
        if (!spin(pool, &start_ns)) break;
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
    if (!(state & ACTIVE)) return;

    (void)pthread_mutex_lock(&pool->lock);
    state = atomic_fetch_or_explicit(&pool->state, AWAITED, memory_order_acquire);
    while (state & ACTIVE) {
        (void)pthread_cond_wait(&pool->left, &pool->lock);
        state = atomic_load_explicit(&pool->state, memory_order_acquire);
    }
    (void)pthread_mutex_unlock(&pool->lock);
}

static void parallel_for(void *context, int64_t count, kvc_task_fn task, void *argument) {
    kvc_threads *pool = context;
    if (count <= 1 || pool->threads == 1) {
        for (int64_t i = 0; i < count; i++) task(argument, i, 0);
        return;
    }
    /* One caller at a time, and no task may call: both find a job here. */
    KVC_ASSERT(!(atomic_load(&pool->state) & (OPEN | ACTIVE)));
    pool->task = task;
    pool->argument = argument;
    pool->count = count;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    announce(pool, OPEN, count - 1);
    take_part(pool, 0);
    close_job(pool);
}

/* CPUs that this thread may run on. */
static int available_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* the set is too small for this machine */
    return online < 1 ? 1 : online > KVC_THREADS_MAX ? KVC_THREADS_MAX : (int)online;
}

static size_t pool_bytes(int threads) {
    return sizeof(kvc_threads) + (size_t)(threads - 1) * sizeof(worker);
}

/* Signals are for the program's threads, but for faults of a task itself, and profilers. */
static sigset_t blocked_signals(void) {
    static const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGPROF};
    sigset_t set;
    (void)sigfillset(&set);
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) (void)sigdelset(&set, open[i]);
    return set;
}

/* Starts one worker after another. On an error `started` says how many there are. */
static kvc_status start_workers(kvc_threads *pool) {
    const sigset_t blocked = blocked_signals();
    sigset_t before;
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &before); /* workers inherit the mask */
    int error = 0;
    while (error == 0 && pool->started < pool->threads - 1) {
        worker *w = &pool->workers[pool->started];
        *w = (worker){.pool = pool, .number = pool->started + 1};
        error = pthread_create(&w->handle, NULL, work, w);
        if (error == 0) pool->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return KVC_OK;
    return kvc__fail(KVC_E_NOMEM,
                     "threads: %d wanted, the system starts no more than %d (error %d)",
                     pool->threads, pool->started + 1, error);
}

kvc_status kvc_threads_new(kvc_threads **out, int threads) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    if (threads < 0 || threads > KVC_THREADS_MAX)
        return kvc__fail(KVC_E_INVALID, "threads: %d given, 0 to %d wanted", threads,
                         KVC_THREADS_MAX);
    const int cpus = available_cpus();
    if (threads == 0) threads = cpus;
    void *memory;
    KVC_TRY(kvc__calloc(&memory, 1, pool_bytes(threads), "threads"));
    kvc_threads *pool = memory;
    pool->threads = threads;
    pool->spin_ns = threads > cpus ? 0 : SPIN_NS;
    (void)pthread_mutex_init(&pool->lock, NULL); /* defaults: these cannot fail on Linux */
    (void)pthread_cond_init(&pool->wake, NULL);
    (void)pthread_cond_init(&pool->left, NULL);
    const kvc_status status = start_workers(pool);
    if (status == KVC_OK) *out = pool;
    else kvc_threads_free(pool);
    return status;
}

void kvc_threads_free(kvc_threads *pool) {
    if (!pool) return;
    KVC_ASSERT(!(atomic_load(&pool->state) & (OPEN | ACTIVE)));
    announce(pool, STOP, pool->started);
    for (int i = 0; i < pool->started; i++) (void)pthread_join(pool->workers[i].handle, NULL);
    (void)pthread_cond_destroy(&pool->left);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    kvc__free(pool, 1, pool_bytes(pool->threads));
}

kvc_executor kvc_threads_executor(kvc_threads *pool) {
    return (kvc_executor){sizeof(kvc_executor), pool, pool->threads, parallel_for};
}
