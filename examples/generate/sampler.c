#include "sampler.h"

#include <math.h>
#include <stdlib.h>

bool sampler_init(sampler *out, int64_t vocab_size, float temperature, float top_p, uint64_t seed,
                  failure *error) {
    *out = (sampler){.vocab_size = vocab_size, .temperature = temperature, .top_p = top_p};
    if (vocab_size <= 0 || !(temperature >= 0) || !(top_p >= 0 && top_p <= 1))
        return failure_set(error,
                           "sampler: %lld tokens, temperature %g and top_p %g given, at "
                           "least 1, at least 0 and 0 to 1 wanted",
                           (long long)vocab_size, (double)temperature, (double)top_p);
    out->state = seed != 0 ? seed : 0x9e3779b97f4a7c15u; /* xorshift would stay at 0 */
    out->candidates = calloc((size_t)vocab_size, sizeof *out->candidates);
    if (!out->candidates)
        return failure_set(error, "sampler: no memory for %lld tokens", (long long)vocab_size);
    return true;
}

void sampler_deinit(sampler *s) {
    free(s->candidates);
    *s = (sampler){0};
}

/* Returns a number of [0, 1), by xorshift64* (Vigna, 2016). */
static float draw(sampler *s) {
    s->state ^= s->state >> 12;
    s->state ^= s->state << 25;
    s->state ^= s->state >> 27;
    const uint32_t random = (uint32_t)((s->state * 0x2545f4914f6cdd1du) >> 32);
    return (float)(random >> 8) / 16777216.0f;
}

/* Returns the first of the largest, -1 when one is not finite. */
static int32_t likeliest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* candidates[i] = softmax(logits / temperature)[i] */
static void softmax(sampler *s, const float *logits, float largest) {
    float sum = 0;
    for (int64_t i = 0; i < s->vocab_size; i++) {
        const float p = expf((logits[i] - largest) / s->temperature);
        s->candidates[i] = (candidate){p, (int32_t)i};
        sum += p;
    }
    for (int64_t i = 0; i < s->vocab_size; i++) s->candidates[i].probability /= sum;
}

static int likelier_first(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->probability != y->probability) return x->probability > y->probability ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Sorts the fewest candidates that together pass top_p to the front. Returns how many, and their
 * sum in *total. */
static int64_t keep_top(sampler *s, float *total) {
    /* Were all others below this, they could not make up the rest: no need to sort them. */
    const float cutoff = (1.0f - s->top_p) / (float)(s->vocab_size - 1);
    int64_t count = 0, kept = 0;
    for (int64_t i = 0; i < s->vocab_size; i++)
        if (s->candidates[i].probability >= cutoff) s->candidates[count++] = s->candidates[i];
    qsort(s->candidates, (size_t)count, sizeof *s->candidates, likelier_first);
    *total = 0;
    while (kept < count && *total <= s->top_p) *total += s->candidates[kept++].probability;
    return kept;
}

int32_t sampler_next(sampler *s, const float *logits) {
    const int32_t best = likeliest(logits, s->vocab_size);
    if (best < 0 || s->temperature == 0) return best;
    int64_t count = s->vocab_size;
    float total = 1, below = 0;
    softmax(s, logits, logits[best]);
    const float coin = draw(s);
    if (s->top_p > 0 && s->top_p < 1 && s->vocab_size > 1) count = keep_top(s, &total);
    for (int64_t i = 0; i < count; i++) {
        below += s->candidates[i].probability;
        if (coin * total < below) return s->candidates[i].id;
    }
    return count > 0 ? s->candidates[count - 1].id : best; /* sums round */
}
