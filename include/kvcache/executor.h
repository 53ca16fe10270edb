/** @file
 * Who runs the parts of a call that splits: the caller's own threads behind kvc_executor, or the
 * library's, kvc_threads.
 *
 * A kvc_threads wakes its workers in about a microsecond while they still spin (some tens of
 * microseconds after their last task), and in the time of one system call after that. When idle it
 * takes no CPU. */
#ifndef KVCACHE_EXECUTOR_H
#define KVCACHE_EXECUTOR_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/export.h>
#include <kvcache/status.h>

/** One part of a call. Parts may run at once and in any order, so none may wait for another.
 * @param argument  handed through from parallel_for
 * @param index     which part
 * @param thread    who runs it: a number for scratch, as no other part has it at the same time */
typedef void (*kvc_task_fn)(void *argument, int64_t index, int thread);

/** What runs parts: a struct to fill by an engine that has threads of its own. */
typedef struct kvc_executor {
    size_t struct_size; /**< sizeof(kvc_executor) */
    void *context;      /**< handed to parallel_for */
    int threads;        /**< thread numbers are 0 ≤ thread < threads; at least 1 */

    /** Calls task(argument, i, thread) once for each 0 ≤ i < count; no two calls with the same
     * thread overlap. Returns when all have ended, and what they wrote is visible then. */
    void (*parallel_for)(void *context, int64_t count, kvc_task_fn task, void *argument);
} kvc_executor;

/** The library's threads. */
typedef struct kvc_threads kvc_threads;

/** Most threads of one kvc_threads. */
#define KVC_THREADS_MAX 4096

KVC_BEGIN_DECLS

/** Starts threads - 1 workers: the thread that calls parallel_for is the remaining one.
 * Workers block signals, but for those of faults and SIGPROF. Where there are fewer CPUs than
 * threads they sleep at once instead of spinning, as they would keep each other from the CPU.
 * @param threads  1 … KVC_THREADS_MAX, or 0: one a CPU that this thread may run on (its affinity;
 *                 the quota of a control group is not looked at)
 * @errors KVC_E_INVALID threads, out is NULL; KVC_E_NOMEM no memory, or the system starts no more
 *         threads: those started have ended again */
KVC_API KVC_MUST_USE kvc_status kvc_threads_new(kvc_threads **out, int threads);

/** Ends the workers and frees. No parallel_for may be running. NULL is allowed. */
KVC_API void kvc_threads_free(kvc_threads *threads);

/** Returns the executor that runs on these threads; the caller of parallel_for is thread 0. Parts
 * go to whoever is free, so uneven ones balance; a worker that is not yet awake when the last part
 * is taken is not waited for. A call allocates nothing, and makes a system call only to wake
 * workers that sleep, or to sleep itself while others are long at their last part.
 * @param threads  not NULL
 * @lifetime until kvc_threads_free; the child of a fork has no workers and may not use it
 * Threads: one parallel_for at a time; a part may not start another. */
KVC_API kvc_executor kvc_threads_executor(kvc_threads *threads);

KVC_END_DECLS

#endif
