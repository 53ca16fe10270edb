#include <math.h>

#include "array/rotate.h"
#include "attention/kernel.h"
#include "base/half.h"

static double load(const kvc__rows *rows, int64_t b, int64_t h, int64_t i, int64_t d) {
    return (double)kvc__load(kvc__at(rows, b, h, i, d), rows->dtype);
}

static void store(const kvc__rows *rows, int64_t b, int64_t h, int64_t i, int64_t d, double x) {
    char *at = kvc__at(rows, b, h, i, d);
    const float f = (float)x;
    if (rows->dtype == KVC_F32) *(float *)(void *)at = f;
    else if (rows->dtype == KVC_F16) *(uint16_t *)(void *)at = kvc__f16_of_f32(f);
    else *(uint16_t *)(void *)at = kvc__bf16_of_f32(f);
}

static const char *kv_at(const kvc__job *job, const kvc__rows *rows, int64_t b, int64_t h,
                         int64_t i, int64_t d) {
    int64_t run;
    return kvc__kv_at(job, rows, b, h, i, &run) +
           d * rows->last_stride * (int64_t)kvc_dtype_size_bytes(rows->dtype);
}

/* Packed elements: d of the row that begins at `words`. */
static double unpack(const uint8_t *words, int bits, int64_t d, double scale, double bias) {
    int q = 0;
    for (int64_t at = d * bits; at < (d + 1) * bits; at++)
        q |= (words[at / 8] >> at % 8 & 1) << (at - d * bits);
    return scale * q + bias;
}

/* Element d of key i: in a block of packed positions, or behind the last of these. */
static double load_channel(const kvc__job *job, int64_t b, int64_t h, int64_t i, int64_t d) {
    const int64_t group = job->format.group, block = i / group;
    if (i >= kvc__packed_end(job, b)) return load(&job->tail, b, h, i % (2 * group), d);
    const uint8_t *words = (const uint8_t *)kvc__at(&job->k, b, h, block, 0);
    return unpack(words, job->format.bits, d * group + i % group,
                  load(&job->k_scaling.scales, b, h, block, d),
                  load(&job->k_scaling.biases, b, h, block, d));
}

/* The same of keys or values. */
static double load_kv(const kvc__job *job, const kvc__rows *rows, const kvc__scaling *scaling,
                      int64_t b, int64_t h, int64_t i, int64_t d) {
    const int bits = job->format.bits, group = job->format.group;
    if (!bits) return (double)kvc__load(kv_at(job, rows, b, h, i, d), rows->dtype);
    if (job->format.keys_per_channel && rows == &job->k) return load_channel(job, b, h, i, d);
    const kvc__rows *scales = &scaling->scales, *biases = &scaling->biases;
    return unpack((const uint8_t *)kv_at(job, rows, b, h, i, 0), bits, d,
                  (double)kvc__load(kv_at(job, scales, b, h, i, d / group), scales->dtype),
                  (double)kvc__load(kv_at(job, biases, b, h, i, d / group), biases->dtype));
}

/* kvc__rotate, in f64. */
static void rotate(double *x, int64_t dim) {
    const int64_t order = kvc__rotation_order(dim);
    for (int64_t half = 1; half < order; half *= 2)
        for (int64_t i = 0; i < dim; i++) {
            if (i & half) continue;
            const double a = x[i], b = x[i + half];
            x[i] = a + b;
            x[i + half] = a - b;
        }
    for (int64_t i = 0; i < dim; i++) x[i] /= sqrt((double)order);
}

/* cap(scale · q · k[b][head / group][j]) + slope[head] · (j - position of i), q that of
 * [b][head][i]. */
static double score(const kvc__job *job, const double *q, int64_t b, int64_t head, int64_t i,
                    int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < job->key_dim; d++)
        sum += q[d] * load_kv(job, &job->k, &job->k_scaling, b, head / job->group, j, d);
    const double cap = (double)job->softcap;
    double s = (double)job->scale * sum;
    if (cap > 0) s = cap * tanh(s / cap);
    if (job->slopes.data)
        s += load(&job->slopes, 0, head, 0, 0) * (double)(j - kvc__position(job, b, i));
    return s;
}

/* What a mask adds to a score: -inf hides the key, whatever it holds. */
static double mask_of(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t j) {
    if (!job->mask.data) return 0;
    if (job->mask.dtype == KVC_U8) return *kvc__at(&job->mask, b, head, i, j) ? 0 : -INFINITY;
    return load(&job->mask, b, head, i, j);
}

/* The position that a query sees next, behind the last of those that are kept besides. */
static int64_t behind(int64_t j, kvc__range seen, int64_t kept) {
    return j + 1 == kept ? seen.begin : j + 1;
}

static void attend_one(const kvc__job *job, int64_t b, int64_t head, int64_t i, double *scratch) {
    double *q = scratch, *sums = scratch + job->key_dim;
    const kvc__range seen = kvc__seen(job, b, i);
    const double sink = (double)kvc__sink(job, head);
    const int64_t kept = kvc__kept_besides(job, seen), first = kept > 0 ? 0 : seen.begin;
    double max = sink;
    for (int64_t d = 0; d < job->key_dim; d++) q[d] = load(&job->q, b, head, i, d);
    if (job->format.rotated) rotate(q, job->key_dim);
    for (int64_t j = first; j < seen.end; j = behind(j, seen, kept)) {
        const double mask = mask_of(job, b, head, i, j);
        if (mask == -INFINITY) continue;
        const double s = score(job, q, b, head, i, j) + mask;
        if (s > max) max = s; /* gcc 12 crashes on fmax here, at -O3 for AArch64 */
    }

    double total = sink == -INFINITY ? 0 : exp(sink - max);
    for (int64_t d = 0; d < job->value_dim; d++) sums[d] = 0;
    for (int64_t j = first; j < seen.end; j = behind(j, seen, kept)) {
        const double mask = mask_of(job, b, head, i, j);
        if (mask == -INFINITY) continue;
        const double s = score(job, q, b, head, i, j) + mask;
        const double p = s == -INFINITY ? 0 : exp(s - max); /* not NaN when max is -inf too */
        total += p;
        for (int64_t d = 0; d < job->value_dim; d++)
            sums[d] += p * load_kv(job, &job->v, &job->v_scaling, b, head / job->group, j, d);
    }
    for (int64_t d = 0; d < job->value_dim; d++) sums[d] = total == 0 ? 0 : sums[d] / total;
    if (job->format.rotated) rotate(sums, job->value_dim);
    for (int64_t d = 0; d < job->value_dim; d++) store(&job->out, b, head, i, d, sums[d]);
    kvc__store_lse(job, b, head, i, max, total);
}

void kvc__attend_reference(const kvc__job *job, double *scratch) {
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < job->kv_heads * job->group; head++)
            for (int64_t i = 0; i < job->queries; i++) attend_one(job, b, head, i, scratch);
}
