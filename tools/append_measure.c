#include "append_measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "trace.h"

enum {
    TURN_STEPS = 16,  /* steps of one strategy before the next has its turn */
    LEAST_ROUNDS = 5, /* one growing step each */
    MOST_ROUNDS = 64,
    CONCAT_STEPS = 4,        /* of a round */
    CONCAT_STEPS_BEFORE = 2, /* of a round, unmeasured */
    CONCAT_SAMPLES = 8       /* at least */
};

/* After this no round is started beyond the least. */
#define CONTEXT_BUDGET_NS ((uint64_t)1000000000)

/* A strategy at work, warm. */
typedef struct lane {
    append_strategy strategy;
    append_run *run;
    char label[APPEND_LABEL_ROOM];
    append_samples samples;
    uint64_t spent_ns;
} lane;

typedef struct lanes {
    const append_plan *plan;
    lane lane[APPEND_MOST];
    size_t count;
    bool cold; /* pools are new: no round before the one that counts */
} lanes;

int64_t append_lead_steps(int64_t position) {
    const int64_t lead = TURN_STEPS / 2;
    return position < lead ? position : lead;
}

int append_lead_in(append_run *run, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (append_step(run) != CLI_DONE) return CLI_FAILED;
    return CLI_DONE;
}

int64_t append_steps_of(const append_plan *plan, const append_strategy *strategy) {
    return append_is_slow(strategy) && plan->steps > CONCAT_STEPS ? CONCAT_STEPS : plan->steps;
}

/* Samples. */

static append_figures difference(const append_figures *a, const append_figures *b) {
    return (append_figures){
        a->appended_bytes - b->appended_bytes,
        a->copied_bytes - b->copied_bytes,
        a->pool_hits - b->pool_hits,
        a->pool_misses - b->pool_misses,
        a->driver_calls - b->driver_calls,
        a->driver_ns - b->driver_ns,
        a->resident_bytes,
    };
}

static void add(append_figures *sum, const append_figures *more) {
    sum->appended_bytes += more->appended_bytes;
    sum->copied_bytes += more->copied_bytes;
    sum->pool_hits += more->pool_hits;
    sum->pool_misses += more->pool_misses;
    sum->driver_calls += more->driver_calls;
    sum->driver_ns += more->driver_ns;
    if (more->resident_bytes > sum->resident_bytes) sum->resident_bytes = more->resident_bytes;
}

int append_take(append_samples *samples, append_run *run, const append_strategy *strategy,
                int64_t chunk, int64_t position, int64_t count, const char *label) {
    const append_figures before = append_figures_get(run);
    uint64_t growths = append_growths(run);
    for (int64_t end = position + count; position < end; position++) {
        trace_step_begin(label);
        const uint64_t start_ns = stats_now_ns();
        const int status = append_step(run);
        const uint64_t end_ns = stats_now_ns();
        trace_step_end();
        if (status != CLI_DONE) return status;
        const double us = 1e-3 * (double)(end_ns - start_ns);
        const uint64_t growths_now = append_growths(run);
        bool kept = stats_add(&samples->all, us);
        if (append_is_slow(strategy) || position % chunk == 0)
            kept = kept && stats_add(&samples->growth, us);
        if (growths_now != growths) kept = kept && stats_add(&samples->grown, us);
        if (!kept) return cli_fail("no memory for the samples");
        growths = growths_now;
    }
    const append_figures after = append_figures_get(run), done = difference(&after, &before);
    add(&samples->figures, &done);
    return CLI_DONE;
}

void append_sum_up(append_samples *samples, append_row *row) {
    row->step_us = stats_summarise(&samples->all);
    row->growth_p50_us = stats_median(&samples->growth);
    row->grown_p50_us = stats_median(&samples->grown);
    row->figures = samples->figures;
    row->ratio_to_memcpy = row->ratio_to_reserve = NAN;
}

void append_samples_free(append_samples *samples) {
    stats_free(&samples->all);
    stats_free(&samples->growth);
    stats_free(&samples->grown);
    samples->figures = (append_figures){0};
}

static double ratio(const append_row *row, const append_row *to) {
    if (!to) return NAN;
    return row->cold ? row->step_us.mean / to->step_us.mean : row->step_us.p50 / to->step_us.p50;
}

static bool is_floor(const append_row *row) {
    return row->strategy.way == (row->cold ? APPEND_MEMCPY_FRESH : APPEND_MEMCPY);
}

void append_set_ratios(append_row *rows, size_t count) {
    const append_row *floor = NULL, *reserve = NULL;
    for (size_t i = 0; i < count; i++) {
        if (is_floor(&rows[i])) floor = &rows[i];
        if (strcmp(rows[i].strategy.name, "reserve") == 0) reserve = &rows[i];
    }
    for (size_t i = 0; i < count; i++) {
        rows[i].ratio_to_memcpy = ratio(&rows[i], floor);
        rows[i].ratio_to_reserve = ratio(&rows[i], reserve);
    }
}

/* Rounds. */

static int open_lanes(lanes *all, const append_plan *plan, bool cold) {
    *all = (lanes){.plan = plan, .cold = cold};
    for (size_t i = 0; i < plan->count; i++) {
        lane *l = &all->lane[all->count++];
        const append_strategy strategy =
            cold ? append_fresh(&plan->strategies[i]) : plan->strategies[i];
        l->strategy = strategy;
        (void)snprintf(l->label, sizeof l->label, "%s %lld%s", strategy.name,
                       (long long)plan->context, cold ? " cold" : "");
        const int status = append_open(&l->run, &l->strategy, &plan->shape, plan->context);
        if (status != CLI_DONE) return status;
    }
    return CLI_DONE;
}

static void close_lanes(lanes *all) {
    for (size_t i = 0; i < all->count; i++) {
        append_close(all->lane[i].run);
        append_samples_free(&all->lane[i].samples);
    }
}

static bool is_apart(const lane *l) {
    return append_is_slow(&l->strategy);
}

static int take(const lanes *all, lane *l, int64_t position, int64_t count) {
    return append_take(&l->samples, l->run, &l->strategy, all->plan->shape.chunk, position, count,
                       l->label);
}

/* Starts the lanes a little before the measured steps: a turn's first steps find cold caches, and
 * the step that begins a chunk should not be one of them in every strategy. */
static int start_interleaved(lanes *all, int64_t position) {
    for (size_t i = 0; i < all->count; i++) {
        lane *l = &all->lane[i];
        if (!is_apart(l) &&
            append_start(l->run, position - append_lead_steps(position)) != CLI_DONE)
            return CLI_FAILED;
    }
    return CLI_DONE;
}

/* One turn of each, in an order that changes from turn to turn. */
static int take_turns(lanes *all, size_t turn, int64_t position, int64_t lead, int64_t count) {
    for (size_t i = 0; i < all->count; i++) {
        lane *l = &all->lane[(i + turn) % all->count];
        if (is_apart(l)) continue;
        if (append_lead_in(l->run, lead) != CLI_DONE || take(all, l, position, count) != CLI_DONE)
            return CLI_FAILED;
    }
    return CLI_DONE;
}

/* All but concat: in turns of a few steps, so that what disturbs the machine disturbs all alike.
 * The first turn is half a turn, so that chunks begin in the middle of one. */
static int run_interleaved(lanes *all, size_t round) {
    const int64_t start = all->plan->context - all->plan->steps;
    int64_t lead = append_lead_steps(start), count = TURN_STEPS / 2;
    if (start_interleaved(all, start) != CLI_DONE) return CLI_FAILED;
    for (int64_t at = start; at < all->plan->context; at += count, count = TURN_STEPS, lead = 0) {
        if (count > all->plan->context - at) count = all->plan->context - at;
        if (take_turns(all, round++, at, lead, count) != CLI_DONE) return CLI_FAILED;
    }
    for (size_t i = 0; i < all->count; i++)
        if (!is_apart(&all->lane[i])) append_stop(all->lane[i].run);
    return CLI_DONE;
}

/* Steps concat as it is in the middle of a sequence: its pool full of buffers that were just too
 * small. Left over from the round before would be those of the very sizes to come, which a sequence
 * of any length has long driven out of the pool. */
static int step_apart(const lanes *all, lane *l) {
    const int64_t steps = append_steps_of(all->plan, &l->strategy);
    const int64_t position = all->plan->context - steps;
    const int64_t before = position < CONCAT_STEPS_BEFORE ? position : CONCAT_STEPS_BEFORE;
    append_forget(l->run);
    if (append_start(l->run, position - before) != CLI_DONE ||
        append_lead_in(l->run, before) != CLI_DONE)
        return CLI_FAILED;
    return take(all, l, position, steps);
}

/* Concat, after the others: it leaves none of their memory in the CPU's caches. */
static int run_apart(lanes *all) {
    for (size_t i = 0; i < all->count; i++) {
        lane *l = &all->lane[i];
        const uint64_t start_ns = stats_now_ns();
        if (!is_apart(l)) continue;
        if (l->spent_ns > CONTEXT_BUDGET_NS && l->samples.all.count >= CONCAT_SAMPLES) continue;
        if (step_apart(all, l) != CLI_DONE) return CLI_FAILED;
        append_stop(l->run);
        l->spent_ns += stats_now_ns() - start_ns;
    }
    return CLI_DONE;
}

static int run_round(lanes *all, size_t round) {
    const int status = run_interleaved(all, round);
    return status == CLI_DONE ? run_apart(all) : status;
}

/* The first round fills the pools, and is forgotten. Concat fills its own before each round. */
static int warm_up(lanes *all) {
    const int status = run_interleaved(all, 0);
    for (size_t i = 0; i < all->count; i++) append_samples_free(&all->lane[i].samples);
    return status;
}

/* Contexts take turns, up and down the list, and have as many rounds each: rows of one table then
 * differ by context, not by how fast the machine was when each was measured. */
static int run_rounds(lanes *all, size_t contexts) {
    int status = CLI_DONE;
    for (size_t i = 0; i < contexts && status == CLI_DONE; i++) status = warm_up(&all[i]);
    const uint64_t start_ns = stats_now_ns(), budget_ns = contexts * CONTEXT_BUDGET_NS;
    for (size_t round = 1; round <= MOST_ROUNDS && status == CLI_DONE; round++) {
        if (round > LEAST_ROUNDS && stats_now_ns() - start_ns > budget_ns) break;
        for (size_t i = 0; i < contexts && status == CLI_DONE; i++) {
            lanes *one = &all[round % 2 ? i : contexts - 1 - i];
            cli_progress("context %lld, warm: round %zu", (long long)one->plan->context, round);
            status = run_round(one, round);
        }
    }
    return status;
}

/* The rows of one context. */
static size_t sum_up_lanes(lanes *all, append_row *rows) {
    for (size_t i = 0; i < all->count; i++) {
        rows[i] = (append_row){.strategy = all->lane[i].strategy, .context = all->plan->context};
        append_sum_up(&all->lane[i].samples, &rows[i]);
    }
    append_set_ratios(rows, all->count);
    return all->count;
}

int append_measure_warm(const append_plan *plans, size_t contexts, append_row *rows,
                        size_t *count) {
    *count = 0;
    lanes *all = calloc(contexts, sizeof *all);
    if (!all) return cli_fail("no memory for %zu contexts", contexts);
    int status = CLI_DONE;
    for (size_t i = 0; i < contexts && status == CLI_DONE; i++)
        status = open_lanes(&all[i], &plans[i], false);
    if (status == CLI_DONE) status = run_rounds(all, contexts);
    for (size_t i = 0; i < contexts && status == CLI_DONE; i++)
        *count += sum_up_lanes(&all[i], rows + *count);
    for (size_t i = 0; i < contexts; i++) close_lanes(&all[i]);
    free(all);
    return status;
}

uint64_t append_warm_bytes(const append_plan *plan) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++)
        bytes += append_need_bytes(&plan->strategies[i], &plan->shape, plan->context);
    return bytes;
}

/* Tracing. A new pool has nothing to reuse: its round shows what growth costs a first time. */

static int trace_round(lanes *all) {
    const int status = all->cold ? CLI_DONE : warm_up(all);
    if (status != CLI_DONE) return status;
    for (size_t i = 0; i < all->count; i++) /* tracks in the order of the table */
        trace_pool(all->lane[i].label, 0, 0);
    trace_record(true);
    if (run_round(all, 0) != CLI_DONE) return CLI_FAILED;
    trace_record(false);
    for (size_t i = 0; i < all->count; i++)
        trace_pool(all->lane[i].label, all->lane[i].samples.figures.pool_hits,
                   all->lane[i].samples.figures.pool_misses);
    return CLI_DONE;
}

int append_trace(const append_plan *plan, bool cold) {
    lanes all;
    int status = open_lanes(&all, plan, cold);
    if (status == CLI_DONE) status = trace_round(&all);
    trace_record(false);
    close_lanes(&all);
    return status;
}
