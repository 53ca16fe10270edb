/* The fused path: one pass over keys and values for all rows of a kv head, a row being one query
 * position of one query head of the group. Work goes by blocks of positions that stay in the
 * caches while tiles of rows take them in (tile.h). */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include <kvcache/device.h>

#include "attention/kernel.h"
#include "attention/ops.h"
#include "attention/row.h"
#include "attention/schedule.h"

/* A part at work. Row r of its kv head is query r / group of head r % group, so that what a row
 * sees never shrinks from one to the next. Pointers are to scratch. */
typedef struct work {
    const kvc__job *job;
    const kvc__ops *ops;
    kvc__part part;
    int64_t key_width, value_width; /* dims rounded up to whole units, the rest zeros */
    bool direct;                    /* tiles read K and V where they lie; else a copy in f32 */
    float *scores;                  /* [KVC__SCORES] */
    float *q;                       /* [rows][key_width], scaled, in the loader's order */
    float *keys, *values;           /* [KVC__BLOCK][width], unless direct */
    float *sums;                    /* [rows][value_width], Σ p v, in the loader's order */
    float *max, *total;             /* [rows], largest score so far and Σ p */
} work;

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool is_direct(const kvc__ops *ops, kvc_dtype dtype, int64_t key_dim, int64_t value_dim) {
    return ops->score[KVC__OPS_SLOT(dtype)][0] && key_dim % ops->unit == 0 &&
           value_dim % ops->unit == 0;
}

/* Rounds to whole lines, so that threads share none. */
static size_t whole_lines(size_t floats) {
    const size_t line = KVC_ALIGNMENT_BYTES / sizeof(float);
    return (floats + line - 1) / line * line;
}

kvc_status kvc__schedule_init(kvc__schedule *out, const kvc_executor *executor, kvc_dtype dtype,
                              int64_t batch, int64_t rows, int64_t key_dim, int64_t value_dim) {
    const kvc__ops *ops = kvc__ops_best();
    const int64_t most = smaller(rows, KVC__ROWS);
    const int64_t keys = round_up(key_dim, ops->unit), values = round_up(value_dim, ops->unit);
    const int64_t copies =
        is_direct(ops, dtype, key_dim, value_dim) ? 0 : KVC__BLOCK * (keys + values);
    *out = (kvc__schedule){.ops = ops, .executor = {.threads = 1}, .batch = batch};
    if (executor) out->executor = *executor;
    out->slot_floats = whole_lines((size_t)(most * (values + 2)));
    out->worker_floats =
        whole_lines((size_t)(KVC__SCORES + most * keys + copies)) + out->slot_floats;
    return kvc__schedule_size(out);
}

/* One run, as its parts see it. */
typedef struct run {
    const kvc__schedule *schedule;
    kvc__division division;
} run;

static void lay_out_sums(work *w, float *at) {
    const int64_t most = smaller(w->job->group * w->job->queries, KVC__ROWS);
    w->sums = at;
    w->max = w->sums + most * w->value_width;
    w->total = w->max + most;
}

/* A part that is one of several leaves its sums in its slot. */
static work begin_part(const run *call, int64_t index, int thread) {
    const kvc__division *d = &call->division;
    const kvc__schedule *s = call->schedule;
    const kvc__job *job = d->job;
    const int64_t most = smaller(job->group * job->queries, KVC__ROWS);
    work w = {.job = job, .ops = s->ops, .part = kvc__division_part(d, index)};
    w.key_width = round_up(job->key_dim, w.ops->unit);
    w.value_width = round_up(job->value_dim, w.ops->unit);
    w.direct = is_direct(w.ops, job->k.dtype, job->key_dim, job->value_dim);
    w.scores = d->workers + (size_t)thread * s->worker_floats;
    w.q = w.scores + KVC__SCORES;
    if (!w.direct) {
        w.keys = w.q + most * w.key_width;
        w.values = w.keys + KVC__BLOCK * w.key_width;
    }
    lay_out_sums(&w, w.part.splits > 1 ? d->slots + (size_t)w.part.slot * s->slot_floats
                                       : w.scores + s->worker_floats - s->slot_floats);
    return w;
}

/* What tiles see of K and V, and where they want element i of a unit. */
static int dtype_slot(const work *w) {
    return KVC__OPS_SLOT(w->direct ? w->job->k.dtype : KVC_F32);
}

static const uint8_t *places(const work *w) {
    return w->ops->place[dtype_slot(w)];
}

static void begin_rows(const work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = w->part.kv_head * job->group + (w->part.row + r) % job->group;
        const int64_t i = (w->part.row + r) / job->group;
        float *q = w->q + r * w->key_width;
        const char *from = kvc__at(&job->q, w->part.sequence, head, i, 0);
        memset(q, 0, (size_t)w->key_width * sizeof *q);
        for (int64_t d = 0; d < job->key_dim; d++) {
            float x;
            kvc__row_load(&x, from, job->q.dtype, d, 1);
            q[d / unit * unit + places(w)[d % unit]] = x * job->scale;
        }
        w->max[r] = -INFINITY;
        w->total[r] = 0;
    }
    memset(w->sums, 0, (size_t)(w->part.rows * w->value_width) * sizeof *w->sums);
}

static void end_rows(const work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = w->part.kv_head * job->group + (w->part.row + r) % job->group;
        const int64_t i = (w->part.row + r) / job->group;
        const float *sums = w->sums + r * w->value_width;
        char *out = kvc__at(&job->out, w->part.sequence, head, i, 0);
        /* A total of 0 is that of a row that sees nothing, or scores of -inf alone: zeros, whatever
         * its sums are (0 · inf is NaN). */
        const bool blind = w->total[r] == 0;
        const float scale = 1 / w->total[r];
        for (int64_t d = 0; d < job->value_dim; d++) {
            const float sum = sums[d / unit * unit + places(w)[d % unit]];
            kvc__row_store(out, job->out.dtype, d, blind ? 0 : sum * scale);
        }
        kvc__store_lse(job, w->part.sequence, head, i, (double)w->max[r], (double)w->total[r]);
    }
}

/* Positions of K or V as tiles read them: where they lie, or copied. */
static kvc__block block_of(const work *w, const kvc__rows *rows, int64_t dim, int64_t width,
                           float *copy, int64_t start, int64_t count) {
    const char *from = kvc__at(rows, w->part.sequence, w->part.kv_head, start, 0);
    const int64_t step = rows->position_stride * (int64_t)kvc_dtype_size_bytes(rows->dtype);
    if (w->direct) return (kvc__block){from, step, count};
    for (int64_t j = 0; j < count; j++) {
        kvc__row_load(copy + j * width, from + j * step, rows->dtype, 0, dim);
        memset(copy + j * width + dim, 0, (size_t)(width - dim) * sizeof *copy);
    }
    return (kvc__block){(const char *)copy, width * (int64_t)sizeof *copy, count};
}

/* What rows of a tile see of a block; tells whether it is anything. */
static bool see_block(const work *w, kvc__range seen[4], int64_t first, int64_t rows, int64_t start,
                      int64_t count) {
    bool any = false;
    for (int64_t r = 0; r < rows; r++) {
        const kvc__range all =
            kvc__seen(w->job, w->part.sequence, (w->part.row + first + r) / w->job->group);
        const int64_t end = smaller(larger(all.end - start, 0), count);
        seen[r] = (kvc__range){smaller(larger(all.begin - start, 0), end), end};
        any = any || seen[r].begin < end;
    }
    return any;
}

static void attend_block(const work *w, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    const kvc__block k = block_of(w, &job->k, job->key_dim, w->key_width, w->keys, start, count);
    const kvc__block v =
        block_of(w, &job->v, job->value_dim, w->value_width, w->values, start, count);
    const int slot = dtype_slot(w);
    int64_t rows;
    for (int64_t r = 0; r < w->part.rows; r += rows) {
        const int64_t left = w->part.rows - r;
        const int size = left >= 4 ? 2 : left >= 2 ? 1 : 0; /* log2 of its rows */
        kvc__range seen[4];
        float factor[4];
        rows = (int64_t)1 << size;
        if (!see_block(w, seen, r, rows, start, count)) continue;
        kvc__tile tile = {w->q + r * w->key_width,
                          w->sums + r * w->value_width,
                          w->max + r,
                          w->total + r,
                          w->key_width,
                          w->value_width};
        w->ops->score[slot][size](&tile, &k, w->scores);
        w->ops->soften[size](&tile, seen, count, w->scores, factor);
        w->ops->weigh[slot][size](&tile, &v, seen, w->scores, factor);
    }
}

/* Adds what another range of positions gave. A range that a row does not see has a total of 0. */
static void merge(const work *w, const work *other) {
    for (int64_t r = 0; r < w->part.rows; r++) {
        float *sums = w->sums + r * w->value_width;
        const float *more = other->sums + r * w->value_width;
        if (other->total[r] == 0) continue;
        const bool blind = w->total[r] == 0;
        const float max = blind || other->max[r] > w->max[r] ? other->max[r] : w->max[r];
        const float mine = blind ? 0 : kvc__exp_f32(w->max[r] - max);
        const float theirs = kvc__exp_f32(other->max[r] - max);
        for (int64_t d = 0; d < w->value_width; d++)
            sums[d] = (blind ? 0 : sums[d] * mine) + more[d] * theirs;
        w->total[r] = w->total[r] * mine + other->total[r] * theirs;
        w->max[r] = max;
    }
}

/* Merges all ranges of a part's rows, in the order of positions: who is last to end does not
 * matter. */
static void merge_ranges(work *w, const run *call) {
    const kvc__part *part = &w->part;
    float *first = call->division.slots + (size_t)part->first_slot * call->schedule->slot_floats;
    const size_t step = (size_t)part->step * call->schedule->slot_floats;
    work other = *w;
    lay_out_sums(w, first);
    for (int64_t split = 1; split < part->splits; split++) {
        lay_out_sums(&other, first + (size_t)split * step);
        merge(w, &other);
    }
}

static void attend_part(void *argument, int64_t index, int thread) {
    const run *call = argument;
    work w = begin_part(call, index, thread);
    begin_rows(&w);
    for (int64_t start = w.part.begin; start < w.part.end; start += KVC__BLOCK)
        attend_block(&w, start, smaller(KVC__BLOCK, w.part.end - start));
    if (w.part.splits > 1) {
        /* Gives what is in the slot to whoever is last, and takes what the others gave. */
        _Atomic int *left = &call->division.left[w.part.first_slot];
        if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) > 1) return;
        merge_ranges(&w, call);
    }
    end_rows(&w);
}

void kvc__attend_fused(const kvc__job *job, const kvc__schedule *schedule, void *scratch) {
    const kvc_executor *executor = &schedule->executor;
    run call = {.schedule = schedule, .division = kvc__divide(job, schedule, scratch)};
    const int64_t parts = call.division.parts;
    if (executor->parallel_for)
        executor->parallel_for(executor->context, parts, attend_part, &call);
    else
        for (int64_t i = 0; i < parts; i++) attend_part(&call, i, 0);
}
