#include "base/trace.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic(kvc_trace_fn) trace_fn;
static void *trace_context;

void kvc_trace_set(kvc_trace_fn fn, void *context) {
    trace_context = context;
    atomic_store_explicit(&trace_fn, fn, memory_order_release);
}

uint64_t kvc__now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t kvc__span_begin(void) {
    return atomic_load_explicit(&trace_fn, memory_order_relaxed) ? kvc__now_ns() : 0;
}

void kvc__span_end(uint64_t start_ns, kvc_span_kind kind, const char *name, size_t bytes) {
    if (start_ns == 0) return;
    const kvc_trace_fn fn = atomic_load_explicit(&trace_fn, memory_order_acquire);
    if (!fn) return;
    const kvc_span span = {kind, name, start_ns, kvc__now_ns(), bytes};
    fn(trace_context, &span);
}
