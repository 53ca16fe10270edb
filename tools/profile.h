/** @file
 * From spans to sentences: which share of a step was spent on what, nested spans counted once. */
#ifndef KVCACHE_TOOLS_PROFILE_H
#define KVCACHE_TOOLS_PROFILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <kvcache/trace.h>

/** Kinds of spans: the library's (kvc_span_kind), then the command's own step. */
enum { PROFILE_KINDS = KVC_SPAN_KERNEL + 1, PROFILE_STEP = PROFILE_KINDS };

/** The most tracks of a profile, and room for the name of one. */
enum { PROFILE_TRACKS = 128, PROFILE_LABEL_ROOM = 96 };

/** The track of a span that ran between steps. */
#define PROFILE_NO_TRACK ((size_t)PROFILE_TRACKS)

/** A finished span. */
typedef struct profile_span {
    const char *name; /**< static storage */
    uint64_t start_ns, end_ns, bytes;
    size_t track; /**< whose step it lay in, or PROFILE_NO_TRACK */
    int kind;     /**< kvc_span_kind or PROFILE_STEP */
} profile_span;

/** The steps of one label, added up. */
typedef struct profile_track {
    char label[PROFILE_LABEL_ROOM];
    uint64_t steps, step_ns, longest_step_ns;
    uint64_t own_ns[PROFILE_KINDS]; /**< in steps, without what lay inside in other spans */
    uint64_t spans[PROFILE_KINDS], bytes[PROFILE_KINDS];
    uint64_t pool_hits, pool_misses; /**< requests in the steps; both 0 when nobody told */
} profile_track;

/** Returns "allocate", "copy", …, "step". Static storage. */
const char *profile_kind_name(int kind);

/** Sorts by start, the enclosing span before those inside it. */
void profile_sort(profile_span *spans, size_t count);

/** Adds spans, sorted, up in their tracks. */
void profile_sum(const profile_span *spans, size_t count, profile_track *tracks,
                 size_t track_count);

/** Prints the table of shares and a sentence a track.
 * @param outside  what runs outside of all spans: "the model's own arithmetic"
 * @param span_ns  what recording one span takes */
void profile_print(FILE *file, const profile_track *tracks, size_t count, const char *outside,
                   double span_ns);

/** Writes the sentence of one track: which share of the step no copy or kernel ran, and why. */
void profile_sentence(char *out, size_t room, const profile_track *track, const char *outside);

#endif
