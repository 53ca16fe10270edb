#include "attention/adjust.h"

static void add_slopes(const kvc__job *job, int64_t head, int64_t i, int64_t first, int64_t count,
                       float *s, int64_t stride) {
    const float slope = kvc__load(kvc__at(&job->slopes, 0, head, 0, 0), job->slopes.dtype);
    const float from = (float)(first - kvc__position(job, i)); /* exact to 2^24 */
    for (int64_t j = 0; j < count; j++) s[j * stride] += slope * (from + (float)j);
}

void kvc__adjust(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                 int64_t count, float *s, int64_t stride) {
    (void)b;
    if (job->slopes.data) add_slopes(job, head, i, first, count, s, stride);
}
