/** @file
 * Spans, from inside: start with kvc__span_begin, end with kvc__span_end. */
#ifndef KVC_BASE_TRACE_H
#define KVC_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/trace.h>

/** Nanoseconds of CLOCK_MONOTONIC: no system call where the kernel maps its clock. */
uint64_t kvc__now_ns(void);

/** Returns the time when tracing is on, else 0: the start that kvc__span_end wants. */
uint64_t kvc__span_begin(void);

/** Ends and sends a span that began at start_ns; nothing when that is 0. */
void kvc__span_end(uint64_t start_ns, kvc_span_kind kind, const char *name, size_t bytes);

#endif
