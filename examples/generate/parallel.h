/** @file
 * Several continuations of one prompt, which is computed and held once. */
#ifndef GENERATE_PARALLEL_H
#define GENERATE_PARALLEL_H

#include <stdbool.h>
#include <stdint.h>

#include "failure.h"
#include "sampler.h"
#include "tokenizer.h"
#include "transformer.h"

/** What to generate, and whom to tell. */
typedef struct parallel_generation {
    const int32_t *prompt; /**< [prompt_count] BOS, then the tokens of the text; borrowed */
    int64_t prompt_count;  /**< 1 to the model's seq_len */
    int64_t ready; /**< of its positions: in the cache already, before prompt_count and steps */
    int64_t steps; /**< positions of each sequence, those of the prompt included */
    /** Takes each span of the text of a sequence; false ends the generation, with a sentence. */
    bool (*text)(void *context, int64_t sequence, span text, failure *error);
    /** Called around each forward, with the positions of the longest sequence before and after it;
     * may be NULL. */
    void (*forward_begins)(void *context, int64_t done);
    void (*forward_ended)(void *context, int64_t done);
    void *context; /**< handed to all three */
} parallel_generation;

/** Computes the prompt once, has all sequences of the transformer share its blocks, and continues
 * each with its sampler until it gives BOS or `steps` positions are computed. The text of a
 * sequence is what generate (generate.h) gives with its sampler alone, as far as the logits are:
 * their last bits can differ.
 * @param t         whose first sequence has the positions that are ready; nothing else is there
 * @param samplers  [sequences]
 * @param computed  receives the positions that forwards computed, all sequences together */
bool generate_parallel(transformer *t, const tokenizer *tokens, sampler *samplers,
                       const parallel_generation *wanted, int64_t *computed, failure *error);

#endif
