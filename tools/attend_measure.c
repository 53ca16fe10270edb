#include "attend_measure.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "attend_subject.h"
#include "cli.h"
#include "roofline.h"
#include "trace.h"

enum {
    READ_ROUNDS = 4,
    LEAST_TURNS = 4,
    LEAST_RUNS = 40,
    MOST_RUNS = 10000,
    MULTIPLY_ROUNDS = 25000, /* of a part: some 50 us */
    MULTIPLY_PARTS = 8,      /* a thread */
    MULTIPLY_SAMPLES = 8     /* a turn */
};

/* Runs of a turn end after the slice. With runs enough no turn begins after the budget, and none
 * at all after its most. For each cache. */
#define SLICE_NS       ((uint64_t)300000000)
#define BUDGET_NS      ((uint64_t)1500000000)
#define MOST_BUDGET_NS ((uint64_t)6000000000)

/* The caches of a context. */
typedef struct contest {
    attend_scene scene;
    attend_subject subjects[ATTEND_CACHES_MOST];
    size_t count;
    double ceiling_gflops, dot_gflops;
} contest;

static int keep_sample(stats_samples *samples, double value) {
    return stats_add(samples, value) ? CLI_DONE : cli_fail("no memory for the samples");
}

static int attend(const attend_subject *s, int64_t layer) {
    kvc_array out = s->scene->out;
    return kvc_attention_run(s->plan, s->cache, layer, &s->scene->q, &out, NULL) == KVC_OK
               ? CLI_DONE
               : cli_fail_library("attention");
}

/* The floor. */

static void advance(attend_subject *s) {
    s->layer = (s->layer + 1) % s->row->layers;
}

/* Reads what a run of the next layer reads. Returns microseconds. */
static double read_layer(attend_subject *s, int variant) {
    static volatile uint64_t sink;
    const uint64_t start_ns = stats_now_ns();
    const uint64_t sum = attend_floor_read(&s->floors[s->layer], roofline_best()->read[variant],
                                           attend_executor(s->scene));
    const double us = 1e-3 * (double)(stats_now_ns() - start_ns);
    sink = sink + sum;
    advance(s);
    return us;
}

/* Which way of reading is fastest here, by its median: the floor is the best of them. */
static int choose_read(attend_subject *s) {
    stats_samples samples[ROOFLINE_READS] = {{0}};
    double best_us = INFINITY;
    int status = CLI_DONE;
    for (int round = 0; round < READ_ROUNDS; round++)
        for (int variant = 0; variant < ROOFLINE_READS; variant++)
            for (int64_t i = 0; i < s->row->layers && status == CLI_DONE; i++)
                status = keep_sample(&samples[variant], read_layer(s, variant));
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
static void multiply(const attend_scene *scene, float (*loop)(int64_t), int64_t flops_a_round,
                     double *gflops) {
    static volatile uint64_t sink;
    const kvc_executor *executor = attend_executor(scene);
    const int64_t parts = MULTIPLY_PARTS * scene->shape->threads;
    for (int i = 0; loop && i < MULTIPLY_SAMPLES; i++) {
        multiplying m = {.loop = loop};
        const uint64_t start_ns = stats_now_ns();
        if (executor) executor->parallel_for(executor->context, parts, multiply_part, &m);
        else
            for (int64_t part = 0; part < parts; part++) multiply_part(&m, part, 0);
        const double ns = (double)(stats_now_ns() - start_ns);
        const double rate = (double)(parts * MULTIPLY_ROUNDS * flops_a_round) / ns;
        if (!(rate <= *gflops)) *gflops = rate; /* from NAN too */
        sink = sink + m.sum;
    }
}

/* Turns. */

/* Attends over the next layers, all of them if that is soon done, and reads as many. */
static int take_slice(attend_subject *s) {
    const uint64_t begin_ns = stats_now_ns();
    int64_t count = 0;
    for (; count == 0 || (count < s->row->layers && stats_now_ns() - begin_ns < SLICE_NS);
         count++) {
        const uint64_t start_ns = stats_now_ns();
        if (attend(s, s->layer) != CLI_DONE) return CLI_FAILED;
        const uint64_t ns = stats_now_ns() - start_ns;
        if (keep_sample(&s->run_us, 1e-3 * (double)ns) != CLI_DONE) return CLI_FAILED;
        advance(s);
    }
    for (; count > 0; count--)
        if (keep_sample(&s->floor_us, read_layer(s, s->read)) != CLI_DONE) return CLI_FAILED;
    return CLI_DONE;
}

/* A slice of each cache, in an order that changes from turn to turn; then multiplies. */
static int take_turn(contest *c, size_t turn) {
    const roofline_ops *ops = roofline_best();
    for (size_t i = 0; i < c->count; i++)
        if (take_slice(&c->subjects[(i + turn) % c->count]) != CLI_DONE) return CLI_FAILED;
    multiply(&c->scene, ops->multiply_add, ops->flops_a_round, &c->ceiling_gflops);
    multiply(&c->scene, ops->dot_bf16, ops->dot_flops_a_round, &c->dot_gflops);
    return CLI_DONE;
}

static bool is_enough(const contest *c, size_t turns, uint64_t spent_ns) {
    size_t least = SIZE_MAX, most = 0;
    if (turns < LEAST_TURNS) return false;
    for (size_t i = 0; i < c->count; i++) {
        const size_t runs = c->subjects[i].run_us.count;
        least = runs < least ? runs : least;
        most = runs > most ? runs : most;
    }
    if (most >= MOST_RUNS || spent_ns > c->count * MOST_BUDGET_NS) return true;
    return least >= LEAST_RUNS && spent_ns > c->count * BUDGET_NS;
}

/* The first turn warms up, and is forgotten. */
static void forget(contest *c) {
    for (size_t i = 0; i < c->count; i++)
        c->subjects[i].run_us.count = c->subjects[i].floor_us.count = 0;
}

static int take_turns(contest *c) {
    int status = CLI_DONE;
    for (size_t i = 0; i < c->count && status == CLI_DONE; i++)
        status = choose_read(&c->subjects[i]);
    const uint64_t begin_ns = stats_now_ns();
    for (size_t turn = 0; status == CLI_DONE && !is_enough(c, turn, stats_now_ns() - begin_ns);
         turn++) {
        cli_progress("context %" PRId64 ": turn %zu", c->subjects[0].row->context, turn + 1);
        status = take_turn(c, turn);
        if (turn == 0) forget(c);
    }
    return status;
}

static void sum_up(contest *c) {
    for (size_t i = 0; i < c->count; i++) {
        attend_subject *s = &c->subjects[i];
        s->row->run_us = stats_summarise(&s->run_us);
        s->row->floor_us = stats_summarise(&s->floor_us);
        s->row->ceiling_gflops = c->ceiling_gflops;
        s->row->dot_gflops = c->dot_gflops;
        s->row->isa = roofline_best()->isa;
    }
}

static int trace_layers(const attend_subject *s) {
    char label[48 + CACHE_KIND_ROOM], cache[CACHE_KIND_ROOM];
    int status = CLI_DONE;
    (void)snprintf(label, sizeof label, "attend %" PRId64 "%s%s", s->row->context,
                   s->scene->shape->cache_count > 1 ? " " : "",
                   s->scene->shape->cache_count > 1 ? cache_kind_text(cache, s->row->cache) : "");
    trace_record(true);
    for (int64_t layer = 0; layer < s->row->layers && status == CLI_DONE; layer++) {
        trace_step_begin(label);
        status = attend(s, layer);
        trace_step_end();
    }
    trace_record(false);
    return status;
}

static int set_up(contest *c, attend_row *rows, const attend_shape *shape) {
    int status = attend_scene_init(&c->scene, shape, rows[0].context);
    for (; c->count < shape->cache_count && status == CLI_DONE; c->count++) {
        attend_row *row = &rows[c->count];
        cli_progress("context %" PRId64 ": filling %" PRId64 " layers", row->context, row->layers);
        status = attend_subject_init(&c->subjects[c->count], &c->scene, row);
    }
    return status;
}

int attend_measure(attend_row *rows, const attend_shape *shape, bool trace) {
    contest c = {.ceiling_gflops = NAN, .dot_gflops = NAN};
    int status = set_up(&c, rows, shape);
    if (status == CLI_DONE) status = take_turns(&c);
    if (status == CLI_DONE) sum_up(&c);
    for (size_t i = 0; trace && i < c.count && status == CLI_DONE; i++)
        status = trace_layers(&c.subjects[i]);
    for (size_t i = 0; i < c.count; i++) attend_subject_deinit(&c.subjects[i]);
    attend_scene_deinit(&c.scene);
    return status;
}
