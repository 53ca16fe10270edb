/* `kvcache bench tier`: how fast blocks go below memory and come back, and for which models that is
 * sooner than computing them again. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "roofline.h"
#include "stats.h"
#include "tier_measure.h"
#include "tier_option.h"
#include "tier_prompt.h"

static const char help[] =
    "Puts values to tiers and gets them back, beside the same bytes moved plainly.\n"
    "\n"
    "Usage: kvcache bench tier --tier TIER... [OPTION]...\n"
    "\n"
    "  --tier TIER         disk:FOLDER (in a new folder there, removed again), or\n"
    "                      redis://HOST[:PORT] (forgotten within a minute); may come again\n"
    "  --sizes LIST        bytes of a value (262144,1048576,4194304)\n"
    "  --bytes N           of all values of a pass (67108864)\n"
    "  --passes N          of each kind, by turns (5)\n"
    "  --position-bytes N  keys and values of a position in a model (131072: 32 layers of\n"
    "                      8 heads of 128, in bf16)\n"
    "  --gflops G          what computing a prompt reaches; by default the multiply-adds that all\n"
    "                      cores can do at most, measured: no engine is faster\n"
    "  --model FILE        a checkpoint as kvcache generate has it: how soon it can go on behind\n"
    "                      a prompt that nearly fills its context, computed and restored\n"
    "  --json              print one JSON object instead of the table\n"
    "\n"
    "Columns and JSON keys, medians of passes in bytes a second:\n"
    "  plain put (plain_put), put, plain get (plain_get), get   JSON: ..._bytes_s, and of the\n"
    "                      fastest pass ..._best_bytes_s\n"
    "  ratio (put_to_plain, get_to_plain)   of the medians\n"
    "  pays from (pays_from_parameters)     a model with more parameters is computed slower than\n"
    "                      the get restores it, at two operations a parameter and position\n"
    "\n"
    "With --model, a row for each tier; JSON: prompts; milliseconds, with ..._best_ms:\n"
    "  prompt (positions), found, bytes   in it; of these in the tier, and their size\n"
    "  computed (computed_ms)     all of it by the model, to the logits behind it\n"
    "  restored (restored_ms)     from the tier, by an engine that has nothing in memory but the\n"
    "                      model; what is less than a block is computed. Bit for bit the same\n"
    "  sooner              computed over restored\n"
    "\n"
    "Plain is one thread, write(2) and read(2) of a file a value, or hiredis with 16 commands\n"
    "pipelined; the tier has threads of its own, and checksums. Files are in the page cache.\n";

enum { MOST_SIZES = 16, MOST_ROWS = MOST_SIZES * KVC_SPILL_TIERS_MAX };

typedef struct options {
    tier_options tiers;
    int64_t sizes[MOST_SIZES], bytes, passes, position_bytes;
    size_t size_count;
    double gflops;
    const char *model;
    bool json;
} options;

typedef struct row {
    const char *tier; /* its kind */
    int64_t size, values;
    tier_speeds speeds;
} row;

/* All that was measured. */
typedef struct results {
    row rows[MOST_ROWS];
    size_t count;
    tier_prompt prompts[KVC_SPILL_TIERS_MAX]; /* one a tier, where there is a model */
} results;

/* What all cores do in multiply-adds, by the best of a few runs on one: they share no memory. */
static double measure_gflops(const machine *m) {
    const roofline_ops *ops = roofline_best();
    const int64_t rounds = 1 << 20;
    double best = 0;
    for (int i = 0; i < 5; i++) {
        const uint64_t start_ns = stats_now_ns();
        volatile float sink = ops->multiply_add(rounds);
        (void)sink;
        const double ns = (double)(stats_now_ns() - start_ns);
        const double gflops = (double)(rounds * ops->flops_a_round) / ns;
        if (gflops > best) best = gflops;
    }
    return best * (double)m->cores;
}

/* Parameters P at which computing a position, 2 P operations, takes as long as getting its bytes.
 */
static double pays_from(const options *o, const row *r) {
    const double get_seconds = (double)o->position_bytes / r->speeds.get.p50;
    return get_seconds * 1e9 * o->gflops / 2;
}

static const char *number_text(char out[REPORT_ROOM], double value) {
    static const struct {
        double of;
        const char *unit;
    } steps[] = {{1e9, " G"}, {1e6, " M"}, {1e3, " k"}, {1, ""}};
    char digits[REPORT_ROOM];
    int i = 0;
    while (i < 3 && value < steps[i].of) i++;
    (void)snprintf(out, REPORT_ROOM, "%.20s%s", report_number(digits, value / steps[i].of),
                   steps[i].unit);
    return out;
}

static void print_prompts(const options *o, const results *all) {
    char n[4][REPORT_ROOM];
    printf("\nA prompt that nearly fills the context of %s, until it can be continued, ms.\n\n",
           o->model);
    printf("%-6s %8s %8s %9s  %9s %9s %8s\n", "tier", "prompt", "found", "bytes", "computed",
           "restored", "sooner");
    for (int64_t i = 0; i < o->tiers.count; i++) {
        const tier_prompt *p = &all->prompts[i];
        printf("%-6s %8" PRId64 " %8" PRId64 " %9s  %9s %9s %8s\n",
               tier_option_kind(o->tiers.texts[i]), p->positions, p->found,
               report_bytes(n[0], (double)p->bytes), report_number(n[1], 1e-6 * p->computed_ns.p50),
               report_number(n[2], 1e-6 * p->restored_ns.p50),
               report_number(n[3], p->computed_ns.p50 / p->restored_ns.p50));
    }
}

static void print_table(const options *o, const machine *m, const results *all) {
    char line[256], n[6][REPORT_ROOM];
    machine_line(line, sizeof line, m);
    printf("Values put and got back, GB/s by the median of %" PRId64 " passes.\n%s\n\n", o->passes,
           line);
    printf("%-6s %8s  %9s %8s %6s  %9s %8s %6s  %10s\n", "tier", "size", "plain put", "put",
           "ratio", "plain get", "get", "ratio", "pays from");
    for (size_t i = 0; i < all->count; i++) {
        const row *r = &all->rows[i];
        const tier_speeds *s = &r->speeds;
        printf("%-6s %8s  %9s %8s %6.2f", r->tier, report_bytes(n[0], (double)r->size),
               report_number(n[1], 1e-9 * s->plain_put.p50), report_number(n[2], 1e-9 * s->put.p50),
               s->put.p50 / s->plain_put.p50);
        printf("  %9s %8s %6.2f  %10s\n", report_number(n[3], 1e-9 * s->plain_get.p50),
               report_number(n[4], 1e-9 * s->get.p50), s->get.p50 / s->plain_get.p50,
               number_text(n[5], pays_from(o, r)));
    }
    printf("\npays from: parameters of a model from which on a get restores a position of %s\n"
           "sooner than %s GFLOP/s compute it. Files are in the page cache.\n",
           report_bytes(n[0], (double)o->position_bytes), report_number(n[1], o->gflops));
    if (o->model) print_prompts(o, all);
}

static void add_speed(json_t *object, const char *name, const stats_summary *summary) {
    char key[48];
    (void)snprintf(key, sizeof key, "%s_bytes_s", name);
    (void)json_object_set_new(object, key, report_json_number(summary->p50));
    (void)snprintf(key, sizeof key, "%s_best_bytes_s", name);
    (void)json_object_set_new(object, key, report_json_number(summary->max));
}

static json_t *new_row(const options *o, const row *r) {
    const tier_speeds *s = &r->speeds;
    json_t *object = json_pack("{s:s, s:I, s:I}", "tier", r->tier, "size_bytes",
                               (json_int_t)r->size, "values", (json_int_t)r->values);
    add_speed(object, "plain_put", &s->plain_put);
    add_speed(object, "put", &s->put);
    add_speed(object, "plain_get", &s->plain_get);
    add_speed(object, "get", &s->get);
    (void)json_object_set_new(object, "put_to_plain",
                              report_json_number(s->put.p50 / s->plain_put.p50));
    (void)json_object_set_new(object, "get_to_plain",
                              report_json_number(s->get.p50 / s->plain_get.p50));
    (void)json_object_set_new(object, "pays_from_parameters", report_json_number(pays_from(o, r)));
    return object;
}

static json_t *new_prompt(const char *tier, const tier_prompt *p) {
    return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "tier",
                     tier_option_kind(tier), "positions", (json_int_t)p->positions, "found",
                     (json_int_t)p->found, "bytes", (json_int_t)p->bytes, "computed_ms",
                     report_json_number(1e-6 * p->computed_ns.p50), "computed_best_ms",
                     report_json_number(1e-6 * p->computed_ns.min), "restored_ms",
                     report_json_number(1e-6 * p->restored_ns.p50), "restored_best_ms",
                     report_json_number(1e-6 * p->restored_ns.min), "sooner",
                     report_json_number(p->computed_ns.p50 / p->restored_ns.p50));
}

static json_t *new_object(const options *o, const machine *m, const results *all) {
    json_t *rows = json_array(), *prompts = json_array();
    for (size_t i = 0; i < all->count; i++)
        (void)json_array_append_new(rows, new_row(o, &all->rows[i]));
    for (int64_t i = 0; i < o->tiers.count && o->model; i++)
        (void)json_array_append_new(prompts, new_prompt(o->tiers.texts[i], &all->prompts[i]));
    return json_pack("{s:s, s:o, s:I, s:I, s:o, s:o, s:o}", "bench", "tier", "machine",
                     machine_json(m), "passes", (json_int_t)o->passes, "position_bytes",
                     (json_int_t)o->position_bytes, "gflops", report_json_number(o->gflops), "rows",
                     rows, "prompts", prompts);
}

static int measure_values(const options *o, results *all) {
    char text[REPORT_ROOM];
    for (int64_t t = 0; t < o->tiers.count; t++) {
        for (size_t i = 0; i < o->size_count; i++) {
            row *r = &all->rows[all->count++];
            r->tier = tier_option_kind(o->tiers.texts[t]);
            r->size = o->sizes[i];
            r->values = o->bytes / r->size > 0 ? o->bytes / r->size : 1;
            cli_progress("%s, %s", r->tier, report_bytes(text, (double)r->size));
            const int status =
                tier_measure(&r->speeds, o->tiers.texts[t], r->size, r->values, o->passes);
            if (status != CLI_DONE) return status;
        }
    }
    return CLI_DONE;
}

static int measure_prompts(const options *o, const checkpoint *model, results *all) {
    int status = CLI_DONE;
    for (int64_t t = 0; t < o->tiers.count && status == CLI_DONE; t++) {
        cli_progress("%s, a prompt", tier_option_kind(o->tiers.texts[t]));
        status = tier_prompt_measure(&all->prompts[t], o->tiers.texts[t], model, o->passes);
    }
    return status;
}

static int run(options *o) {
    results all = {.count = 0};
    checkpoint model = {0};
    failure error;
    machine m;
    machine_read(&m);
    const uint64_t most = 2 * (uint64_t)o->bytes;
    if (!machine_has_room(&m, most, "a pass", "--bytes")) return CLI_FAILED;
    if (o->model && !checkpoint_init(&model, o->model, &error))
        return cli_fail("--model: %s", error.sentence);
    if (o->gflops == 0) o->gflops = measure_gflops(&m);
    int status = measure_values(o, &all);
    if (status == CLI_DONE && o->model) status = measure_prompts(o, &model, &all);
    cli_progress_end();
    checkpoint_deinit(&model);
    if (status != CLI_DONE) return status;
    if (o->json) return report_json(new_object(o, &m, &all));
    print_table(o, &m, &all);
    return CLI_DONE;
}

enum {
    OPTION_TIER = CLI_FIRST,
    OPTION_SIZES,
    OPTION_BYTES,
    OPTION_PASSES,
    OPTION_POSITION_BYTES,
    OPTION_GFLOPS,
    OPTION_MODEL,
    OPTION_JSON
};

static const struct option option_table[] = {
    {"tier", required_argument, NULL, OPTION_TIER},
    {"sizes", required_argument, NULL, OPTION_SIZES},
    {"bytes", required_argument, NULL, OPTION_BYTES},
    {"passes", required_argument, NULL, OPTION_PASSES},
    {"position-bytes", required_argument, NULL, OPTION_POSITION_BYTES},
    {"gflops", required_argument, NULL, OPTION_GFLOPS},
    {"model", required_argument, NULL, OPTION_MODEL},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_TIER: return tier_option_take(&o->tiers, optarg);
    case OPTION_SIZES:
        return cli_list_int64("--sizes", optarg, 4096, INT64_C(1) << 28, o->sizes, MOST_SIZES,
                              &o->size_count);
    case OPTION_BYTES: return cli_int64("--bytes", optarg, 4096, INT64_C(1) << 34, &o->bytes);
    case OPTION_PASSES: return cli_int64("--passes", optarg, 1, 1000, &o->passes);
    case OPTION_POSITION_BYTES:
        return cli_int64("--position-bytes", optarg, 1, INT64_C(1) << 30, &o->position_bytes);
    case OPTION_GFLOPS: return cli_double("--gflops", optarg, 0.001, 1e9, &o->gflops);
    case OPTION_MODEL: o->model = optarg; return true;
    case OPTION_JSON: return o->json = true;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_tier(int argc, char **argv) {
    options o = {.sizes = {1 << 18, 1 << 20, 1 << 22},
                 .size_count = 3,
                 .bytes = 64 << 20,
                 .passes = 5,
                 .position_bytes = 131072};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    if (!cli_operands(argc, argv, NULL, 0, NULL)) return CLI_USAGE;
    if (o.tiers.count == 0)
        return cli_usage("--tier is missing: disk:FOLDER or redis://HOST[:PORT] wanted");
    return run(&o);
}
