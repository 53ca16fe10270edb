/** @file
 * Spans of what the library does, for a profile: allocations, commits, copies and kernels.
 * Off, it costs one load a call; on, two clock reads a span. */
#ifndef KVCACHE_TRACE_H
#define KVCACHE_TRACE_H

#include <stdint.h>

#include <kvcache/export.h>

/** What a span was spent on. */
typedef enum kvc_span_kind {
    KVC_SPAN_ALLOCATE = 0, /**< the device gave memory: the seed's "allocation from the driver" */
    KVC_SPAN_RELEASE = 1,  /**< memory went back to the device */
    KVC_SPAN_COMMIT = 2,   /**< pages of a reserved range were made resident */
    KVC_SPAN_COPY = 3,     /**< elements were moved or converted */
    KVC_SPAN_FILL = 4,     /**< elements were set to one value */
    KVC_SPAN_KERNEL = 5    /**< attention ran */
} kvc_span_kind;

/** One finished piece of work. */
typedef struct kvc_span {
    kvc_span_kind kind; /**< what the time went to */
    const char *name;   /**< what ran, static storage */
    uint64_t start_ns;  /**< CLOCK_MONOTONIC */
    uint64_t end_ns;    /**< as start_ns */
    uint64_t bytes; /**< allocated, committed, written; for a kernel the bytes of K and V read */
} kvc_span;

/** Receives each span on the thread that did the work; must not call the library. */
typedef void (*kvc_trace_fn)(void *context, const kvc_span *span);

KVC_BEGIN_DECLS

/** Sends every span of the process to fn from now on; NULL turns tracing off.
 * Set it while no other thread is inside the library: fn and context change together only then. */
KVC_API void kvc_trace_set(kvc_trace_fn fn, void *context);

KVC_END_DECLS

#endif
