#include <math.h>
#include <string.h>

#include "attention/exp.h"
#include "attention/kernel.h"
#include "base/half.h"

/* Work goes by blocks: BLOCK positions of K, then the same of V, are converted to f32 once and used
 * by all rows, a row being one query position of one query head of the group. */
enum {
    LANES = 4,        /* of one vector */
    STEP = 2 * LANES, /* of the loops: scratch rows are padded to it */
    BLOCK = 4 * STEP, /* positions; 32 of 128 dims are 16 KiB: half a first-level cache */
    ROWS = 64         /* rows worked on together */
};

/* The compilers' own vectors: plain arithmetic on any target. gcc 12 keeps a dot product that
 * carries an array of partial sums scalar; all other loops here it vectorises by itself. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

static inline lanes load(const float *p) {
    lanes x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline float add_up(lanes x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}

/* Rows first, first + 1, … of one kv head. Row r is query r / group of head r % group, so that what
 * a row sees never shrinks from one to the next. Pointers are to scratch. */
typedef struct work {
    const kvc__job *job;
    int64_t batch;
    int64_t kv_head;
    int64_t first;
    int64_t rows;
    int64_t key_width;   /* key_dim rounded up to STEP, the rest zeros */
    int64_t value_width; /* value_dim, likewise */
    float *q;            /* [ROWS][key_width], scaled */
    float *block;        /* [BLOCK][key_width or value_width] */
    float *p;            /* [ROWS][BLOCK], scores, then weights */
    float *sums;         /* [ROWS][value_width], Σ p v */
    float *part;         /* [value_width], that of one block */
    float *max;          /* [ROWS], largest score so far */
    float *total;        /* [ROWS], Σ p */
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

size_t kvc__fused_scratch_floats(int64_t rows, int64_t key_dim, int64_t value_dim) {
    const int64_t most = smaller(rows, ROWS);
    const int64_t key_width = round_up(key_dim, STEP);
    const int64_t value_width = round_up(value_dim, STEP);
    return (size_t)(most * (key_width + BLOCK + value_width + 2) +
                    BLOCK * larger(key_width, value_width) + value_width);
}

static void lay_out(work *w, const kvc__job *job, float *scratch) {
    const int64_t most = smaller(job->group * job->queries, ROWS);
    w->job = job;
    w->key_width = round_up(job->key_dim, STEP);
    w->value_width = round_up(job->value_dim, STEP);
    w->block = scratch;
    w->q = w->block + BLOCK * larger(w->key_width, w->value_width);
    w->p = w->q + most * w->key_width;
    w->sums = w->p + most * BLOCK;
    w->part = w->sums + most * w->value_width;
    w->max = w->part + w->value_width;
    w->total = w->max + most;
}

/* dst[0..n) = src[0..n) in f32, dst[n..width) = 0 */
static void load_row(float *restrict dst, const void *restrict src, kvc_dtype dtype, int64_t n,
                     int64_t width) {
    const uint16_t *restrict words = src;
    if (dtype == KVC_F32) memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (dtype == KVC_F16)
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_f16(words[d]);
    else
        for (int64_t d = 0; d < n; d++) dst[d] = kvc__f32_of_bf16(words[d]);
    for (int64_t d = n; d < width; d++) dst[d] = 0;
}

/* dst[0..n) = src[0..n) / divisor */
static void store_row(void *restrict dst, kvc_dtype dtype, const float *restrict src, int64_t n,
                      float divisor) {
    float *restrict floats = dst;
    uint16_t *restrict words = dst;
    if (dtype == KVC_F32)
        for (int64_t d = 0; d < n; d++) floats[d] = src[d] / divisor;
    else if (dtype == KVC_F16)
        for (int64_t d = 0; d < n; d++) words[d] = kvc__f16_of_f32(src[d] / divisor);
    else
        for (int64_t d = 0; d < n; d++) words[d] = kvc__bf16_of_f32(src[d] / divisor);
}

/* block[j] = position start + j of K or V. f32 is copied too: from memory that is faster here than
 * to work on rows that are still on their way. */
static void load_block(const work *w, const kvc__rows *from, int64_t start, int64_t count,
                       int64_t dim, int64_t width) {
    for (int64_t j = 0; j < count; j++)
        load_row(w->block + j * width, kvc__at(from, w->batch, w->kv_head, start + j, 0),
                 from->dtype, dim, width);
}

/* out[i · step] = a_i · b for four vectors a: b is loaded once for all four. */
static void dot4(float *restrict out, int64_t step, const float *restrict a, int64_t stride,
                 const float *restrict b, int64_t width) {
    const float *a1 = a + stride, *a2 = a1 + stride, *a3 = a2 + stride;
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, t0 = {0}, t1 = {0}, t2 = {0}, t3 = {0};
    for (int64_t d = 0; d < width; d += STEP) {
        const lanes x = load(b + d), y = load(b + d + LANES);
        s0 += load(a + d) * x;
        s1 += load(a1 + d) * x;
        s2 += load(a2 + d) * x;
        s3 += load(a3 + d) * x;
        t0 += load(a + d + LANES) * y;
        t1 += load(a1 + d + LANES) * y;
        t2 += load(a2 + d + LANES) * y;
        t3 += load(a3 + d + LANES) * y;
    }
    out[0] = add_up(s0 + t0);
    out[step] = add_up(s1 + t1);
    out[2 * step] = add_up(s2 + t2);
    out[3 * step] = add_up(s3 + t3);
}

/* p[r][j] = q[r] · block[j]. Four rows share a key; the rows left over take four keys at a time,
 * the last of which may be old: no row looks at their scores. */
static void score_block(const work *w, int64_t count) {
    int64_t r = 0;
    for (; r + 4 <= w->rows; r += 4)
        for (int64_t j = 0; j < count; j++)
            dot4(w->p + r * BLOCK + j, BLOCK, w->q + r * w->key_width, w->key_width,
                 w->block + j * w->key_width, w->key_width);
    for (; r < w->rows; r++)
        for (int64_t j = 0; j < count; j += 4)
            dot4(w->p + r * BLOCK + j, 1, w->block + j * w->key_width, w->key_width,
                 w->q + r * w->key_width, w->key_width);
}

/* Turns count scores into weights exp(score - max), with the max of all scores so far, and adds
 * them to the total. Returns the factor that sums made with the former max are to be scaled by. */
static float soften(float *restrict p, int64_t count, float *max, float *total) {
    const int64_t width = round_up(count, LANES);
    for (int64_t j = count; j < width; j++) p[j] = -INFINITY;

    float most[LANES], sum[LANES] = {0};
    for (int l = 0; l < LANES; l++) most[l] = *max;
    for (int64_t j = 0; j < width; j += LANES)
        for (int l = 0; l < LANES; l++) most[l] = p[j + l] > most[l] ? p[j + l] : most[l];
    float now = *max;
    for (int l = 0; l < LANES; l++) now = most[l] > now ? most[l] : now;

    /* With scores of -inf alone there is nothing to subtract: -inf - -inf would be NaN. */
    const float base = now == -INFINITY ? 0 : now;
    for (int64_t j = 0; j < width; j++) p[j] = kvc__exp_f32(p[j] - base);
    for (int64_t j = 0; j < width; j += LANES)
        for (int l = 0; l < LANES; l++) sum[l] += p[j + l];
    float block_sum = 0;
    for (int l = 0; l < LANES; l++) block_sum += sum[l];

    const float factor = kvc__exp_f32(*max - base);
    *total = *total * factor + block_sum;
    *max = now;
    return factor;
}

/* out = Σ p_j v_j over count values, four at a time: out is loaded and stored once for four. */
static void weigh(float *restrict out, const float *p, const float *restrict v, int64_t count,
                  int64_t width) {
    for (int64_t d = 0; d < width; d++) out[d] = 0;
    int64_t j = 0;
    for (; j + 4 <= count; j += 4, v += 4 * width) {
        const float p0 = p[j], p1 = p[j + 1], p2 = p[j + 2], p3 = p[j + 3];
        const float *restrict v1 = v + width, *restrict v2 = v1 + width, *restrict v3 = v2 + width;
        for (int64_t d = 0; d < width; d++)
            out[d] += (p0 * v[d] + p1 * v1[d]) + (p2 * v2[d] + p3 * v3[d]);
    }
    for (; j < count; j++, v += width)
        for (int64_t d = 0; d < width; d++) out[d] += p[j] * v[d];
}

/* Positions start … start + count - 1, for all rows. */
static void attend_block(const work *w, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    float factor[ROWS];
    int64_t seen[ROWS];

    load_block(w, &job->k, start, count, job->key_dim, w->key_width);
    score_block(w, count);
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t visible = kvc__visible(job, (w->first + r) / job->group);
        seen[r] = larger(0, smaller(visible - start, count));
        factor[r] = soften(w->p + r * BLOCK, seen[r], w->max + r, w->total + r);
    }

    load_block(w, &job->v, start, count, job->value_dim, w->value_width);
    for (int64_t r = 0; r < w->rows; r++) {
        float *restrict sums = w->sums + r * w->value_width;
        const float *restrict part = w->part;
        weigh(w->part, w->p + r * BLOCK, w->block, seen[r], w->value_width);
        for (int64_t d = 0; d < w->value_width; d++) sums[d] = sums[d] * factor[r] + part[d];
    }
}

static void begin_rows(const work *w) {
    const kvc__job *job = w->job;
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t head = w->kv_head * job->group + (w->first + r) % job->group;
        const int64_t i = (w->first + r) / job->group;
        float *q = w->q + r * w->key_width;
        load_row(q, kvc__at(&job->q, w->batch, head, i, 0), job->q.dtype, job->key_dim,
                 w->key_width);
        for (int64_t d = 0; d < job->key_dim; d++) q[d] *= job->scale;
        for (int64_t d = 0; d < w->value_width; d++) w->sums[r * w->value_width + d] = 0;
        w->max[r] = -INFINITY;
        w->total[r] = 0;
    }
}

static void end_rows(const work *w) {
    const kvc__job *job = w->job;
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t head = w->kv_head * job->group + (w->first + r) % job->group;
        const int64_t i = (w->first + r) / job->group;
        float *sums = w->sums + r * w->value_width;
        const bool empty = w->total[r] == 0;
        if (empty) memset(sums, 0, (size_t)job->value_dim * sizeof *sums);
        store_row(kvc__at(&job->out, w->batch, head, i, 0), job->out.dtype, sums, job->value_dim,
                  empty ? 1 : w->total[r]);
    }
}

/* The last row sees most: positions beyond are beyond all. */
static void attend_rows(const work *w) {
    begin_rows(w);
    const int64_t end = kvc__visible(w->job, (w->first + w->rows - 1) / w->job->group);
    for (int64_t start = 0; start < end; start += BLOCK)
        attend_block(w, start, smaller(BLOCK, end - start));
    end_rows(w);
}

void kvc__attend_fused(const kvc__job *job, float *scratch) {
    const int64_t rows = job->group * job->queries;
    work w;
    lay_out(&w, job, scratch);
    for (w.batch = 0; w.batch < job->batch; w.batch++)
        for (w.kv_head = 0; w.kv_head < job->kv_heads; w.kv_head++)
            for (w.first = 0; w.first < rows; w.first += ROWS) {
                w.rows = smaller(ROWS, rows - w.first);
                attend_rows(&w);
            }
}
