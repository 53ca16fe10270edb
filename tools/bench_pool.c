/* `kvcache bench pool`: what it costs to take a buffer and give it back, from the pool and from the
 * driver, beside malloc and a bare mmap. */

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <kvcache/device.h>
#include <kvcache/pool.h>

#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "stats.h"
#include "trace.h"

static const char help[] =
    "Takes a buffer and gives it back: from the pool (a hit), and from the driver (a miss).\n"
    "\n"
    "Usage: kvcache bench pool [OPTION]...\n"
    "\n"
    "  --sizes LIST   bytes of the buffer (4096,1048576,67108864)\n"
    "  --buffers N    others that the pool holds, of sizes that do not serve (64)\n"
    "  --json         print one JSON object instead of the table\n"
    "  --trace FILE   write a trace of some more for Perfetto, and print its shares\n"
    "\n"
    "Columns and JSON keys, each for one buffer taken and given back, in nanoseconds:\n"
    "  hit (hit_ns, hit_p99_ns, hit_max_ns)     from the pool: batches of 1000, mean of each\n"
    "  miss (miss_ns, miss_p99_ns, miss_max_ns) from the driver: pages come and go\n"
    "  driver (driver_ns)                       what of a miss was spent in the driver, mean\n"
    "  mmap (mmap_ns)                           floor of a miss: mmap, a write to each page, "
    "munmap\n"
    "  malloc (malloc_free_ns)                  malloc and free of 64 bytes, between the hits\n"
    "  hit/malloc (hit_to_malloc)               ratio of the medians\n";

enum {
    MOST_SIZES = 16,
    BATCH = 1000,  /* hits of one sample */
    SAMPLES = 300, /* of hits */
    LEAST_MISSES = 8,
    MOST_MISSES = 500,
    TRACED = 20
};

#define MOST_BYTES ((int64_t)1 << 40)

/* After this no miss is measured beyond the least. */
#define MISS_BUDGET_NS ((uint64_t)200000000)

typedef struct options {
    int64_t sizes[MOST_SIZES], buffers;
    size_t size_count;
    bool json;
    const char *trace;
} options;

typedef struct row {
    int64_t size;
    stats_summary hit_ns, malloc_ns, miss_ns, mmap_ns;
    double driver_ns;
} row;

/* One buffer taken and given back. */
static int cycle(kvc_pool *pool, int64_t size) {
    kvc_buffer *buffer;
    if (kvc_buffer_new(&buffer, pool, (size_t)size) != KVC_OK) return cli_fail_library("pool");
    kvc_buffer_release(buffer);
    return CLI_DONE;
}

static void malloc_and_free(void) {
    void *volatile memory = malloc(64); /* volatile: or the compiler leaves both out */
    free(memory);
}

/* Gives the pool buffers of other sizes, as that of a model with many layers would hold. */
static int stock(kvc_pool *pool, const options *o) {
    kvc_buffer *held[1024];
    int64_t count = 0;
    int status = CLI_DONE;
    for (; count < o->buffers && status == CLI_DONE; count++) {
        /* Half a page off: no size that people ask for. */
        const size_t bytes = (size_t)(count + 1) * 16384 + 2048;
        if (kvc_buffer_new(&held[count], pool, bytes) != KVC_OK) status = cli_fail_library("pool");
    }
    while (count > 0) kvc_buffer_release(held[--count]);
    return status;
}

static int add_sample(stats_samples *samples, uint64_t start_ns, int64_t divisor) {
    const uint64_t end_ns = stats_now_ns();
    return stats_add(samples, (double)(end_ns - start_ns) / (double)divisor)
               ? CLI_DONE
               : cli_fail("no memory for the samples");
}

/* Hits and mallocs, batch by batch in turn. */
static int measure_hits(kvc_pool *pool, row *r) {
    stats_samples hits = {0}, mallocs = {0};
    int status = cycle(pool, r->size); /* what the hits will be served with */
    for (int i = 0; i < SAMPLES && status == CLI_DONE; i++) {
        uint64_t start_ns = stats_now_ns();
        for (int k = 0; k < BATCH && status == CLI_DONE; k++) status = cycle(pool, r->size);
        if (status == CLI_DONE) status = add_sample(&hits, start_ns, BATCH);
        start_ns = stats_now_ns();
        for (int k = 0; k < BATCH; k++) malloc_and_free();
        if (status == CLI_DONE) status = add_sample(&mallocs, start_ns, BATCH);
    }
    r->hit_ns = stats_summarise(&hits);
    r->malloc_ns = stats_summarise(&mallocs);
    stats_free(&hits);
    stats_free(&mallocs);
    return status;
}

/* What no allocator can undercut: pages from the system, written to, and back. */
static int map_and_touch(int64_t size, uint64_t page) {
    volatile unsigned char *memory =
        mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return cli_fail("no memory for %" PRId64 " bytes", size);
    for (uint64_t at = 0; at < (uint64_t)size; at += page) memory[at] = 1;
    (void)munmap((void *)memory, (size_t)size);
    return CLI_DONE;
}

/* Misses and mappings in turn: a pool that keeps nothing takes each buffer from the driver. */
static int measure_misses(kvc_pool *pool, const machine *m, row *r) {
    stats_samples misses = {0}, maps = {0};
    kvc_pool_stats before = {.struct_size = sizeof before}, after = before;
    const size_t limit = kvc_pool_cache_limit_set(pool, 0);
    const uint64_t begin_ns = stats_now_ns();
    int status = kvc_pool_stats_get(pool, &before) == KVC_OK ? CLI_DONE : cli_fail_library("pool");
    for (int i = 0; i < MOST_MISSES && status == CLI_DONE; i++) {
        if (i >= LEAST_MISSES && stats_now_ns() - begin_ns > MISS_BUDGET_NS) break;
        uint64_t start_ns = stats_now_ns();
        status = cycle(pool, r->size);
        if (status == CLI_DONE) status = add_sample(&misses, start_ns, 1);
        start_ns = stats_now_ns();
        if (status == CLI_DONE) status = map_and_touch(r->size, m->page_bytes);
        if (status == CLI_DONE) status = add_sample(&maps, start_ns, 1);
    }
    (void)kvc_pool_stats_get(pool, &after);
    (void)kvc_pool_cache_limit_set(pool, limit);
    r->miss_ns = stats_summarise(&misses);
    r->mmap_ns = stats_summarise(&maps);
    r->driver_ns = (double)(after.driver_ns - before.driver_ns) / (double)r->miss_ns.count;
    stats_free(&misses);
    stats_free(&maps);
    return status;
}

/* Records some hits and misses, each a step. */
static int trace_size(kvc_pool *pool, int64_t size) {
    char label[2][48], text[REPORT_ROOM];
    (void)snprintf(label[0], sizeof label[0], "hit %s", report_bytes(text, (double)size));
    (void)snprintf(label[1], sizeof label[1], "miss %s", text);
    int status = cycle(pool, size);
    trace_record(true);
    for (int miss = 0; miss < 2; miss++) {
        const size_t limit = miss ? kvc_pool_cache_limit_set(pool, 0) : 0;
        for (int i = 0; i < TRACED && status == CLI_DONE; i++) {
            trace_step_begin(label[miss]);
            status = cycle(pool, size);
            trace_step_end();
        }
        if (miss) (void)kvc_pool_cache_limit_set(pool, limit);
    }
    trace_record(false);
    return status;
}

static int measure_size(const options *o, const machine *m, row *r) {
    char text[REPORT_ROOM];
    kvc_pool *pool;
    cli_progress("%s", report_bytes(text, (double)r->size));
    if (kvc_pool_new(&pool, kvc_device_cpu()) != KVC_OK) return cli_fail_library("pool");
    int status = stock(pool, o);
    if (status == CLI_DONE) status = measure_hits(pool, r);
    if (status == CLI_DONE) status = measure_misses(pool, m, r);
    if (status == CLI_DONE && o->trace) status = trace_size(pool, r->size);
    kvc_pool_free(pool);
    return status;
}

static double hit_to_malloc(const row *r) {
    return r->hit_ns.p50 / r->malloc_ns.p50;
}

static void print_table(const options *o, const machine *m, const row *rows) {
    char line[256], n[9][REPORT_ROOM];
    machine_line(line, sizeof line, m);
    printf("A buffer taken and given back; the pool holds %" PRId64 " others.\n%s\n\n", o->buffers,
           line);
    printf("%8s  %8s %8s %8s  %8s %8s %8s  %8s  %8s  %8s %10s\n", "size", "hit p50", "p99", "max",
           "miss p50", "p99", "max", "driver", "mmap", "malloc", "hit/malloc");
    for (size_t i = 0; i < o->size_count; i++) {
        const row *r = &rows[i];
        printf("%8s  %8s %8s %8s", report_bytes(line, (double)r->size),
               report_time(n[0], r->hit_ns.p50), report_time(n[1], r->hit_ns.p99),
               report_time(n[2], r->hit_ns.max));
        printf("  %8s %8s %8s  %8s  %8s  %8s %10s\n", report_time(n[3], r->miss_ns.p50),
               report_time(n[4], r->miss_ns.p99), report_time(n[5], r->miss_ns.max),
               report_time(n[6], r->driver_ns), report_time(n[7], r->mmap_ns.p50),
               report_time(n[8], r->malloc_ns.p50), report_number(n[0], hit_to_malloc(r)));
    }
    printf(
        "\nhit: from the pool, mean of each batch of %d; miss: from the driver, which spends\n"
        "'driver' of it; mmap: mapping, writing to each page, unmapping; malloc: malloc and free\n"
        "of 64 bytes, between the hits.\n",
        BATCH);
}

static json_t *new_row(const row *r) {
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "size_bytes",
        (json_int_t)r->size, "hit_ns", report_json_number(r->hit_ns.p50), "hit_p99_ns",
        report_json_number(r->hit_ns.p99), "hit_max_ns", report_json_number(r->hit_ns.max),
        "miss_ns", report_json_number(r->miss_ns.p50), "miss_p99_ns",
        report_json_number(r->miss_ns.p99), "miss_max_ns", report_json_number(r->miss_ns.max),
        "driver_ns", report_json_number(r->driver_ns), "mmap_ns",
        report_json_number(r->mmap_ns.p50), "malloc_free_ns", report_json_number(r->malloc_ns.p50),
        "hit_to_malloc", report_json_number(hit_to_malloc(r)));
}

static json_t *new_object(const options *o, const machine *m, const row *rows) {
    json_t *list = json_array();
    for (size_t i = 0; i < o->size_count; i++) (void)json_array_append_new(list, new_row(&rows[i]));
    return json_pack("{s:s, s:o, s:I, s:o}", "bench", "pool", "machine", machine_json(m), "buffers",
                     (json_int_t)o->buffers, "rows", list);
}

static int run(const options *o) {
    row rows[MOST_SIZES] = {{0}};
    machine m;
    int status = CLI_DONE;
    machine_read(&m);
    for (size_t i = 0; i < o->size_count; i++) {
        char what[48];
        rows[i].size = o->sizes[i];
        (void)snprintf(what, sizeof what, "a buffer of %" PRId64 " bytes", o->sizes[i]);
        if (!machine_has_room(&m, 2 * (uint64_t)o->sizes[i], what, "--sizes")) return CLI_FAILED;
    }
    if (o->trace) status = trace_open(o->trace, "the pool");
    for (size_t i = 0; i < o->size_count && status == CLI_DONE; i++)
        status = measure_size(o, &m, &rows[i]);
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

enum { OPTION_SIZES = CLI_FIRST, OPTION_BUFFERS, OPTION_JSON, OPTION_TRACE };

static const struct option option_table[] = {
    {"sizes", required_argument, NULL, OPTION_SIZES},
    {"buffers", required_argument, NULL, OPTION_BUFFERS},
    {"json", no_argument, NULL, OPTION_JSON},
    {"trace", required_argument, NULL, OPTION_TRACE},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_SIZES:
        return cli_list_int64("--sizes", optarg, 1, MOST_BYTES, o->sizes, MOST_SIZES,
                              &o->size_count);
    case OPTION_BUFFERS: return cli_int64("--buffers", optarg, 0, 1024, &o->buffers);
    case OPTION_JSON: return o->json = true;
    case OPTION_TRACE: return (o->trace = optarg) != NULL;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_pool(int argc, char **argv) {
    options o = {.sizes = {4096, 1 << 20, 64 << 20}, .size_count = 3, .buffers = 64};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
