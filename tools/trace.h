/** @file
 * The profile of a command: collects the library's spans and the command's own steps in memory
 * while it measures, then writes them as Chrome trace events (Perfetto and chrome://tracing open
 * them) and tells which share of the steps went where. One trace a process; without trace_open
 * every call here does nothing. */
#ifndef KVCACHE_TOOLS_TRACE_H
#define KVCACHE_TOOLS_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <kvcache/trace.h>

/** Prepares a trace; nothing is recorded before trace_record(true).
 * @param path     where trace_close writes; checked here, so that no measurement is made in vain
 * @param outside  what the process does in a step while none of the library's spans runs, for the
 *                 sentences: "the model's own arithmetic"; borrowed until trace_close
 * @return CLI_DONE, or CLI_FAILED with a line */
int trace_open(const char *path, const char *outside);

/** Starts or stops recording the library's spans. Not while a step is open. */
void trace_record(bool on);

/** Opens a step: the unit whose time is shared out.
 * @param label  the track it goes to, and a row of the table: "concat 4096". Steps of
 *               equal labels are added up. */
void trace_step_begin(const char *label);

/** Closes the step that is open. */
void trace_step_end(void);

/** Returns the start of a span of the command's own, such as a memcpy; 0 while not recording. */
uint64_t trace_span_begin(void);

/** Ends a span that began at start_ns; nothing when that is 0.
 * @param name  static storage */
void trace_span_end(uint64_t start_ns, kvc_span_kind kind, const char *name, uint64_t bytes);

/** Adds what the pool did during the steps of a label, for the sentence. */
void trace_pool(const char *label, uint64_t hits, uint64_t misses);

/** Writes the file, and the table with its sentences to summary. Ends the trace.
 * @return CLI_DONE, or CLI_FAILED with a line */
int trace_close(FILE *summary);

/** Ends the trace without a file. */
void trace_discard(void);

#endif
