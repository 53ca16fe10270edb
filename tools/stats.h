/** @file
 * Order statistics of measured times. */
#ifndef KVCACHE_TOOLS_STATS_H
#define KVCACHE_TOOLS_STATS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Nanoseconds of CLOCK_MONOTONIC. */
uint64_t stats_now_ns(void);

/** Nanoseconds that two clock reads in a row take apart: what timing adds to each sample. */
double stats_timer_ns(void);

/** A growing list of samples. Zeroed, it is empty. */
typedef struct stats_samples {
    double *values;
    size_t count, room;
} stats_samples;

/** Adds a sample. Returns false when there is no memory. */
bool stats_add(stats_samples *samples, double value);

/** Frees the list. */
void stats_free(stats_samples *samples);

/** What is told of a list; NAN everywhere when it is empty. */
typedef struct stats_summary {
    size_t count;
    double min, p50, mean, p99, max;
} stats_summary;

/** Sorts the samples and sums them up. The median of an even count is the mean of the middle two;
 * p99 is the smallest sample that 99 % do not exceed. */
stats_summary stats_summarise(stats_samples *samples);

/** Returns the median, NAN of none; sorts the samples. */
double stats_median(stats_samples *samples);

#endif
