/* Packed keys and values, as tiles and panels read them. */
#include <kvcache/device.h>

#include "array/pack.h"
#include "attention/row.h"
#include "attention/work.h"

/* Scales or biases of positions, in f32, group by group. Asks for those of the next block: they are
 * too few for the hardware to see them coming. */
static void load_scaling(float *to, const kvc__work *w, const kvc__rows *from, int64_t groups,
                         int64_t start, int64_t count) {
    enum { LINE_BYTES = 64 };
    int64_t run;
    const int64_t row_bytes = groups * (int64_t)kvc_dtype_size_bytes(from->dtype);
    const int64_t end = start + count;
    const char *first = kvc__work_at(w, from, start, &run);
    if (from->position_stride == groups) {
        const int64_t bytes = count * row_bytes;
        const char *next = first + bytes;
        /* Behind the positions kept besides, and behind the part, a map may have none. */
        if (end > w->part.begin && end < w->part.end) next = kvc__work_at(w, from, end, &run);
        for (int64_t at = 0; at <= bytes; at += LINE_BYTES) __builtin_prefetch(next + at, 0, 3);
        w->ops->scaling(to, first, from->dtype, groups, count);
        return;
    }
    const int64_t step_bytes = from->position_stride * (int64_t)kvc_dtype_size_bytes(from->dtype);
    for (int64_t j = 0; j < count; j++)
        w->ops->scaling(to + j, first + j * step_bytes, from->dtype, groups, 1);
}

void kvc__split_rows(uint8_t *to, const char *from, int64_t step_bytes, int64_t rows, int64_t n,
                     int bits) {
    const bool touch = step_bytes == n * bits / 8;
    const int64_t together = touch ? rows * n : n;
    for (int64_t at = 0; at < rows * n; at += together, from += step_bytes)
        kvc__pack_best()->split(to + at, (const uint8_t *)from, together, bits);
}

/* Rows follow each other. */
static kvc__block where_they_lie(const kvc__work *w, const kvc__rows *words,
                                 const kvc__scaling *scaling, int64_t groups, float *room,
                                 int64_t start, int64_t count) {
    float *biases = room + KVC__BLOCK * groups;
    load_scaling(room, w, &scaling->scales, groups, start, count);
    load_scaling(biases, w, &scaling->biases, groups, start, count);
    int64_t run;
    kvc__block block = {.data = kvc__work_at(w, words, start, &run),
                        .step_bytes = words->position_stride,
                        .count = count,
                        .dim = groups * w->job->format.group,
                        .scales = room,
                        .biases = biases,
                        .groups = groups,
                        .group = w->job->format.group};
    if (!kvc__is_split(w->job->format)) return block;
    uint8_t *bytes = (uint8_t *)(biases + KVC__BLOCK * groups);
    kvc__split_rows(bytes, block.data, block.step_bytes, count, block.dim, w->job->format.bits);
    block.data = (const char *)bytes;
    block.step_bytes = block.dim;
    return block;
}

/* Unpacks rows up to where they stop to follow each other, `count` at most; tells how many. */
static int64_t unpack_run(const kvc__work *w, const kvc__rows *words, const kvc__scaling *scaling,
                          const kvc__packing *packing, float *to, int64_t start, int64_t count) {
    const kvc__job *job = w->job;
    const int64_t b = w->part.sequence, h = w->part.kv_head;
    const int64_t scale_bytes = (int64_t)kvc_dtype_size_bytes(job->format.dtype);
    const int64_t step = packing->groups * packing->group + KVC__WORK_PAD;
    int64_t run;
    kvc__packed row = {(uint8_t *)kvc__kv_at(job, words, b, h, start, &run),
                       kvc__kv_at(job, &scaling->scales, b, h, start, &run),
                       kvc__kv_at(job, &scaling->biases, b, h, start, &run)};
    run = kvc__smaller(run, count);
    for (int64_t i = 0; i < run; i++) {
        kvc__pack_best()->unpack(packing, to + i * step, &row);
        row.words += words->position_stride;
        row.scales = (char *)row.scales + scaling->scales.position_stride * scale_bytes;
        row.biases = (char *)row.biases + scaling->biases.position_stride * scale_bytes;
    }
    return run;
}

kvc__block kvc__packed_rows(const kvc__work *w, const kvc__rows *words, const kvc__scaling *scaling,
                            int64_t dim, float *room, int64_t start, int64_t count) {
    const kvc__format format = w->job->format;
    const int64_t groups = dim / format.group;
    const kvc__packing packing = {format.bits, format.group, groups, KVC_F32, format.dtype};
    const int64_t step = dim + KVC__WORK_PAD; /* whole groups are whole units */
    int64_t run;
    if (w->direct) return where_they_lie(w, words, scaling, groups, room, start, count);
    for (int64_t j = 0; j < count; j += run)
        run = unpack_run(w, words, scaling, &packing, room + j * step, start + j, count - j);
    return (kvc__block){.data = (const char *)room,
                        .step_bytes = step * (int64_t)sizeof *room,
                        .count = count,
                        .dim = dim};
}
