#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

uint64_t stats_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

double stats_timer_ns(void) {
    enum { READS = 4096 };
    const uint64_t start = stats_now_ns();
    for (int i = 0; i < READS; i++) (void)stats_now_ns();
    return (double)(stats_now_ns() - start) / (READS + 1);
}

bool stats_add(stats_samples *samples, double value) {
    if (samples->count == samples->room) {
        const size_t room = samples->room ? 2 * samples->room : 1024;
        double *values = realloc(samples->values, room * sizeof *values);
        if (!values) return false;
        samples->values = values;
        samples->room = room;
    }
    samples->values[samples->count++] = value;
    return true;
}

void stats_free(stats_samples *samples) {
    free(samples->values);
    *samples = (stats_samples){0};
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double stats_median(stats_samples *samples) {
    const size_t n = samples->count;
    if (n == 0) return NAN;
    qsort(samples->values, n, sizeof *samples->values, compare);
    return 0.5 * (samples->values[(n - 1) / 2] + samples->values[n / 2]);
}

stats_summary stats_summarise(stats_samples *samples) {
    const size_t n = samples->count;
    stats_summary summary = {n, NAN, NAN, NAN, NAN, NAN};
    if (n == 0) return summary;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += samples->values[i];
    summary.p50 = stats_median(samples); /* sorts */
    summary.min = samples->values[0];
    summary.mean = sum / (double)n;
    summary.p99 = samples->values[(99 * n + 99) / 100 - 1];
    summary.max = samples->values[n - 1];
    return summary;
}
