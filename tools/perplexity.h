/** @file
 * How well a model predicts a text, under the cache that it has. */
#ifndef KVCACHE_TOOLS_PERPLEXITY_H
#define KVCACHE_TOOLS_PERPLEXITY_H

#include <stdbool.h>
#include <stdint.h>

#include "generate/transformer.h"

/** The perplexity of a text is exp(nats / tokens). */
typedef struct perplexity {
    int64_t tokens;  /**< predicted: all of the text */
    int64_t windows; /**< that the text was split into */
    double nats;     /**< the sum of -ln p of each token */
} perplexity;

/** Measures a text in windows that know nothing of each other: each is BOS and the next
 * window - 1 tokens. Shows progress.
 *
 * Positions are computed TRANSFORMER_MOST at a time: a forward appends before it attends, so every
 * key and value, a position's own included, is read from the cache and in the form that the cache
 * keeps it, as when tokens come one by one. Only the order of sums differs.
 * @param t       its cache holds at least window - 1 positions; what is in it is cleared
 * @param tokens  [count] BOS, then the text; ends of windows are overwritten
 * @param count   2 or more
 * @param window  2 to the model's seq_len */
bool perplexity_measure(perplexity *out, transformer *t, int32_t *tokens, int64_t count,
                        int64_t window, failure *error);

#endif
