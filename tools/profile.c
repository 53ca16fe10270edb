#include "profile.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

const char *profile_kind_name(int kind) {
    static const char *const names[] = {"allocate", "release", "commit", "copy",
                                        "fill",     "kernel",  "step"};
    return kind >= 0 && kind <= PROFILE_STEP ? names[kind] : "?";
}

static int compare_spans(const void *left, const void *right) {
    const profile_span *a = left, *b = right;
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns ? -1 : 1;
    if (a->end_ns != b->end_ns) return a->end_ns > b->end_ns ? -1 : 1;
    return b->kind - a->kind; /* a step encloses what took as long */
}

void profile_sort(profile_span *spans, size_t count) {
    if (count > 0) qsort(spans, count, sizeof *spans, compare_spans);
}

/* What a span spent is its duration without its children's. The stack holds the open spans, the
 * innermost last; deeper nesting than it holds is added to the span above. */
void profile_sum(const profile_span *spans, size_t count, profile_track *tracks,
                 size_t track_count) {
    enum { DEPTH = 16 };
    const profile_span *open[DEPTH];
    size_t depth = 0;
    for (size_t i = 0; i < count; i++) {
        const profile_span *span = &spans[i];
        while (depth > 0 && open[depth - 1]->end_ns <= span->start_ns) depth--;
        if (span->track >= track_count || depth == DEPTH) continue;
        profile_track *track = &tracks[span->track];
        const uint64_t duration = span->end_ns - span->start_ns;
        if (span->kind == PROFILE_STEP) {
            track->steps++;
            track->step_ns += duration;
            if (duration > track->longest_step_ns) track->longest_step_ns = duration;
        } else {
            track->own_ns[span->kind] += duration;
            track->spans[span->kind]++;
            track->bytes[span->kind] += span->bytes;
            if (depth > 0 && open[depth - 1]->kind != PROFILE_STEP)
                track->own_ns[open[depth - 1]->kind] -= duration;
        }
        open[depth++] = span;
    }
}

static double share(uint64_t ns, const profile_track *track) {
    return track->step_ns ? 100.0 * (double)ns / (double)track->step_ns : 0;
}

static double per_step(uint64_t count, const profile_track *track) {
    return track->steps ? (double)count / (double)track->steps : 0;
}

/* Copies, fills and kernels: what the seed's profile would show as a kernel. */
static uint64_t busy_ns(const profile_track *track) {
    return track->own_ns[KVC_SPAN_COPY] + track->own_ns[KVC_SPAN_FILL] +
           track->own_ns[KVC_SPAN_KERNEL];
}

static uint64_t driver_ns(const profile_track *track) {
    return track->own_ns[KVC_SPAN_ALLOCATE] + track->own_ns[KVC_SPAN_RELEASE];
}

static uint64_t outside_ns(const profile_track *track) {
    const uint64_t inside = busy_ns(track) + driver_ns(track) + track->own_ns[KVC_SPAN_COMMIT];
    return track->step_ns > inside ? track->step_ns - inside : 0;
}

/* "20 buffers a step" or, when they are fewer than the steps, "20 buffers in 256 steps" */
static void describe_count(char *out, size_t room, uint64_t count, const char *what,
                           const profile_track *track) {
    const bool one = count == track->steps || (count == 1 && count < track->steps);
    if (count >= track->steps)
        (void)snprintf(out, room, "%.3g %s%s a step", per_step(count, track), what, one ? "" : "s");
    else
        (void)snprintf(out, room, "%llu %s%s in %llu steps", (unsigned long long)count, what,
                       one ? "" : "s", (unsigned long long)track->steps);
}

/* "20 buffers a step, none of a size that the pool could reuse" */
static void describe_driver(char *out, size_t room, const profile_track *track) {
    char buffers[64];
    const uint64_t requests = track->pool_hits + track->pool_misses;
    const bool gives_back = 4 * track->own_ns[KVC_SPAN_RELEASE] > driver_ns(track);
    char reuse[96] = "";
    if (requests > 0 && track->pool_hits == 0)
        (void)snprintf(reuse, sizeof reuse, ", none of a size that the pool could reuse");
    else if (requests > 0)
        (void)snprintf(reuse, sizeof reuse, ", while the pool could serve %.0f %% of the requests",
                       100.0 * (double)track->pool_hits / (double)requests);
    describe_count(buffers, sizeof buffers, track->spans[KVC_SPAN_ALLOCATE], "buffer", track);
    (void)snprintf(out, room, "the driver was allocating%s (%s%s)",
                   gives_back ? " and taking back" : "", buffers, reuse);
}

/* What ran while no copy or kernel did: the largest of the others. */
static void describe_rest(char *out, size_t room, const profile_track *track, const char *outside) {
    const uint64_t driver = driver_ns(track), commit = track->own_ns[KVC_SPAN_COMMIT];
    if (driver >= commit && driver >= outside_ns(track)) describe_driver(out, room, track);
    else if (commit >= outside_ns(track)) {
        char commits[64];
        describe_count(commits, sizeof commits, track->spans[KVC_SPAN_COMMIT], "commit", track);
        (void)snprintf(out, room, "pages were being made resident (%s, %.3g KiB a step)", commits,
                       per_step(track->bytes[KVC_SPAN_COMMIT], track) / 1024);
    } else (void)snprintf(out, room, "%s ran", outside);
}

/* Adds what a mean hides: one step that took a large part of all the time. */
static void describe_stall(char *out, size_t room, const profile_track *track) {
    const double part = share(track->longest_step_ns, track);
    out[0] = '\0';
    if (track->steps >= 8 && part > 200.0 / (double)track->steps && part > 20)
        (void)snprintf(out, room, "; one step took %.0f %% of the time of all %llu", part,
                       (unsigned long long)track->steps);
}

void profile_sentence(char *out, size_t room, const profile_track *track, const char *outside) {
    char rest[256], stall[96];
    const double busy = share(busy_ns(track), track);
    if (track->step_ns == 0) {
        (void)snprintf(out, room, "%s: no step was traced", track->label);
        return;
    }
    describe_rest(rest, sizeof rest, track, outside);
    describe_stall(stall, sizeof stall, track);
    if (busy < 90)
        (void)snprintf(out, room, "%s: %.0f %% of the step no copy or kernel was running: %s%s",
                       track->label, 100 - busy, rest, stall);
    else
        (void)snprintf(out, room, "%s: %.0f %% of the step a copy or kernel was running%s",
                       track->label, busy, stall);
}

void profile_print(FILE *file, const profile_track *tracks, size_t count, const char *outside,
                   double span_ns) {
    int width = 5;
    for (size_t i = 0; i < count; i++)
        if ((int)strlen(tracks[i].label) > width) width = (int)strlen(tracks[i].label);
    (void)fprintf(file, "\nShare of the step, in %%:\n%-*s %8s %8s %8s %8s %8s %8s %8s %8s %10s\n",
                  width, "", "allocate", "release", "commit", "copy", "fill", "kernel", "outside",
                  "steps", "us/step");
    for (size_t i = 0; i < count; i++) {
        const profile_track *track = &tracks[i];
        (void)fprintf(file, "%-*s", width, track->label);
        for (int kind = 0; kind < PROFILE_KINDS; kind++)
            (void)fprintf(file, " %8.1f", share(track->own_ns[kind], track));
        (void)fprintf(file, " %8.1f %8llu %10.1f\n", share(outside_ns(track), track),
                      (unsigned long long)track->steps, 1e-3 * per_step(track->step_ns, track));
    }
    (void)fprintf(file,
                  "outside: in no span, recording them included (%.0f ns each); a span inside "
                  "another is counted once\n",
                  span_ns);
    for (size_t i = 0; i < count; i++) {
        char sentence[512];
        profile_sentence(sentence, sizeof sentence, &tracks[i], outside);
        (void)fprintf(file, "%s\n", sentence);
    }
}
