/* `kvcache convert`: a snapshot as one of another kind of cache. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <kvcache/status.h>

#include "cache_kind.h"
#include "cli.h"
#include "commands.h"
#include "report.h"

static const char help[] =
    "Writes a snapshot of a cache again, as one of another kind. Reads and writes prompt caches "
    "of\n"
    "mlx-lm too. IN and OUT may be the same file.\n"
    "\n"
    "Usage: kvcache convert [OPTION]... IN OUT\n"
    "\n"
    "  --cache KIND     what layers become: qBITS[c][r][:GROUP] packed, window:W[:KEEP] the last "
    "W\n"
    "                   positions, both joined by +, or reserve: neither. By default they stay as\n"
    "                   they are. How a cache grows is not in a file: paged, chunk and concat say\n"
    "                   no more than reserve\n"
    "  --dtype DTYPE    of keys and values, where packed of their scales: f32, f16 or bf16\n"
    "  --layers WHICH   which of them: all (the default), full (those that keep all positions) or\n"
    "                   windows; the others stay as they are\n"
    "  --sequence N     only this one of a batch\n"
    "  --form FORM      which mlx-lm is to read it: 0.31 (and before) or 0.32 (and later); by\n"
    "                   default the one that can read IN\n"
    "  --force          replace OUT where it exists\n"
    "  --json           print one JSON object\n";

typedef enum which { WHICH_ALL, WHICH_FULL, WHICH_WINDOWS } which;

typedef struct options {
    const char *paths[2]; /* IN, OUT */
    const char *cache;    /* as given, or NULL */
    cache_kind kind;
    kvc_dtype dtype; /* 0: stays */
    size_t layers;   /* a which */
    int64_t sequence;
    size_t form; /* a kvc_snapshot_form, where form_given */
    bool sequence_given, form_given, force, json;
} options;

#ifdef KVC_TOOLS_STORE

#include <kvcache/cache.h>
#include <kvcache/snapshot.h>

#include "inspect.h"
#include "load.h"
#include "progress_bar.h"

/* A conversion under way. */
typedef struct conversion {
    const options *o;
    kvc_pool *pool;
    kvc_snapshot *in;
    const kvc_snapshot_contents *from; /* of in */
    kvc_layer_spec *specs;             /* [layers] of OUT */
    const char **paths;                /* [layers], as those of IN: lists of caches stay */
    bool changes;                      /* a layer becomes another */
    kvc_cache *cache;
    uint64_t in_bytes;
} conversion;

/* Planning. */

static bool is_chosen(const options *o, const kvc_layer_spec *spec) {
    return o->layers == WHICH_ALL || (o->layers == WHICH_WINDOWS) == (spec->window > 0);
}

static kvc_layer_spec wanted_spec(const options *o, const kvc_layer_spec *from) {
    kvc_layer_spec spec = *from;
    if (o->cache) {
        spec = cache_kind_spec(&o->kind, from->kv_heads, from->key_dim, from->dtype);
        spec.value_dim = from->value_dim;
    }
    if (o->dtype) spec.dtype = o->dtype;
    return spec;
}

static bool is_same(const kvc_layer_spec *a, const kvc_layer_spec *b) {
    return a->dtype == b->dtype && a->window == b->window && a->keep == b->keep &&
           a->kv_bits == b->kv_bits && a->kv_group == b->kv_group &&
           a->keys_per_channel == b->keys_per_channel && a->rotated == b->rotated;
}

static int plan_layers(conversion *c) {
    const options *o = c->o;
    int64_t chosen = 0;
    c->specs = calloc((size_t)c->from->layers, sizeof *c->specs);
    c->paths = calloc((size_t)c->from->layers, sizeof *c->paths);
    if (!c->specs || !c->paths)
        return cli_fail("no memory for %" PRId64 " layers", c->from->layers);
    for (int64_t i = 0; i < c->from->layers; i++) {
        const kvc_layer_spec *from = &c->from->layer[i].spec;
        c->paths[i] = c->from->layer[i].path;
        c->specs[i] = *from;
        if (!is_chosen(o, from)) continue;
        chosen++;
        c->specs[i] = wanted_spec(o, from);
        if (!is_same(&c->specs[i], from)) c->changes = true;
        if (o->cache && (!cache_kind_fits("--cache", &o->kind, from->key_dim) ||
                         !cache_kind_fits("--cache", &o->kind, from->value_dim)))
            return CLI_USAGE;
    }
    if (chosen > 0) return CLI_DONE;
    return cli_fail("--layers: '%s' given, of which %s has none",
                    o->layers == WHICH_FULL ? "full" : "windows", o->paths[0]);
}

static int check_sequence(const conversion *c) {
    if (!c->o->sequence_given || c->o->sequence < c->from->batch) return CLI_DONE;
    return cli_usage("--sequence: %" PRId64 " given, 0 to %" PRId64 " wanted: %s has %" PRId64
                     " sequence%s",
                     c->o->sequence, c->from->batch - 1, c->o->paths[0], c->from->batch,
                     c->from->batch == 1 ? "" : "s");
}

static uint64_t file_bytes(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
}

static int check_out(const options *o) {
    struct stat status;
    if (lstat(o->paths[1], &status) != 0) return CLI_DONE; /* what is wrong shows when it is made */
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
        return cli_fail("%s: is no regular file, which alone is replaced", o->paths[1]);
    if (o->force) return CLI_DONE;
    return cli_fail("%s: exists; --force to replace it, or another OUT wanted", o->paths[1]);
}

/* Converting. Caches grow by chunks: these take no address space for positions to come. */

static int read_cache(conversion *c) {
    const kvc_snapshot_options how = {
        .struct_size = sizeof how, .growth = KVC_GROW_CHUNK, .progress = progress_bar_loading};
    return load_snapshot(&c->cache, c->pool, c->in, how) == KVC_OK
               ? CLI_DONE
               : cli_fail("%s", kvc_last_error());
}

static uint64_t held_bytes(const kvc_cache *cache) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    return kvc_cache_nbytes_get(cache, &nbytes) == KVC_OK ? nbytes.used : 0;
}

/* The library's sentence is about two caches; this one is about what was asked for. */
static int fail_layer(const conversion *c, const kvc_snapshot_layer *layer, kvc_status status) {
    const kvc_layer_spec *spec = &layer->spec;
    for (int64_t b = 0; status == KVC_E_RANGE && spec->window && b < c->from->batch; b++)
        if (layer->held[b].first > spec->keep)
            return cli_fail("%s: layer %" PRId64 " is a window that has dropped positions %" PRId64
                            " to %" PRId64 ", which --cache '%s' wants; one no wider than %" PRId64
                            " that keeps at most %" PRId64 ", or --layers full wanted",
                            c->o->paths[0], (int64_t)(layer - c->from->layer), spec->keep,
                            layer->held[b].first - 1, c->o->cache, spec->window, spec->keep);
    return cli_fail("%s: %s", c->o->paths[0], kvc_last_error());
}

static int copy_layers(const conversion *c, kvc_cache *to) {
    const uint64_t total = held_bytes(c->cache);
    for (int64_t i = 0; i < c->from->layers; i++) {
        progress_bar("converting", total / (uint64_t)c->from->layers * (uint64_t)i, total);
        const kvc_status status = kvc_cache_copy_layer(to, c->cache, i);
        if (status != KVC_OK) return fail_layer(c, &c->from->layer[i], status);
    }
    return CLI_DONE;
}

static int convert(conversion *c) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = c->from->batch,
                                 .layers = c->from->layers,
                                 .specs = c->specs,
                                 .spec_count = c->from->layers,
                                 .growth = KVC_GROW_CHUNK};
    kvc_cache *to = NULL;
    if (!c->changes) return CLI_DONE;
    if (kvc_cache_new(&to, c->pool, &desc) != KVC_OK)
        return cli_fail("%s: %s", c->o->paths[0], kvc_last_error());
    const int status = copy_layers(c, to);
    if (status != CLI_DONE) {
        kvc_cache_free(to);
        return status;
    }
    kvc_cache_free(c->cache);
    c->cache = to;
    return CLI_DONE;
}

/* What a fingerprint says of dtype or packing stays true only where no layer changes in that. */
static void update_fingerprint(const conversion *c, kvc_fingerprint *f,
                               char packing[CACHE_KIND_ROOM]) {
    const cache_kind packed = {.bits = c->o->kind.bits,
                               .group = c->o->kind.group,
                               .keys_per_channel = c->o->kind.keys_per_channel,
                               .rotated = c->o->kind.rotated};
    for (int64_t i = 0; i < c->from->layers; i++) {
        const kvc_layer_spec *to = &c->specs[i], *from = &c->from->layer[i].spec;
        if (f->dtype && to->dtype != from->dtype) f->dtype = kvc_dtype_name(to->dtype);
        if (f->quantization &&
            (to->kv_bits != from->kv_bits || to->kv_group != from->kv_group ||
             to->keys_per_channel != from->keys_per_channel || to->rotated != from->rotated))
            f->quantization = packed.bits ? cache_kind_text(packing, &packed) : "none";
    }
}

static int write_cache(conversion *c) {
    const options *o = c->o;
    char packing[CACHE_KIND_ROOM];
    kvc_snapshot_info info = {.struct_size = sizeof info,
                              .form = o->form_given ? (kvc_snapshot_form)o->form : c->from->form,
                              .fingerprint = c->from->fingerprint,
                              .sequence = o->sequence_given ? &o->sequence : NULL,
                              .tokens = c->from->tokens,
                              .token_count = c->from->token_count,
                              .texts = c->from->texts,
                              .text_count = c->from->text_count,
                              .progress = progress_bar_saving,
                              .paths = c->paths};
    update_fingerprint(c, &info.fingerprint, packing);
    const kvc_status status = kvc_snapshot_save(o->paths[1], c->cache, &info);
    if (status == KVC_OK) return CLI_DONE;
    return cli_fail("%s: %s%s", o->paths[1], kvc_last_error(),
                    status == KVC_E_UNSUPPORTED && info.form == KVC_SNAPSHOT_MLX_LM_0_32
                        ? "; --form 0.31 has it"
                        : "");
}

/* Telling. */

static void print_file(const char *word, const char *path, const kvc_snapshot_contents *contents,
                       uint64_t bytes) {
    char size[REPORT_ROOM];
    printf("%-6s%s: %s, %s, %" PRId64 " layers, %" PRId64 " sequence%s\n", word, path,
           report_bytes(size, (double)bytes), inspect_form_name(contents->form), contents->layers,
           contents->batch, contents->batch == 1 ? "" : "s");
    inspect_print_layers(contents);
}

static json_t *file_object(const char *path, const kvc_snapshot_contents *contents,
                           uint64_t bytes) {
    return json_pack("{s:s, s:I, s:s, s:I, s:o}", "path", path, "bytes", (json_int_t)bytes, "form",
                     inspect_form_name(contents->form), "batch", (json_int_t)contents->batch,
                     "layers", inspect_layers_object(contents));
}

static int tell(const conversion *c) {
    const char *const *paths = c->o->paths;
    kvc_snapshot *out;
    int status = CLI_DONE;
    if (kvc_snapshot_open(&out, paths[1]) != KVC_OK) return cli_fail("%s", kvc_last_error());
    const kvc_snapshot_contents *to = kvc_snapshot_contents_of(out);
    const uint64_t out_bytes = file_bytes(paths[1]);
    if (c->o->json) {
        status =
            report_json(json_pack("{s:o, s:o}", "in", file_object(paths[0], c->from, c->in_bytes),
                                  "out", file_object(paths[1], to, out_bytes)));
    } else {
        print_file("in", paths[0], c->from, c->in_bytes);
        print_file("out", paths[1], to, out_bytes);
    }
    kvc_snapshot_close(out);
    return status;
}

static int run_all(conversion *c) {
    int status = check_out(c->o);
    if (status != CLI_DONE) return status;
    if (kvc_snapshot_open(&c->in, c->o->paths[0]) != KVC_OK)
        return cli_fail("%s", kvc_last_error());
    c->from = kvc_snapshot_contents_of(c->in);
    c->in_bytes = file_bytes(c->o->paths[0]);
    if (kvc_pool_new(&c->pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("the pool");
    status = check_sequence(c);
    if (status == CLI_DONE) status = plan_layers(c);
    if (status == CLI_DONE) status = read_cache(c);
    if (status == CLI_DONE) status = convert(c);
    if (status == CLI_DONE) status = write_cache(c);
    cli_progress_end();
    return status == CLI_DONE ? tell(c) : status;
}

static int run(const options *o) {
    conversion c = {.o = o};
    cli_progress_begin();
    const int status = run_all(&c);
    kvc_cache_free(c.cache);
    kvc_pool_free(c.pool);
    kvc_snapshot_close(c.in);
    free(c.specs);
    free(c.paths);
    return status;
}

#else

static int run(const options *o) {
    (void)o;
    return cli_fail("this program was built without libkvcache-store (cmake -DKVC_STORE=ON)");
}

#endif

enum {
    OPTION_CACHE = CLI_FIRST,
    OPTION_DTYPE,
    OPTION_LAYERS,
    OPTION_SEQUENCE,
    OPTION_FORM,
    OPTION_FORCE,
    OPTION_JSON
};

static const struct option option_table[] = {
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"layers", required_argument, NULL, OPTION_LAYERS},
    {"sequence", required_argument, NULL, OPTION_SEQUENCE},
    {"form", required_argument, NULL, OPTION_FORM},
    {"force", no_argument, NULL, OPTION_FORCE},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

static bool take(options *o, int option, const char *value) {
    static const char *const layers[] = {
        [WHICH_ALL] = "all", [WHICH_FULL] = "full", [WHICH_WINDOWS] = "windows"};
    static const char *const forms[] = {"0.31", "0.32"}; /* by kvc_snapshot_form */
    switch (option) {
    case OPTION_CACHE: o->cache = value; return cache_kind_read("--cache", value, &o->kind);
    case OPTION_DTYPE: return cli_dtype("--dtype", value, &o->dtype);
    case OPTION_LAYERS: return cli_choice("--layers", value, layers, 3, &o->layers);
    case OPTION_SEQUENCE:
        o->sequence_given = true;
        return cli_int64("--sequence", value, 0, INT32_MAX, &o->sequence);
    case OPTION_FORM: o->form_given = true; return cli_choice("--form", value, forms, 2, &o->form);
    case OPTION_FORCE: o->force = true; return true;
    case OPTION_JSON: o->json = true; return true;
    default: return false;
    }
}

int kvc_tool_convert(int argc, char **argv) {
    options o = {.layers = WHICH_ALL};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!take(&o, option, optarg)) return CLI_USAGE;
    }
    const int given = argc - optind;
    if (!cli_operands(argc, argv, o.paths, 2, given == 0 ? "IN" : given == 1 ? "OUT" : "IN OUT"))
        return CLI_USAGE;
    if (o.layers != WHICH_ALL && !o.cache && !o.dtype)
        return cli_usage("--layers: given without --cache or --dtype; what they become wanted");
    return run(&o);
}
