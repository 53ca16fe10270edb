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

/** What a generation did. */
typedef struct generation_figures {
    int64_t positions; /**< in the cache at the end */
    int64_t forwards;  /**< after the prompt */
    int64_t drafted;   /**< tokens guessed, each computed as one more position of a forward */
    int64_t accepted;  /**< of those, guessed right: forwards saved */
} generation_figures;

/** What to generate, and whom to tell. */
typedef struct generation {
    const int32_t *prompt; /**< [prompt_count] BOS, then the tokens of the text; borrowed */
    int64_t prompt_count;  /**< 1 to the model's seq_len */
    int64_t cached;        /**< positions of the prompt that the cache has already, from a file
                                say; less than prompt_count, as the last one's logits are wanted */
    int64_t steps;         /**< positions to have in the end, those of the prompt included */
    int32_t *ids;          /**< receives [steps] the tokens of the positions; may be NULL */
    int64_t speculate;     /**< tokens to guess ahead, 0 to TRANSFORMER_MOST - 1 */
    /** Takes each span of the text; false ends the generation, with a sentence in *error. */
    bool (*text)(void *context, span text, failure *error);
    /** Called around each forward, with the positions in the cache before and after it, wrong
     * guesses included; may be NULL. */
    void (*forward_begins)(void *context, int64_t done);
    void (*forward_ended)(void *context, int64_t done);
    void *context; /**< handed to all three */
} generation;

/** Gives the text of the prompt, then of tokens drawn from the model, until it gives BOS or `steps`
 * positions are computed. Every computed position yields the token after it, so `steps` counts the
 * tokens of the text; fewer steps than the prompt has tokens give only so many of them.
 * The prompt is computed TRANSFORMER_MOST positions at a time, and nothing is given before all of
 * it is.
 *
 * With `speculate`, each forward takes the next token and guesses of those after it (draft.h), and
 * a token is drawn after each position for as long as the draw is the guess; what was guessed wrong
 * is trimmed from the cache. Tokens are drawn in the same order from the same logits as without, so
 * the text is the same, at any temperature, as far as the logits are: their last bits can differ
 * (transformer_forward), and tokens that are this close may change places. In a cache of f16 or
 * bf16 the last bits of a key or value may round to its neighbour, which is seen more often.
 * @param t        whose cache holds `cached` positions
 * @param tokens   of as many tokens as the model
 * @param s        as tokens
 * @param figures  written, on failure with what was done so far
 * @source llama2.c's generate, which computes the prompt position by position */
bool generate(transformer *t, const tokenizer *tokens, sampler *s, const generation *wanted,
              generation_figures *figures, failure *error);

#endif
