/* `kvcache bench fork`: what it costs to share a sequence in blocks, beside copying it. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "fork_measure.h"
#include "machine.h"
#include "report.h"

static const char help[] =
    "Forks a sequence that lies in blocks, and copies it.\n"
    "\n"
    "Usage: kvcache bench fork [OPTION]...\n"
    "\n"
    "  --contexts LIST  positions of the sequence (4096,16384); half a block more where its\n"
    "                   last block would be full\n"
    "  --cache LIST     kinds of paged cache, such as paged:16 or q8+paged (paged)\n"
    "  --layers N       layers: copies take as long as there are many, forks do not (2)\n"
    "  --heads N        kv heads (8)\n"
    "  --dim N          elements of a head's row (128)\n"
    "  --dtype TYPE     f32, f16 or bf16 (bf16)\n"
    "  --beams N        sequences of a reorder (8)\n"
    "  --json           print one JSON object instead of the table\n"
    "\n"
    "Columns and JSON keys, in microseconds, all layers together, by the median; JSON has p99\n"
    "and the largest of each too (fork_p99_us, fork_max_us, ...):\n"
    "  fork (fork_us)              one sequence becomes another: their blocks are shared\n"
    "  copy (copy_us)              the same in a cache that is linear: every position is copied\n"
    "  memcpy (memcpy_us)          one memcpy of as many bytes\n"
    "  % of copy (fork_to_copy)    fork over copy\n"
    "  release (release_us)        the forked sequence given up\n"
    "  1st (first_append_us)       a position appended after a fork: its block is copied first\n"
    "  next (append_us)            the append after that one\n"
    "  block (block_memcpy_us)     memcpy of a block's bytes\n"
    "  reorder (reorder_us)        a step of a beam search: half of the beams go on, as two each\n"
    "  copied (reorder_copy_us)    the same in a cache that is linear\n"
    "Then the memory that a layer holds for 16 sequences of 100 to 8000 positions and does not\n"
    "use (JSON: waste, with used_bytes, resident_bytes and wasted): of blocks their slabs, free\n"
    "blocks among them.\n";

enum { MOST_CONTEXTS = 16, MOST_CACHES = 8 };

typedef struct options {
    fork_shape shape;
    int64_t contexts[MOST_CONTEXTS];
    cache_kind caches[MOST_CACHES];
    size_t context_count, cache_count;
    bool json;
} options;

typedef struct results {
    fork_row rows[MOST_CONTEXTS * MOST_CACHES];
    fork_waste wastes[MOST_CACHES + 1];
    size_t count, waste_count;
} results;

/* What is told of a row; its keys are name_us, name_p99_us and name_max_us. */
typedef struct figure {
    const char *name;
    const stats_summary *us;
} figure;

enum { FIGURES = 9 };

static void figures_of(figure out[FIGURES], const fork_row *r) {
    const figure all[FIGURES] = {{"fork", &r->fork_us},
                                 {"copy", &r->copy_us},
                                 {"memcpy", &r->memcpy_us},
                                 {"release", &r->release_us},
                                 {"first_append", &r->first_us},
                                 {"append", &r->append_us},
                                 {"block_memcpy", &r->block_us},
                                 {"reorder", &r->reorder_us},
                                 {"reorder_copy", &r->reorder_copy_us}};
    for (size_t i = 0; i < FIGURES; i++) out[i] = all[i];
}

static double fork_to_copy(const fork_row *r) {
    return r->fork_us.p50 / r->copy_us.p50;
}

static double wasted(const fork_waste *w) {
    return 1 - (double)w->used_bytes / (double)w->resident_bytes;
}

/* The table. */

static void print_row(const fork_row *r) {
    char n[FIGURES + 2][REPORT_ROOM], cache[CACHE_KIND_ROOM];
    figure figures[FIGURES];
    figures_of(figures, r);
    for (size_t i = 0; i < FIGURES; i++) (void)report_number(n[i], figures[i].us->p50);
    printf("%8" PRId64 "  %-12s %9s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", r->length,
           cache_kind_text(cache, r->cache), report_bytes(n[FIGURES], (double)r->bytes), n[0], n[1],
           n[2], report_number(n[FIGURES + 1], 100 * fork_to_copy(r)), n[3], n[4], n[5], n[6], n[7],
           n[8]);
}

static void print_wastes(const results *r) {
    printf("\nA layer of %d sequences of %d to %d positions:\n", FORK_MIXED, FORK_SHORTEST,
           FORK_LONGEST);
    for (size_t i = 0; i < r->waste_count; i++) {
        char n[2][REPORT_ROOM], cache[CACHE_KIND_ROOM];
        const fork_waste *w = &r->wastes[i];
        printf("  %-12s %9s held, %9s used: %.1f %% wasted\n", cache_kind_text(cache, &w->cache),
               report_bytes(n[0], (double)w->resident_bytes),
               report_bytes(n[1], (double)w->used_bytes), 100 * wasted(w));
    }
}

static void print_table(const options *o, const machine *m, const results *r) {
    char line[256];
    machine_line(line, sizeof line, m);
    printf("A sequence forked, in blocks and by a copy: %" PRId64 " layers, %" PRId64
           " kv heads, dimension %" PRId64 ", %s; %" PRId64 " beams\n%s\n\n",
           o->shape.layers, o->shape.heads, o->shape.dim, kvc_dtype_name(o->shape.dtype),
           o->shape.beams, line);
    printf("%8s  %-12s %9s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "", "", "", "fork", "copy",
           "memcpy", "% of", "release", "1st", "next", "block", "reorder", "copied");
    printf("%8s  %-12s %9s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "N", "cache", "K+V", "us",
           "us", "us", "copy", "us", "us", "us", "us", "us", "us");
    for (size_t i = 0; i < r->count; i++) print_row(&r->rows[i]);
    print_wastes(r);
    printf("\ncopy, copied: in a linear cache. 1st: an append after a fork, which copies the last\n"
           "block; next: the one after; block: memcpy of a block. Medians, taken in turns.\n");
}

/* The JSON object. */

static void add_figure(json_t *row, const char *name, const char *what, double us) {
    char key[48];
    (void)snprintf(key, sizeof key, "%s_%s", name, what);
    (void)json_object_set_new(row, key, report_json_number(us));
}

static json_t *new_row(const fork_row *r) {
    char cache[CACHE_KIND_ROOM];
    figure figures[FIGURES];
    json_t *row =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:I}", "cache", cache_kind_text(cache, r->cache),
                  "context", (json_int_t)r->context, "length", (json_int_t)r->length, "bytes",
                  (json_int_t)r->bytes, "block_bytes", (json_int_t)r->block_bytes, "fork_to_copy",
                  report_json_number(fork_to_copy(r)), "forks", (json_int_t)r->fork_us.count);
    figures_of(figures, r);
    for (size_t i = 0; i < FIGURES; i++) {
        add_figure(row, figures[i].name, "us", figures[i].us->p50);
        add_figure(row, figures[i].name, "p99_us", figures[i].us->p99);
        add_figure(row, figures[i].name, "max_us", figures[i].us->max);
    }
    return row;
}

static json_t *new_waste(const fork_waste *w) {
    char cache[CACHE_KIND_ROOM];
    return json_pack("{s:s, s:I, s:I, s:o}", "cache", cache_kind_text(cache, &w->cache),
                     "used_bytes", (json_int_t)w->used_bytes, "resident_bytes",
                     (json_int_t)w->resident_bytes, "wasted", report_json_number(wasted(w)));
}

static json_t *new_object(const options *o, const machine *m, const results *r) {
    json_t *rows = json_array(), *wastes = json_array();
    for (size_t i = 0; i < r->count; i++) (void)json_array_append_new(rows, new_row(&r->rows[i]));
    for (size_t i = 0; i < r->waste_count; i++)
        (void)json_array_append_new(wastes, new_waste(&r->wastes[i]));
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:s, s:I, s:o, s:o}", "bench", "fork", "machine",
                     machine_json(m), "layers", (json_int_t)o->shape.layers, "heads",
                     (json_int_t)o->shape.heads, "dim", (json_int_t)o->shape.dim, "dtype",
                     kvc_dtype_name(o->shape.dtype), "beams", (json_int_t)o->shape.beams, "rows",
                     rows, "waste", wastes);
}

/* Everything that can be found out before measuring. */
static int check(const options *o, const machine *m, results *r) {
    char text[CACHE_KIND_ROOM], what[48];
    uint64_t waste = 0;
    for (size_t i = 0; i < o->cache_count; i++) {
        if (o->caches[i].growth != KVC_GROW_PAGED)
            return cli_usage("--cache: '%s' given, kinds of paged wanted, such as q8+paged:32",
                             cache_kind_text(text, &o->caches[i]));
        if (!cache_kind_fits("--cache", &o->caches[i], o->shape.dim)) return CLI_USAGE;
        r->wastes[r->waste_count++].cache = o->caches[i];
    }
    r->wastes[r->waste_count++].cache = (cache_kind){.growth = KVC_GROW_RESERVE};
    for (size_t i = 0; i < r->waste_count; i++) {
        const uint64_t bytes = fork_waste_need_bytes(&r->wastes[i], &o->shape);
        waste = bytes > waste ? bytes : waste;
    }
    for (size_t c = 0; c < o->context_count; c++)
        for (size_t i = 0; i < o->cache_count; i++) {
            fork_row *row = &r->rows[r->count++];
            fork_row_init(row, &o->shape, &o->caches[i], o->contexts[c]);
            const uint64_t bytes = fork_need_bytes(row, &o->shape);
            (void)snprintf(what, sizeof what, "context %" PRId64, row->context);
            if (!machine_has_room(m, bytes > waste ? bytes : waste, what,
                                  "--contexts, --layers, --heads, --dim or --beams"))
                return CLI_FAILED;
        }
    return CLI_DONE;
}

static int run(const options *o) {
    results r = {.count = 0};
    machine m;
    machine_read(&m);
    int status = check(o, &m, &r);
    for (size_t i = 0; i < r.count && status == CLI_DONE; i++)
        status = fork_measure(&r.rows[i], &o->shape);
    for (size_t i = 0; i < r.waste_count && status == CLI_DONE; i++)
        status = fork_waste_measure(&r.wastes[i], &o->shape);
    cli_progress_end();
    if (status != CLI_DONE) return status;
    if (o->json) return report_json(new_object(o, &m, &r));
    print_table(o, &m, &r);
    return CLI_DONE;
}

enum {
    OPTION_CONTEXTS = CLI_FIRST,
    OPTION_CACHE,
    OPTION_LAYERS,
    OPTION_HEADS,
    OPTION_DIM,
    OPTION_DTYPE,
    OPTION_BEAMS,
    OPTION_JSON
};

static const struct option option_table[] = {
    {"contexts", required_argument, NULL, OPTION_CONTEXTS},
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"layers", required_argument, NULL, OPTION_LAYERS},
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"beams", required_argument, NULL, OPTION_BEAMS},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_CONTEXTS:
        return cli_list_int64("--contexts", optarg, 1, 1 << 24, o->contexts, MOST_CONTEXTS,
                              &o->context_count);
    case OPTION_CACHE:
        return cache_kind_list("--cache", optarg, o->caches, MOST_CACHES, &o->cache_count);
    case OPTION_LAYERS: return cli_int64("--layers", optarg, 1, 1024, &o->shape.layers);
    case OPTION_HEADS: return cli_int64("--heads", optarg, 1, 1024, &o->shape.heads);
    case OPTION_DIM: return cli_int64("--dim", optarg, 1, 8192, &o->shape.dim);
    case OPTION_DTYPE: return cli_dtype("--dtype", optarg, &o->shape.dtype);
    case OPTION_BEAMS: return cli_int64("--beams", optarg, 2, 64, &o->shape.beams);
    case OPTION_JSON: return o->json = true;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_fork(int argc, char **argv) {
    options o = {
        .shape = {.layers = 2, .heads = 8, .dim = 128, .beams = 8, .dtype = KVC_BF16},
        .contexts = {4096, 16384},
        .context_count = 2,
        .caches = {{.growth = KVC_GROW_PAGED, .block = KVC_BLOCK_POSITIONS_DEFAULT}},
        .cache_count = 1,
    };
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
