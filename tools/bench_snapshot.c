/* `kvcache bench snapshot`: how fast a cache goes to a file and comes back, read or mapped. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include <kvcache/executor.h>

#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "snapshot_measure.h"

static const char help[] =
    "Saves a cache, and restores it by reading and by mapping, beside the same bytes written and\n"
    "read plainly.\n"
    "\n"
    "Usage: kvcache bench snapshot [OPTION]...\n"
    "\n"
    "  --layers N       (32)\n"
    "  --heads Q/KV     query heads and kv heads (32/8)\n"
    "  --dim N          elements of a head's row (128)\n"
    "  --positions N    of the one sequence (8192: 1 GiB with the other defaults)\n"
    "  --dtype TYPE     f32, f16 or bf16 (bf16)\n"
    "  --cache LIST     kinds of cache, such as reserve,q8,window:4096,paged (reserve)\n"
    "  --dir FOLDER     where the files go, in a new folder that is removed again (.)\n"
    "  --passes N       of each kind, after one that is not counted (5)\n"
    "  --threads N      that load by reading; plain reads and all else have one (1)\n"
    "  --fresh          restores, and plain reads into memory, take memory anew from the system;\n"
    "                   else each takes what the pass before gave back\n"
    "  --verify         mapped restores verify checksums, which reads all\n"
    "  --json           print one JSON object instead of the table\n"
    "\n"
    "Columns and JSON keys, milliseconds of a pass; JSON: ..._ms and ..._best_ms:\n"
    "  plain write (plain_write)    write(2) of the file's bytes, 1 MiB a call, to another\n"
    "                               file, which is flushed, renamed and its folder flushed, as "
    "the\n"
    "                               library does\n"
    "  save (save)                  kvc_snapshot_save\n"
    "  ratio (save_to_plain)        the speed of save, as a share of that of plain write\n"
    "  plain read (plain_read)      read(2) of the file, 1 MiB a call, into memory that holds\n"
    "                               all of it\n"
    "  buffer (buffer_read)         read(2) of the file through a buffer of 256 KiB, where "
    "nothing\n"
    "                               is kept: less work than any restore\n"
    "  load (load)                  kvc_snapshot_load by reading, checksums verified\n"
    "  ratio (load_to_plain)        the speed of load, as a share of that of plain read, which\n"
    "                               does the same work; JSON has load_to_buffer too\n"
    "  map (map)                    kvc_snapshot_load with KVC_LOAD_MAP, until it returns\n"
    "  sooner (map_sooner)          the faster of both plain reads over map\n"
    "  step 1 (first_step)          a position appended to each layer of what was mapped, and\n"
    "                               attention of one query: pages are touched the first time\n"
    "  of read (first_step_to_read) step 1 over the faster of both plain reads\n"
    "  step 2 (second_step)         the same again\n"
    "\n"
    "Writes go by turns, then reads. The table has the medians, and below them the fastest\n"
    "passes; ratios are of these. Files are in the page cache. Attention over each restored\n"
    "cache is compared, bit for bit: over one that was read with the saved one, over one that\n"
    "was mapped with one that was read.\n";

enum { MOST_CACHES = 16 };

typedef struct options {
    snapshot_shape shape;
    cache_kind caches[MOST_CACHES];
    size_t cache_count;
    bool json;
} options;

static const char *const names[SNAPSHOT_FIGURES] = {[SNAPSHOT_PLAIN_WRITE] = "plain_write",
                                                    [SNAPSHOT_SAVE] = "save",
                                                    [SNAPSHOT_PLAIN_READ] = "plain_read",
                                                    [SNAPSHOT_BUFFER_READ] = "buffer_read",
                                                    [SNAPSHOT_LOAD] = "load",
                                                    [SNAPSHOT_MAP] = "map",
                                                    [SNAPSHOT_FIRST_STEP] = "first_step",
                                                    [SNAPSHOT_SECOND_STEP] = "second_step"};

/* Figures of a row: of the medians, or of the fastest passes. */
typedef struct figures {
    double ns[SNAPSHOT_FIGURES];
    double save_to_plain, load_to_plain, load_to_buffer, map_sooner, first_step_to_read;
} figures;

static figures figures_of(const snapshot_row *row, bool best) {
    figures f;
    for (int i = 0; i < SNAPSHOT_FIGURES; i++) f.ns[i] = best ? row->ns[i].min : row->ns[i].p50;
    const double plain = f.ns[SNAPSHOT_PLAIN_READ], through = f.ns[SNAPSHOT_BUFFER_READ];
    const double floor = plain < through ? plain : through;
    f.save_to_plain = f.ns[SNAPSHOT_PLAIN_WRITE] / f.ns[SNAPSHOT_SAVE];
    f.load_to_plain = plain / f.ns[SNAPSHOT_LOAD];
    f.load_to_buffer = through / f.ns[SNAPSHOT_LOAD];
    f.map_sooner = floor / f.ns[SNAPSHOT_MAP];
    f.first_step_to_read = f.ns[SNAPSHOT_FIRST_STEP] / floor;
    return f;
}

/* The table. */

static const char *ms(char out[REPORT_ROOM], const figures *f, snapshot_figure figure) {
    return report_number(out, 1e-6 * f->ns[figure]);
}

static void print_figures(const char *name, const char *bytes, const figures *f) {
    char n[SNAPSHOT_FIGURES][REPORT_ROOM], sooner[REPORT_ROOM];
    printf("%-16s %8s  %8s %8s %5.2f", name, bytes, ms(n[0], f, SNAPSHOT_PLAIN_WRITE),
           ms(n[1], f, SNAPSHOT_SAVE), f->save_to_plain);
    printf("  %8s %8s %8s %5.2f", ms(n[2], f, SNAPSHOT_PLAIN_READ),
           ms(n[3], f, SNAPSHOT_BUFFER_READ), ms(n[4], f, SNAPSHOT_LOAD), f->load_to_plain);
    printf("  %8s %7s  %8s %7.2f %8s\n", ms(n[5], f, SNAPSHOT_MAP),
           report_number(sooner, f->map_sooner), ms(n[6], f, SNAPSHOT_FIRST_STEP),
           f->first_step_to_read, ms(n[7], f, SNAPSHOT_SECOND_STEP));
}

static void print_row(const options *o, const snapshot_row *row) {
    char kind[CACHE_KIND_ROOM], bytes[REPORT_ROOM];
    const figures median = figures_of(row, false), best = figures_of(row, true);
    print_figures(cache_kind_text(kind, row->cache), report_bytes(bytes, (double)row->bytes),
                  &median);
    print_figures("  best", "", &best);
    if (row->mapped < o->shape.layers)
        printf("  %" PRId64 " of %" PRId64 " layers could not be mapped, and were read\n",
               o->shape.layers - row->mapped, o->shape.layers);
}

static void print_table(const options *o, const machine *m, const snapshot_row *rows) {
    const snapshot_shape *s = &o->shape;
    char line[256];
    machine_line(line, sizeof line, m);
    printf("Caches saved and restored, ms by the median of %" PRId64 " passes: %" PRId64
           " layers, heads %" PRId64 "/%" PRId64 ", dimension %" PRId64 ", %s, %" PRId64
           " positions%s.\n%s\n\n",
           s->passes, s->layers, s->q_heads, s->kv_heads, s->dim, kvc_dtype_name(s->dtype),
           s->positions, s->fresh ? ", fresh memory" : "", line);
    printf("%-16s %8s  %8s %8s %5s  %8s %8s %8s %5s  %8s %7s  %8s %7s %8s\n", "", "", "plain", "",
           "", "plain", "", "", "", "", "", "", "", "");
    printf("%-16s %8s  %8s %8s %5s  %8s %8s %8s %5s  %8s %7s  %8s %7s %8s\n", "cache", "file",
           "write", "save", "ratio", "read", "buffer", "load", "ratio", "map", "sooner", "step 1",
           "of read", "step 2");
    for (size_t i = 0; i < o->cache_count; i++) print_row(o, &rows[i]);
    printf("\nratio: speed beside the plain one; sooner, of read: beside the faster of plain read "
           "and buffer.\nFiles are in the page cache. Load has %" PRId64
           " thread%s, all else one.\n",
           s->threads, s->threads == 1 ? "" : "s");
}

/* The JSON object. */

static void add(json_t *object, const char *name, const char *unit, double value) {
    char key[48];
    (void)snprintf(key, sizeof key, "%s%s", name, unit);
    (void)json_object_set_new(object, key, report_json_number(value));
}

static json_t *new_row(const snapshot_row *row) {
    char kind[CACHE_KIND_ROOM];
    const figures median = figures_of(row, false), best = figures_of(row, true);
    json_t *object =
        json_pack("{s:s, s:I, s:I}", "cache", cache_kind_text(kind, row->cache), "bytes",
                  (json_int_t)row->bytes, "mapped_layers", (json_int_t)row->mapped);
    for (int i = 0; i < SNAPSHOT_FIGURES; i++) {
        add(object, names[i], "_ms", 1e-6 * median.ns[i]);
        add(object, names[i], "_best_ms", 1e-6 * best.ns[i]);
    }
    add(object, "save_to_plain", "", median.save_to_plain);
    add(object, "load_to_plain", "", median.load_to_plain);
    add(object, "load_to_buffer", "", median.load_to_buffer);
    add(object, "map_sooner", "", median.map_sooner);
    add(object, "first_step_to_read", "", median.first_step_to_read);
    return object;
}

static json_t *new_object(const options *o, const machine *m, const snapshot_row *rows) {
    const snapshot_shape *s = &o->shape;
    json_t *list = json_array();
    for (size_t i = 0; i < o->cache_count; i++)
        (void)json_array_append_new(list, new_row(&rows[i]));
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:b, s:b, s:o}", "bench",
                     "snapshot", "machine", machine_json(m), "layers", (json_int_t)s->layers,
                     "q_heads", (json_int_t)s->q_heads, "kv_heads", (json_int_t)s->kv_heads, "dim",
                     (json_int_t)s->dim, "positions", (json_int_t)s->positions, "dtype",
                     kvc_dtype_name(s->dtype), "passes", (json_int_t)s->passes, "threads",
                     (json_int_t)s->threads, "fresh", (int)s->fresh, "verify", (int)s->verify,
                     "rows", list);
}

/* Everything that can be found out before measuring. */
static int check(const options *o, const machine *m) {
    char text[CACHE_KIND_ROOM];
    for (size_t i = 0; i < o->cache_count; i++) {
        const uint64_t bytes = snapshot_cache_bytes(&o->shape, &o->caches[i]);
        if (!cache_kind_fits("--cache", &o->caches[i], o->shape.dim)) return CLI_USAGE;
        /* The cache, the file's bytes, a restored cache and both files, with some to spare. */
        if (!machine_has_room(m, bytes / 16 * 17 * 5, cache_kind_text(text, &o->caches[i]),
                              "--positions, --layers, --heads or --dim"))
            return CLI_FAILED;
    }
    return CLI_DONE;
}

static int run(const options *o) {
    snapshot_row rows[MOST_CACHES];
    machine m;
    machine_read(&m);
    int status = check(o, &m);
    for (size_t i = 0; i < o->cache_count && status == CLI_DONE; i++) {
        rows[i] = (snapshot_row){.cache = &o->caches[i]};
        status = snapshot_measure(&rows[i], &o->shape);
    }
    cli_progress_end();
    if (status != CLI_DONE) return status;
    if (o->json) return report_json(new_object(o, &m, rows));
    print_table(o, &m, rows);
    return CLI_DONE;
}

enum {
    OPTION_LAYERS = CLI_FIRST,
    OPTION_HEADS,
    OPTION_DIM,
    OPTION_POSITIONS,
    OPTION_DTYPE,
    OPTION_CACHE,
    OPTION_DIR,
    OPTION_PASSES,
    OPTION_THREADS,
    OPTION_FRESH,
    OPTION_VERIFY,
    OPTION_JSON
};

static const struct option option_table[] = {
    {"layers", required_argument, NULL, OPTION_LAYERS},
    {"heads", required_argument, NULL, OPTION_HEADS},
    {"dim", required_argument, NULL, OPTION_DIM},
    {"positions", required_argument, NULL, OPTION_POSITIONS},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"dir", required_argument, NULL, OPTION_DIR},
    {"passes", required_argument, NULL, OPTION_PASSES},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"fresh", no_argument, NULL, OPTION_FRESH},
    {"verify", no_argument, NULL, OPTION_VERIFY},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    snapshot_shape *s = &o->shape;
    switch (option) {
    case OPTION_LAYERS: return cli_int64("--layers", optarg, 1, 1024, &s->layers);
    case OPTION_HEADS: return cli_heads("--heads", optarg, &s->q_heads, &s->kv_heads);
    case OPTION_DIM: return cli_int64("--dim", optarg, 1, 8192, &s->dim);
    case OPTION_POSITIONS: return cli_int64("--positions", optarg, 1, 1 << 24, &s->positions);
    case OPTION_DTYPE: return cli_dtype("--dtype", optarg, &s->dtype);
    case OPTION_CACHE:
        return cache_kind_list("--cache", optarg, o->caches, MOST_CACHES, &o->cache_count);
    case OPTION_DIR: s->folder = optarg; return true;
    case OPTION_PASSES: return cli_int64("--passes", optarg, 1, 1000, &s->passes);
    case OPTION_THREADS: return cli_int64("--threads", optarg, 1, KVC_THREADS_MAX, &s->threads);
    case OPTION_FRESH: return s->fresh = true;
    case OPTION_VERIFY: return s->verify = true;
    case OPTION_JSON: return o->json = true;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_snapshot(int argc, char **argv) {
    options o = {.shape = {.layers = 32,
                           .q_heads = 32,
                           .kv_heads = 8,
                           .dim = 128,
                           .positions = 8192,
                           .passes = 5,
                           .threads = 1,
                           .dtype = KVC_BF16,
                           .folder = "."},
                 .cache_count = 1};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
