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

/* The scales or biases of a packed block, in f32. Asks for those of the next block: they are too
 * few for the hardware to see them coming. */
static void load_channels(float *to, const kvc__work *w, const kvc__rows *from, int64_t block) {
    enum { LINE_BYTES = 64 };
    const int64_t dim = w->job->key_dim, bytes = (int64_t)kvc_dtype_size_bytes(from->dtype);
    const char *at = kvc__at(from, w->part.sequence, w->part.kv_head, block, 0);
    const char *next = at + from->position_stride * bytes;
    for (int64_t i = 0; i < dim * bytes; i += LINE_BYTES) __builtin_prefetch(next + i, 0, 3);
    if (!w->ops->scaling) {
        kvc__row_load(to, at, from->dtype, 0, dim);
        return;
    }
    for (int64_t d = 0; d < dim; d += KVC__BLOCK)
        w->ops->scaling(to + d, at + d * bytes, from->dtype, 1, kvc__smaller(dim - d, KVC__BLOCK));
}

/* Packed positions that lie in one block of tiles, channel by channel. */
static kvc__block columns_at(const kvc__work *w, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    const kvc__format format = job->format;
    const int64_t dim = job->key_dim, block = start / format.group;
    const int64_t first = start % format.group / w->block * w->block;
    const char *words = kvc__at(&job->k, w->part.sequence, w->part.kv_head, block, 0);
    kvc__block k = {.data = words + first * format.bits / 8,
                    .step_bytes = (int64_t)format.group * format.bits / 8,
                    .count = count,
                    .dim = dim,
                    .scales = w->keys,
                    .biases = w->keys + dim,
                    .bits = format.bits,
                    .skip = start % format.group - first};
    load_channels(w->keys, w, &job->k_scaling.scales, block);
    load_channels(w->keys + dim, w, &job->k_scaling.biases, block);
    if (!kvc__is_split(format)) return k;
    uint8_t *bytes = (uint8_t *)(w->keys + 2 * dim);
    kvc__split_rows(bytes, k.data, k.step_bytes, dim, w->block, format.bits);
    k.data = (const char *)bytes;
    k.step_bytes = w->block;
    k.bits = 8;
    return k;
}

kvc__block kvc__channel_keys(const kvc__work *w, int64_t start, int64_t count) {
    const int64_t dim = w->job->key_dim, group = w->job->format.group;
    const int64_t packed_end = kvc__packed_end(w->job, w->part.sequence), end = start + count;
    const int64_t step = dim + KVC__WORK_PAD; /* whole groups are whole units */
    float *to = w->keys;
    if (w->columns && start < packed_end) return columns_at(w, start, count);
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
