/* The fused path: one pass over keys and values for all rows of a kv head, a row being one query
 * position of one query head of the group. Work goes by blocks of positions that stay in the
 * caches while tiles of rows take them in (tile.h). */
#include <math.h>
#include <string.h>

#include <kvcache/device.h>

#include "attention/kernel.h"
#include "attention/ops.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"

enum { ROWS = 64 }; /* rows worked on together: a block of K and V serves them all */

/* Rows first, first + 1, … of one kv head. Row r is query r / group of head r % group, so that what
 * a row sees never shrinks from one to the next. Pointers are to scratch. */
typedef struct work {
    const kvc__job *job;
    const kvc__ops *ops;
    int64_t batch, kv_head, first, rows;
    int64_t key_width, value_width; /* dims rounded up to whole units, the rest zeros */
    bool direct;                    /* tiles read K and V where they lie; else a copy in f32 */
    float *scores;                  /* [KVC__SCORES] */
    float *q;                       /* [ROWS][key_width], scaled, in the loader's order */
    float *keys, *values;           /* [KVC__BLOCK][width], unless direct */
    float *sums;                    /* [ROWS][value_width], Σ p v, in the loader's order */
    float *max, *total;             /* [ROWS], largest score so far and Σ p */
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

/* Parts of a head's positions: four parts a thread even out what threads do not share equally. */
static int64_t choose_splits(int threads, int64_t heads, int64_t rows) {
    const int64_t wanted = 4 * (int64_t)threads;
    if (threads == 1 || heads >= wanted || rows > ROWS) return 1;
    return smaller((wanted + heads - 1) / heads, 64);
}

kvc_status kvc__schedule_init(kvc__schedule *out, const kvc_executor *executor, kvc_dtype dtype,
                              int64_t heads, int64_t rows, int64_t key_dim, int64_t value_dim) {
    const kvc__ops *ops = kvc__ops_best();
    const int64_t most = smaller(rows, ROWS);
    const int64_t keys = round_up(key_dim, ops->unit), values = round_up(value_dim, ops->unit);
    const int64_t copies =
        is_direct(ops, dtype, key_dim, value_dim) ? 0 : KVC__BLOCK * (keys + values);
    *out = (kvc__schedule){.ops = ops, .executor = {.threads = 1}};
    if (executor) out->executor = *executor;
    out->splits = choose_splits(out->executor.threads, heads, rows);
    out->worker_floats = whole_lines((size_t)(KVC__SCORES + most * (keys + values + 2) + copies));
    if (out->splits > 1) out->partial_floats = whole_lines((size_t)(most * (values + 2)));
    size_t workers, partials, parts;
    if (kvc__mul(&workers, out->worker_floats, (size_t)out->executor.threads) &&
        kvc__mul(&parts, (size_t)heads, (size_t)out->splits) &&
        kvc__mul(&partials, parts, out->partial_floats) &&
        kvc__add(&out->floats, workers, partials))
        return KVC_OK;
    return kvc__fail(KVC_E_RANGE, "desc: scratch for %lld heads on %d threads overflows",
                     (long long)heads, out->executor.threads);
}

/* partial: where sums, max and total go; NULL for the worker's own scratch. */
static void lay_out(work *w, const kvc__job *job, const kvc__ops *ops, float *scratch,
                    float *partial) {
    const int64_t most = smaller(job->group * job->queries, ROWS);
    w->job = job;
    w->ops = ops;
    w->key_width = round_up(job->key_dim, ops->unit);
    w->value_width = round_up(job->value_dim, ops->unit);
    w->direct = is_direct(ops, job->k.dtype, job->key_dim, job->value_dim);
    w->scores = scratch;
    w->q = w->scores + KVC__SCORES;
    w->keys = w->q + most * w->key_width;
    w->values = w->direct ? w->keys : w->keys + KVC__BLOCK * w->key_width;
    float *end = w->direct ? w->keys : w->values + KVC__BLOCK * w->value_width;
    w->sums = partial ? partial : end;
    w->max = w->sums + most * w->value_width;
    w->total = w->max + most;
}

/* dst[0..n) = src[0..n) in f32 */
static void load_row(float *restrict dst, const void *restrict src, kvc_dtype dtype, int64_t n) {
    const uint16_t *restrict words = src;
    if (dtype == KVC_F32) memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (dtype == KVC_F16)
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_f16(words[d]);
    else
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_bf16(words[d]);
}

static void store_element(void *row, kvc_dtype dtype, int64_t d, float x) {
    if (dtype == KVC_F32) ((float *)row)[d] = x;
    else ((uint16_t *)row)[d] = dtype == KVC_F16 ? kvc__f16_of_f32(x) : kvc__bf16_of_f32(x);
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
    const kvc__prepare_fn prepare = w->ops->prepare[dtype_slot(w)];
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t head = w->kv_head * job->group + (w->first + r) % job->group;
        const int64_t i = (w->first + r) / job->group;
        float *q = w->q + r * w->key_width;
        const char *from = kvc__at(&job->q, w->batch, head, i, 0);
        memset(q, 0, (size_t)w->key_width * sizeof *q);
        for (int64_t d = 0; d < job->key_dim; d++) {
            float x;
            load_row(&x, from + d * (int64_t)kvc_dtype_size_bytes(job->q.dtype), job->q.dtype, 1);
            q[d / unit * unit + places(w)[d % unit]] = x * job->scale;
        }
        if (prepare) prepare(q, w->key_width);
        w->max[r] = -INFINITY;
        w->total[r] = 0;
    }
    memset(w->sums, 0, (size_t)(w->rows * w->value_width) * sizeof *w->sums);
}

static void end_rows(const work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t head = w->kv_head * job->group + (w->first + r) % job->group;
        const int64_t i = (w->first + r) / job->group;
        const float *sums = w->sums + r * w->value_width;
        char *out = kvc__at(&job->out, w->batch, head, i, 0);
        /* A total of 0 is that of a row that sees nothing, or scores of -inf alone: zeros, whatever
         * its sums are (0 · inf is NaN). */
        const bool blind = w->total[r] == 0;
        const float scale = 1 / w->total[r];
        for (int64_t d = 0; d < job->value_dim; d++) {
            const float sum = sums[d / unit * unit + places(w)[d % unit]];
            store_element(out, job->out.dtype, d, blind ? 0 : sum * scale);
        }
        kvc__store_lse(job, w->batch, head, i, (double)w->max[r], (double)w->total[r]);
    }
}

/* Positions of K or V as tiles read them: where they lie, or copied. */
static kvc__block block_of(const work *w, const kvc__rows *rows, int64_t dim, int64_t width,
                           float *copy, int64_t start, int64_t count) {
    const char *from = kvc__at(rows, w->batch, w->kv_head, start, 0);
    const int64_t step = rows->position_stride * (int64_t)kvc_dtype_size_bytes(rows->dtype);
    if (w->direct) return (kvc__block){from, step, count};
    for (int64_t j = 0; j < count; j++) {
        load_row(copy + j * width, from + j * step, rows->dtype, dim);
        memset(copy + j * width + dim, 0, (size_t)(width - dim) * sizeof *copy);
    }
    return (kvc__block){(const char *)copy, width * (int64_t)sizeof *copy, count};
}

/* What rows of a tile see of a block; tells whether it is anything. */
static bool see_block(const work *w, kvc__range seen[4], int64_t first, int64_t rows, int64_t start,
                      int64_t count) {
    bool any = false;
    for (int64_t r = 0; r < rows; r++) {
        const kvc__range all = kvc__seen(w->job, (w->first + first + r) / w->job->group);
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
    for (int64_t r = 0; r < w->rows; r += rows) {
        const int size = w->rows - r >= 4 ? 2 : w->rows - r >= 2 ? 1 : 0; /* log2 of its rows */
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
        if (job->softcap > 0) w->ops->cap(w->scores, count * rows, job->softcap);
        w->ops->soften[size](&tile, seen, count, w->scores, factor);
        w->ops->weigh[slot][size](&tile, &v, seen, w->scores, factor);
    }
}

/* One run, as its parts see it. */
typedef struct run {
    const kvc__job *job;
    const kvc__schedule *schedule;
    float *workers, *partials;
    int64_t row_blocks;
} run;

/* Finds the rows of a part; returns which range of positions it takes. */
static int64_t find_part(work *w, const run *call, int64_t index) {
    const int64_t rows = call->job->group * call->job->queries;
    const int64_t split = index % call->schedule->splits;
    index /= call->schedule->splits;
    w->first = index % call->row_blocks * ROWS;
    w->rows = smaller(ROWS, rows - w->first);
    index /= call->row_blocks;
    w->kv_head = index % call->job->kv_heads;
    w->batch = index / call->job->kv_heads;
    return split;
}

static float *partial_of(const run *call, int64_t index) {
    return call->schedule->splits == 1
               ? NULL
               : call->partials + (size_t)index * call->schedule->partial_floats;
}

static void attend_part(void *argument, int64_t index, int thread) {
    const run *call = argument;
    const kvc__schedule *schedule = call->schedule;
    work w;
    lay_out(&w, call->job, schedule->ops, call->workers + (size_t)thread * schedule->worker_floats,
            partial_of(call, index));
    const int64_t split = find_part(&w, call, index);
    /* What any row sees: no row begins before the first, or ends behind the last. */
    const int64_t begin = kvc__seen(call->job, w.first / call->job->group).begin;
    const int64_t end = kvc__seen(call->job, (w.first + w.rows - 1) / call->job->group).end;
    const int64_t range =
        round_up((end - begin + schedule->splits - 1) / schedule->splits, KVC__BLOCK);
    const int64_t own_end = smaller(end, begin + (split + 1) * range);
    begin_rows(&w);
    for (int64_t start = begin + split * range; start < own_end; start += KVC__BLOCK)
        attend_block(&w, start, smaller(KVC__BLOCK, own_end - start));
    if (schedule->splits == 1) end_rows(&w);
}

/* Adds what another range of positions gave. A range that a row does not see has a total of 0. */
static void merge(const work *w, const work *other) {
    for (int64_t r = 0; r < w->rows; r++) {
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

static void merge_parts(const run *call, int64_t heads) {
    const kvc__schedule *schedule = call->schedule;
    for (int64_t head = 0; head < heads; head++) {
        const int64_t first = head * schedule->splits;
        work w, other;
        lay_out(&w, call->job, schedule->ops, call->workers, partial_of(call, first));
        (void)find_part(&w, call, first);
        for (int64_t split = 1; split < schedule->splits; split++) {
            lay_out(&other, call->job, schedule->ops, call->workers,
                    partial_of(call, first + split));
            merge(&w, &other);
        }
        end_rows(&w);
    }
}

void kvc__attend_fused(const kvc__job *job, const kvc__schedule *schedule, float *scratch) {
    const kvc_executor *executor = &schedule->executor;
    const int64_t heads = job->batch * job->kv_heads;
    run call = {.job = job,
                .schedule = schedule,
                .row_blocks = (job->group * job->queries + ROWS - 1) / ROWS};
    call.workers = scratch;
    call.partials = scratch + schedule->worker_floats * (size_t)executor->threads;
    const int64_t parts = heads * call.row_blocks * schedule->splits;
    if (executor->parallel_for)
        executor->parallel_for(executor->context, parts, attend_part, &call);
    else
        for (int64_t i = 0; i < parts; i++) attend_part(&call, i, 0);
    if (schedule->splits > 1) merge_parts(&call, heads);
}
