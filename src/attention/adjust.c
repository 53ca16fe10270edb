#include "attention/adjust.h"

#include "attention/row.h"

/* Scores are adjusted so many at a time: first their biases side by side, as vectors, then the
 * sums, which may be strided. */
enum { PIECE = 64 };

static float flag(char keeps) {
    return kvc__f32_of_bits(kvc__choose(keeps == 0, 0xff800000u, 0)); /* -inf, 0 */
}

/* The mask of a row as what it adds, for flags 0 or -inf: where it lies, or in `own`. */
static const float *load_mask(float *own, const kvc__job *job, int64_t b, int64_t head, int64_t i,
                              int64_t first, int64_t count) {
    const kvc__rows *mask = &job->mask;
    const char *from = kvc__at(mask, b, head, i, first);
    const int64_t step = mask->last_stride;
    if (mask->dtype == KVC_U8 && step == 1) /* a vector at a time */
        for (int64_t j = 0; j < count; j++) own[j] = flag(from[j]);
    else if (mask->dtype == KVC_U8)
        for (int64_t j = 0; j < count; j++) own[j] = flag(from[j * step]);
    else if (step == 1 && mask->dtype == KVC_F32) return (const float *)(const void *)from;
    else if (step == 1) kvc__row_load(own, from, mask->dtype, 0, count);
    else
        for (int64_t j = 0; j < count; j++)
            own[j] = kvc__load(kvc__at(mask, b, head, i, first + j), mask->dtype);
    return own;
}

static const float *load_bias(float own[PIECE], const kvc__job *job, int64_t b, int64_t head,
                              int64_t i, int64_t first, int64_t count) {
    const float *mask = own;
    if (job->mask.data) mask = load_mask(own, job, b, head, i, first, count);
    if (!job->slopes.data) return mask;
    const float slope = kvc__load(kvc__at(&job->slopes, 0, head, 0, 0), job->slopes.dtype);
    const float from = (float)(first - kvc__position(job, b, i)); /* exact to 2^24 */
    if (job->mask.data)
        for (int j = 0; j < count; j++) own[j] = slope * (from + (float)j) + mask[j];
    else
        for (int j = 0; j < count; j++) own[j] = slope * (from + (float)j);
    return own;
}

void kvc__adjust(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                 int64_t count, float *s, int64_t stride) {
    float own[PIECE] = {0};
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = kvc__smaller(count - at, PIECE);
        const float *bias = load_bias(own, job, b, head, i, first + at, n);
        for (int64_t j = 0; j < n; j++) s[(at + j) * stride] += bias[j];
    }
}

uint64_t kvc__kept(const kvc__job *job, int64_t b, int64_t head, int64_t i, int64_t first,
                   int64_t count) {
    float own[64];
    int hidden = 0;
    uint64_t kept = 0;
    const float *mask = load_mask(own, job, b, head, i, first, count);
    for (int64_t j = 0; j < count; j++) hidden += mask[j] == -INFINITY;
    if (hidden == 0) return kvc__bits((kvc__range){0, count}); /* mostly so */
    for (int64_t j = 0; j < count; j++) kept |= (uint64_t)(mask[j] != -INFINITY) << j;
    return kept;
}

void kvc__hide(uint64_t kept, int64_t count, float *s, int64_t stride) {
    for (uint64_t hidden = ~kept & kvc__bits((kvc__range){0, count}); hidden; hidden &= hidden - 1)
        s[__builtin_ctzll(hidden) * stride] = -INFINITY;
}
