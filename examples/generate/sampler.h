/** @file
 * From logits to the next token.
 * @source llama2.c's sampler; the same seed draws the same tokens from the same logits */
#ifndef GENERATE_SAMPLER_H
#define GENERATE_SAMPLER_H

#include <stdint.h>

#include "failure.h"

/** A token and its probability. */
typedef struct candidate {
    float probability;
    int32_t id;
} candidate;

/** How tokens are drawn, and the state of the draw. */
typedef struct sampler {
    int64_t vocab_size;
    float temperature;     /**< 0: always the likeliest */
    float top_p;           /**< draw from the likeliest that together pass it; 0 and 1: from all */
    uint64_t state;        /**< of the random numbers, never 0 */
    candidate *candidates; /**< [vocab_size] scratch */
} sampler;

/** Makes a sampler.
 * @param temperature  >= 0
 * @param top_p        0 to 1
 * @param seed         equal seeds draw equally; 0 stands for one of the others */
bool sampler_init(sampler *out, int64_t vocab_size, float temperature, float top_p, uint64_t seed,
                  failure *error);

/** Frees and zeroes it. One that could not be initialised is allowed. */
void sampler_deinit(sampler *s);

/** Draws a token: O(vocab_size), and a sort of the candidates for top_p. The likeliest is the first
 * of equals.
 * @param logits  [vocab_size]
 * @return        the token, or -1 when a logit is not a finite number */
int32_t sampler_next(sampler *s, const float *logits);

#endif
