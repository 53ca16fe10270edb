#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "append_measure.h"
#include "cli.h"

enum { REPEATS = 9, CONCAT_REPEATS = 2 };

/* In the child: a run from an empty pool, its last steps measured on memory never touched. */
static int measure(const append_plan *plan, const append_strategy *strategy, append_row *row) {
    append_run *run;
    append_samples samples = {0};
    const int64_t steps = append_steps_of(plan, strategy), start = plan->context - steps;
    const int64_t lead = append_lead_steps(start);
    int status = append_open(&run, strategy, &plan->shape, plan->context);
    if (status == CLI_DONE) status = append_start(run, start - lead);
    if (status == CLI_DONE) status = append_lead_in(run, lead);
    if (status == CLI_DONE)
        status = append_take(&samples, run, strategy, plan->shape.chunk, start, steps, "");
    *row = (append_row){.strategy = *strategy, .context = plan->context, .cold = true};
    append_sum_up(&samples, row);
    append_samples_free(&samples);
    append_close(run);
    return status;
}

/* In the child: nothing but memory taken and touched. */
static int touch(uint64_t bytes) {
    unsigned char *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return cli_fail("no memory for %llu bytes", (unsigned long long)bytes);
    for (uint64_t at = 0; at < bytes; at += 4096) memory[at] = 1;
    (void)munmap(memory, (size_t)bytes);
    return CLI_DONE;
}

/* Runs measure (or, with row NULL, touch) in a process of its own; the row comes back by pipe. */
static int run_child(const append_plan *plan, const append_strategy *strategy, append_row *row) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) return cli_fail("no pipe to a measuring process");
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        append_row result;
        const int done = row ? measure(plan, strategy, &result) : touch(append_cold_bytes(plan));
        const bool told = !row || write(ends[1], &result, sizeof result) == (ssize_t)sizeof result;
        _exit(told ? done : CLI_FAILED);
    }
    (void)close(ends[1]);
    const ssize_t got = row && child > 0 ? read(ends[0], row, sizeof *row) : 0;
    (void)close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return cli_fail("no process to measure %s in", strategy->name);
    if (WIFSIGNALED(status))
        return cli_fail("%s: its process was ended by signal %d; when memory is short, reduce "
                        "--contexts or --caches",
                        strategy->name, WTERMSIG(status));
    if (WEXITSTATUS(status) != CLI_DONE) return CLI_FAILED; /* the child has told why */
    return !row || got == (ssize_t)sizeof *row ? CLI_DONE : cli_fail("a row came back cut off");
}

/* The median over repeats of one figure of their rows. */
static double median_of(const append_row *rows, size_t count, size_t offset) {
    double values[REPEATS], figure;
    stats_samples samples = {values, 0, REPEATS};
    for (size_t i = 0; i < count; i++) {
        memcpy(&figure, (const char *)&rows[i] + offset, sizeof figure);
        if (!isnan(figure)) values[samples.count++] = figure;
    }
    return stats_median(&samples);
}

static append_row merge(const append_row *rows, size_t count) {
    append_row row = rows[0];
    row.step_us.p50 = median_of(rows, count, offsetof(append_row, step_us.p50));
    row.step_us.mean = median_of(rows, count, offsetof(append_row, step_us.mean));
    row.step_us.p99 = median_of(rows, count, offsetof(append_row, step_us.p99));
    row.growth_p50_us = median_of(rows, count, offsetof(append_row, growth_p50_us));
    row.grown_p50_us = median_of(rows, count, offsetof(append_row, grown_p50_us));
    for (size_t i = 1; i < count; i++) {
        const append_figures *more = &rows[i].figures;
        row.step_us.count += rows[i].step_us.count;
        row.step_us.min = fmin(row.step_us.min, rows[i].step_us.min);
        row.step_us.max = fmax(row.step_us.max, rows[i].step_us.max);
        row.figures.appended_bytes += more->appended_bytes;
        row.figures.copied_bytes += more->copied_bytes;
        row.figures.pool_hits += more->pool_hits;
        row.figures.pool_misses += more->pool_misses;
        row.figures.driver_calls += more->driver_calls;
        row.figures.driver_ns += more->driver_ns;
        if (more->resident_bytes > row.figures.resident_bytes)
            row.figures.resident_bytes = more->resident_bytes;
    }
    return row;
}

static size_t repeats_of(const append_strategy *strategy) {
    return append_is_slow(strategy) ? CONCAT_REPEATS : REPEATS;
}

/* Each strategy in turn, as often as it is due. */
static int take_repeats(const append_plan *plan, append_row got[][REPEATS]) {
    int status = CLI_DONE;
    for (size_t repeat = 0; repeat < REPEATS; repeat++)
        for (size_t i = 0; i < plan->count && status == CLI_DONE; i++) {
            const size_t at = (i + repeat) % plan->count;
            /* The warm floor has no meaning in a fresh process. */
            const append_strategy strategy = append_fresh(&plan->strategies[at]);
            if (repeat >= repeats_of(&strategy)) continue;
            cli_progress("context %lld, cold: %s, process %zu", (long long)plan->context,
                         strategy.name, repeat + 1);
            status = run_child(plan, &strategy, &got[at][repeat]);
        }
    return status;
}

int append_measure_cold(const append_plan *plan, append_row *rows, size_t *count) {
    append_row got[APPEND_MOST][REPEATS];
    *count = plan->count;
    /* The host may back memory only when a guest first touches it: that is no one's cost here. */
    int status = run_child(plan, &plan->strategies[0], NULL);
    if (status == CLI_DONE) status = take_repeats(plan, got);
    for (size_t i = 0; i < *count && status == CLI_DONE; i++)
        rows[i] = merge(got[i], repeats_of(&plan->strategies[i]));
    if (status == CLI_DONE) append_set_ratios(rows, *count);
    return status;
}

uint64_t append_cold_bytes(const append_plan *plan) {
    uint64_t most = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const uint64_t need = append_need_bytes(&plan->strategies[i], &plan->shape, plan->context);
        if (need > most) most = need;
    }
    return most;
}
