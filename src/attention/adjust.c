#include "attention/adjust.h"

static void add_slopes(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                       int64_t count, float *s, int64_t stride) {
    const float slope = kvc__load(kvc__at(&job->slopes, 0, head, 0, 0), job->slopes.dtype);
    const float from = (float)(first - kvc__position(job, b, i)); /* exact to 2^24 */
    for (int64_t j = 0; j < count; j++) s[j * stride] += slope * (from + (float)j);
}

/* Bytes from one key of a mask to the next. */
static int64_t step_of(const kvc__rows *mask) {
    return mask->last_stride * (int64_t)kvc_dtype_size_bytes(mask->dtype);
}

void kvc__adjust(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                 int64_t count, float *s, int64_t stride) {
    if (job->slopes.data) add_slopes(job, b, head, i, first, count, s, stride);
    if (!job->mask.data || job->mask.dtype == KVC_U8) return;
    const char *mask = kvc__at(&job->mask, b, head, i, first);
    const int64_t step = step_of(&job->mask);
    for (int64_t j = 0; j < count; j++)
        s[j * stride] += kvc__load(mask + j * step, job->mask.dtype);
}

uint64_t kvc__kept(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                   int64_t count) {
    const char *mask = kvc__at(&job->mask, b, head, i, first);
    const int64_t step = step_of(&job->mask);
    uint64_t kept = 0;
    if (job->mask.dtype == KVC_U8)
        for (int64_t j = 0; j < count; j++) kept |= (uint64_t)(mask[j * step] != 0) << j;
    else
        for (int64_t j = 0; j < count; j++) {
            const float x = kvc__load(mask + j * step, job->mask.dtype);
            kept |= (uint64_t)(x != -INFINITY) << j;
        }
    return kept;
}

void kvc__hide(uint64_t kept, int64_t count, float *s, int64_t stride) {
    for (uint64_t hidden = ~kept & kvc__bits((kvc__range){0, count}); hidden; hidden &= hidden - 1)
        s[__builtin_ctzll(hidden) * stride] = -INFINITY;
}
