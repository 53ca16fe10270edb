/** @file
 * Measures the strategies of `bench append`: warm, interleaved within one process, and cold, each
 * in a process of its own. */
#ifndef KVCACHE_TOOLS_APPEND_MEASURE_H
#define KVCACHE_TOOLS_APPEND_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "append_strategy.h"
#include "stats.h"

/** What to measure at one context. */
typedef struct append_plan {
    append_shape shape;
    int64_t context;                   /**< the length that the measured steps end at */
    int64_t steps;                     /**< of a round, ≤ context */
    const append_strategy *strategies; /**< [count] */
    size_t count;
} append_plan;

/** Room for a label such as "memcpy-fresh 16777216 cold". */
enum { APPEND_LABEL_ROOM = CACHE_KIND_ROOM + 24 };

/** One row of the table. */
typedef struct append_row {
    append_strategy strategy;
    int64_t context;
    bool cold;
    stats_summary step_us;   /**< cold: medians over the processes, but the largest max */
    double growth_p50_us;    /**< of steps whose position begins a chunk; concat: of all; or NAN */
    double grown_p50_us;     /**< of steps in which the strategy says that it grew; or NAN */
    append_figures figures;  /**< of the measured steps */
    double ratio_to_memcpy;  /**< of p50; cold: of means, to memcpy-fresh; or NAN */
    double ratio_to_reserve; /**< the same, to reserve: for packed kinds, to unpacked appends */
} append_row;

/** Samples of one strategy on their way to a row. Zeroed, there are none. */
typedef struct append_samples {
    stats_samples all, growth, grown; /* microseconds */
    append_figures figures;
} append_samples;

/** Steps to take before the measured ones from `position` on, so that they find warm caches. */
int64_t append_lead_steps(int64_t position);

/** Takes `count` steps that nobody measures. */
int append_lead_in(append_run *run, int64_t count);

/** Takes `count` steps and times each.
 * @param label  the steps' track in a trace */
int append_take(append_samples *samples, append_run *run, const append_strategy *strategy,
                int64_t chunk, int64_t position, int64_t count, const char *label);

/** Sums samples up into row's figures; NAN where there is no sample. */
void append_sum_up(append_samples *samples, append_row *row);

void append_samples_free(append_samples *samples);

/** Sets every row's ratios to the floor and to reserve, where there are such rows. */
void append_set_ratios(append_row *rows, size_t count);

/** Steps of one start: concat takes a fraction of a second each and needs no more than a few. */
int64_t append_steps_of(const append_plan *plan, const append_strategy *strategy);

/** Measures contexts warm, in turns: the pool of each strategy holds what an earlier run gave back.
 * @param plans  [contexts], alike but for the context
 * @param rows   room for contexts × count of strategies; receives *count */
int append_measure_warm(const append_plan *plans, size_t contexts, append_row *rows, size_t *count);

/** Bytes that a context takes in append_measure_warm (which holds all at once) and in
 * append_measure_cold. */
uint64_t append_warm_bytes(const append_plan *plan);
uint64_t append_cold_bytes(const append_plan *plan);

/** Measures one context cold: in a fresh process each, empty pool, untouched memory. Call before
 * this process has taken much memory: it forks.
 * @param rows  room for count of strategies; receives *count */
int append_measure_cold(const append_plan *plan, append_row *rows, size_t *count);

/** Records one round warm, and one with new pools when cold is set, in the trace that is open. */
int append_trace(const append_plan *plan, bool cold);

#endif
