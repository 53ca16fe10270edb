/* Keys that are packed per channel, by blocks of positions, and unpacked behind these. */
#include "array/columns.h"
#include "attention/row.h"
#include "attention/work.h"

/* Unpacks positions of one packed block. */
static void unpack(const kvc__work *w, float *to, int64_t step, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    const kvc__format format = job->format;
    const int64_t b = w->part.sequence, h = w->part.kv_head, block = start / format.group;
    const kvc__packing packing = {format.bits, format.group, job->key_dim, KVC_F32, format.dtype};
    const kvc__packed from = {(uint8_t *)kvc__at(&job->k, b, h, block, 0),
                              kvc__at(&job->k_scaling.scales, b, h, block, 0),
                              kvc__at(&job->k_scaling.biases, b, h, block, 0)};
    kvc__unpack_columns(&packing, to, step, &from, start % format.group, count);
}

static void load_tail(const kvc__work *w, float *to, int64_t position) {
    const kvc__job *job = w->job;
    const int64_t row = position % (2 * (int64_t)job->format.group);
    kvc__row_load(to, kvc__at(&job->tail, w->part.sequence, w->part.kv_head, row, 0),
                  job->format.dtype, 0, job->key_dim);
}

kvc__block kvc__channel_keys(const kvc__work *w, int64_t start, int64_t count) {
    const int64_t dim = w->job->key_dim, group = w->job->format.group;
    const int64_t packed_end = kvc__packed_end(w->job, w->part.sequence), end = start + count;
    const int64_t step = dim + KVC__WORK_PAD; /* whole groups are whole units */
    float *to = w->keys;
    for (int64_t at = start, n; at < end; at += n, to += n * step) {
        n = at < packed_end ? kvc__smaller(end - at, group - at % group) : 1;
        if (at < packed_end) unpack(w, to, step, at, n);
        else load_tail(w, to, at);
    }
    return (kvc__block){.data = (const char *)w->keys,
                        .step_bytes = step * (int64_t)sizeof *w->keys,
                        .count = count,
                        .dim = dim};
}
