#include "perplexity.h"

#include <math.h>

#include "cli.h"
#include "generate/tokenizer.h"
#include "trace.h"

/* Returns -ln softmax(logits)[token]; no finite number when a logit is none. */
static double surprise(const float *logits, int64_t n, int32_t token) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, (double)logits[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - largest);
    return log(sum) + largest - (double)logits[token];
}

/* Computes tokens[0, n) and adds how surprising tokens[1, n] are, each after those before it. */
static bool add_forward(perplexity *sum, transformer *t, const int32_t *tokens, int64_t n,
                        failure *error) {
    const int64_t vocab_size = t->model->vocab_size;
    trace_step_begin("forward");
    const bool done = transformer_forward(t, tokens, n, n, error);
    trace_step_end();
    if (!done) return false;
    for (int64_t p = 0; p < n; p++)
        sum->nats += surprise(t->logits + p * vocab_size, vocab_size, tokens[p + 1]);
    sum->tokens += n;
    if (isfinite(sum->nats)) return true;
    return failure_set(error, "the model gives logits that are no finite numbers: its weights are "
                              "damaged");
}

bool perplexity_measure(perplexity *out, transformer *t, int32_t *tokens, int64_t count,
                        int64_t window, failure *error) {
    *out = (perplexity){0};
    if (window < 2)
        return failure_set(error, "windows of %lld tokens given, 2 or more wanted",
                           (long long)window);
    for (int64_t start = 0; start + 1 < count; start += window - 1) {
        const int64_t left = count - 1 - start, end = start + (left < window ? left : window - 1);
        kvc_cache_clear(t->cache);
        tokens[start] = TOKEN_BOS; /* the last of the window before: it has been predicted */
        for (int64_t at = start, n; at < end; at += n) {
            n = end - at < TRANSFORMER_MOST ? end - at : TRANSFORMER_MOST;
            if (!add_forward(out, t, tokens + at, n, error)) return false;
            cli_progress("%lld of %lld tokens", (long long)out->tokens, (long long)count - 1);
        }
        out->windows++;
    }
    return true;
}
