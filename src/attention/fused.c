/* The fused path: one pass over keys and values for all rows of a kv head, a row being one query
 * position of one query head of the group. Work goes by blocks of positions that stay in the
 * caches while tiles of rows take them in (tile.h), or panels where rows are many (prefill.c). */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include <kvcache/device.h>

#include "array/rotate.h"
#include "attention/adjust.h"
#include "attention/kernel.h"
#include "attention/ops.h"
#include "attention/row.h"
#include "attention/schedule.h"
#include "attention/work.h"

/* Most rows of a part, which a block of K and V serves all. Those of panels stay in a cache of some
 * 512 KiB together with it. */
enum { TILE_ROWS = 64, PANEL_ROWS = 384, WIDE_PANEL_ROWS = 192, WIDE = 2 * 128 };

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}
/* The place in the tables of what reads a format where it lies. Packed elements that are neither
 * half nor whole bytes become whole ones first. */
static int slot_of(kvc__format format) {
    if (format.bits == 0) return KVC__OPS_SLOT(format.dtype);
    return format.bits == 4 ? KVC__OPS_Q4 : KVC__OPS_Q8;
}

static bool is_direct(const kvc__ops *ops, kvc__format format, int64_t key_dim, int64_t value_dim) {
    const bool fits = key_dim % ops->unit == 0 && value_dim % ops->unit == 0;
    return ops->score[slot_of(format)][0] && (fits || ops->takes_any_dim);
}

/* Rounds to whole lines, so that threads share none. */
static size_t whole_lines(size_t floats) {
    const size_t line = KVC_ALIGNMENT_BYTES / sizeof(float);
    return (floats + line - 1) / line * line;
}

/* Positions of a block, `most` at most: the longer, the less often are sums taken up, and packed
 * queries and weights spread and rounded. Rows so few that memory gives no more than they compute
 * with want a page of keys, so that no stream rests for long. */
static int64_t choose_block(int64_t rows, kvc__format format, int64_t row_bytes, int64_t most) {
    const bool few = !format.bits && rows <= (int64_t)kvc_dtype_size_bytes(format.dtype);
    const int64_t bytes = few ? 4096 : 16384;
    return kvc__smaller(kvc__larger(bytes / row_bytes / 8 * 8, 8), most);
}

/* With fewer rows panels would leave too many lanes idle. They convert keys, or unpack or turn
 * them: rows that tiles multiply as they lie are better off with those for longer. */
int64_t kvc__panel_least(const kvc__ops *ops, kvc__format format, int64_t key_dim,
                         int64_t value_dim) {
    const int slot = slot_of(format);
    if (format.keys_per_channel) return ops->panel_least[slot - KVC__OPS_Q8 + KVC__OPS_C8];
    if (!is_direct(ops, format, key_dim, value_dim)) return (int64_t)2 * ops->lanes;
    return ops->panel_least[slot];
}

/* Rows, and those that fill the last panel or a tile of three up to four (kvc__tile_size). */
static int64_t whole_rows(int64_t rows, int64_t panel) {
    if (panel > 1) return round_up(rows, panel);
    return rows % 4 == 3 ? rows + 1 : rows;
}

/* Chooses what is to work on the rows of a head, and tells what scratch that has. */
static void set_sizes(kvc__work *w, const kvc__ops *ops, kvc__format format, int64_t rows,
                      int64_t key_dim, int64_t value_dim) {
    const bool many = rows >= kvc__panel_least(ops, format, key_dim, value_dim);
    w->ops = ops;
    w->key_width = round_up(key_dim, ops->unit);
    w->value_width = round_up(value_dim, ops->unit);
    w->panel = many ? (int64_t)KVC__PANEL_VECTORS * ops->lanes : 1;
    const bool wide = w->key_width + w->value_width > WIDE;
    const int64_t most = !many ? TILE_ROWS : wide ? WIDE_PANEL_ROWS : PANEL_ROWS;
    w->most = whole_rows(kvc__smaller(rows, most), w->panel);
    w->direct = !many && is_direct(ops, format, key_dim, value_dim);
    w->columns = !many && format.keys_per_channel;
    w->block = format.bits && (w->direct || w->columns) ? KVC__BLOCK : KVC__SHORT_BLOCK;
}

static int64_t score_floats(const kvc__work *w) {
    return w->panel == 1 ? KVC__SCORES : w->block * w->panel;
}

/* @param direct  what is of this width is read where it lies */
static int64_t copy_floats(const kvc__work *w, bool direct, kvc__format format, int64_t width) {
    if (!direct) return w->block * (width + KVC__WORK_PAD);
    if (!format.bits) return 0;
    const int64_t bytes = kvc__is_split(format) ? w->block * width : 0;
    return (int64_t)2 * KVC__BLOCK * (width / format.group) + bytes / (int64_t)sizeof(float);
}

/* Where a cache keeps keys per channel unpacked they are copied. */
static int64_t key_floats(const kvc__work *w, kvc__format format) {
    return copy_floats(w, w->direct && !format.keys_per_channel, format, w->key_width);
}

kvc_status kvc__schedule_init(kvc__schedule *out, const kvc_executor *executor, kvc__format format,
                              int64_t batch, int64_t rows, int64_t key_dim, int64_t value_dim) {
    kvc__work w;
    set_sizes(&w, kvc__ops_best(), format, rows, key_dim, value_dim);
    *out = (kvc__schedule){.ops = w.ops, .executor = {.threads = 1}, .batch = batch};
    if (executor) out->executor = *executor;
    out->slot_floats = whole_lines((size_t)(w.most * (w.value_width + 2)));
    out->worker_floats =
        whole_lines((size_t)(score_floats(&w) + w.most * w.key_width + key_floats(&w, format) +
                             copy_floats(&w, w.direct, format, w.value_width))) +
        out->slot_floats;
    return kvc__schedule_size(out);
}

/* One run, as its parts see it. */
typedef struct run {
    const kvc__schedule *schedule;
    kvc__division division;
    kvc__work sizes; /* of every part */
} run;

static void lay_out_sums(kvc__work *w, float *at) {
    w->sums = at;
    w->max = w->sums + w->most * w->value_width;
    w->total = w->max + w->most;
}

/* A part that is one of several leaves its sums in its slot. */
static kvc__work begin_part(const run *call, int64_t index, int thread) {
    const kvc__division *d = &call->division;
    const kvc__schedule *s = call->schedule;
    const kvc__job *job = d->job;
    const int64_t element_bytes = (int64_t)kvc_dtype_size_bytes(job->k.dtype);
    kvc__work w = call->sizes;
    w.part = kvc__division_part(d, index);
    w.cuts = job->keep > 0 || w.columns || (w.direct && (job->map.tables || job->map.rings));
    if (job->mask.data) w.block = kvc__smaller(w.block, KVC__SHORT_BLOCK);
    if (w.columns) w.block = kvc__smaller(job->format.group, w.block);
    else if (!job->format.keys_per_channel) /* else what is unpacked together */
        w.block =
            choose_block(w.part.rows, job->format, kvc__row_bytes(job, job->key_dim), w.block);
    w.common =
        (kvc__range){kvc__seen(job, w.part.sequence, kvc__work_query(&w, w.part.rows - 1)).begin,
                     kvc__seen(job, w.part.sequence, kvc__work_query(&w, 0)).end};
    w.key_step_bytes = job->k.position_stride * element_bytes;
    w.value_step_bytes = job->v.position_stride * element_bytes;
    w.scores = d->workers + (size_t)thread * s->worker_floats;
    w.q = w.scores + score_floats(&w);
    w.keys = w.q + w.most * w.key_width;
    w.values = w.keys + key_floats(&w, job->format);
    lay_out_sums(&w, w.part.splits > 1 ? d->slots + (size_t)w.part.slot * s->slot_floats
                                       : w.scores + s->worker_floats - s->slot_floats);
    return w;
}

/* What tiles read. */
static int value_slot(const kvc__work *w) {
    return w->direct ? slot_of(w->job->format) : KVC__OPS_SLOT(KVC_F32);
}

/* But for packed blocks of keys per channel, which take the same queries. */
static int key_slot(const kvc__work *w) {
    return w->columns ? KVC__OPS_SLOT(KVC_F32) : value_slot(w);
}

static void score(const kvc__work *w, const kvc__tile *tile, int size, const kvc__block *k) {
    const int slot = k->bits == 8 ? KVC__OPS_C8 : k->bits == 4 ? KVC__OPS_C4 : key_slot(w);
    w->ops->score[slot][size](tile, k, w->scores);
}

/* Where K or V have element i of a unit, as loaders or copies give them.
 * @param slot  what tiles read */
static const uint8_t *places(const kvc__work *w, int slot) {
    const int own = KVC__OPS_SLOT(w->job->format.dtype);
    const bool as_lies = !w->job->format.bits && w->ops->widen[own];
    return w->ops->place[as_lies ? own : slot];
}

/* Where q or sums have the first element of a row; the next is `panel` from it. */
static int64_t place_of(const kvc__work *w, int64_t row, int64_t width) {
    return row / w->panel * w->panel * width + row % w->panel;
}

static void begin_rows(const kvc__work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit, rows = whole_rows(w->part.rows, w->panel);
    const kvc__prepare_fn prepare = w->panel == 1 ? w->ops->prepare[key_slot(w)] : NULL;
    const uint8_t *place = places(w, key_slot(w));
    const float scale = w->panel == 1 && w->ops->rounds[key_slot(w)] ? 1 : job->scale;
    memset(w->q, 0, (size_t)(rows * w->key_width) * sizeof *w->q);
    memset(w->sums, 0, (size_t)(rows * w->value_width) * sizeof *w->sums);
    for (int64_t r = w->part.rows; r < rows; r++) w->max[r] = w->total[r] = 0;
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = kvc__work_head(w, r), i = kvc__work_query(w, r);
        float *q = w->q + place_of(w, r, w->key_width);
        float x[KVC__FUSED_MAX_DIM];
        kvc__row_load(x, kvc__at(&job->q, w->part.sequence, head, i, 0), job->q.dtype, 0,
                      job->key_dim);
        if (job->format.rotated) kvc__rotate(x, job->key_dim);
        for (int64_t d = 0; d < job->key_dim; d += unit)
            for (int64_t e = 0; e < kvc__smaller(unit, job->key_dim - d); e++)
                q[(d + place[e]) * w->panel] = x[d + e] * scale;
        if (prepare) prepare(q, w->key_width, job->format.group);
        /* A sink counts once, however many ranges merge. */
        w->max[r] = w->part.split == 0 ? kvc__sink(job, head) : -INFINITY;
        w->total[r] = w->max[r] == -INFINITY ? 0.0f : 1.0f;
    }
}

static void end_rows(const kvc__work *w) {
    const kvc__job *job = w->job;
    const int64_t unit = w->ops->unit;
    const uint8_t *place = places(w, value_slot(w));
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t head = kvc__work_head(w, r), i = kvc__work_query(w, r);
        const float *sums = w->sums + place_of(w, r, w->value_width);
        char *out = kvc__at(&job->out, w->part.sequence, head, i, 0);
        /* A total of 0 is that of a row that sees nothing, or scores of -inf alone: zeros, whatever
         * its sums are (0 · inf is NaN). */
        const bool blind = w->total[r] == 0;
        const float scale = 1 / w->total[r];
        float x[KVC__FUSED_MAX_DIM];
        for (int64_t d = 0; d < job->value_dim; d += unit)
            for (int64_t e = 0; e < kvc__smaller(unit, job->value_dim - d); e++)
                x[d + e] = blind ? 0 : sums[(d + place[e]) * w->panel] * scale;
        if (job->format.rotated) kvc__rotate(x, job->value_dim);
        kvc__row_store(out, job->out.dtype, 0, job->value_dim, x);
        kvc__store_lse(job, w->part.sequence, head, i, (double)w->max[r], (double)w->total[r]);
    }
}

/* Rows that follow each other in f32, zeros behind their dims. */
static void widen_rows(const kvc__work *w, const char *from, int64_t step_bytes, int64_t dim,
                       int64_t width, float *copy, int64_t count) {
    const kvc_dtype dtype = w->job->format.dtype;
    const kvc__widen_fn widen = w->ops->widen[KVC__OPS_SLOT(dtype)];
    for (int64_t j = 0; j < count; j++) {
        float *row = copy + j * (width + KVC__WORK_PAD);
        if (widen) {
            widen(row, from + j * step_bytes, dim);
        } else {
            kvc__row_load(row, from + j * step_bytes, dtype, 0, dim);
            memset(row + dim, 0, (size_t)(width - dim) * sizeof *row);
        }
    }
}

/* Positions of K or V as tiles and panels read them: where they lie, or copied, run by run. */
static kvc__block read_rows(const kvc__work *w, const kvc__rows *rows, int64_t step_bytes,
                            int64_t dim, int64_t width, float *copy, int64_t start, int64_t count) {
    int64_t n; /* rows of a run */
    if (w->direct)
        return (kvc__block){.data = kvc__work_at(w, rows, start, &n),
                            .step_bytes = step_bytes,
                            .count = count,
                            .dim = dim};
    for (int64_t j = 0; j < count; j += n) {
        const char *from = kvc__work_at(w, rows, start + j, &n);
        n = kvc__smaller(n, count - j);
        widen_rows(w, from, step_bytes, dim, width, copy + j * (width + KVC__WORK_PAD), n);
    }
    const int64_t row_bytes = (width + KVC__WORK_PAD) * (int64_t)sizeof *copy;
    return (kvc__block){
        .data = (const char *)copy, .step_bytes = row_bytes, .count = count, .dim = width};
}

kvc__block kvc__work_keys(const kvc__work *w, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    if (job->format.keys_per_channel) return kvc__channel_keys(w, start, count);
    if (job->format.bits)
        return kvc__packed_rows(w, &job->k, &job->k_scaling, job->key_dim, w->keys, start, count);
    return read_rows(w, &job->k, w->key_step_bytes, job->key_dim, w->key_width, w->keys, start,
                     count);
}

kvc__block kvc__work_values(const kvc__work *w, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    if (job->format.bits)
        return kvc__packed_rows(w, &job->v, &job->v_scaling, job->value_dim, w->values, start,
                                count);
    return read_rows(w, &job->v, w->value_step_bytes, job->value_dim, w->value_width, w->values,
                     start, count);
}

void kvc__work_adjust(const kvc__work *w, int64_t first, int64_t rows, int64_t stride,
                      int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    if (job->softcap > 0) w->ops->cap(w->scores, count * stride, job->softcap);
    if (!kvc__adjusts(job)) return;
    for (int64_t r = first; r < first + rows; r++)
        kvc__adjust(job, w->part.sequence, kvc__work_head(w, r), kvc__work_query(w, r), start,
                    count, w->scores + r - first, stride);
}

/* Tells whether a row has the mask of the row before, as the heads of a group mostly do. */
static bool is_mask_shared(const kvc__work *w, int64_t row) {
    return row > 0 && w->job->mask.head_stride == 0 &&
           kvc__work_query(w, row) == kvc__work_query(w, row - 1);
}

void kvc__work_keep(const kvc__work *w, int64_t first, int64_t rows, int64_t start, int64_t count,
                    uint64_t *kept) {
    uint64_t mask = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (r == 0 || !is_mask_shared(w, first + r))
            mask = kvc__kept(w->job, w->part.sequence, kvc__work_head(w, first + r),
                             kvc__work_query(w, first + r), start, count);
        kept[r] &= mask;
    }
}

/* What rows of a tile see of a block; tells whether it is anything. */
static bool see_block(const kvc__work *w, kvc__range seen[4], int64_t first, int64_t rows,
                      int64_t start, int64_t count) {
    bool any = false;
    if (start >= w->common.begin && start + count <= w->common.end) {
        for (int64_t r = 0; r < rows; r++) seen[r] = (kvc__range){0, count};
        return true;
    }
    for (int64_t r = 0; r < rows; r++) {
        seen[r] = kvc__work_seen(w, first + r, start, count);
        any = any || seen[r].begin < seen[r].end;
    }
    return any;
}

static void take_in(const kvc__work *w, kvc__tile *tile, int64_t first, int size,
                    const kvc__block *k, const kvc__block *v, const kvc__range *seen,
                    int64_t start) {
    float factor[4];
    score(w, tile, size, k);
    const int64_t rows = (int64_t)1 << size;
    if (w->adjusts) kvc__work_adjust(w, first, rows, rows, start, k->count);
    w->ops->soften[size](tile, seen, k->count, w->scores, factor);
    kvc__ahead_go_on(v->ahead, v->count * v->dim);
    w->ops->weigh[value_slot(w)][size](tile, v, seen, w->scores, factor);
}

/* take_in under a mask. What it keeps is weighed run by run, the rest not at all; nor is what lies
 * before or behind all of that read. */
static void take_in_masked(const kvc__work *w, kvc__tile *tile, int64_t first, int size,
                           const kvc__block *k_block, const kvc__block *v_block, kvc__range *seen,
                           int64_t start) {
    static const float ones[4] = {1, 1, 1, 1};
    const int64_t rows = (int64_t)1 << size;
    uint64_t kept[4], any = 0, gaps = 0;
    float own[4];
    for (int64_t r = 0; r < rows; r++) kept[r] = kvc__bits(seen[r]);
    kvc__work_keep(w, first, rows, start, k_block->count, kept);
    for (int64_t r = 0; r < rows; r++) {
        seen[r] = kvc__hull(kept[r]);
        any |= kept[r];
        gaps |= kept[r] ^ kvc__bits(seen[r]);
    }
    if (any == 0) return;
    const kvc__range hull = kvc__hull(any);
    const kvc__block k = kvc__some(k_block, hull.begin, hull.end);
    const kvc__block v = kvc__some(v_block, hull.begin, hull.end);
    for (int64_t r = 0; r < rows; r++) {
        kept[r] >>= hull.begin;
        seen[r] = kvc__hull(kept[r]);
    }
    start += hull.begin;
    if (gaps == 0) {
        take_in(w, tile, first, size, &k, &v, seen, start);
        return;
    }
    score(w, tile, size, &k);
    if (w->adjusts) kvc__work_adjust(w, first, rows, rows, start, k.count);
    for (int64_t r = 0; r < rows; r++) kvc__hide(kept[r], k.count, w->scores + r, rows);
    w->ops->soften[size](tile, seen, k.count, w->scores, own);
    const float *factor = own; /* due once */
    for (; any; factor = ones) {
        any = 0;
        for (int64_t r = 0; r < rows; r++) {
            seen[r] = kvc__next_run(&kept[r]);
            any |= kept[r];
        }
        w->ops->weigh[value_slot(w)][size](tile, &v, seen, w->scores, factor);
    }
}

/* For those that have nothing to ask for. */
static const kvc__ahead nothing_ahead = {.line_elements = INT64_MAX / KVC__STREAMS,
                                         .safe = INT64_MAX};

/* Each tile asks for its share of what comes next, one that sees nothing as well. */
static void attend_block(const kvc__work *w, kvc__ahead *ahead, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    kvc__block k = kvc__work_keys(w, start, count), v = kvc__work_values(w, start, count);
    int64_t rows;
    k.ahead = v.ahead = ahead;
    for (int64_t r = 0; r < w->part.rows; r += rows) {
        const int size = kvc__tile_size(w->part.rows - r);
        kvc__range seen[4];
        rows = (int64_t)1 << size;
        if (!see_block(w, seen, r, rows, start, count)) {
            kvc__ahead_go_on(ahead, count * (k.dim + v.dim));
            kvc__ask(ahead, count * (k.dim + v.dim));
            continue;
        }
        kvc__tile tile = kvc__work_tile(w, r);
        kvc__ahead_go_on(ahead, count * k.dim);
        if (job->mask.data) take_in_masked(w, &tile, r, size, &k, &v, seen, start);
        else take_in(w, &tile, r, size, &k, &v, seen, start);
    }
}

/* Takes in the positions of a part: those kept besides, then two lanes by turns. */
static void attend_lanes(const kvc__work *w) {
    const int64_t begin = w->part.begin, end = w->part.end;
    const bool per_channel = w->job->format.keys_per_channel;
    /* Half a block more keeps the lanes from the same sets of the cache. */
    const int64_t lane =
        round_up((end - begin + 1) / 2, w->block) + (per_channel ? 0 : w->block / 2);
    int64_t at[KVC__LANES], stop[KVC__LANES];
    kvc__ahead ahead = nothing_ahead;
    begin_rows(w);
    for (int64_t start = 0, count; start < w->part.kept; start += count) {
        count = kvc__work_together(w, start, kvc__smaller(w->block, w->part.kept - start));
        attend_block(w, &ahead, start, count);
    }
    if (begin >= end) return; /* all behind a mask */
    for (int i = 0; i < KVC__LANES; i++) {
        at[i] = kvc__smaller(begin + i * lane, end);
        stop[i] = kvc__smaller(begin + (i + 1) * lane, end);
    }
    if (!per_channel) ahead = kvc__look_ahead(w, at); /* blocks of channels wait for no memory */
    while (at[0] < stop[0] || at[1] < stop[1])
        for (int i = 0; i < KVC__LANES; i++) {
            if (at[i] == stop[i]) continue;
            const int64_t most = kvc__smaller(w->block, stop[i] - at[i]);
            const int64_t count = kvc__work_together(w, at[i], most);
            attend_block(w, &ahead, at[i], count);
            at[i] += count;
        }
}

/* Tells whether the mask keeps positions from all rows of a part. */
static bool is_hidden(const kvc__work *w, int64_t start, int64_t count) {
    for (int64_t r = 0; r < w->part.rows; r++)
        if (!is_mask_shared(w, r) && kvc__kept(w->job, w->part.sequence, kvc__work_head(w, r),
                                               kvc__work_query(w, r), start, count) != 0)
            return false;
    return true;
}

/* Leaves out what a mask hides at either end of a part, such as padding: where nothing is taken in,
 * nothing is to be asked for. */
static void leave_out_hidden(kvc__work *w) {
    kvc__part *part = &w->part;
    while (part->begin < part->end) {
        const int64_t count = kvc__smaller(part->end - part->begin, KVC__SHORT_BLOCK);
        if (is_hidden(w, part->begin, count)) part->begin += count;
        else if (is_hidden(w, part->end - count, count)) part->end -= count;
        else return;
    }
}

/* Adds what another range of positions gave. A range that a row does not see has a total of 0. */
static void merge(const kvc__work *w, const kvc__work *other) {
    for (int64_t r = 0; r < w->part.rows; r++) {
        const int64_t place = place_of(w, r, w->value_width);
        float *sums = w->sums + place;
        const float *more = other->sums + place;
        if (other->total[r] == 0) continue;
        const bool blind = w->total[r] == 0;
        const float max = blind || other->max[r] > w->max[r] ? other->max[r] : w->max[r];
        const float mine = blind ? 0 : kvc__exp_f32(w->max[r] - max);
        const float theirs = kvc__exp_f32(other->max[r] - max);
        for (int64_t d = 0; d < w->value_width * w->panel; d += w->panel)
            sums[d] = (blind ? 0 : sums[d] * mine) + more[d] * theirs;
        w->total[r] = w->total[r] * mine + other->total[r] * theirs;
        w->max[r] = max;
    }
}

/* Merges all ranges of a part's rows, in the order of positions: who is last to end does not
 * matter. */
static void merge_ranges(kvc__work *w, const run *call) {
    const kvc__part *part = &w->part;
    float *first = call->division.slots + (size_t)part->first_slot * call->schedule->slot_floats;
    const size_t step = (size_t)part->step * call->schedule->slot_floats;
    kvc__work other = *w;
    lay_out_sums(w, first);
    for (int64_t split = 1; split < part->splits; split++) {
        lay_out_sums(&other, first + (size_t)split * step);
        merge(w, &other);
    }
}

static void attend_part(void *argument, int64_t index, int thread) {
    const run *call = argument;
    kvc__work w = begin_part(call, index, thread);
    if (w.job->mask.data) leave_out_hidden(&w);
    if (w.panel == 1) {
        attend_lanes(&w);
    } else {
        begin_rows(&w);
        kvc__prefill(&w);
    }
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
    run call = {.schedule = schedule, .sizes = {.job = job}};
    set_sizes(&call.sizes, schedule->ops, job->format, job->group * job->queries, job->key_dim,
              job->value_dim);
    call.sizes.adjusts = job->softcap > 0 || kvc__adjusts(job);
    call.division = kvc__divide(job, schedule, call.sizes.most, scratch);
    const int64_t parts = call.division.parts;
    if (executor->parallel_for)
        executor->parallel_for(executor->context, parts, attend_part, &call);
    else
        for (int64_t i = 0; i < parts; i++) attend_part(&call, i, 0);
}
