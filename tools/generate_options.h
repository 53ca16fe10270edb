/** @file
 * What `kvcache generate` is asked for. */
#ifndef KVCACHE_TOOLS_GENERATE_OPTIONS_H
#define KVCACHE_TOOLS_GENERATE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cache_kind.h"
#include "generate/transformer.h"
#include "tier_option.h"

/** The command line. Texts are borrowed from it. */
typedef struct generate_options {
    const char *model, *tokenizer, *prompt;
    const char *perplexity; /**< the text to measure; NULL: a text is written */
    const char *trace;
    const char *save_cache, *load_cache; /**< NULL: not given */
    bool map;                            /**< load_cache is mapped */
    int64_t steps;                       /**< 0: not given */
    int64_t speculate, seed;
    int64_t parallel; /**< 1: not given, one text */
    double temperature, top_p;
    tier_options tiers;         /**< below the blocks of a paged cache */
    const char *cache;          /**< its kind in the user's words, for the figures */
    cache_kind kind;            /**< the same */
    transformer_options engine; /**< but for max_positions, which depends on the model */
    bool quiet;
} generate_options;

/** Reads the command line into *out, zeroed. After --help there is no model.
 * @return CLI_DONE, or CLI_USAGE with a line */
int generate_options_take(generate_options *out, int argc, char **argv);

#endif
