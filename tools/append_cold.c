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
static int measure(const append_plan *plan, append_kind kind, append_row *row) {
    append_run *run;
    append_samples samples = {0};
    const int64_t steps = append_steps_of(plan, kind), start = plan->context - steps;
    const int64_t lead = append_lead_steps(start);
    int status = append_open(&run, kind, &plan->shape, plan->context);
    if (status == CLI_DONE) status = append_start(run, start - lead);
    if (status == CLI_DONE) status = append_lead_in(run, lead);
    if (status == CLI_DONE)
        status = append_take(&samples, run, kind, plan->shape.chunk, start, steps, "");
    *row = (append_row){.kind = kind, .context = plan->context, .cold = true};
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
static int run_child(const append_plan *plan, append_kind kind, append_row *row) {
    int ends[2], status = 0;
    if (pipe(ends) != 0) return cli_fail("no pipe to a measuring process");
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        append_row result;
        const int done = row ? measure(plan, kind, &result) : touch(append_cold_bytes(plan));
        const bool told = !row || write(ends[1], &result, sizeof result) == (ssize_t)sizeof result;
        _exit(told ? done : CLI_FAILED);
    }
    (void)close(ends[1]);
    const ssize_t got = row && child > 0 ? read(ends[0], row, sizeof *row) : 0;
    (void)close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return cli_fail("no process to measure %s in", append_names[kind]);
    if (WIFSIGNALED(status))
        return cli_fail("%s: its process was ended by signal %d; when memory is short, reduce "
                        "--contexts or --caches",
                        append_names[kind], WTERMSIG(status));
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
    }
    return row;
}

/* memcpy stands for its fresh form here: the warm floor has no meaning in a fresh process. */
static size_t choose_kinds(const append_plan *plan, append_kind *kinds) {
    size_t count = 0;
    for (append_kind kind = 0; kind < APPEND_STRATEGIES; kind++)
        if (plan->chosen[kind]) kinds[count++] = kind == APPEND_MEMCPY ? APPEND_MEMCPY_FRESH : kind;
    return count;
}

static size_t repeats_of(append_kind kind) {
    return kind == APPEND_CONCAT ? CONCAT_REPEATS : REPEATS;
}

int append_measure_cold(const append_plan *plan, append_row *rows, size_t *count) {
    append_kind kinds[APPEND_STRATEGIES];
    append_row got[APPEND_STRATEGIES][REPEATS];
    *count = choose_kinds(plan, kinds);
    /* The host may back memory only when a guest first touches it: that is no one's cost here. */
    int status = run_child(plan, APPEND_MEMCPY_FRESH, NULL);
    for (size_t repeat = 0; repeat < REPEATS && status == CLI_DONE; repeat++)
        for (size_t i = 0; i < *count && status == CLI_DONE; i++) {
            const size_t at = (i + repeat) % *count;
            if (repeat >= repeats_of(kinds[at])) continue;
            cli_progress("context %lld, cold: %s, process %zu", (long long)plan->context,
                         append_names[kinds[at]], repeat + 1);
            status = run_child(plan, kinds[at], &got[at][repeat]);
        }
    for (size_t i = 0; i < *count && status == CLI_DONE; i++)
        rows[i] = merge(got[i], repeats_of(kinds[i]));
    if (status == CLI_DONE) append_set_ratios(rows, *count, APPEND_MEMCPY_FRESH);
    return status;
}

uint64_t append_cold_bytes(const append_plan *plan) {
    uint64_t most = append_need_bytes(APPEND_MEMCPY_FRESH, &plan->shape, plan->context);
    for (append_kind kind = 0; kind < APPEND_STRATEGIES; kind++) {
        const uint64_t need = append_need_bytes(kind, &plan->shape, plan->context);
        if (plan->chosen[kind] && need > most) most = need;
    }
    return most;
}
