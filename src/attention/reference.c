#include <math.h>

#include "attention/kernel.h"
#include "base/half.h"

static double load(const kvc__rows *rows, int64_t b, int64_t h, int64_t i, int64_t d) {
    const char *at = kvc__at(rows, b, h, i, d);
    if (rows->dtype == KVC_F32) return (double)*(const float *)(const void *)at;
    const uint16_t word = *(const uint16_t *)(const void *)at;
    return (double)(rows->dtype == KVC_F16 ? kvc__f32_of_f16(word) : kvc__f32_of_bf16(word));
}

static void store(const kvc__rows *rows, int64_t b, int64_t h, int64_t i, int64_t d, double x) {
    char *at = kvc__at(rows, b, h, i, d);
    const float f = (float)x;
    if (rows->dtype == KVC_F32) *(float *)(void *)at = f;
    else if (rows->dtype == KVC_F16) *(uint16_t *)(void *)at = kvc__f16_of_f32(f);
    else *(uint16_t *)(void *)at = kvc__bf16_of_f32(f);
}

/* scale · q[b][head][i] · k[b][head / group][j] */
static double score(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t d = 0; d < job->key_dim; d++)
        sum += load(&job->q, b, head, i, d) * load(&job->k, b, head / job->group, j, d);
    return (double)job->scale * sum;
}

static void attend_one(const kvc__job *job, int64_t b, int64_t head, int64_t i, double *sums) {
    const kvc__range seen = kvc__seen(job, b, i);
    double max = -INFINITY;
    for (int64_t j = seen.begin; j < seen.end; j++) max = fmax(max, score(job, b, head, i, j));

    double total = 0;
    for (int64_t d = 0; d < job->value_dim; d++) sums[d] = 0;
    for (int64_t j = seen.begin; j < seen.end; j++) {
        const double s = score(job, b, head, i, j);
        const double p = s == -INFINITY ? 0 : exp(s - max); /* not NaN when max is -inf too */
        total += p;
        for (int64_t d = 0; d < job->value_dim; d++)
            sums[d] += p * load(&job->v, b, head / job->group, j, d);
    }
    for (int64_t d = 0; d < job->value_dim; d++)
        store(&job->out, b, head, i, d, total == 0 ? 0 : sums[d] / total);
    kvc__store_lse(job, b, head, i, max, total);
}

void kvc__attend_reference(const kvc__job *job, double *sums) {
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t head = 0; head < job->kv_heads * job->group; head++)
            for (int64_t i = 0; i < job->queries; i++) attend_one(job, b, head, i, sums);
}
