#include "attend_measure.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <kvcache/cache.h>
#include <kvcache/device.h>
#include <kvcache/executor.h>
#include <kvcache/pool.h>

#include "cli.h"
#include "machine.h"
#include "roofline.h"
#include "trace.h"

enum {
    FILL_POSITIONS = 256,
    READ_ROUNDS = 4,
    LEAST_TURNS = 4,
    LEAST_RUNS = 40,
    MOST_RUNS = 10000,
    MULTIPLY_ROUNDS = 25000, /* of a part: some 50 us */
    MULTIPLY_PARTS = 8,      /* a thread */
    MULTIPLY_SAMPLES = 8     /* a turn */
};

/* Runs of a turn end after the slice. With runs enough no turn begins after the budget, and none
 * at all after its most. */
#define SLICE_NS       ((uint64_t)300000000)
#define BUDGET_NS      ((uint64_t)1500000000)
#define MOST_BUDGET_NS ((uint64_t)6000000000)

/* One row at work. */
typedef struct subject {
    const attend_shape *shape;
    attend_row *row;
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_attention *plan;
    kvc_threads *threads;
    kvc_array q, out; /* [batch][q_heads][q_len][dim] f32 */
    int64_t *lengths; /* [batch] */
    int read;         /* the fastest variant of reading */
    int64_t layer;    /* the next to attend over or to read */
    stats_samples run_us, floor_us;
} subject;

/* What a run is. */

static uint64_t saturated(double count) {
    return count < 0x1p58 ? (uint64_t)count : (uint64_t)1 << 58;
}

/* The length of the rank-th shortest sequence. */
static int64_t length_of(const attend_shape *s, int64_t context, int64_t rank) {
    if (s->shortest == 0 || s->batch == 1) return context;
    return s->shortest + (context - s->shortest) * rank / (s->batch - 1);
}

/* The keys of a sequence that any query sees: the last ones. */
static int64_t seen_of(const attend_shape *s, int64_t length) {
    const int64_t most = s->window + s->q_len - 1;
    return s->window && most < length ? most : length;
}

/* The pairs of a query and a key that it sees. The first query of n sees length - n + 1 keys, each
 * other one more, up to the window. */
static double pairs_of(const attend_shape *s, int64_t length) {
    const double n = (double)s->q_len, first = (double)length - n + 1;
    const double most = s->window && s->window < length ? (double)s->window : (double)length;
    const double growing = first < most ? most - first : 0; /* queries that see less than most */
    return growing * (first + most - 1) / 2 + (n - growing) * most;
}

void attend_row_init(attend_row *row, const attend_shape *s, int64_t context) {
    const double element = (double)kvc_dtype_size_bytes(s->dtype);
    double seen = 0, pairs = 0;
    for (int64_t rank = 0; rank < s->batch; rank++) {
        const int64_t length = length_of(s, context, rank);
        seen += (double)seen_of(s, length);
        pairs += pairs_of(s, length);
    }
    row->context = context;
    row->bytes = saturated(2 * seen * (double)s->kv_heads * (double)s->dim * element);
    row->flops = 4 * pairs * (double)s->q_heads * (double)s->dim;
    const uint64_t layers = (s->rotate_bytes + row->bytes - 1) / row->bytes;
    row->layers = layers < 2                    ? 2
                  : layers > ATTEND_LAYERS_MOST ? ATTEND_LAYERS_MOST
                                                : (int64_t)layers;
}

uint64_t attend_need_bytes(const attend_row *row, const attend_shape *s) {
    const double element = (double)kvc_dtype_size_bytes(s->dtype);
    const double queries = (double)s->batch * (double)s->q_heads * (double)s->q_len;
    const double positions = (double)s->batch * (double)row->context * (double)row->layers;
    /* Pages are committed a little ahead of the length. */
    return saturated(17.0 / 16 * 2 * positions * (double)s->kv_heads * (double)s->dim * element +
                     2 * queries * (double)s->dim * sizeof(float));
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

/* Appends the context to every layer, some positions at a time, alike for all sequences. */
static int fill_cache(subject *s, float *rows) {
    const attend_shape *shape = s->shape;
    const int64_t head = FILL_POSITIONS * shape->dim;
    const int64_t strides[] = {0, head, shape->dim, 1};
    for (int64_t at = 0; at < s->row->context; at += FILL_POSITIONS) {
        const int64_t left = s->row->context - at;
        const int64_t n = left < FILL_POSITIONS ? left : FILL_POSITIONS;
        const int64_t extents[] = {shape->batch, shape->kv_heads, n, shape->dim};
        kvc_array kv;
        if (kvc_array_borrow(&kv, KVC_F32, 4, extents, strides, rows) != KVC_OK)
            return cli_fail_library("positions");
        for (int64_t layer = 0; layer < s->row->layers; layer++)
            if (kvc_cache_append(s->cache, layer, &kv, &kv) != KVC_OK)
                return cli_fail_library("cache");
    }
    return CLI_DONE;
}

static int make_cache(subject *s) {
    const attend_shape *shape = s->shape;
    const kvc_layer_spec spec = {
        .kv_heads = shape->kv_heads, .key_dim = shape->dim, .dtype = shape->dtype};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = shape->batch,
                                 .layers = s->row->layers,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = shape->growth,
                                 .chunk = s->row->context, /* at once, where not reserved */
                                 .max_positions = s->row->context};
    if (kvc_pool_new(&s->pool, kvc_device_cpu()) != KVC_OK ||
        kvc_cache_new(&s->cache, s->pool, &desc) != KVC_OK)
        return cli_fail_library("cache");
    const size_t count = (size_t)(shape->kv_heads * FILL_POSITIONS * shape->dim);
    float *rows = malloc(count * sizeof *rows);
    if (!rows) return cli_fail("no memory for %d positions", FILL_POSITIONS);
    fill_random(rows, count);
    const uint64_t before = machine_huge_bytes();
    int status = fill_cache(s, rows);
    const uint64_t huge_bytes = machine_huge_bytes() - before;
    free(rows);
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    if (status == CLI_DONE && kvc_cache_nbytes_get(s->cache, &nbytes) != KVC_OK)
        status = cli_fail_library("cache");
    s->row->huge_share = (double)huge_bytes / (double)nbytes.resident;
    return status;
}

static int make_query(subject *s) {
    const attend_shape *shape = s->shape;
    const int64_t extents[] = {shape->batch, shape->q_heads, shape->q_len, shape->dim};
    if (kvc_array_empty(&s->q, s->pool, KVC_F32, 4, extents) != KVC_OK ||
        kvc_array_empty(&s->out, s->pool, KVC_F32, 4, extents) != KVC_OK)
        return cli_fail_library("query");
    fill_random(s->q.data, (size_t)kvc_array_size(&s->q));
    return CLI_DONE;
}

/* Long and short sequences in no order, the same on every machine. */
static int make_lengths(subject *s) {
    const int64_t batch = s->shape->batch;
    uint32_t state = 1;
    s->lengths = malloc((size_t)batch * sizeof *s->lengths);
    if (!s->lengths) return cli_fail("no memory for the lengths of %" PRId64 " sequences", batch);
    for (int64_t i = 0; i < batch; i++) s->lengths[i] = length_of(s->shape, s->row->context, i);
    for (int64_t i = batch - 1; i > 0; i--) {
        state = state * 1664525u + 1013904223u;
        const int64_t j = (int64_t)(state >> 8) % (i + 1), length = s->lengths[i];
        s->lengths[i] = s->lengths[j];
        s->lengths[j] = length;
    }
    return CLI_DONE;
}

static int make_plan(subject *s) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_explanation explanation = {.struct_size = sizeof explanation};
    if (kvc_attention_desc_for(&desc, s->cache, 0) != KVC_OK) return cli_fail_library("plan");
    if (kvc_threads_new(&s->threads, (int)s->shape->threads) != KVC_OK)
        return cli_fail_library("--threads");
    const kvc_executor executor = kvc_threads_executor(s->threads);
    desc.q_heads = s->shape->q_heads;
    desc.max_q_len = s->shape->q_len;
    desc.window = s->shape->window;
    desc.executor = s->shape->threads > 1 ? &executor : NULL;
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
    free(s->lengths);
    stats_free(&s->run_us);
    stats_free(&s->floor_us);
}

/* Runs parts on the threads of the plan. */
static void share(const subject *s, int64_t parts, kvc_task_fn task, void *argument) {
    const kvc_executor executor = kvc_threads_executor(s->threads);
    if (s->shape->threads > 1) executor.parallel_for(executor.context, parts, task, argument);
    else
        for (int64_t i = 0; i < parts; i++) task(argument, i, 0);
}

/* Measuring. */

static int keep_sample(stats_samples *samples, double value) {
    return stats_add(samples, value) ? CLI_DONE : cli_fail("no memory for the samples");
}

static int attend(subject *s, int64_t layer) {
    const kvc_attention_extras extras = {.struct_size = sizeof extras, .lengths = s->lengths};
    return kvc_attention_run(s->plan, s->cache, layer, &s->q, &s->out,
                             s->shape->shortest ? &extras : NULL) == KVC_OK
               ? CLI_DONE
               : cli_fail_library("attention");
}

/* The floor: what one run reads, the heads of all keys and then those of all values. */
typedef struct reading {
    const subject *subject;
    kvc_array k, v;
    int64_t pieces; /* of a head */
    uint64_t (*read)(const void *memory, size_t bytes);
    _Atomic(uint64_t) sum; /* or nobody would have to read */
} reading;

static void read_piece(void *argument, int64_t index, int thread) {
    reading *r = argument;
    const int64_t piece = index % r->pieces, head = index / r->pieces;
    const int64_t heads = r->k.shape[0] * r->k.shape[1];
    const kvc_array *kv = head < heads ? &r->k : &r->v;
    const int64_t kv_head = head % heads % kv->shape[1], sequence = head % heads / kv->shape[1];
    const size_t element = kvc_dtype_size_bytes(kv->dtype);
    const int64_t length = r->subject->lengths[sequence];
    const int64_t seen = seen_of(r->subject->shape, length);
    const int64_t begin = length - seen + seen * piece / r->pieces;
    const int64_t end = length - seen + seen * (piece + 1) / r->pieces;
    const int64_t first =
        sequence * kv->strides[0] + kv_head * kv->strides[1] + begin * kv->strides[2];
    (void)thread;
    r->sum += r->read((const char *)kv->data + (size_t)first * element,
                      (size_t)((end - begin) * kv->shape[3]) * element);
}

/* Reads what a run of the next layer reads; as attention does, cuts heads where they are few. */
static int read_layer(subject *s, int variant, double *us) {
    static volatile uint64_t sink;
    const attend_shape *shape = s->shape;
    const int64_t heads = 2 * shape->batch * shape->kv_heads, wanted = 4 * shape->threads;
    reading r = {.subject = s,
                 .read = roofline_best()->read[variant],
                 .pieces = shape->threads > 1 && heads < wanted ? (wanted + heads - 1) / heads : 1};
    if (kvc_cache_view(s->cache, s->layer, &r.k, &r.v) != KVC_OK) return cli_fail_library("cache");
    const uint64_t start_ns = stats_now_ns();
    share(s, heads * r.pieces, read_piece, &r);
    *us = 1e-3 * (double)(stats_now_ns() - start_ns);
    sink = sink + r.sum;
    kvc_array_release(&r.k);
    kvc_array_release(&r.v);
    s->layer = (s->layer + 1) % s->row->layers;
    return CLI_DONE;
}

/* Which way of reading is fastest here, by its median: the floor is the best of them. */
static int choose_read(subject *s) {
    stats_samples samples[ROOFLINE_READS] = {{0}};
    double best_us = INFINITY;
    int status = CLI_DONE;
    for (int round = 0; round < READ_ROUNDS; round++)
        for (int variant = 0; variant < ROOFLINE_READS; variant++)
            for (int64_t i = 0; i < s->row->layers && status == CLI_DONE; i++) {
                double us = NAN;
                status = read_layer(s, variant, &us);
                if (status == CLI_DONE) status = keep_sample(&samples[variant], us);
            }
    for (int variant = 0; variant < ROOFLINE_READS; variant++) {
        const double us = stats_median(&samples[variant]);
        if (us < best_us) {
            best_us = us;
            s->read = variant;
        }
        stats_free(&samples[variant]);
    }
    s->row->read_name = roofline_read_name(s->read);
    return status;
}

/* The ceiling. */
typedef struct multiplying {
    float (*loop)(int64_t rounds);
    _Atomic(uint64_t) sum; /* or nobody would have to multiply */
} multiplying;

static void multiply_part(void *argument, int64_t index, int thread) {
    multiplying *m = argument;
    (void)index;
    (void)thread;
    m->sum += (uint64_t)m->loop(MULTIPLY_ROUNDS);
}

/* The best rate seen: what disturbs a loop in registers only makes it slower, and a ceiling that is
 * too low would flatter the runs. */
static void multiply(subject *s, float (*loop)(int64_t), int64_t flops_a_round, double *gflops) {
    static volatile uint64_t sink;
    const int64_t parts = MULTIPLY_PARTS * s->shape->threads;
    for (int i = 0; loop && i < MULTIPLY_SAMPLES; i++) {
        multiplying m = {.loop = loop};
        const uint64_t start_ns = stats_now_ns();
        share(s, parts, multiply_part, &m);
        const double ns = (double)(stats_now_ns() - start_ns);
        const double rate = (double)(parts * MULTIPLY_ROUNDS * flops_a_round) / ns;
        if (!(rate <= *gflops)) *gflops = rate; /* from NAN too */
        sink = sink + m.sum;
    }
}

/* Attends over the next layers, all of them if that is soon done; reads as many; multiplies. */
static int take_turn(subject *s) {
    const roofline_ops *ops = roofline_best();
    const uint64_t begin_ns = stats_now_ns();
    int64_t count = 0;
    for (; count == 0 || (count < s->row->layers && stats_now_ns() - begin_ns < SLICE_NS);
         count++) {
        const uint64_t start_ns = stats_now_ns();
        if (attend(s, s->layer) != CLI_DONE) return CLI_FAILED;
        const uint64_t ns = stats_now_ns() - start_ns;
        if (keep_sample(&s->run_us, 1e-3 * (double)ns) != CLI_DONE) return CLI_FAILED;
        s->layer = (s->layer + 1) % s->row->layers;
    }
    for (; count > 0; count--) {
        double us = NAN;
        if (read_layer(s, s->read, &us) != CLI_DONE) return CLI_FAILED;
        if (keep_sample(&s->floor_us, us) != CLI_DONE) return CLI_FAILED;
    }
    multiply(s, ops->multiply_add, ops->flops_a_round, &s->row->ceiling_gflops);
    multiply(s, ops->dot_bf16, ops->dot_flops_a_round, &s->row->dot_gflops);
    return CLI_DONE;
}

static bool is_enough(const subject *s, size_t turns, uint64_t spent_ns) {
    if (turns < LEAST_TURNS) return false;
    if (s->run_us.count >= MOST_RUNS || spent_ns > MOST_BUDGET_NS) return true;
    return s->run_us.count >= LEAST_RUNS && spent_ns > BUDGET_NS;
}

static int take_turns(subject *s) {
    int status = choose_read(s);
    s->row->ceiling_gflops = s->row->dot_gflops = NAN;
    const uint64_t begin_ns = stats_now_ns();
    for (size_t turn = 0; status == CLI_DONE && !is_enough(s, turn, stats_now_ns() - begin_ns);
         turn++) {
        cli_progress("context %" PRId64 ": turn %zu", s->row->context, turn + 1);
        status = take_turn(s);
        if (turn == 0) /* which warms up */
            s->run_us.count = s->floor_us.count = 0;
    }
    s->row->run_us = stats_summarise(&s->run_us);
    s->row->floor_us = stats_summarise(&s->floor_us);
    s->row->isa = roofline_best()->isa;
    return status;
}

static int trace_layers(subject *s) {
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

int attend_measure(attend_row *row, const attend_shape *shape, bool trace) {
    subject s = {.shape = shape, .row = row};
    cli_progress("context %" PRId64 ": filling %" PRId64 " layers", row->context, row->layers);
    int status = make_cache(&s);
    if (status == CLI_DONE) status = make_query(&s);
    if (status == CLI_DONE) status = make_lengths(&s);
    if (status == CLI_DONE) status = make_plan(&s);
    if (status == CLI_DONE) status = take_turns(&s);
    if (status == CLI_DONE && trace) status = trace_layers(&s);
    drop(&s);
    return status;
}

static double multiply_us(const attend_row *row) {
    return 1e-3 * row->flops / row->ceiling_gflops;
}

bool attend_is_bound_by_fma(const attend_row *row) {
    return multiply_us(row) > row->floor_us.p50;
}

double attend_limit_us(const attend_row *row) {
    return attend_is_bound_by_fma(row) ? multiply_us(row) : row->floor_us.p50;
}
