/* `kvcache inspect`: what a snapshot holds. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/status.h>

#include "cli.h"
#include "commands.h"
#include "report.h"

static const char help[] =
    "Tells what a snapshot of a cache holds: its layers, their kinds and shapes, positions, what "
    "it\n"
    "says that it is for, and its checksums. Reads prompt caches of mlx-lm too.\n"
    "\n"
    "Usage: kvcache inspect [OPTION]... FILE\n"
    "\n"
    "  --verify  read all of it and compare every checksum\n"
    "  --json    print one JSON object\n";

typedef struct options {
    const char *path;
    bool verify, json;
} options;

#ifdef KVC_TOOLS_STORE

#include "inspect.h"
#include "progress_bar.h"

const char *inspect_form_name(kvc_snapshot_form form) {
    return form == KVC_SNAPSHOT_MLX_LM_0_32 ? "mlx-lm 0.32" : "mlx-lm 0.31";
}

/* How a layer keeps its rows: "bf16", "4 bits in groups of 64, scales bf16". */
static const char *row_text(char out[96], const kvc_layer_spec *spec) {
    int at = 0;
    if (spec->kv_bits)
        at = snprintf(out, 96, "%d bits in groups of %d%s, scales ", spec->kv_bits, spec->kv_group,
                      spec->rotated ? ", rotated" : "");
    at += snprintf(out + at, 96 - (size_t)at, "%s", kvc_dtype_name(spec->dtype));
    if (spec->window)
        (void)snprintf(out + at, 96 - (size_t)at, ", window %" PRId64 ", keeps %" PRId64,
                       spec->window, spec->keep);
    return out;
}

static bool is_alike(const kvc_snapshot_layer *a, const kvc_snapshot_layer *b, int64_t batch) {
    return strcmp(a->kind, b->kind) == 0 && a->rows == b->rows &&
           memcmp(a->held, b->held, (size_t)batch * sizeof *a->held) == 0 &&
           a->spec.kv_heads == b->spec.kv_heads && a->spec.key_dim == b->spec.key_dim &&
           a->spec.value_dim == b->spec.value_dim && a->spec.dtype == b->spec.dtype &&
           a->spec.window == b->spec.window && a->spec.keep == b->spec.keep &&
           a->spec.kv_bits == b->spec.kv_bits && a->spec.kv_group == b->spec.kv_group &&
           a->spec.rotated == b->spec.rotated;
}

static void print_lengths(const kvc_snapshot_layer *layer, int64_t batch) {
    for (int64_t b = 0; b < batch; b++) printf("%s%" PRId64, b ? ", " : "", layer->held[b].length);
}

/* Layers that are alike take one line. */
void inspect_print_layers(const kvc_snapshot_contents *c) {
    char text[96];
    for (int64_t first = 0, end; first < c->layers; first = end) {
        const kvc_snapshot_layer *layer = &c->layer[first];
        for (end = first + 1; end < c->layers && is_alike(layer, &c->layer[end], c->batch);) end++;
        if (end - first == 1) printf("layer %" PRId64, first);
        else printf("layers %" PRId64 " to %" PRId64, first, end - 1);
        printf(": %s, %" PRId64 " heads, keys of %" PRId64 ", values of %" PRId64 ", %s; ",
               layer->kind, layer->spec.kv_heads, layer->spec.key_dim, layer->spec.value_dim,
               row_text(text, &layer->spec));
        print_lengths(layer, c->batch);
        printf(" positions\n");
    }
}

/* A file's own text: what could steer a terminal becomes '?'. */
static void put_text(const char *text) {
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        (void)putchar(c < 0x20 || c == 0x7f ? '?' : c);
    }
}

static void print_text(const char *name, const char *text) {
    if (!text) return;
    printf("%-14s", name);
    put_text(text);
    (void)putchar('\n');
}

static void print_contents(const kvc_snapshot_contents *c, bool verified) {
    const kvc_fingerprint *f = &c->fingerprint;
    printf("%-14s%s, %" PRId64 " layers, %" PRId64 " sequence%s\n", "form",
           inspect_form_name(c->form), c->layers, c->batch, c->batch == 1 ? "" : "s");
    inspect_print_layers(c);
    print_text("model", f->model);
    print_text("rope", f->rope);
    print_text("layout", f->layout);
    print_text("dtype", f->dtype);
    print_text("quantization", f->quantization);
    if (c->token_count) printf("%-14s%" PRId64 "\n", "tokens", c->token_count);
    for (int64_t i = 0; i < c->text_count; i++) {
        printf("%-14s", i ? "" : "metadata");
        put_text(c->texts[i].key);
        printf(": ");
        put_text(c->texts[i].text);
        (void)putchar('\n');
    }
    printf("%-14s%s\n", "checksums",
           !kvc_safetensors_has_checksums(c->container) ? "none"
           : verified                                   ? "of every tensor, all right"
                      : "of every tensor, not compared (--verify)");
}

static json_t *layer_object(const kvc_snapshot_layer *layer, int64_t batch) {
    const kvc_layer_spec *s = &layer->spec;
    json_t *lengths = json_array();
    for (int64_t b = 0; b < batch; b++)
        (void)json_array_append_new(lengths, json_integer(layer->held[b].length));
    return json_pack("{s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:i, s:i, s:b, s:I, s:o}", "kind",
                     layer->kind, "kv_heads", (json_int_t)s->kv_heads, "key_dim",
                     (json_int_t)s->key_dim, "value_dim", (json_int_t)s->value_dim, "dtype",
                     kvc_dtype_name(s->dtype), "window", (json_int_t)s->window, "keep",
                     (json_int_t)s->keep, "bits", s->kv_bits, "group", s->kv_group, "rotated",
                     s->rotated, "rows", (json_int_t)layer->rows, "positions", lengths);
}

json_t *inspect_layers_object(const kvc_snapshot_contents *c) {
    json_t *layers = json_array();
    for (int64_t i = 0; i < c->layers; i++)
        (void)json_array_append_new(layers, layer_object(&c->layer[i], c->batch));
    return layers;
}

static json_t *contents_object(const kvc_snapshot_contents *c, bool verified) {
    const kvc_fingerprint *f = &c->fingerprint;
    json_t *tokens = json_array(), *texts = json_object();
    for (int64_t i = 0; i < c->token_count; i++)
        (void)json_array_append_new(tokens, json_integer(c->tokens[i]));
    for (int64_t i = 0; i < c->text_count; i++)
        (void)json_object_set_new(texts, c->texts[i].key, json_string(c->texts[i].text));
    return json_pack("{s:s, s:I, s:o, s:{s:s?, s:s?, s:s?, s:s?, s:s?}, s:o, s:o, s:b, s:b}",
                     "form", inspect_form_name(c->form), "batch", (json_int_t)c->batch, "layers",
                     inspect_layers_object(c), "fingerprint", "model", f->model, "rope", f->rope,
                     "layout", f->layout, "dtype", f->dtype, "quantization", f->quantization,
                     "tokens", tokens, "metadata", texts, "checksums",
                     kvc_safetensors_has_checksums(c->container), "verified", verified);
}

/* kvc_snapshot_verify, but tells how far it has come. */
static int verify(const kvc_safetensors *file) {
    const size_t count = kvc_safetensors_count(file);
    uint64_t done = 0, total = 0;
    kvc_status status = KVC_OK;
    for (size_t i = 0; i < count; i++) total += kvc_safetensors_at(file, i)->bytes;
    cli_progress_begin();
    for (size_t i = 0; status == KVC_OK && i < count; i++) {
        const kvc_safetensors_tensor *tensor = kvc_safetensors_at(file, i);
        progress_bar("verifying", done, total);
        status = kvc_safetensors_verify(file, tensor);
        done += tensor->bytes;
    }
    cli_progress_end();
    return status == KVC_OK ? CLI_DONE : cli_fail("%s", kvc_last_error());
}

static int run(const options *o) {
    kvc_snapshot *snapshot;
    if (kvc_snapshot_open(&snapshot, o->path) != KVC_OK) return cli_fail("%s", kvc_last_error());
    const kvc_snapshot_contents *c = kvc_snapshot_contents_of(snapshot);
    int status = o->verify ? verify(c->container) : CLI_DONE;
    if (status == CLI_DONE && o->json) status = report_json(contents_object(c, o->verify));
    else if (status == CLI_DONE) print_contents(c, o->verify);
    kvc_snapshot_close(snapshot);
    return status;
}

#else

static int run(const options *o) {
    (void)o;
    return cli_fail("this program was built without libkvcache-store (cmake -DKVC_STORE=ON)");
}

#endif

enum { OPTION_VERIFY = CLI_FIRST, OPTION_JSON };

static const struct option option_table[] = {
    {"verify", no_argument, NULL, OPTION_VERIFY},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

int kvc_tool_inspect(int argc, char **argv) {
    options o = {0};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (option == OPTION_VERIFY) o.verify = true;
        else if (option == OPTION_JSON) o.json = true;
        else return CLI_USAGE;
    }
    return cli_operands(argc, argv, &o.path, 1, "FILE") ? run(&o) : CLI_USAGE;
}
