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
    const char *first = kvc__at(from, w->part.sequence, w->part.kv_head, start, 0);
    const int64_t row_bytes = groups * (int64_t)kvc_dtype_size_bytes(from->dtype);
    if (from->position_stride == groups) {
        const int64_t bytes = count * row_bytes;
        for (int64_t at = 0; at <= bytes; at += LINE_BYTES)
            __builtin_prefetch(first + bytes + at, 0, 3);
        w->ops->scaling(to, first, from->dtype, groups, count);
        return;
    }
    for (int64_t j = 0; j < count; j++)
        w->ops->scaling(to + j, kvc__at(from, w->part.sequence, w->part.kv_head, start + j, 0),
                        from->dtype, groups, 1);
}

static kvc__block where_they_lie(const kvc__work *w, const kvc__rows *words,
                                 const kvc__scaling *scaling, int64_t groups, float *room,
                                 int64_t start, int64_t count) {
    float *biases = room + KVC__BLOCK * groups;
    load_scaling(room, w, &scaling->scales, groups, start, count);
    load_scaling(biases, w, &scaling->biases, groups, start, count);
    return (kvc__block){.data = kvc__at(words, w->part.sequence, w->part.kv_head, start, 0),
                        .step_bytes = words->position_stride,
                        .count = count,
                        .dim = groups * w->job->format.group,
                        .scales = room,
                        .biases = biases,
                        .groups = groups,
                        .group = w->job->format.group};
}

kvc__block kvc__packed_rows(const kvc__work *w, const kvc__rows *words, const kvc__scaling *scaling,
                            int64_t dim, float *room, int64_t start, int64_t count) {
    const kvc__format format = w->job->format;
    const int64_t b = w->part.sequence, h = w->part.kv_head, groups = dim / format.group;
    const kvc__packing packing = {format.bits, format.group, groups, KVC_F32, format.dtype};
    const int64_t step = dim + KVC__WORK_PAD; /* whole groups are whole units */
    if (w->direct) return where_they_lie(w, words, scaling, groups, room, start, count);
    for (int64_t j = 0; j < count; j++) {
        const kvc__packed row = {(uint8_t *)kvc__at(words, b, h, start + j, 0),
                                 kvc__at(&scaling->scales, b, h, start + j, 0),
                                 kvc__at(&scaling->biases, b, h, start + j, 0)};
        kvc__pack_best()->unpack(&packing, room + j * step, &row);
    }
    return (kvc__block){.data = (const char *)room,
                        .step_bytes = step * (int64_t)sizeof *room,
                        .count = count,
                        .dim = dim};
}
