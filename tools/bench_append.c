/* `kvcache bench append`: the seed's table, with the floor beside it. */

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "append_measure.h"
#include "append_plot.h"
#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "trace.h"

static const char help[] =
    "Appends one position a step to many caches, in different ways, and times each step.\n"
    "\n"
    "Usage: kvcache bench append [OPTION]...\n"
    "\n"
    "  --contexts LIST    lengths that the measured steps end at (512,1024,4096)\n"
    "  --caches N         arrays [1,HEADS,context,DIM], keys and values in turn: even (20)\n"
    "  --heads N          kv heads (4)\n"
    "  --dim N            elements of a head's row (512)\n"
    "  --dtype TYPE       f32, f16 or bf16; of the scales, where numbers are packed (bf16)\n"
    "  --from TYPE        of the position that is appended: engines give f32 (as --dtype)\n"
    "  --chunk N          positions of a chunk (256)\n"
    "  --steps N          steps of a round, up to the context (256)\n"
    "  --strategies LIST  those below (" APPEND_DEFAULTS ")\n"
    "  --cold             add rows of fresh processes\n"
    "  --json             print one JSON object instead of the table\n"
    "  --plot FILE        draw the warm medians as SVG (needs gnuplot)\n"
    "  --trace FILE       write a trace of one more round, at the largest context, for Perfetto,\n"
    "                     and print which share of the steps went where\n"
    "\n"
    "Strategies:\n"
    "  concat   the library's cache growing EXACT: every step concatenates\n"
    "  chunk    the library's cache growing by CHUNK: in place, with a copy a chunk\n"
    "  assign   the same loop on arrays as one would write it, with indexed assignment\n"
    "  reserve  the library's cache growing by RESERVE: in place, no copy ever\n"
    "  paged[:BLOCK]    in blocks of 16 to 256 positions (64)\n"
    "  window:W[:KEEP]  a ring of the last positions, W with the first KEEP, which stay (0)\n"
    "  qBITS[c][r][:GROUP]  numbers packed in 2, 3, 4, 5, 6 or 8 bits, by groups of 32, 64 or\n"
    "           128 (64); c: keys per channel, r: rotated before\n"
    "  memcpy   the floor: the same bytes to the same places, unpacked; memcpy-fresh in cold\n"
    "           rows, into untouched memory\n"
    "How a cache grows, which positions it keeps and how it packs them may be joined by +, as in\n"
    "q8+paged or q4:32+window:4096+chunk.\n"
    "\n"
    "Warm rows: pools hold what an earlier run of the same lengths gave back, so pages are\n"
    "resident: the steady state of a server. A pool may hold twice the caches. All but\n"
    "concat take turns of 16 steps, in changing order; concat, a few steps a round, comes after.\n"
    "Cold rows: each strategy in five processes of its own (concat: two), with an empty pool and\n"
    "memory never touched; figures are medians over the processes, max the largest.\n"
    "\n"
    "Columns and JSON keys:\n"
    "  p50, mean, p99, max (p50_us, ...)   microseconds a step, all caches together\n"
    "  growth (growth_p50_us)              median of the steps whose position begins a chunk;\n"
    "                                      concat grows on every step\n"
    "  grew (grown_p50_us)                 median of the steps in which the strategy itself took\n"
    "                                      a larger buffer or made memory resident\n"
    "  copied (copied_per_appended)        bytes moved per byte appended, in the measured steps\n"
    "  hits, misses (pool_hits, ...)       requests to the pool in the measured steps, in all\n"
    "  driver (driver_us)                  time in the driver (mmap, page faults), mean a step\n"
    "  held (resident_bytes)               memory that the caches hold at the end\n"
    "  ratio (ratio_to_memcpy)             warm: p50 over memcpy's p50; cold: mean over the mean\n"
    "                                      of memcpy-fresh, as fresh pages come every few steps\n"
    "JSON also has ratio_to_reserve, the same against the strategy reserve: what packing costs.\n";

enum { MOST_CONTEXTS = 16, MOST_ROWS = MOST_CONTEXTS * 2 * APPEND_MOST };

/* With these, no product of sizes leaves 64 bits. */
enum {
    MOST_POSITIONS = 1 << 24,
    MOST_CACHES = 1024,
    MOST_HEADS = 1024,
    MOST_DIM = 8192,
    MOST_CHUNK = 1 << 20,
    MOST_STEPS = 65536
};

typedef struct options {
    append_shape shape;
    int64_t contexts[MOST_CONTEXTS], steps;
    size_t context_count;
    append_strategy strategies[APPEND_MOST];
    size_t strategy_count;
    bool has_from, cold, json;
    const char *plot, *trace;
} options;

typedef struct results {
    append_row rows[MOST_ROWS];
    size_t count;
} results;

enum {
    OPTION_CONTEXTS = CLI_FIRST,
    OPTION_CACHES,
    OPTION_HEADS,
    OPTION_DIM,
    OPTION_DTYPE,
    OPTION_FROM,
    OPTION_CHUNK,
    OPTION_STEPS,
    OPTION_STRATEGIES,
    OPTION_COLD,
    OPTION_JSON,
    OPTION_PLOT,
    OPTION_TRACE
};

static const struct option option_table[] = {
    {"contexts", required_argument, NULL, OPTION_CONTEXTS},
    {"caches", required_argument, NULL, OPTION_CACHES},
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"from", required_argument, NULL, OPTION_FROM},
    {"chunk", required_argument, NULL, OPTION_CHUNK},
    {"steps", required_argument, NULL, OPTION_STEPS},
    {"strategies", required_argument, NULL, OPTION_STRATEGIES},
    {"cold", no_argument, NULL, OPTION_COLD},
    {"json", no_argument, NULL, OPTION_JSON},
    {"plot", required_argument, NULL, OPTION_PLOT},
    {"trace", required_argument, NULL, OPTION_TRACE},
    CLI_OPTIONS_END,
};

static bool read_caches(const char *text, int64_t *out) {
    int64_t caches;
    if (!cli_int64("--caches", text, 2, MOST_CACHES, &caches)) return false;
    if (caches % 2 != 0) {
        (void)cli_usage("--caches: %" PRId64 " given, an even number wanted: keys and values of "
                        "%" PRId64 " layers are %" PRId64 " or %" PRId64 " caches",
                        caches, caches / 2, caches - 1, caches + 1);
        return false;
    }
    *out = caches;
    return true;
}

static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_CONTEXTS:
        return cli_list_int64("--contexts", optarg, 1, MOST_POSITIONS, o->contexts, MOST_CONTEXTS,
                              &o->context_count);
    case OPTION_CACHES: return read_caches(optarg, &o->shape.caches);
    case OPTION_HEADS: return cli_int64("--heads", optarg, 1, MOST_HEADS, &o->shape.heads);
    case OPTION_DIM: return cli_int64("--dim", optarg, 1, MOST_DIM, &o->shape.dim);
    case OPTION_DTYPE: return cli_dtype("--dtype", optarg, &o->shape.dtype);
    case OPTION_FROM: o->has_from = true; return cli_dtype("--from", optarg, &o->shape.from);
    case OPTION_CHUNK: return cli_int64("--chunk", optarg, 1, MOST_CHUNK, &o->shape.chunk);
    case OPTION_STEPS: return cli_int64("--steps", optarg, 1, MOST_STEPS, &o->steps);
    case OPTION_STRATEGIES:
        return append_read("--strategies", optarg, o->strategies, &o->strategy_count);
    case OPTION_COLD: return o->cold = true;
    case OPTION_JSON: return o->json = true;
    case OPTION_PLOT: return (o->plot = optarg) != NULL;
    case OPTION_TRACE: return (o->trace = optarg) != NULL;
    default: return false; /* cli_next has told */
    }
}

static append_plan plan_for(const options *o, size_t context) {
    append_plan plan = {.shape = o->shape,
                        .context = o->contexts[context],
                        .steps = o->steps,
                        .strategies = o->strategies,
                        .count = o->strategy_count};
    if (plan.steps > plan.context) plan.steps = plan.context;
    return plan;
}

/* Everything that can be found out before measuring. */
static int check(const options *o, const machine *m) {
    uint64_t warm = 0, cold = 0;
    char what[48];
    for (size_t i = 0; i < o->strategy_count; i++)
        if (o->strategies[i].way == APPEND_CACHE &&
            !cache_kind_fits("--strategies", &o->strategies[i].cache, o->shape.dim))
            return CLI_USAGE;
    for (size_t i = 0; i < o->context_count; i++) {
        const append_plan plan = plan_for(o, i);
        const uint64_t one = o->cold ? append_cold_bytes(&plan) : 0;
        warm += append_warm_bytes(&plan);
        cold = one > cold ? one : cold;
    }
    if (o->context_count == 1)
        (void)snprintf(what, sizeof what, "context %" PRId64, o->contexts[0]);
    else (void)snprintf(what, sizeof what, "these %zu contexts", o->context_count);
    if (!machine_has_room(m, cold > warm ? cold : warm, what,
                          "--contexts, --caches or --strategies"))
        return CLI_FAILED;
    if (o->plot && append_plot_check(o->plot) != CLI_DONE) return CLI_FAILED;
    if (!o->trace) return CLI_DONE;
    return trace_open(o->trace, "the bench's loop and the library's own bookkeeping");
}

/* Puts the rows in the order of the table: by context as given, warm before cold. */
static void put_in_order(const options *o, results *r) {
    const results from = *r;
    r->count = 0;
    for (size_t c = 0; c < o->context_count; c++)
        for (int cold = 0; cold < 2; cold++)
            for (size_t i = 0; i < from.count; i++)
                if (from.rows[i].context == o->contexts[c] && from.rows[i].cold == (cold == 1))
                    r->rows[r->count++] = from.rows[i];
}

/* One more round at the largest context: what growth costs shows there most. */
static int trace_largest(const options *o) {
    size_t largest = 0;
    for (size_t i = 1; i < o->context_count; i++)
        if (o->contexts[i] > o->contexts[largest]) largest = i;
    const append_plan plan = plan_for(o, largest);
    cli_progress("context %" PRId64 ": tracing", plan.context);
    if (append_trace(&plan, false) != CLI_DONE) return CLI_FAILED;
    return o->cold ? append_trace(&plan, true) : CLI_DONE;
}

/* Cold rows first: they fork, and a fresh process should start from a small one. */
static int measure(const options *o, results *r) {
    append_plan plans[MOST_CONTEXTS];
    size_t count = 0;
    int status = CLI_DONE;
    for (size_t i = 0; i < o->context_count; i++) {
        plans[i] = plan_for(o, i);
        if (!o->cold) continue;
        if (append_measure_cold(&plans[i], r->rows + r->count, &count) != CLI_DONE)
            return CLI_FAILED;
        r->count += count;
    }
    status = append_measure_warm(plans, o->context_count, r->rows + r->count, &count);
    if (status != CLI_DONE) return status;
    r->count += count;
    put_in_order(o, r);
    if (o->trace) status = trace_largest(o);
    cli_progress_end();
    return status;
}

static double copied_per_appended(const append_row *row) {
    const append_figures *f = &row->figures;
    return f->appended_bytes ? (double)f->copied_bytes / (double)f->appended_bytes : NAN;
}

static double driver_us(const append_row *row) {
    return 1e-3 * (double)row->figures.driver_ns / (double)row->step_us.count;
}

/* The table. */

/* Of the column of strategies. */
static int width_of_names(const options *o) {
    size_t most = strlen("memcpy-fresh");
    for (size_t i = 0; i < o->strategy_count; i++)
        if (strlen(o->strategies[i].name) > most) most = strlen(o->strategies[i].name);
    return (int)most;
}

static void print_heading(int width, const options *o, const machine *m) {
    char line[256], step[REPORT_ROOM];
    machine_line(line, sizeof line, m);
    printf("%" PRId64 " %s caches [1,%" PRId64 ",N,%" PRId64 "], one position appended to each a "
           "step: %s; chunk %" PRId64 "\n%s; reading the clock adds %.0f ns\n\n",
           o->shape.caches, kvc_dtype_name(o->shape.dtype), o->shape.heads, o->shape.dim,
           report_bytes(step, (double)append_set_bytes(&o->shape, 1)), o->shape.chunk, line,
           m->timer_ns);
    printf("%8s  %-*s %-5s %9s %9s %9s %9s %9s %9s %8s %7s %7s %9s %9s %8s\n", "", width, "", "",
           "p50", "mean", "p99", "max", "growth", "grew", "copied", "pool", "pool", "driver",
           "held", "ratio to");
    printf("%8s  %-*s %-5s %9s %9s %9s %9s %9s %9s %8s %7s %7s %9s %9s %8s\n", "N", width,
           "strategy", "state", "us", "us", "us", "us", "us", "us", "x", "hits", "misses",
           "us/step", "MiB", "memcpy");
}

static void print_row(int width, const append_row *row) {
    char n[10][REPORT_ROOM];
    const stats_summary *s = &row->step_us;
    printf("%8" PRId64 "  %-*s %-5s %9s %9s %9s %9s %9s %9s %8s %7" PRIu64 " %7" PRIu64
           " %9s %9s %8s\n",
           row->context, width, row->strategy.name, row->cold ? "cold" : "warm",
           report_number(n[0], s->p50), report_number(n[1], s->mean), report_number(n[2], s->p99),
           report_number(n[3], s->max), report_number(n[4], row->growth_p50_us),
           report_number(n[5], row->grown_p50_us), report_number(n[6], copied_per_appended(row)),
           row->figures.pool_hits, row->figures.pool_misses, report_number(n[7], driver_us(row)),
           report_number(n[8], (double)row->figures.resident_bytes * 0x1p-20),
           report_number(n[9], row->ratio_to_memcpy));
}

static const append_row *find_warm(const results *r, const char *name, int64_t context) {
    for (size_t i = 0; i < r->count; i++) {
        const append_row *row = &r->rows[i];
        if (strcmp(row->strategy.name, name) == 0 && row->context == context && !row->cold)
            return row;
    }
    return NULL;
}

/* The seed's own comparison. */
static void print_comparison(const results *r) {
    bool begun = false;
    for (size_t i = 0; i < r->count; i++) {
        char times[REPORT_ROOM];
        const append_row *concat = &r->rows[i];
        const append_row *chunk = find_warm(r, "chunk", concat->context);
        if (strcmp(concat->strategy.name, "concat") != 0 || concat->cold || !chunk) continue;
        printf("%s %s x at %" PRId64, begun ? "," : "\nconcat takes the time of chunk",
               report_number(times, concat->step_us.p50 / chunk->step_us.p50), concat->context);
        begun = true;
    }
    if (begun) printf(" (medians, warm)\n");
}

static void print_legend(const options *o) {
    printf("\nus: microseconds a step, all caches together. growth: median of steps that begin a\n"
           "chunk (concat: every step); grew: of steps in which the strategy took a larger buffer\n"
           "or made memory resident. copied: bytes moved per byte appended. driver: time in mmap\n"
           "and the like; held: by the caches at the end. warm: pools hold what earlier caches "
           "gave back; ratio of medians.\n");
    if (o->cold)
        printf("cold: fresh processes, untouched memory; ratio of means, to memcpy-fresh.\n");
}

static void print_table(const options *o, const machine *m, const results *r) {
    const int width = width_of_names(o);
    print_heading(width, o, m);
    for (size_t i = 0; i < r->count; i++) {
        if (i > 0 && r->rows[i].context != r->rows[i - 1].context) (void)putchar('\n');
        print_row(width, &r->rows[i]);
    }
    print_comparison(r);
    print_legend(o);
}

/* The JSON object. */

static json_t *new_row(const append_row *row) {
    const stats_summary *s = &row->step_us;
    const append_figures *f = &row->figures;
    return json_pack(
        "{s:s, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:o, s:o, "
        "s:I}",
        "strategy", row->strategy.name, "context", (json_int_t)row->context, "state",
        row->cold ? "cold" : "warm", "p50_us", report_json_number(s->p50), "mean_us",
        report_json_number(s->mean), "p99_us", report_json_number(s->p99), "max_us",
        report_json_number(s->max), "growth_p50_us", report_json_number(row->growth_p50_us),
        "grown_p50_us", report_json_number(row->grown_p50_us), "copied_per_appended",
        report_json_number(copied_per_appended(row)), "pool_hits", (json_int_t)f->pool_hits,
        "pool_misses", (json_int_t)f->pool_misses, "driver_calls", (json_int_t)f->driver_calls,
        "driver_us", report_json_number(driver_us(row)), "resident_bytes",
        (json_int_t)f->resident_bytes, "ratio_to_memcpy", report_json_number(row->ratio_to_memcpy),
        "ratio_to_reserve", report_json_number(row->ratio_to_reserve), "steps",
        (json_int_t)s->count);
}

static json_t *new_object(const options *o, const machine *m, const results *r) {
    json_t *rows = json_array();
    for (size_t i = 0; i < r->count; i++) (void)json_array_append_new(rows, new_row(&r->rows[i]));
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:o}", "bench", "append",
                     "machine", machine_json(m), "caches", (json_int_t)o->shape.caches, "heads",
                     (json_int_t)o->shape.heads, "dim", (json_int_t)o->shape.dim, "dtype",
                     kvc_dtype_name(o->shape.dtype), "from", kvc_dtype_name(o->shape.from), "chunk",
                     (json_int_t)o->shape.chunk, "bytes_per_step",
                     (json_int_t)append_set_bytes(&o->shape, 1), "rows", rows);
}

static int run(const options *o) {
    machine m;
    results r = {.count = 0};
    int status = CLI_DONE;
    machine_read(&m);
    status = check(o, &m);
    if (status != CLI_DONE) return status;
    if (measure(o, &r) != CLI_DONE) {
        trace_discard();
        return CLI_FAILED;
    }
    if (o->plot) {
        char where[256];
        machine_line(where, sizeof where, &m);
        status = append_plot(o->plot, r.rows, r.count, &o->shape, where);
    }
    if (o->json && report_json(new_object(o, &m, &r)) != CLI_DONE) status = CLI_FAILED;
    if (!o->json) print_table(o, &m, &r);
    if (o->trace && trace_close(o->json ? stderr : stdout) != CLI_DONE) status = CLI_FAILED;
    return status;
}

int kvc_tool_bench_append(int argc, char **argv) {
    options o = {
        .shape = {.caches = 20, .heads = 4, .dim = 512, .chunk = 256, .dtype = KVC_BF16},
        .contexts = {512, 1024, 4096},
        .context_count = 3,
        .steps = 256,
    };
    (void)append_read("--strategies", APPEND_DEFAULTS, o.strategies, &o.strategy_count);
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    if (!o.has_from) o.shape.from = o.shape.dtype;
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
