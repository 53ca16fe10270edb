/** @file
 * How soon a model can go on behind a prompt that nearly fills its context: computed, and restored
 * from a tier. */
#ifndef KVCACHE_TOOLS_TIER_PROMPT_H
#define KVCACHE_TOOLS_TIER_PROMPT_H

#include <stdint.h>

#include "generate/generate.h"
#include "stats.h"

/** Times from the prompt to the logits behind it. */
typedef struct tier_prompt {
    int64_t positions; /**< of the prompt */
    int64_t found;     /**< of them, in the tier */
    uint64_t bytes;    /**< of their keys and values */
    stats_summary computed_ns, restored_ns;
} tier_prompt;

/** Measures passes, both by turns; keys and values in f32, blocks of TRANSFORMER_MOST positions.
 * A prompt is restored by an engine that has nothing in memory but the model.
 * @param text   of --tier; what is put there is removed again (Redis: forgets within a minute)
 * @param model  borrowed
 * @return       CLI_DONE, or CLI_FAILED with a line; also where restored logits differ by a bit */
int tier_prompt_measure(tier_prompt *out, const char *text, const checkpoint *model,
                        int64_t passes);

#endif
