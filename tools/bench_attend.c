/* `kvcache bench attend`: one query position over long caches, beside the speed at which the same
 * keys and values can be read at all. */

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <kvcache/attention.h>
#include <kvcache/cache.h>
#include <kvcache/device.h>
#include <kvcache/executor.h>
#include <kvcache/pool.h>

#include "cli.h"
#include "commands.h"
#include "floor.h"
#include "machine.h"
#include "report.h"
#include "stats.h"
#include "trace.h"

static const char help[] =
    "Attends with one query position over caches of a given length.\n"
    "\n"
    "Usage: kvcache bench attend [OPTION]...\n"
    "\n"
    "  --heads Q/KV      query heads and kv heads (32/8)\n"
    "  --dim N           elements of a head's row (128)\n"
    "  --dtype TYPE      of keys and values: f32, f16 or bf16 (bf16)\n"
    "  --contexts LIST   positions attended over (1024,4096,16384)\n"
    "  --threads N       threads that share a run, and a read of the floor (1)\n"
    "  --rotate N        MiB of keys and values that the runs go over, at least (four times the\n"
    "                    last-level cache)\n"
    "  --json            print one JSON object instead of the table\n"
    "  --trace FILE      write a trace of one more pass for Perfetto, and print its shares\n"
    "\n"
    "Each context gets one cache with so many layers, 4096 at most, that their keys and values\n"
    "together are at least --rotate; runs go from layer to layer, so that each reads memory.\n"
    "Passes of attention and passes of plain reading over the same bytes take turns.\n"
    "\n"
    "Columns and JSON keys:\n"
    "  p50, p99, max (p50_us, ...)  microseconds a run, of one layer\n"
    "  GB/s (gbps)                  keys and values per second, of the median\n"
    "  floor (floor_gbps)           the same bytes read by the fastest plain loop, of the median\n"
    "  ratio                        time over the floor's time: 1 is the speed of memory\n"
    "  path                         the code that ran (see kvcache explain)\n";

enum {
    MOST_CONTEXTS = 16,
    MOST_LAYERS = 4096, /* each takes two ranges of address space, of which Linux gives 65530 */
    FILL_POSITIONS = 256,
    LEAST_PASSES = 3,
    LEAST_RUNS = 40, /* of one context, in all passes */
    MOST_RUNS = 10000
};

/* After this no pass is started beyond the least. */
#define BUDGET_NS ((uint64_t)1500000000)

#define UNKNOWN_CACHE_BYTES ((uint64_t)32 << 20)

typedef struct options {
    int64_t q_heads, kv_heads, dim, contexts[MOST_CONTEXTS];
    size_t context_count;
    int64_t rotate_mib; /* 0: by the machine */
    int64_t threads;
    kvc_dtype dtype;
    bool json;
    const char *trace;
} options;

typedef struct row {
    int64_t context, layers;
    uint64_t bytes; /* of keys and values of one run */
    stats_summary run_us, floor_us;
    kvc_path path;
    int floor_variant;
} row;

/* One context at work. */
typedef struct subject {
    const options *options;
    row *row;
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_attention *plan;
    kvc_threads *threads;
    kvc_array q, out; /* [1][q_heads][1][dim] f32 */
    stats_samples run_us, floor_us;
} subject;

static uint64_t run_bytes(const options *o, int64_t context) {
    return 2 * (uint64_t)(o->kv_heads * o->dim * context) * kvc_dtype_size_bytes(o->dtype);
}

/* What the runs should go over: more than any cache keeps from one pass to the next. */
static uint64_t rotate_bytes(const options *o, const machine *m) {
    if (o->rotate_mib) return (uint64_t)o->rotate_mib << 20;
    return 4 * (m->llc_bytes ? m->llc_bytes : UNKNOWN_CACHE_BYTES);
}

static int64_t layers_for(const options *o, const machine *m, uint64_t bytes) {
    const uint64_t layers = (rotate_bytes(o, m) + bytes - 1) / bytes;
    return layers < 2 ? 2 : layers > MOST_LAYERS ? MOST_LAYERS : (int64_t)layers;
}

/* Setting up. */

/* Small numbers of both signs, the same on every machine. */
static void fill_random(float *out, size_t count) {
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        out[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
}

/* Appends `context` positions to every layer, some at a time. */
static int fill_cache(subject *s, float *rows) {
    const options *o = s->options;
    for (int64_t at = 0; at < s->row->context; at += FILL_POSITIONS) {
        const int64_t left = s->row->context - at;
        const int64_t n = left < FILL_POSITIONS ? left : FILL_POSITIONS;
        const int64_t shape[] = {1, o->kv_heads, n, o->dim};
        kvc_array kv;
        if (kvc_array_borrow(&kv, KVC_F32, 4, shape, NULL, rows) != KVC_OK)
            return cli_fail_library("positions");
        for (int64_t layer = 0; layer < s->row->layers; layer++)
            if (kvc_cache_append(s->cache, layer, &kv, &kv) != KVC_OK)
                return cli_fail_library("cache");
    }
    return CLI_DONE;
}

static int make_cache(subject *s) {
    const options *o = s->options;
    const kvc_layer_spec spec = {o->kv_heads, o->dim, o->dim, o->dtype};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = s->row->layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = KVC_GROW_RESERVE,
                                 .max_positions = s->row->context};
    if (kvc_pool_new(&s->pool, kvc_device_cpu()) != KVC_OK ||
        kvc_cache_new(&s->cache, s->pool, &desc) != KVC_OK)
        return cli_fail_library("cache");
    const size_t count = (size_t)(o->kv_heads * FILL_POSITIONS * o->dim);
    float *rows = malloc(count * sizeof *rows);
    if (!rows) return cli_fail("no memory for %d positions", FILL_POSITIONS);
    fill_random(rows, count);
    const int status = fill_cache(s, rows);
    free(rows);
    return status;
}

static int make_query(subject *s) {
    const options *o = s->options;
    const int64_t shape[] = {1, o->q_heads, 1, o->dim};
    if (kvc_array_empty(&s->q, s->pool, KVC_F32, 4, shape) != KVC_OK ||
        kvc_array_empty(&s->out, s->pool, KVC_F32, 4, shape) != KVC_OK)
        return cli_fail_library("query");
    fill_random(s->q.data, (size_t)kvc_array_size(&s->q));
    return CLI_DONE;
}

static int make_plan(subject *s) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_explanation explanation = {.struct_size = sizeof explanation};
    if (kvc_attention_desc_for(&desc, s->cache, 0) != KVC_OK) return cli_fail_library("plan");
    if (kvc_threads_new(&s->threads, (int)s->options->threads) != KVC_OK)
        return cli_fail_library("--threads");
    const kvc_executor executor = kvc_threads_executor(s->threads);
    desc.q_heads = s->options->q_heads;
    desc.executor = s->options->threads > 1 ? &executor : NULL;
    if (kvc_attention_plan(&s->plan, &desc) != KVC_OK ||
        kvc_attention_explain(&explanation, s->plan, s->cache, 0) != KVC_OK)
        return cli_fail_library("plan");
    s->row->path = explanation.path;
    return CLI_DONE;
}

static void drop(subject *s) {
    kvc_attention_free(s->plan);
    kvc_threads_free(s->threads);
    kvc_array_release(&s->q);
    kvc_array_release(&s->out);
    kvc_cache_free(s->cache);
    kvc_pool_free(s->pool);
    stats_free(&s->run_us);
    stats_free(&s->floor_us);
}

/* Measuring. */

static int attend(subject *s, int64_t layer) {
    return kvc_attention_run(s->plan, s->cache, layer, &s->q, &s->out, NULL) == KVC_OK
               ? CLI_DONE
               : cli_fail_library("attention");
}

/* What one run reads: the heads of k, then those of v. */
typedef struct reading {
    const kvc_array *k, *v;
    int variant;
    _Atomic(uint64_t) sum; /* or nobody would have to read */
} reading;

/* Reads one head as it lies. */
static void read_head(void *argument, int64_t index, int thread) {
    reading *r = argument;
    const int64_t heads = r->k->shape[1];
    const kvc_array *kv = index < heads ? r->k : r->v;
    const size_t element = kvc_dtype_size_bytes(kv->dtype);
    const size_t bytes = (size_t)(kv->shape[2] * kv->shape[3]) * element;
    const size_t offset = (size_t)(index % heads * kv->strides[1]) * element;
    (void)thread;
    r->sum += floor_read(r->variant, (const char *)kv->data + offset, bytes);
}

static void read_layer(subject *s, const kvc_array *k, const kvc_array *v, int variant) {
    static volatile uint64_t sink;
    reading r = {.k = k, .v = v, .variant = variant};
    const int64_t count = 2 * k->shape[1];
    if (s->options->threads > 1) {
        const kvc_executor executor = kvc_threads_executor(s->threads);
        executor.parallel_for(executor.context, count, read_head, &r);
    } else {
        for (int64_t i = 0; i < count; i++) read_head(&r, i, 0);
    }
    sink = sink + r.sum;
}

/* One pass of plain reading over all layers; samples may be NULL. Returns the nanoseconds. */
static int read_pass(subject *s, int variant, stats_samples *samples, uint64_t *spent_ns) {
    *spent_ns = 0;
    for (int64_t layer = 0; layer < s->row->layers; layer++) {
        kvc_array k, v;
        if (kvc_cache_view(s->cache, layer, &k, &v) != KVC_OK) return cli_fail_library("cache");
        const uint64_t start_ns = stats_now_ns();
        read_layer(s, &k, &v, variant);
        const uint64_t ns = stats_now_ns() - start_ns;
        kvc_array_release(&k);
        kvc_array_release(&v);
        *spent_ns += ns;
        if (samples && !stats_add(samples, 1e-3 * (double)ns))
            return cli_fail("no memory for the samples");
    }
    return CLI_DONE;
}

static int attend_pass(subject *s) {
    for (int64_t layer = 0; layer < s->row->layers; layer++) {
        const uint64_t start_ns = stats_now_ns();
        if (attend(s, layer) != CLI_DONE) return CLI_FAILED;
        if (!stats_add(&s->run_us, 1e-3 * (double)(stats_now_ns() - start_ns)))
            return cli_fail("no memory for the samples");
    }
    return CLI_DONE;
}

/* Which way of reading is fastest here: the floor is the best of them. */
static int choose_floor(subject *s) {
    uint64_t best_ns = UINT64_MAX, ns;
    for (int repeat = 0; repeat < 2; repeat++)
        for (int variant = 0; variant < FLOOR_VARIANTS; variant++) {
            if (read_pass(s, variant, NULL, &ns) != CLI_DONE) return CLI_FAILED;
            if (ns >= best_ns) continue;
            best_ns = ns;
            s->row->floor_variant = variant;
        }
    return CLI_DONE;
}

static int measure(subject *s) {
    uint64_t ns;
    int status = choose_floor(s);
    const uint64_t begin_ns = stats_now_ns();
    for (size_t pass = 0; status == CLI_DONE; pass++) {
        const bool enough = pass >= LEAST_PASSES && s->run_us.count >= LEAST_RUNS;
        const bool late = stats_now_ns() - begin_ns > BUDGET_NS;
        if (enough && (late || s->run_us.count >= MOST_RUNS)) break;
        cli_progress("context %" PRId64 ": pass %zu", s->row->context, pass + 1);
        status = attend_pass(s);
        if (status == CLI_DONE) status = read_pass(s, s->row->floor_variant, &s->floor_us, &ns);
        if (pass == 0) s->run_us.count = s->floor_us.count = 0; /* a first pass warms up */
    }
    s->row->run_us = stats_summarise(&s->run_us);
    s->row->floor_us = stats_summarise(&s->floor_us);
    return status;
}

static int trace_pass(subject *s) {
    char label[48];
    int status = CLI_DONE;
    (void)snprintf(label, sizeof label, "attend %" PRId64, s->row->context);
    trace_record(true);
    for (int64_t layer = 0; layer < s->row->layers && status == CLI_DONE; layer++) {
        trace_step_begin(label);
        status = attend(s, layer);
        trace_step_end();
    }
    trace_record(false);
    return status;
}

static int measure_context(const options *o, const machine *m, row *r) {
    subject s = {.options = o, .row = r};
    r->bytes = run_bytes(o, r->context);
    r->layers = layers_for(o, m, r->bytes);
    cli_progress("context %" PRId64 ": filling %" PRId64 " layers", r->context, r->layers);
    int status = make_cache(&s);
    if (status == CLI_DONE) status = make_query(&s);
    if (status == CLI_DONE) status = make_plan(&s);
    if (status == CLI_DONE) status = measure(&s);
    if (status == CLI_DONE && o->trace) status = trace_pass(&s);
    drop(&s);
    return status;
}

/* Printing. */

static double gbps(const row *r, double us) {
    return 1e-3 * (double)r->bytes / us;
}

static double ratio(const row *r) {
    return r->run_us.p50 / r->floor_us.p50;
}

static void print_table(const options *o, const machine *m, const row *rows) {
    char line[256], n[8][REPORT_ROOM];
    machine_line(line, sizeof line, m);
    printf("Attention of one query position: %" PRId64 " query heads, %" PRId64 " kv heads, "
           "dimension %" PRId64 ", %s, %" PRId64 " thread%s\n%s\n\n",
           o->q_heads, o->kv_heads, o->dim, kvc_dtype_name(o->dtype), o->threads,
           o->threads == 1 ? "" : "s", line);
    printf("%8s %9s %7s %9s %9s %9s %7s %7s %7s  %s\n", "", "K+V", "", "p50", "p99", "max", "",
           "floor", "ratio", "");
    printf("%8s %9s %7s %9s %9s %9s %7s %7s %7s  %s\n", "context", "a run", "layers", "us", "us",
           "us", "GB/s", "GB/s", "x", "path");
    for (size_t i = 0; i < o->context_count; i++) {
        const row *r = &rows[i];
        printf("%8" PRId64 " %9s %7" PRId64 " %9s %9s %9s %7s %7s %7s  %s\n", r->context,
               report_bytes(n[0], (double)r->bytes), r->layers, report_number(n[1], r->run_us.p50),
               report_number(n[2], r->run_us.p99), report_number(n[3], r->run_us.max),
               report_number(n[4], gbps(r, r->run_us.p50)),
               report_number(n[5], gbps(r, r->floor_us.p50)), report_number(n[6], ratio(r)),
               kvc_path_name(r->path));
    }
    printf("\nfloor: the same bytes read by the fastest of %d plain loops, in turn with the runs;\n"
           "ratio: time over the floor's time. Runs go from layer to layer, over %s at least.\n",
           FLOOR_VARIANTS, report_bytes(n[0], (double)rotate_bytes(o, m)));
    for (size_t i = 0; i < o->context_count; i++)
        if (rows[i].bytes * (uint64_t)rows[i].layers < rotate_bytes(o, m))
            printf("context %" PRId64 ": %d layers are the most, and hold %s only\n",
                   rows[i].context, MOST_LAYERS,
                   report_bytes(n[0], (double)rows[i].bytes * (double)rows[i].layers));
}

static json_t *new_row(const options *o, const row *r) {
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:I, s:I, s:I}",
        "dtype", kvc_dtype_name(o->dtype), "q_heads", (json_int_t)o->q_heads, "kv_heads",
        (json_int_t)o->kv_heads, "head_dim", (json_int_t)o->dim, "context", (json_int_t)r->context,
        "threads", (json_int_t)o->threads, "p50_us", report_json_number(r->run_us.p50), "p99_us",
        report_json_number(r->run_us.p99), "max_us", report_json_number(r->run_us.max), "gbps",
        report_json_number(gbps(r, r->run_us.p50)), "floor_gbps",
        report_json_number(gbps(r, r->floor_us.p50)), "ratio", report_json_number(ratio(r)), "path",
        kvc_path_name(r->path), "floor", floor_name(r->floor_variant), "layers",
        (json_int_t)r->layers, "bytes", (json_int_t)r->bytes, "runs", (json_int_t)r->run_us.count);
}

static json_t *new_object(const options *o, const machine *m, const row *rows) {
    json_t *list = json_array();
    for (size_t i = 0; i < o->context_count; i++)
        (void)json_array_append_new(list, new_row(o, &rows[i]));
    return json_pack("{s:s, s:o, s:o}", "bench", "attend", "machine", machine_json(m), "rows",
                     list);
}

/* Everything that can be found out before measuring. */
static int check(const options *o, const machine *m) {
    for (size_t i = 0; i < o->context_count; i++) {
        char what[48];
        const uint64_t bytes = run_bytes(o, o->contexts[i]);
        (void)snprintf(what, sizeof what, "context %" PRId64, o->contexts[i]);
        /* Pages are committed a little ahead of the length. */
        if (!machine_has_room(m, bytes * (uint64_t)layers_for(o, m, bytes) / 16 * 17, what,
                              "--contexts, --heads or --dim"))
            return CLI_FAILED;
    }
    return o->trace ? trace_open(o->trace, "the library's own bookkeeping") : CLI_DONE;
}

static int run(const options *o) {
    row rows[MOST_CONTEXTS] = {{0}};
    machine m;
    machine_read(&m);
    int status = check(o, &m);
    for (size_t i = 0; i < o->context_count && status == CLI_DONE; i++) {
        rows[i].context = o->contexts[i];
        status = measure_context(o, &m, &rows[i]);
    }
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
    OPTION_ROTATE,
    OPTION_THREADS,
    OPTION_JSON,
    OPTION_TRACE
};

static const struct option option_table[] = {
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"contexts", required_argument, NULL, OPTION_CONTEXTS},
    {"rotate", required_argument, NULL, OPTION_ROTATE},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"json", no_argument, NULL, OPTION_JSON},
    {"trace", required_argument, NULL, OPTION_TRACE},
    CLI_OPTIONS_END,
};

/* With these limits no product of sizes leaves 64 bits: 2 * 2^16 * 2^13 * 2^24 * 4. */
static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_HEADS: return cli_heads("--heads", optarg, &o->q_heads, &o->kv_heads);
    case OPTION_DIM: return cli_int64("--dim", optarg, 1, 8192, &o->dim);
    case OPTION_DTYPE: return cli_dtype("--dtype", optarg, &o->dtype);
    case OPTION_CONTEXTS:
        return cli_list_int64("--contexts", optarg, 1, 1 << 24, o->contexts, MOST_CONTEXTS,
                              &o->context_count);
    case OPTION_ROTATE: return cli_int64("--rotate", optarg, 1, 1 << 20, &o->rotate_mib);
    case OPTION_THREADS: return cli_int64("--threads", optarg, 1, KVC_THREADS_MAX, &o->threads);
    case OPTION_JSON: return o->json = true;
    case OPTION_TRACE: return (o->trace = optarg) != NULL;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_attend(int argc, char **argv) {
    options o = {.q_heads = 32,
                 .kv_heads = 8,
                 .dim = 128,
                 .dtype = KVC_BF16,
                 .threads = 1,
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
