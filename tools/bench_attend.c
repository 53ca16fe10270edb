/* `kvcache bench attend`: attention over long caches of any kind, beside the two limits of the
 * machine: how fast the same keys and values can be read at all, and how fast it multiplies. */

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/attention.h>
#include <kvcache/executor.h>

#include "attend_measure.h"
#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "roofline.h"
#include "trace.h"

static const char help[] =
    "Attends with the last query positions of sequences of a given length.\n"
    "\n"
    "Usage: kvcache bench attend [OPTION]...\n"
    "\n"
    "  --heads Q/KV      query heads and kv heads (32/8)\n"
    "  --dim N           elements of a head's row (128)\n"
    "  --dtype TYPE      of keys and values, or of their scales: f32, f16 or bf16 (bf16)\n"
    "  --contexts LIST   positions of each sequence (1024,4096,16384)\n"
    "  --q-len N         query positions of a run, causal: 1 is decoding, a few are the\n"
    "                    verification of a draft, hundreds are prefill (1)\n"
    "  --batch N         sequences of a run (1)\n"
    "  --shortest N      positions of the batch's shortest sequence: lengths are spread evenly "
    "from\n"
    "                    here to the context, in no order (all have the context)\n"
    "  --window N        keys that a query sees at most, its own among them (all before it)\n"
    "  --cache LIST      kinds of cache, which take turns (reserve), each how it grows, what it\n"
    "                    keeps and how it is packed, joined by +, as in q8+paged. One of:\n"
    "                    reserve; chunk, of the whole context, which asks for huge pages; concat;\n"
    "                    paged[:BLOCK], 16 to 256 positions (64) that lie in no order;\n"
    "                    window:W[:KEEP], the last positions, W with the first KEEP (0);\n"
    "                    qBITS[c][r][:GROUP], 2, 3, 4, 5, 6 or 8 bits by groups of 32, 64 or 128\n"
    "                    (64); c: keys per channel, r: rotated before\n"
    "  --threads N       threads that share a run, and a measurement of the limits (1)\n"
    "  --rotate N        MiB of keys and values that the runs go over, at least (four times the\n"
    "                    last-level cache)\n"
    "  --json            print one JSON object instead of the table\n"
    "  --trace FILE      write a trace of one more run of each layer for Perfetto, and print its\n"
    "                    shares\n"
    "\n"
    "Each context gets caches of so many layers, 2 to 4096, that the keys and values of each are\n"
    "at least --rotate; runs go from layer to layer, so that each reads memory. Runs, plain\n"
    "reading of the same bytes where they lie, and plain multiply-adds take turns, cache by\n"
    "cache.\n"
    "\n"
    "Columns and JSON keys:\n"
    "  K+V (bytes)                  keys and values that the queries of a run see, each once;\n"
    "                               where they are packed, words, scales and biases\n"
    "  p50, p99, max (p50_us, ...)  microseconds a run, of one layer; JSON has the best too\n"
    "  GB/s (gbps)                  K+V per second, of the median\n"
    "  floor (floor_gbps)           the same bytes read by the fastest plain loop, of the median\n"
    "  GFLOP/s (gflops)             4 * dim for each query head, query and key that it sees\n"
    "  FMA (ceiling_gflops)         multiply-adds of f32 from registers, the best rate seen\n"
    "  of (of)                      share of the limit that binds: 1 is as fast as the machine\n"
    "  binds (binds)                which that is: reading (read), or multiply-adds (fma)\n"
    "  time (time_to_first)         p50 over that of the first cache, at the same context\n"
    "  path (path)                  the code that ran (see kvcache explain)\n"
    "JSON also has huge_share, the share of the keys and values that huge pages hold.\n";

enum { MOST_CONTEXTS = 16, MOST_ROWS = MOST_CONTEXTS * ATTEND_CACHES_MOST };

#define UNKNOWN_CACHE_BYTES ((uint64_t)32 << 20)

typedef struct options {
    attend_shape shape;
    int64_t contexts[MOST_CONTEXTS];
    size_t context_count;
    int64_t rotate_mib; /* 0: by the machine */
    bool json;
    const char *trace;
} options;

/* Printing. */

static double gbps(const attend_row *r, double us) {
    return 1e-3 * (double)r->bytes / us;
}

static double gflops(const attend_row *r) {
    return 1e-3 * r->flops / r->run_us.p50;
}

static double share_of_limit(const attend_row *r) {
    return attend_limit_us(r) / r->run_us.p50;
}

static const char *what_binds(const attend_row *r) {
    return attend_is_bound_by_fma(r) ? "fma" : "read";
}

static void print_title(const attend_shape *s, const machine *m) {
    char line[256];
    machine_line(line, sizeof line, m);
    if (s->q_len == 1) printf("Attention of one query position: ");
    else printf("Causal attention of %" PRId64 " query positions: ", s->q_len);
    if (s->batch > 1) printf("%" PRId64 " sequences, ", s->batch);
    if (s->window) printf("window %" PRId64 ", ", s->window);
    printf("%" PRId64 " query heads, %" PRId64 " kv heads, dimension %" PRId64 ", %s, %" PRId64
           " thread%s\n%s\n\n",
           s->q_heads, s->kv_heads, s->dim, kvc_dtype_name(s->dtype), s->threads,
           s->threads == 1 ? "" : "s", line);
}

static size_t row_count(const options *o) {
    return o->context_count * o->shape.cache_count;
}

/* The first cache's row of the same context. */
static double time_to_first(const options *o, const attend_row *rows, size_t i) {
    return rows[i].run_us.p50 / rows[i - i % o->shape.cache_count].run_us.p50;
}

static void print_columns(const attend_shape *s, const char *context, const char *cache,
                          const char *const *columns, const char *time, const char *path) {
    int width = 0;
    for (size_t i = 0; i < s->cache_count; i++) {
        char text[CACHE_KIND_ROOM];
        const int length = (int)strlen(cache_kind_text(text, &s->caches[i]));
        width = length > width ? length : width;
    }
    printf("%8s  %-*s %9s %8s %8s %8s %6s %6s %8s %6s %6s %6s", context, width, cache, columns[0],
           columns[1], columns[2], columns[3], columns[4], columns[5], columns[6], columns[7],
           columns[8], columns[9]);
    if (s->cache_count > 1) printf(" %6s", time);
    printf("  %s\n", path);
}

static void print_row(const options *o, const attend_row *rows, size_t i) {
    char n[10][REPORT_ROOM], context[48], cache[CACHE_KIND_ROOM];
    const attend_shape *s = &o->shape;
    const attend_row *r = &rows[i];
    if (s->shortest)
        (void)snprintf(context, sizeof context, "%" PRId64 "-%" PRId64, s->shortest, r->context);
    else (void)snprintf(context, sizeof context, "%" PRId64, r->context);
    const char *const columns[] = {report_bytes(n[0], (double)r->bytes),
                                   report_number(n[1], r->run_us.p50),
                                   report_number(n[2], r->run_us.p99),
                                   report_number(n[3], r->run_us.max),
                                   report_number(n[4], gbps(r, r->run_us.p50)),
                                   report_number(n[5], gbps(r, r->floor_us.p50)),
                                   report_number(n[6], gflops(r)),
                                   report_number(n[7], r->ceiling_gflops),
                                   report_number(n[8], share_of_limit(r)),
                                   what_binds(r)};
    print_columns(s, context, cache_kind_text(cache, r->cache), columns,
                  report_number(n[9], time_to_first(o, rows, i)), kvc_path_name(r->path));
}

/* The most that any context saw. */
static void print_huge_pages(const options *o, const attend_row *rows) {
    printf("Huge pages hold, of the keys and values at most,");
    for (size_t c = 0; c < o->shape.cache_count; c++) {
        char text[CACHE_KIND_ROOM];
        double most = 0;
        for (size_t i = c; i < row_count(o); i += o->shape.cache_count)
            most = fmax(most, rows[i].huge_share);
        printf("%s %s %.0f %%", c ? "," : "", cache_kind_text(text, &o->shape.caches[c]),
               100 * most);
    }
    printf(".\n");
}

static void print_notes(const options *o, const attend_row *rows) {
    char n[2][REPORT_ROOM], text[CACHE_KIND_ROOM];
    const uint64_t rotate = o->shape.rotate_bytes;
    printf(
        "\nfloor: the same bytes read by the fastest of %d plain loops; FMA: multiply-adds of f32\n"
        "from registers (%s), at best; both in turn with the runs, on the same threads. of: the\n"
        "share of the limit that binds. Runs go from layer to layer, over %s at least.\n",
        ROOFLINE_READS, rows[0].isa, report_bytes(n[0], (double)rotate));
    if (o->shape.cache_count > 1)
        printf("time: that of the first cache is 1; all take turns in one process.\n");
    if (isfinite(rows[0].dot_gflops))
        printf("This CPU also multiplies pairs of bf16: %s GFLOP/s.\n",
               report_number(n[0], rows[0].dot_gflops));
    print_huge_pages(o, rows);
    for (size_t i = 0; i < row_count(o); i++)
        if (rows[i].bytes * (uint64_t)rows[i].layers < rotate)
            printf("context %" PRId64 ", %s: %d layers are the most, and hold %s only\n",
                   rows[i].context, cache_kind_text(text, rows[i].cache), ATTEND_LAYERS_MOST,
                   report_bytes(n[0], (double)rows[i].bytes * (double)rows[i].layers));
}

static void print_table(const options *o, const machine *m, const attend_row *rows) {
    static const char *const upper[] = {"K+V", "p50", "p99", "max", "", "floor", "", "FMA", "", ""};
    static const char *const lower[] = {"a run", "us",      "us", "us", "GB/s",
                                        "GB/s",  "GFLOP/s", "",   "of", "binds"};
    print_title(&o->shape, m);
    print_columns(&o->shape, "", "", upper, "", "");
    print_columns(&o->shape, "context", "cache", lower, "time", "path");
    for (size_t i = 0; i < row_count(o); i++) {
        if (o->shape.cache_count > 1 && i > 0 && i % o->shape.cache_count == 0) (void)putchar('\n');
        print_row(o, rows, i);
    }
    print_notes(o, rows);
}

static json_t *new_row(const options *o, const attend_row *rows, size_t i) {
    char cache[CACHE_KIND_ROOM];
    const attend_shape *s = &o->shape;
    const attend_row *r = &rows[i];
    json_t *shape = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I}", "cache",
        cache_kind_text(cache, r->cache), "dtype", kvc_dtype_name(s->dtype), "q_heads",
        (json_int_t)s->q_heads, "kv_heads", (json_int_t)s->kv_heads, "head_dim", (json_int_t)s->dim,
        "context", (json_int_t)r->context, "shortest",
        (json_int_t)(s->shortest ? s->shortest : r->context), "window",
        attend_window(s, r->cache) ? json_integer(attend_window(s, r->cache)) : json_null(),
        "q_len", (json_int_t)s->q_len, "batch", (json_int_t)s->batch, "threads",
        (json_int_t)s->threads);
    json_t *figures = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "best_us",
        report_json_number(r->run_us.min), "p50_us", report_json_number(r->run_us.p50), "p99_us",
        report_json_number(r->run_us.p99), "max_us", report_json_number(r->run_us.max), "floor_us",
        report_json_number(r->floor_us.p50), "time_to_first",
        report_json_number(time_to_first(o, rows, i)), "gbps",
        report_json_number(gbps(r, r->run_us.p50)), "floor_gbps",
        report_json_number(gbps(r, r->floor_us.p50)), "gflops", report_json_number(gflops(r)),
        "ceiling_gflops", report_json_number(r->ceiling_gflops), "dot_bf16_gflops",
        report_json_number(r->dot_gflops), "of", report_json_number(share_of_limit(r)));
    json_t *rest =
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:I}", "binds", what_binds(r), "path",
                  kvc_path_name(r->path), "floor", r->read_name, "isa", r->isa, "huge_share",
                  report_json_number(r->huge_share), "layers", (json_int_t)r->layers, "bytes",
                  (json_int_t)r->bytes, "runs", (json_int_t)r->run_us.count);
    (void)json_object_update(shape, figures);
    (void)json_object_update(shape, rest);
    json_decref(figures);
    json_decref(rest);
    return shape;
}

static json_t *new_object(const options *o, const machine *m, const attend_row *rows) {
    json_t *list = json_array();
    for (size_t i = 0; i < row_count(o); i++)
        (void)json_array_append_new(list, new_row(o, rows, i));
    return json_pack("{s:s, s:o, s:o}", "bench", "attend", "machine", machine_json(m), "rows",
                     list);
}

/* Which options do not go together. */
static int check_shape(const options *o) {
    const attend_shape *s = &o->shape;
    char text[CACHE_KIND_ROOM];
    if (s->shortest && s->batch == 1)
        return cli_usage("--shortest: sequences of different lengths want a --batch of 2 or more");
    for (size_t i = 0; i < s->cache_count; i++) {
        if (!cache_kind_fits("--cache", &s->caches[i], s->dim)) return CLI_USAGE;
        if (s->window && s->caches[i].window)
            return cli_usage("--window: %" PRId64 " given, beside --cache %s, which has a window; "
                             "one of them wanted",
                             s->window, cache_kind_text(text, &s->caches[i]));
    }
    return CLI_DONE;
}

/* Sets the rows of a context up, once its lengths make sense and its caches have room. */
static int check_context(const options *o, const machine *m, int64_t context, attend_row *rows) {
    const attend_shape *s = &o->shape;
    const int64_t shortest = s->shortest ? s->shortest : context;
    uint64_t bytes = 0;
    char what[48];
    if (s->shortest > context)
        return cli_usage("--shortest: %" PRId64 " given, no more than the context, %" PRId64
                         ", wanted",
                         s->shortest, context);
    if (s->q_len > shortest)
        return cli_usage("--q-len: %" PRId64 " given, no more than the shortest sequence, %" PRId64
                         ", wanted",
                         s->q_len, shortest);
    for (size_t i = 0; i < s->cache_count; i++) {
        attend_row_init(&rows[i], s, &s->caches[i], context);
        bytes += attend_need_bytes(&rows[i], s);
    }
    (void)snprintf(what, sizeof what, "context %" PRId64, context);
    return machine_has_room(m, bytes, what,
                            "--contexts, --batch, --q-len, --heads, --dim or --cache")
               ? CLI_DONE
               : CLI_FAILED;
}

/* Everything that can be found out before measuring. */
static int check(const options *o, const machine *m, attend_row *rows) {
    int status = check_shape(o);
    for (size_t i = 0; i < o->context_count && status == CLI_DONE; i++)
        status = check_context(o, m, o->contexts[i], rows + i * o->shape.cache_count);
    if (status != CLI_DONE || !o->trace) return status;
    return trace_open(o->trace, "the library's own bookkeeping");
}

/* What the runs should go over: more than any cache keeps from one pass to the next. */
static uint64_t rotate_bytes(const options *o, const machine *m) {
    if (o->rotate_mib) return (uint64_t)o->rotate_mib << 20;
    return 4 * (m->llc_bytes ? m->llc_bytes : UNKNOWN_CACHE_BYTES);
}

static int run(options *o) {
    attend_row rows[MOST_ROWS] = {{0}};
    machine m;
    machine_read(&m);
    o->shape.rotate_bytes = rotate_bytes(o, &m);
    int status = check(o, &m, rows);
    for (size_t i = 0; i < o->context_count && status == CLI_DONE; i++)
        status = attend_measure(rows + i * o->shape.cache_count, &o->shape, o->trace != NULL);
    cli_progress_end();
    if (status != CLI_DONE) {
        trace_discard();
        return status;
    }
    if (o->json) status = report_json(new_object(o, &m, rows));
    else print_table(o, &m, rows);
    if (o->trace && trace_close(o->json ? stderr : stdout) != CLI_DONE) status = CLI_FAILED;
    return status;
}

enum {
    OPTION_HEADS = CLI_FIRST,
    OPTION_DIM,
    OPTION_DTYPE,
    OPTION_CONTEXTS,
    OPTION_Q_LEN,
    OPTION_BATCH,
    OPTION_SHORTEST,
    OPTION_WINDOW,
    OPTION_CACHE,
    OPTION_THREADS,
    OPTION_ROTATE,
    OPTION_JSON,
    OPTION_TRACE
};

static const struct option option_table[] = {
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"contexts", required_argument, NULL, OPTION_CONTEXTS},
    {"q-len", required_argument, NULL, OPTION_Q_LEN},
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"shortest", required_argument, NULL, OPTION_SHORTEST},
    {"window", required_argument, NULL, OPTION_WINDOW},
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"rotate", required_argument, NULL, OPTION_ROTATE},
    {"json", no_argument, NULL, OPTION_JSON},
    {"trace", required_argument, NULL, OPTION_TRACE},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    attend_shape *s = &o->shape;
    switch (option) {
    case OPTION_HEADS: return cli_heads("--heads", optarg, &s->q_heads, &s->kv_heads);
    case OPTION_DIM: return cli_int64("--dim", optarg, 1, 8192, &s->dim);
    case OPTION_DTYPE: return cli_dtype("--dtype", optarg, &s->dtype);
    case OPTION_CONTEXTS:
        return cli_list_int64("--contexts", optarg, 1, 1 << 24, o->contexts, MOST_CONTEXTS,
                              &o->context_count);
    case OPTION_Q_LEN: return cli_int64("--q-len", optarg, 1, 65536, &s->q_len);
    case OPTION_BATCH: return cli_int64("--batch", optarg, 1, 4096, &s->batch);
    case OPTION_SHORTEST: return cli_int64("--shortest", optarg, 1, 1 << 24, &s->shortest);
    case OPTION_WINDOW: return cli_int64("--window", optarg, 1, 1 << 24, &s->window);
    case OPTION_CACHE:
        return cache_kind_list("--cache", optarg, s->caches, ATTEND_CACHES_MOST, &s->cache_count);
    case OPTION_THREADS: return cli_int64("--threads", optarg, 1, KVC_THREADS_MAX, &s->threads);
    case OPTION_ROTATE: return cli_int64("--rotate", optarg, 1, 1 << 20, &o->rotate_mib);
    case OPTION_JSON: return o->json = true;
    case OPTION_TRACE: return (o->trace = optarg) != NULL;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_attend(int argc, char **argv) {
    options o = {.shape = {.batch = 1,
                           .q_heads = 32,
                           .kv_heads = 8,
                           .dim = 128,
                           .q_len = 1,
                           .threads = 1,
                           .dtype = KVC_BF16,
                           .cache_count = 1}, /* the first kind is reserve */
                 .contexts = {1024, 4096, 16384},
                 .context_count = 3};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
