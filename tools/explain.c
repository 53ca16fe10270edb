/* `kvcache explain`: which attention path a shape gets, here and on CUDA, why, and what to change.
 */

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/attention.h>
#include <kvcache/cache.h>
#include <kvcache/cuda_rule.h>

#include "cli.h"
#include "commands.h"
#include "report.h"

static const char help[] =
    "Tells which attention path a cache gets, why, and what to change: the path of this library\n"
    "on the CPU, and the kernel that MLX would choose on CUDA, where the choice is silent.\n"
    "Needs neither a model nor a GPU.\n"
    "\n"
    "Usage: kvcache explain [OPTION]...\n"
    "\n"
    "  --heads Q/KV              query heads and kv heads (32/8)\n"
    "  --dim N                   elements of a key (128)\n"
    "  --value-dim N             elements of a value (as --dim)\n"
    "  --dtype TYPE              of queries, keys and values: f32, f16 or bf16 (bf16)\n"
    "  --length N                positions in use (1024)\n"
    "  --capacity N              positions that the cache has room for (the length, rounded up to\n"
    "                            whole chunks)\n"
    "  --chunk N                 chunk by which the cache grows (256)\n"
    "  --q-len N                 query positions: 1 is decode (1)\n"
    "  --batch N                 sequences (1)\n"
    "  --array-mask              a mask is given as an array\n"
    "  --buffer-elements N       of the key buffer (exactly those of the cache)\n"
    "  --compute-capability X.Y  of the GPU (8.0)\n"
    "  --json                    print one JSON object\n";

typedef struct options {
    int64_t q_heads, kv_heads, dim, value_dim, length, capacity, chunk, q_len, batch;
    int64_t buffer_elements;
    kvc_dtype dtype;
    double compute_capability;
    bool array_mask, json;
} options;

static int explain_cpu(const options *o, kvc_explanation *out) {
    kvc_attention *plan;
    const kvc_attention_desc desc = {.struct_size = sizeof desc,
                                     .batch = o->batch,
                                     .q_heads = o->q_heads,
                                     .kv_heads = o->kv_heads,
                                     .key_dim = o->dim,
                                     .value_dim = o->value_dim,
                                     .max_q_len = o->q_len,
                                     .kv_dtype = o->dtype};
    *out = (kvc_explanation){.struct_size = sizeof *out};
    if (kvc_attention_plan(&plan, &desc) != KVC_OK) return cli_fail_library("plan");
    const kvc_status status = kvc_attention_explain(out, plan, NULL, 0);
    kvc_attention_free(plan);
    return status == KVC_OK ? CLI_DONE : cli_fail_library("plan");
}

static int explain_cuda(const options *o, kvc_cuda_report *out) {
    const kvc_cuda_shape shape = {.struct_size = sizeof shape,
                                  .q_len = o->q_len,
                                  .kv_heads = o->kv_heads,
                                  .batch = o->batch,
                                  .key_dim = o->dim,
                                  .value_dim = o->value_dim,
                                  .dtype = o->dtype,
                                  .capacity = o->capacity,
                                  .length = o->length,
                                  .buffer_elements = o->buffer_elements,
                                  .compute_capability = (int)lround(10 * o->compute_capability),
                                  .array_mask = o->array_mask};
    *out = (kvc_cuda_report){.struct_size = sizeof *out};
    return kvc_cuda_explain(out, &shape) == KVC_OK ? CLI_DONE : cli_fail_library("CUDA");
}

/* For people. */

static void print_shape(const options *o) {
    printf("%" PRId64 " query heads over %" PRId64 " kv heads, keys of %" PRId64
           ", values of %" PRId64 ", %s; %" PRId64 " quer%s, %" PRId64 " of %" PRId64
           " positions in use",
           o->q_heads, o->kv_heads, o->dim, o->value_dim, kvc_dtype_name(o->dtype), o->q_len,
           o->q_len == 1 ? "y" : "ies", o->length, o->capacity);
    if (o->batch > 1) printf(", batch %" PRId64, o->batch);
    printf("\n\n");
}

static void print_cpu(const kvc_explanation *e) {
    printf("On this CPU: %s%s\n  why:    %s\n", kvc_path_name(e->path),
           e->slow ? " (slow: strict mode refuses it)" : "", e->reason);
    if (e->remedy[0]) printf("  change: %s\n", e->remedy);
}

/* The width of a column: of the checks' names, or of what was given. */
static int width_of(const kvc_cuda_report *report, bool given) {
    size_t most = 0;
    for (size_t i = 0; i < report->count && i < KVC_CUDA_CHECKS; i++) {
        const kvc_cuda_check *c = &report->checks[i];
        const size_t length = strlen(given ? c->given : c->name);
        if (length > most) most = length;
    }
    return (int)most;
}

static void print_cuda(const kvc_cuda_report *report) {
    const int name_width = width_of(report, false), given_width = width_of(report, true);
    printf("\nOn CUDA, by MLX's rule: %s\n  why:    %s\n\n", kvc_cuda_kernel_name(report->kernel),
           report->reason);
    printf("      %-*s  %-*s  %s\n", name_width, "check", given_width, "given", "wanted by cuDNN");
    for (size_t i = 0; i < report->count; i++) {
        const kvc_cuda_check *c = &report->checks[i];
        printf("  %-3s %-*s  %-*s  %s\n", c->ok ? "ok" : "no", name_width, c->name, given_width,
               c->given, c->wanted);
        if (!c->ok && c->remedy[0]) printf("      %-*s  change: %s\n", name_width, "", c->remedy);
    }
}

/* For programs. */

static json_t *new_check(const kvc_cuda_check *c) {
    return json_pack("{s:s, s:b, s:s, s:s, s:s}", "name", c->name, "ok", c->ok, "given", c->given,
                     "wanted", c->wanted, "remedy", c->remedy);
}

static json_t *new_object(const kvc_explanation *e, const kvc_cuda_report *report) {
    json_t *checks = json_array();
    for (size_t i = 0; i < report->count; i++)
        (void)json_array_append_new(checks, new_check(&report->checks[i]));
    return json_pack("{s:{s:s, s:b, s:s, s:s}, s:{s:s, s:s, s:o}}", "cpu", "path",
                     kvc_path_name(e->path), "slow", e->slow, "reason", e->reason, "remedy",
                     e->remedy, "cuda", "kernel", kvc_cuda_kernel_name(report->kernel), "reason",
                     report->reason, "checks", checks);
}

static int run(const options *o) {
    kvc_explanation cpu;
    kvc_cuda_report cuda;
    if (explain_cpu(o, &cpu) != CLI_DONE || explain_cuda(o, &cuda) != CLI_DONE) return CLI_FAILED;
    if (o->json) return report_json(new_object(&cpu, &cuda));
    print_shape(o);
    print_cpu(&cpu);
    print_cuda(&cuda);
    return CLI_DONE;
}

enum {
    OPTION_HEADS = CLI_FIRST,
    OPTION_DIM,
    OPTION_VALUE_DIM,
    OPTION_DTYPE,
    OPTION_LENGTH,
    OPTION_CAPACITY,
    OPTION_CHUNK,
    OPTION_Q_LEN,
    OPTION_BATCH,
    OPTION_ARRAY_MASK,
    OPTION_BUFFER_ELEMENTS,
    OPTION_COMPUTE_CAPABILITY,
    OPTION_JSON
};

static const struct option option_table[] = {
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"value-dim", required_argument, NULL, OPTION_VALUE_DIM},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"length", required_argument, NULL, OPTION_LENGTH},
    {"capacity", required_argument, NULL, OPTION_CAPACITY},
    {"chunk", required_argument, NULL, OPTION_CHUNK},
    {"q-len", required_argument, NULL, OPTION_Q_LEN},
    {"batch", required_argument, NULL, OPTION_BATCH},
    {"array-mask", no_argument, NULL, OPTION_ARRAY_MASK},
    {"buffer-elements", required_argument, NULL, OPTION_BUFFER_ELEMENTS},
    {"compute-capability", required_argument, NULL, OPTION_COMPUTE_CAPABILITY},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

enum { MOST_POSITIONS = 1 << 30, MOST_DIM = 65536, MOST_BATCH = 65536, MOST_QUERIES = 1 << 20 };

static bool read_option(options *o, int option) {
    const char *text = optarg;
    switch (option) {
    case OPTION_HEADS: return cli_heads("--heads", text, &o->q_heads, &o->kv_heads);
    case OPTION_DIM: return cli_int64("--dim", text, 1, MOST_DIM, &o->dim);
    case OPTION_VALUE_DIM: return cli_int64("--value-dim", text, 1, MOST_DIM, &o->value_dim);
    case OPTION_DTYPE: return cli_dtype("--dtype", text, &o->dtype);
    case OPTION_LENGTH: return cli_int64("--length", text, 0, MOST_POSITIONS, &o->length);
    case OPTION_CAPACITY: return cli_int64("--capacity", text, 1, MOST_POSITIONS, &o->capacity);
    case OPTION_CHUNK: return cli_int64("--chunk", text, 1, MOST_POSITIONS, &o->chunk);
    case OPTION_Q_LEN: return cli_int64("--q-len", text, 1, MOST_QUERIES, &o->q_len);
    case OPTION_BATCH: return cli_int64("--batch", text, 1, MOST_BATCH, &o->batch);
    case OPTION_ARRAY_MASK: return o->array_mask = true;
    case OPTION_BUFFER_ELEMENTS:
        return cli_int64("--buffer-elements", text, 1, INT64_MAX, &o->buffer_elements);
    case OPTION_COMPUTE_CAPABILITY:
        return cli_double("--compute-capability", text, 1, 20, &o->compute_capability);
    case OPTION_JSON: return o->json = true;
    default: return false; /* cli_next has told */
    }
}

/* Fills in what depends on other options, and compares them. */
static bool complete(options *o) {
    if (o->value_dim == 0) o->value_dim = o->dim;
    if (o->capacity == 0) o->capacity = (o->length + o->chunk - 1) / o->chunk * o->chunk;
    if (o->capacity == 0) o->capacity = o->chunk;
    if (o->length <= o->capacity) return true;
    (void)cli_usage("--length: %" PRId64 " given, at most the capacity %" PRId64 " wanted",
                    o->length, o->capacity);
    return false;
}

int kvc_tool_explain(int argc, char **argv) {
    options o = {.q_heads = 32,
                 .kv_heads = 8,
                 .dim = 128,
                 .dtype = KVC_BF16,
                 .length = 1024,
                 .chunk = KVC_CHUNK_DEFAULT,
                 .q_len = 1,
                 .batch = 1,
                 .compute_capability = 8.0};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    if (!cli_operands(argc, argv, NULL, 0, NULL) || !complete(&o)) return CLI_USAGE;
    return run(&o);
}
