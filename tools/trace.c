#include "trace.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvcache/trace.h>

#include "cli.h"
#include "outfile.h"
#include "profile.h"

enum {
    FIRST_ROOM = 1 << 16, /* spans */
    MOST_SPANS = 1 << 21, /* 100 MB; the file is then some 300 */
    STEP_ROOM = 1 << 12,  /* spans of one step for which no memory is taken while it runs */
};

static struct {
    bool open, recording, in_step;
    const char *path, *outside;
    pthread_mutex_t lock; /* spans may come from any thread */
    profile_span *spans;
    size_t count, room, dropped;
    profile_track tracks[PROFILE_TRACKS];
    size_t track_count;
    size_t step_track;
    uint64_t step_start_ns;
    double span_ns; /* what recording one takes */
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Room for more spans, its pages touched so that recording meets no page fault. */
static bool grow(size_t room) {
    if (room > MOST_SPANS) room = MOST_SPANS;
    if (room <= trace.room) return false;
    profile_span *spans = realloc(trace.spans, room * sizeof *spans);
    if (!spans) return false;
    memset(spans + trace.room, 0, (room - trace.room) * sizeof *spans);
    trace.spans = spans;
    trace.room = room;
    return true;
}

static void record(profile_span span) {
    (void)pthread_mutex_lock(&trace.lock);
    if (trace.count < trace.room || grow(2 * trace.room)) trace.spans[trace.count++] = span;
    else trace.dropped++;
    (void)pthread_mutex_unlock(&trace.lock);
}

static void on_span(void *context, const kvc_span *span) {
    (void)context;
    const size_t track = trace.in_step ? trace.step_track : PROFILE_NO_TRACK;
    record((profile_span){span->name, span->start_ns, span->end_ns, span->bytes, track,
                          (int)span->kind});
}

static size_t find_track(const char *label) {
    for (size_t i = 0; i < trace.track_count; i++)
        if (strcmp(trace.tracks[i].label, label) == 0) return i;
    if (trace.track_count == PROFILE_TRACKS) return PROFILE_NO_TRACK;
    profile_track *track = &trace.tracks[trace.track_count];
    *track = (profile_track){.steps = 0};
    (void)snprintf(track->label, sizeof track->label, "%s", label);
    return trace.track_count++;
}

uint64_t trace_span_begin(void) {
    return trace.recording ? now_ns() : 0;
}

void trace_span_end(uint64_t start_ns, kvc_span_kind kind, const char *name, uint64_t bytes) {
    if (start_ns == 0) return;
    const kvc_span span = {kind, name, start_ns, now_ns(), bytes};
    on_span(NULL, &span);
}

/* What recording one span adds to a step. */
static double measure_span_ns(void) {
    enum { SPANS = 1000 };
    const uint64_t start_ns = now_ns();
    trace.recording = true;
    for (int i = 0; i < SPANS; i++) trace_span_end(trace_span_begin(), KVC_SPAN_COPY, "", 0);
    trace.recording = false;
    trace.count = 0;
    return (double)(now_ns() - start_ns) / SPANS;
}

int trace_open(const char *path, const char *outside) {
    const int status = outfile_check("--trace", path);
    if (status != CLI_DONE) return status;
    if (!grow(FIRST_ROOM)) return cli_fail("--trace: no memory for %d spans", FIRST_ROOM);
    trace.path = path;
    trace.outside = outside;
    trace.open = true;
    trace.span_ns = measure_span_ns();
    return CLI_DONE;
}

void trace_record(bool on) {
    if (!trace.open) return;
    trace.recording = on;
    kvc_trace_set(on ? on_span : NULL, NULL);
}

void trace_step_begin(const char *label) {
    if (!trace.recording) return;
    if (trace.room - trace.count < STEP_ROOM) (void)grow(2 * trace.room);
    trace.step_track = find_track(label);
    trace.in_step = true;
    trace.step_start_ns = now_ns();
}

void trace_step_end(void) {
    if (!trace.in_step) return;
    const uint64_t end_ns = now_ns();
    trace.in_step = false;
    record((profile_span){"step", trace.step_start_ns, end_ns, 0, trace.step_track, PROFILE_STEP});
}

void trace_pool(const char *label, uint64_t hits, uint64_t misses) {
    if (!trace.open) return;
    const size_t track = find_track(label);
    if (track == PROFILE_NO_TRACK) return;
    trace.tracks[track].pool_hits += hits;
    trace.tracks[track].pool_misses += misses;
}

/* The file: one event a line. Track 0 holds what ran between steps. */

static int tid_of(size_t track) {
    return track == PROFILE_NO_TRACK ? 0 : (int)track + 1;
}

/* Writes an event and drops it. */
static bool put_event(FILE *file, json_t *event, bool *first) {
    if (!event) return false;
    const bool put = fputs(*first ? "\n" : ",\n", file) >= 0 &&
                     json_dumpf(event, file, JSON_COMPACT | JSON_REAL_PRECISION(15)) == 0;
    *first = false;
    json_decref(event);
    return put;
}

static json_t *new_name_event(const char *what, int tid, const char *name) {
    return json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", what, "pid", 1, "tid", tid,
                     "args", "name", name);
}

static json_t *new_span_event(const profile_span *span, uint64_t origin_ns) {
    const double ts = 1e-3 * (double)(span->start_ns - origin_ns);
    const double duration = 1e-3 * (double)(span->end_ns - span->start_ns);
    json_t *event = json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "ph", "X", "name", span->name,
                              "cat", profile_kind_name(span->kind), "pid", 1, "tid",
                              tid_of(span->track), "ts", ts, "dur", duration);
    if (event && span->kind != PROFILE_STEP)
        (void)json_object_set_new(event, "args",
                                  json_pack("{s:I}", "bytes", (json_int_t)span->bytes));
    return event;
}

static bool put_events(FILE *file) {
    bool first = true;
    bool good = fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", file) >= 0;
    good = good && put_event(file, new_name_event("process_name", 0, "kvcache"), &first);
    good = good && put_event(file, new_name_event("thread_name", 0, "between steps"), &first);
    for (size_t i = 0; i < trace.track_count; i++)
        good =
            good && put_event(file, new_name_event("thread_name", tid_of(i), trace.tracks[i].label),
                              &first);
    const uint64_t origin_ns = trace.count ? trace.spans[0].start_ns : 0;
    for (size_t i = 0; i < trace.count && good; i++)
        good = put_event(file, new_span_event(&trace.spans[i], origin_ns), &first);
    return good && fputs("\n]}\n", file) >= 0;
}

static int write_file(void) {
    outfile out;
    if (outfile_begin(&out, trace.path) != CLI_DONE) return CLI_FAILED;
    return outfile_end(&out, put_events(out.stream) ? CLI_DONE : CLI_FAILED);
}

int trace_close(FILE *summary) {
    if (!trace.open) return CLI_DONE;
    trace_record(false);
    profile_sort(trace.spans, trace.count);
    profile_sum(trace.spans, trace.count, trace.tracks, trace.track_count);
    profile_print(summary, trace.tracks, trace.track_count, trace.outside, trace.span_ns);
    if (trace.dropped > 0)
        (void)fprintf(summary, "%zu spans found no room and are missing above and in the file\n",
                      trace.dropped);
    const int status = write_file();
    if (status == CLI_DONE)
        (void)fprintf(summary, "trace of %zu spans: %s (open it in ui.perfetto.dev)\n", trace.count,
                      trace.path);
    trace_discard();
    return status;
}

void trace_discard(void) {
    if (!trace.open) return;
    trace_record(false);
    free(trace.spans);
    trace.spans = NULL;
    trace.count = trace.room = trace.dropped = trace.track_count = 0;
    trace.open = trace.in_step = false;
}
