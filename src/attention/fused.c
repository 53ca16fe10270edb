/* The fused path: one pass over keys and values for all rows of a kv head, a row being one query
 * position of one query head of the group. Work goes by blocks of positions that stay in the
 * caches while tiles of rows take them in (tile.h). */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include <kvcache/device.h>

#include "attention/adjust.h"
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
    kvc__range common;                   /* positions that every row sees, if any */
    const char *first_key, *first_value; /* of the sequence and head */
    int64_t key_step_bytes, value_step_bytes;
    int64_t key_width, value_width; /* dims rounded up to whole units, the rest zeros */
    bool adjusts;                   /* scores are not taken as they are */
    bool direct;                    /* tiles read K and V where they lie; else a copy in f32 */
    int64_t block;                  /* positions taken in together, KVC__BLOCK at most */
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
    const bool fits = key_dim % ops->unit == 0 && value_dim % ops->unit == 0;
    return ops->score[KVC__OPS_SLOT(dtype)][0] && (fits || ops->takes_any_dim);
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

/* Positions of a block. With few rows a page of keys: memory is read best where no stream rests for
 * long. With many, work on a block takes longer than to read it. */
static int64_t choose_block(int64_t rows, int64_t row_bytes) {
    const int64_t positions = 4096 / row_bytes / 8 * 8;
    return rows > 8 ? KVC__BLOCK : smaller(larger(positions, 8), KVC__BLOCK);
}

static int64_t head_of(const work *w, int64_t row) {
    return w->part.kv_head * w->job->group + (w->part.row + row) % w->job->group;
}

static int64_t query_of(const work *w, int64_t row) {
    return (w->part.row + row) / w->job->group;
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
    w.adjusts = job->softcap > 0 || kvc__adjusts(job);
    w.direct = is_direct(w.ops, job->k.dtype, job->key_dim, job->value_dim);
    w.block = choose_block(w.part.rows, job->key_dim * (int64_t)kvc_dtype_size_bytes(job->k.dtype));
    w.common = (kvc__range){kvc__seen(job, w.part.sequence, query_of(&w, w.part.rows - 1)).begin,
                            kvc__seen(job, w.part.sequence, query_of(&w, 0)).end};
    w.first_key = kvc__at(&job->k, w.part.sequence, w.part.kv_head, 0, 0);
    w.first_value = kvc__at(&job->v, w.part.sequence, w.part.kv_head, 0, 0);
    w.key_step_bytes = job->k.position_stride * (int64_t)kvc_dtype_size_bytes(job->k.dtype);
    w.value_step_bytes = job->v.position_stride * (int64_t)kvc_dtype_size_bytes(job->v.dtype);
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

/* The query head and the query of a row. */
static void begin_rows(const work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    const kvc__prepare_fn prepare = w->ops->prepare[dtype_slot(w)];
    const uint8_t *place = places(w);
    const float scale = w->ops->rounds[dtype_slot(w)] ? 1 : job->scale;
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = head_of(w, r), i = query_of(w, r);
        float *q = w->q + r * w->key_width;
        const char *from = kvc__at(&job->q, w->part.sequence, head, i, 0);
        memset(q, 0, (size_t)w->key_width * sizeof *q);
        for (int64_t d = 0; d < job->key_dim; d += unit) {
            const int64_t n = smaller(unit, job->key_dim - d);
            float x[KVC__UNIT_MOST];
            kvc__row_load(x, from, job->q.dtype, d, n);
            for (int64_t e = 0; e < n; e++) q[d + place[e]] = x[e] * scale;
        }
        if (prepare) prepare(q, w->key_width);
        /* A sink counts once, however many ranges merge. */
        w->max[r] = w->part.split == 0 ? kvc__sink(job, head) : -INFINITY;
        w->total[r] = w->max[r] == -INFINITY ? 0.0f : 1.0f;
    }
    memset(w->sums, 0, (size_t)(w->part.rows * w->value_width) * sizeof *w->sums);
}

static void end_rows(const work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    const uint8_t *place = places(w);
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = head_of(w, r), i = query_of(w, r);
        const float *sums = w->sums + r * w->value_width;
        char *out = kvc__at(&job->out, w->part.sequence, head, i, 0);
        /* A total of 0 is that of a row that sees nothing, or scores of -inf alone: zeros, whatever
         * its sums are (0 · inf is NaN). */
        const bool blind = w->total[r] == 0;
        const float scale = 1 / w->total[r];
        for (int64_t d = 0; d < job->value_dim; d += unit)
            for (int64_t e = 0; e < smaller(unit, job->value_dim - d); e++)
                kvc__row_store(out, job->out.dtype, d + e, blind ? 0 : sums[d + place[e]] * scale);
        kvc__store_lse(job, w->part.sequence, head, i, (double)w->max[r], (double)w->total[r]);
    }
}

/* Positions of K or V as tiles read them: where they lie, or copied. */
static kvc__block block_of(const work *w, const char *from, int64_t step_bytes, int64_t dim,
                           int64_t width, float *copy, int64_t count) {
    if (w->direct) return (kvc__block){from, step_bytes, count, dim, NULL};
    for (int64_t j = 0; j < count; j++) {
        kvc__row_load(copy + j * width, from + j * step_bytes, w->job->k.dtype, 0, dim);
        memset(copy + j * width + dim, 0, (size_t)(width - dim) * sizeof *copy);
    }
    return (kvc__block){(const char *)copy, width * (int64_t)sizeof *copy, count, width, NULL};
}

/* What rows of a tile see of a block; tells whether it is anything. */
static bool see_block(const work *w, kvc__range seen[4], int64_t first, int64_t rows, int64_t start,
                      int64_t count) {
    bool any = false;
    if (start >= w->common.begin && start + count <= w->common.end) {
        for (int64_t r = 0; r < rows; r++) seen[r] = (kvc__range){0, count};
        return true;
    }
    for (int64_t r = 0; r < rows; r++) {
        const kvc__range all = kvc__seen(w->job, w->part.sequence, query_of(w, first + r));
        const int64_t end = smaller(larger(all.end - start, 0), count);
        seen[r] = (kvc__range){smaller(larger(all.begin - start, 0), end), end};
        any = any || seen[r].begin < end;
    }
    return any;
}

/* Scores of a tile to what the job makes of them. */
static void adjust_tile(const work *w, int64_t first, int64_t rows, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    if (job->softcap > 0) w->ops->cap(w->scores, count * rows, job->softcap);
    if (!kvc__adjusts(job)) return;
    for (int64_t r = 0; r < rows; r++)
        kvc__adjust(job, w->part.sequence, head_of(w, first + r), query_of(w, first + r), start,
                    count, w->scores + r, rows);
}

static void take_in(const work *w, kvc__tile *tile, int64_t first, int size, const kvc__block *k,
                    const kvc__block *v, const kvc__range *seen, int64_t start) {
    const int slot = dtype_slot(w);
    float factor[4];
    w->ops->score[slot][size](tile, k, w->scores);
    if (w->adjusts) adjust_tile(w, first, (int64_t)1 << size, start, k->count);
    w->ops->soften[size](tile, seen, k->count, w->scores, factor);
    w->ops->weigh[slot][size](tile, v, seen, w->scores, factor);
}

/* Tells whether a row has the mask of the row before, as the heads of a group mostly do. */
static bool is_mask_shared(const work *w, int64_t row) {
    return row > 0 && w->job->mask.head_stride == 0 && query_of(w, row) == query_of(w, row - 1);
}

/* What the mask keeps of what rows see, a bit a position; `seen` shrinks to its ends. */
static void keep(const work *w, uint64_t kept[4], kvc__range seen[4], int64_t first, int64_t rows,
                 int64_t start, int64_t count) {
    for (int64_t r = 0; r < rows; r++) {
        const int64_t row = first + r;
        if (r > 0 && is_mask_shared(w, row)) kept[r] = kept[r - 1];
        else
            kept[r] = kvc__kept(w->job, w->part.sequence, head_of(w, row), query_of(w, row), start,
                                count) &
                      kvc__bits(seen[r]);
        seen[r] = kvc__hull(kept[r]);
    }
}

/* Some of a block's positions. */
static kvc__block narrow(const kvc__block *block, kvc__range to) {
    kvc__block some = *block;
    some.data += to.begin * block->step_bytes;
    some.count = to.end - to.begin;
    return some;
}

/* take_in under a mask. What it keeps is weighed run by run, the rest not at all; nor is what lies
 * before or behind all of that read. */
static void take_in_masked(const work *w, kvc__tile *tile, int64_t first, int size,
                           const kvc__block *k_block, const kvc__block *v_block, kvc__range *seen,
                           int64_t start) {
    static const float ones[4] = {1, 1, 1, 1};
    const int slot = dtype_slot(w);
    const int64_t rows = (int64_t)1 << size;
    uint64_t kept[4], any = 0, gaps = 0;
    float own[4];
    keep(w, kept, seen, first, rows, start, k_block->count);
    for (int64_t r = 0; r < rows; r++) {
        any |= kept[r];
        gaps |= kept[r] ^ kvc__bits(seen[r]);
    }
    if (any == 0) return;
    const kvc__range hull = kvc__hull(any);
    const kvc__block k = narrow(k_block, hull), v = narrow(v_block, hull);
    for (int64_t r = 0; r < rows; r++) {
        kept[r] >>= hull.begin;
        seen[r] = kvc__hull(kept[r]);
    }
    start += hull.begin;
    if (gaps == 0) {
        take_in(w, tile, first, size, &k, &v, seen, start);
        return;
    }
    w->ops->score[slot][size](tile, &k, w->scores);
    if (w->adjusts) adjust_tile(w, first, rows, start, k.count);
    for (int64_t r = 0; r < rows; r++) kvc__hide(kept[r], k.count, w->scores + r, rows);
    w->ops->soften[size](tile, seen, k.count, w->scores, own);
    const float *factor = own; /* due once */
    for (; any; factor = ones) {
        any = 0;
        for (int64_t r = 0; r < rows; r++) {
            seen[r] = kvc__next_run(&kept[r]);
            any |= kept[r];
        }
        w->ops->weigh[slot][size](tile, &v, seen, w->scores, factor);
    }
}

static void attend_block(const work *w, kvc__ahead *ahead, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    kvc__block k = block_of(w, w->first_key + start * w->key_step_bytes, w->key_step_bytes,
                            job->key_dim, w->key_width, w->keys, count);
    kvc__block v = block_of(w, w->first_value + start * w->value_step_bytes, w->value_step_bytes,
                            job->value_dim, w->value_width, w->values, count);
    k.ahead = v.ahead = ahead;
    int64_t rows;
    for (int64_t r = 0; r < w->part.rows; r += rows) {
        const int64_t left = w->part.rows - r;
        const int size = left >= 4 ? 2 : left >= 2 ? 1 : 0; /* log2 of its rows */
        kvc__range seen[4];
        rows = (int64_t)1 << size;
        if (!see_block(w, seen, r, rows, start, count)) continue;
        kvc__tile tile = {w->q + r * w->key_width,
                          w->sums + r * w->value_width,
                          w->max + r,
                          w->total + r,
                          w->key_width,
                          w->value_width,
                          job->scale};
        if (job->mask.data) take_in_masked(w, &tile, r, size, &k, &v, seen, start);
        else take_in(w, &tile, r, size, &k, &v, seen, start);
    }
}

/* Lanes are ranges of a part's positions that are taken in by turns. */
enum { LANES = KVC__STREAMS / 2, DISTANCE_BYTES = 2048 };

static void look_ahead(kvc__ahead *a, int stream, const work *w, const kvc__rows *rows, int64_t dim,
                       int64_t width, int64_t position) {
    const int64_t element_bytes = (int64_t)kvc_dtype_size_bytes(rows->dtype);
    a->at[stream] = kvc__at(rows, w->part.sequence, w->part.kv_head, position, 0);
    a->width[stream] = width;
    a->row_bytes[stream] = dim * element_bytes;
    a->step_bytes[stream] = rows->position_stride * element_bytes;
}

/* What is asked for runs over the end of a lane a little: a prefetch may. */
static kvc__ahead ahead_of(const work *w, int64_t lane) {
    const kvc__job *job = w->job;
    const int64_t element_bytes = (int64_t)kvc_dtype_size_bytes(job->k.dtype);
    const bool alike = w->direct && job->key_dim == job->value_dim &&
                       job->k.position_stride == job->key_dim &&
                       job->v.position_stride == job->value_dim;
    kvc__ahead a = {.line_elements = alike ? (int)(64 / element_bytes) : 0};
    for (int i = 0; i < LANES; i++) {
        const int64_t from = smaller(w->part.begin + i * lane, w->part.end);
        look_ahead(&a, 2 * i, w, &job->k, job->key_dim, w->direct ? job->key_dim : w->key_width,
                   from);
        look_ahead(&a, 2 * i + 1, w, &job->v, job->value_dim,
                   w->direct ? job->value_dim : w->value_width, from);
    }
    kvc__ask(&a, (int64_t)KVC__STREAMS * DISTANCE_BYTES / element_bytes);
    return a;
}

/* Takes in the positions of a part. */
static void attend_lanes(const work *w) {
    const int64_t begin = w->part.begin, end = w->part.end;
    /* Half a block more keeps the lanes from the same sets of the cache. */
    const int64_t lane = round_up((end - begin + 1) / 2, w->block) + w->block / 2;
    kvc__ahead ahead = ahead_of(w, lane);
    begin_rows(w);
    for (int64_t at = begin; at < begin + lane; at += w->block)
        for (int i = 0; i < LANES; i++) {
            const int64_t start = at + i * lane;
            const int64_t stop = smaller(smaller(start + w->block, begin + (i + 1) * lane), end);
            if (start < stop) attend_block(w, &ahead, start, stop - start);
        }
}

/* Tells whether the mask keeps positions from all rows of a part. */
static bool is_hidden(const work *w, int64_t start, int64_t count) {
    for (int64_t r = 0; r < w->part.rows; r++)
        if (!is_mask_shared(w, r) &&
            kvc__kept(w->job, w->part.sequence, head_of(w, r), query_of(w, r), start, count) != 0)
            return false;
    return true;
}

/* Leaves out what a mask hides at either end of a part, such as padding: where nothing is taken in,
 * nothing is to be asked for. */
static void leave_out_hidden(work *w) {
    kvc__part *part = &w->part;
    while (part->begin < part->end) {
        const int64_t count = smaller(part->end - part->begin, KVC__BLOCK);
        if (is_hidden(w, part->begin, count)) part->begin += count;
        else if (is_hidden(w, part->end - count, count)) part->end -= count;
        else return;
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
    if (w.job->mask.data) leave_out_hidden(&w);
    attend_lanes(&w);
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
