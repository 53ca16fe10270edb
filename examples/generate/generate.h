/** @file
 * A prompt and its continuation, token by token. */
#ifndef GENERATE_GENERATE_H
#define GENERATE_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "failure.h"
#include "sampler.h"
#include "tokenizer.h"
#include "transformer.h"

/** What to generate, and whom to tell. */
typedef struct generation {
    const int32_t *prompt; /**< [prompt_count] BOS, then the tokens of the text; borrowed */
    int64_t prompt_count;  /**< 1 to the model's seq_len */
    int64_t steps;         /**< positions to compute, those of the prompt included */
    /** Takes each span of the text; false ends the generation, with a sentence in *error. */
    bool (*text)(void *context, span text, failure *error);
    /** Called around each forward, with the positions computed so far; may be NULL. */
    void (*forward_begins)(void *context, int64_t done);
    void (*forward_ended)(void *context, int64_t done);
    void *context; /**< handed to all three */
} generation;

/** Gives the text of the prompt, then of tokens drawn from the model, until it gives BOS or `steps`
 * positions are computed. Every computed position yields the token after it, so `steps` counts the
 * tokens of the text; fewer steps than the prompt has tokens give only so many of them.
 * The prompt is computed TRANSFORMER_MOST positions at a time, and nothing is given before all of
 * it is.
 * @param t       with an empty cache
 * @param tokens  of as many tokens as the model
 * @param s       as tokens
 * @source llama2.c's generate, which computes the prompt position by position */
bool generate(transformer *t, const tokenizer *tokens, sampler *s, const generation *wanted,
              failure *error);

#endif
