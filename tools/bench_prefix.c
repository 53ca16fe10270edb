/* `kvcache bench prefix`: what it costs to find, insert and evict a block in trees of many sizes,
 * beside comparing its tokens where the place is known. */

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/pool.h>
#include <kvcache/prefix.h>

#include "cli.h"
#include "commands.h"
#include "machine.h"
#include "report.h"
#include "stats.h"

static const char help[] =
    "Finds, inserts and evicts blocks of prefix trees of several sizes.\n"
    "\n"
    "Usage: kvcache bench prefix [OPTION]...\n"
    "\n"
    "  --blocks LIST    blocks stored (1000,10000,100000,1000000)\n"
    "  --positions N    of a block (16)\n"
    "  --depth N        blocks of a prompt, none of which it shares with another (1)\n"
    "  --json           print one JSON object instead of the table\n"
    "\n"
    "Columns and JSON keys, nanoseconds a block, of batches of 256 prompts drawn at random:\n"
    "  match (match_ns, match_best_ns, match_p99_ns, match_max_ns)\n"
    "                           found, each token compared, and retained\n"
    "  compare (compare_ns)     floor: the same tokens compared, the place known, in turn\n"
    "  of (match_to_compare)    ratio of the medians\n"
    "  release (release_ns)     given back after a match, median\n"
    "  insert (insert_ns, insert_max_ns)  stored, from an empty tree on; mean, slowest batch\n"
    "  evict (evict_ns, evict_max_ns)     the oldest given up, until it is empty; the same\n"
    "  index (index_bytes)      memory of the tree itself for a block, tokens included\n"
    "The last line, and \"slope\", have the figures at the most blocks over those at the fewest.\n";

enum {
    MOST_SIZES = 8,
    BATCH = 256,    /* prompts of one sample */
    WARMING = 1024, /* prompts before each: a tree in regular use */
    ROUNDS = 200,
    MOST_DEPTH = 64
};

typedef struct options {
    int64_t blocks[MOST_SIZES], positions, depth;
    size_t size_count;
    bool json;
} options;

/* A tree of one size, and what was measured of it. */
typedef struct stage {
    int64_t prompts;
    kvc_blocks *blocks;
    kvc_prefix *tree;
    int32_t *rows; /* [prompts][depth][positions]: for the floor */
    stats_samples match, compare, release, insert, evict;
    stats_summary match_ns, compare_ns, release_ns, insert_ns, evict_ns;
    double index_bytes;
} stage;

/* The prompts of a batch. */
typedef struct batch {
    int64_t count, *numbers;
    int32_t *tokens; /* [count][depth][positions] */
    int32_t *ids;    /* [count][depth] */
} batch;

typedef struct bench {
    const options *o;
    kvc_pool *pool;
    batch batch;
    uint64_t random;
    volatile int64_t sink; /* so that comparing is not left out */
} bench;

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    return *state = x ^ x << 17;
}

static int64_t prompt_tokens(const options *o) {
    return o->depth * o->positions;
}

/* Tokens as a vocabulary has them; the number of the prompt among them, so that none are equal. */
static void write_prompt(const options *o, int32_t *tokens, int64_t number) {
    uint64_t state = (uint64_t)number * 0x9e3779b97f4a7c15u + 1;
    for (int64_t i = 0; i < prompt_tokens(o); i++)
        tokens[i] = i % o->positions == 0 ? (int32_t)number : (int32_t)(next_random(&state) >> 47);
}

static void write_batch(const bench *b) {
    for (int64_t i = 0; i < b->batch.count; i++)
        write_prompt(b->o, b->batch.tokens + i * prompt_tokens(b->o), b->batch.numbers[i]);
}

static void draw_batch(bench *b, const stage *s) {
    b->batch.count = BATCH;
    for (int64_t i = 0; i < BATCH; i++)
        b->batch.numbers[i] = (int64_t)(next_random(&b->random) % (uint64_t)s->prompts);
    write_batch(b);
}

static int add_sample(stats_samples *samples, uint64_t start_ns, int64_t blocks) {
    const uint64_t end_ns = stats_now_ns();
    return stats_add(samples, (double)(end_ns - start_ns) / (double)blocks)
               ? CLI_DONE
               : cli_fail("no memory for the samples");
}

static int match_batch(const bench *b, const stage *s) {
    const int64_t n = prompt_tokens(b->o);
    for (int64_t i = 0; i < b->batch.count; i++) {
        int64_t found;
        if (kvc_prefix_match(s->tree, NULL, b->batch.tokens + i * n, n,
                             b->batch.ids + i * b->o->depth, &found) != KVC_OK)
            return cli_fail_library("match");
        if (found != b->o->depth) return cli_fail("a stored prompt was not found");
    }
    return CLI_DONE;
}

static int release_batch(const bench *b, const stage *s) {
    for (int64_t i = 0; i < b->batch.count; i++)
        if (kvc_blocks_release(s->blocks, b->batch.ids + i * b->o->depth, b->o->depth) != KVC_OK)
            return cli_fail_library("release");
    return CLI_DONE;
}

/* What finding cannot undercut: the tokens of each stored prompt read and compared. */
static int compare_batch(bench *b, const stage *s) {
    const int64_t n = prompt_tokens(b->o);
    int64_t equal = 0;
    for (int64_t i = 0; i < b->batch.count; i++)
        equal += memcmp(b->batch.tokens + i * n, s->rows + b->batch.numbers[i] * n,
                        (size_t)n * sizeof *s->rows) == 0;
    b->sink = equal;
    return equal == b->batch.count ? CLI_DONE : cli_fail("a prompt differs from itself");
}

static int warm(bench *b, const stage *s, bool matching) {
    int status = CLI_DONE;
    for (int i = 0; i < WARMING / BATCH && status == CLI_DONE; i++) {
        draw_batch(b, s);
        if (!matching) {
            status = compare_batch(b, s);
            continue;
        }
        status = match_batch(b, s);
        if (status == CLI_DONE) status = release_batch(b, s);
    }
    return status;
}

/* One batch of each: matched and released, then compared. */
static int measure_round(bench *b, stage *s) {
    const int64_t blocks = BATCH * b->o->depth;
    int status = warm(b, s, true);
    if (status != CLI_DONE) return status;
    draw_batch(b, s);
    uint64_t start_ns = stats_now_ns();
    status = match_batch(b, s);
    if (status == CLI_DONE) status = add_sample(&s->match, start_ns, blocks);
    start_ns = stats_now_ns();
    if (status == CLI_DONE) status = release_batch(b, s);
    if (status == CLI_DONE) status = add_sample(&s->release, start_ns, blocks);
    if (status == CLI_DONE) status = warm(b, s, false);
    draw_batch(b, s);
    start_ns = stats_now_ns();
    if (status == CLI_DONE) status = compare_batch(b, s);
    return status == CLI_DONE ? add_sample(&s->compare, start_ns, blocks) : status;
}

static int insert_batch(const bench *b, const stage *s) {
    const int64_t n = prompt_tokens(b->o);
    for (int64_t i = 0; i < b->batch.count; i++)
        if (kvc_prefix_insert(s->tree, NULL, b->batch.tokens + i * n, n,
                              b->batch.ids + i * b->o->depth, 0, NULL) != KVC_OK)
            return cli_fail_library("insert");
    return CLI_DONE;
}

/* Fills a tree, batch by batch; only inserting is timed. */
static int fill(bench *b, stage *s) {
    const int64_t n = prompt_tokens(b->o);
    int status = CLI_DONE;
    for (int64_t first = 0; first < s->prompts && status == CLI_DONE; first += BATCH) {
        const int64_t count = s->prompts - first < BATCH ? s->prompts - first : BATCH;
        b->batch.count = count;
        for (int64_t i = 0; i < count; i++) b->batch.numbers[i] = first + i;
        write_batch(b);
        memcpy(s->rows + first * n, b->batch.tokens, (size_t)(count * n) * sizeof *s->rows);
        if (kvc_blocks_take(s->blocks, count * b->o->depth, b->batch.ids) != KVC_OK)
            return cli_fail_library("take");
        const uint64_t start_ns = stats_now_ns();
        status = insert_batch(b, s);
        if (status == CLI_DONE) status = add_sample(&s->insert, start_ns, count * b->o->depth);
        if (status == CLI_DONE) status = release_batch(b, s);
    }
    return status;
}

static int empty(const bench *b, stage *s, uint64_t block_bytes) {
    int status = CLI_DONE;
    for (int64_t left = s->prompts * b->o->depth; left > 0 && status == CLI_DONE; left -= BATCH) {
        const int64_t count = left < BATCH ? left : BATCH;
        const uint64_t start_ns = stats_now_ns();
        const uint64_t got = kvc_prefix_evict(s->tree, (uint64_t)count * block_bytes);
        status = add_sample(&s->evict, start_ns, count);
        if (got != (uint64_t)count * block_bytes) return cli_fail("a block was not evicted");
    }
    return status;
}

static int open_stage(bench *b, stage *s) {
    static const kvc_layer_spec spec = {.kv_heads = 1, .key_dim = 1, .dtype = KVC_F16};
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = 1,
                                  .specs = &spec,
                                  .spec_count = 1,
                                  .positions = b->o->positions};
    const size_t tokens = (size_t)(s->prompts * prompt_tokens(b->o));
    cli_progress("%" PRId64 " blocks", s->prompts * b->o->depth);
    assert(tokens > 0); /* --blocks is no less than the largest --depth */
    s->rows = calloc(tokens, sizeof *s->rows);
    if (!s->rows) return cli_fail("no memory for %zu tokens", tokens);
    if (kvc_blocks_new(&s->blocks, b->pool, &desc) != KVC_OK) return cli_fail_library("blocks");
    if (kvc_prefix_new(&s->tree, s->blocks) != KVC_OK) return cli_fail_library("prefix");
    return fill(b, s);
}

static int close_stage(const bench *b, stage *s) {
    kvc_blocks_stats blocks = {.struct_size = sizeof blocks};
    kvc_prefix_stats tree = {.struct_size = sizeof tree};
    if (kvc_blocks_stats_get(s->blocks, &blocks) != KVC_OK ||
        kvc_prefix_stats_get(s->tree, &tree) != KVC_OK)
        return cli_fail_library("figures");
    s->index_bytes = (double)tree.index_bytes / (double)tree.blocks;
    const int status = empty(b, s, blocks.block_bytes);
    s->match_ns = stats_summarise(&s->match);
    s->compare_ns = stats_summarise(&s->compare);
    s->release_ns = stats_summarise(&s->release);
    s->insert_ns = stats_summarise(&s->insert);
    s->evict_ns = stats_summarise(&s->evict);
    return status;
}

static void free_stage(stage *s) {
    kvc_prefix_free(s->tree);
    kvc_blocks_free(s->blocks);
    free(s->rows);
    stats_free(&s->match);
    stats_free(&s->compare);
    stats_free(&s->release);
    stats_free(&s->insert);
    stats_free(&s->evict);
}

/* All sizes are there at once and take turns, so that a drifting clock is the same for all. */
static int measure(bench *b, stage *stages) {
    const size_t count = b->o->size_count;
    int status = CLI_DONE;
    for (size_t i = 0; i < count && status == CLI_DONE; i++) status = open_stage(b, &stages[i]);
    for (int round = 0; round < ROUNDS && status == CLI_DONE; round++) {
        cli_progress("round %d of %d", round + 1, ROUNDS);
        for (size_t i = 0; i < count && status == CLI_DONE; i++)
            status = measure_round(b, &stages[i]);
    }
    for (size_t i = 0; i < count && status == CLI_DONE; i++) status = close_stage(b, &stages[i]);
    return status;
}

static double match_to_compare(const stage *s) {
    return s->match_ns.p50 / s->compare_ns.p50;
}

static void print_row(const stage *s, const options *o) {
    char n[12][REPORT_ROOM];
    printf("%8" PRId64 "  %6s %6s %6s %6s", s->prompts * o->depth,
           report_number(n[0], s->match_ns.p50), report_number(n[1], s->match_ns.min),
           report_number(n[2], s->match_ns.p99), report_number(n[3], s->match_ns.max));
    printf("  %7s %6s  %7s", report_number(n[4], s->compare_ns.p50),
           report_number(n[5], match_to_compare(s)), report_number(n[6], s->release_ns.p50));
    printf("  %6s %7s  %6s %6s  %7s\n", report_number(n[7], s->insert_ns.mean),
           report_number(n[8], s->insert_ns.max), report_number(n[9], s->evict_ns.mean),
           report_number(n[10], s->evict_ns.max), report_bytes(n[11], s->index_bytes));
}

/* The figures at the most blocks over those at the fewest. */
typedef struct slopes {
    double match, best, compare, release, insert, evict;
} slopes;

static slopes slope_of(const options *o, const stage *stages) {
    const stage *few = &stages[0], *many = &stages[0];
    for (size_t i = 1; i < o->size_count; i++) {
        if (stages[i].prompts < few->prompts) few = &stages[i];
        if (stages[i].prompts > many->prompts) many = &stages[i];
    }
    return (slopes){.match = many->match_ns.p50 / few->match_ns.p50,
                    .best = many->match_ns.min / few->match_ns.min,
                    .compare = many->compare_ns.p50 / few->compare_ns.p50,
                    .release = many->release_ns.p50 / few->release_ns.p50,
                    .insert = many->insert_ns.mean / few->insert_ns.mean,
                    .evict = many->evict_ns.mean / few->evict_ns.mean};
}

static void print_table(const options *o, const machine *m, const stage *stages) {
    const slopes slope = slope_of(o, stages);
    char line[256], n[6][REPORT_ROOM];
    machine_line(line, sizeof line, m);
    printf("Prefix trees of blocks of %" PRId64 " positions, prompts of %" PRId64
           " blocks; ns a block.\n%s\n\n",
           o->positions, o->depth, line);
    printf("%8s  %6s %6s %6s %6s  %7s %6s  %7s  %6s %7s  %6s %6s  %7s\n", "blocks", "match", "best",
           "p99", "max", "compare", "of", "release", "insert", "max", "evict", "max", "index");
    for (size_t i = 0; i < o->size_count; i++) print_row(&stages[i], o);
    printf("%8s  %6s %6s %13s  %7s %6s  %7s  %6s %7s  %6s\n", "slope",
           report_number(n[0], slope.match), report_number(n[1], slope.best), "",
           report_number(n[2], slope.compare), "", report_number(n[3], slope.release),
           report_number(n[4], slope.insert), "", report_number(n[5], slope.evict));
    printf(
        "\nmatch, compare: medians of batches of %d prompts at random, each size in turn, after\n"
        "%d others, and the best; compare: the tokens alone, the place known. insert, evict: "
        "means\n"
        "from an empty tree to the full one and back, and the slowest batch: a table that "
        "doubles.\n"
        "slope: the most blocks over the fewest.\n",
        BATCH, WARMING);
}

static json_t *new_row(const stage *s, const options *o) {
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "blocks",
        (json_int_t)s->prompts * o->depth, "match_ns", report_json_number(s->match_ns.p50),
        "match_best_ns", report_json_number(s->match_ns.min), "match_p99_ns",
        report_json_number(s->match_ns.p99), "match_max_ns", report_json_number(s->match_ns.max),
        "compare_ns", report_json_number(s->compare_ns.p50), "match_to_compare",
        report_json_number(match_to_compare(s)), "release_ns",
        report_json_number(s->release_ns.p50), "insert_ns", report_json_number(s->insert_ns.mean),
        "insert_max_ns", report_json_number(s->insert_ns.max), "evict_ns",
        report_json_number(s->evict_ns.mean), "evict_max_ns", report_json_number(s->evict_ns.max),
        "index_bytes", report_json_number(s->index_bytes));
}

static json_t *new_object(const options *o, const machine *m, const stage *stages) {
    const slopes slope = slope_of(o, stages);
    json_t *list = json_array();
    for (size_t i = 0; i < o->size_count; i++)
        (void)json_array_append_new(list, new_row(&stages[i], o));
    return json_pack("{s:s, s:o, s:I, s:I, s:o, s:{s:o, s:o, s:o, s:o, s:o, s:o}}", "bench",
                     "prefix", "machine", machine_json(m), "positions", (json_int_t)o->positions,
                     "depth", (json_int_t)o->depth, "rows", list, "slope", "match",
                     report_json_number(slope.match), "match_best", report_json_number(slope.best),
                     "compare", report_json_number(slope.compare), "release",
                     report_json_number(slope.release), "insert", report_json_number(slope.insert),
                     "evict", report_json_number(slope.evict));
}

/* Blocks, nodes with their share of the table, and the floor's rows. */
static uint64_t bytes_of(const options *o) {
    uint64_t blocks = 0;
    for (size_t i = 0; i < o->size_count; i++) blocks += (uint64_t)o->blocks[i];
    return blocks * (128 + 12 * (uint64_t)o->positions + 128);
}

static int run(const options *o) {
    stage stages[MOST_SIZES] = {{0}};
    bench b = {.o = o, .random = 0x2545f4914f6cdd1du};
    machine m;
    machine_read(&m);
    if (!machine_has_room(&m, bytes_of(o), "a tree of each size", "--blocks or --positions"))
        return CLI_FAILED;
    for (size_t i = 0; i < o->size_count; i++) stages[i].prompts = o->blocks[i] / o->depth;
    b.batch.numbers = calloc(BATCH, sizeof *b.batch.numbers);
    b.batch.tokens = calloc((size_t)(BATCH * prompt_tokens(o)), sizeof *b.batch.tokens);
    b.batch.ids = calloc((size_t)(BATCH * o->depth), sizeof *b.batch.ids);
    int status = CLI_DONE;
    if (!b.batch.numbers || !b.batch.tokens || !b.batch.ids) status = cli_fail("no memory");
    else if (kvc_pool_new(&b.pool, kvc_device_cpu()) != KVC_OK) status = cli_fail_library("pool");
    if (status == CLI_DONE) status = measure(&b, stages);
    cli_progress_end();
    if (status == CLI_DONE && o->json) status = report_json(new_object(o, &m, stages));
    else if (status == CLI_DONE) print_table(o, &m, stages);
    for (size_t i = 0; i < o->size_count; i++) free_stage(&stages[i]);
    kvc_pool_free(b.pool);
    free(b.batch.numbers);
    free(b.batch.tokens);
    free(b.batch.ids);
    return status;
}

enum { OPTION_BLOCKS = CLI_FIRST, OPTION_POSITIONS, OPTION_DEPTH, OPTION_JSON };

static const struct option option_table[] = {
    {"blocks", required_argument, NULL, OPTION_BLOCKS},
    {"positions", required_argument, NULL, OPTION_POSITIONS},
    {"depth", required_argument, NULL, OPTION_DEPTH},
    {"json", no_argument, NULL, OPTION_JSON},
    CLI_OPTIONS_END,
};

static bool read_option(options *o, int option) {
    switch (option) {
    case OPTION_BLOCKS:
        return cli_list_int64("--blocks", optarg, MOST_DEPTH, (int64_t)1 << 28, o->blocks,
                              MOST_SIZES, &o->size_count);
    case OPTION_POSITIONS:
        return cli_int64("--positions", optarg, KVC_BLOCK_POSITIONS_MIN, KVC_BLOCK_POSITIONS_MAX,
                         &o->positions);
    case OPTION_DEPTH: return cli_int64("--depth", optarg, 1, MOST_DEPTH, &o->depth);
    case OPTION_JSON: return o->json = true;
    default: return false; /* cli_next has told */
    }
}

int kvc_tool_bench_prefix(int argc, char **argv) {
    options o = {.blocks = {1000, 10000, 100000, 1000000},
                 .size_count = 4,
                 .positions = KVC_BLOCK_POSITIONS_MIN,
                 .depth = 1};
    for (int option; (option = cli_next(argc, argv, option_table)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!read_option(&o, option)) return CLI_USAGE;
    }
    return cli_operands(argc, argv, NULL, 0, NULL) ? run(&o) : CLI_USAGE;
}
