/** @file
 * A run of `kvcache generate`, as its parts share it. */
#ifndef KVCACHE_TOOLS_GENERATE_SESSION_H
#define KVCACHE_TOOLS_GENERATE_SESSION_H

#include "generate/generate.h"
#include "generate_options.h"
#include "generate_tiers.h"
#include "stats.h"

/** All that a run takes. Zeroed, it can be ended. */
typedef struct session {
    const generate_options *wanted;
    checkpoint model;
    tokenizer tokens;
    int32_t *prompt; /**< [prompt_count] BOS first; or the text to predict */
    int64_t prompt_count, steps;
    kvc_pool *pool;
    transformer transformer;
    generate_tiers *tiers; /**< below the cache's blocks; NULL: none */
    int64_t ready;         /**< positions of the prompt that came from there, or from a file */
    int32_t *ids;          /**< [steps] tokens of the positions in the cache, when a text has
                                ended; NULL unless somebody wants them */
    sampler samplers[TRANSFORMER_MOST]; /**< [wanted->parallel] in use */
    bool shares_terminal;               /**< text and progress would mix */
    int64_t done;                       /**< positions computed */
    kvc_pool_stats pool_then;           /**< at the end of the last forward, for the trace */
    stats_samples step_ns;              /**< of each forward after the prompt */
    uint64_t forward_ns;                /**< when the forward at work began */
    uint64_t prompt_ns;                 /**< time of the prompt's forwards */
    uint64_t steps_ns;                  /**< time of the others */
    uint64_t continuation_ns;           /**< steps_ns, drawing tokens and printing */
    generation_figures figures;
} session;

/** Called around each forward: progress, times, the trace. */
void session_forward_begins(void *context, int64_t done);
void session_forward_ended(void *context, int64_t done);

/** Prints a number of positions, in how much time.
 * @param what  begins the line, which is not ended */
void session_print_speed(const char *what, int64_t positions, uint64_t ns);

/** Prints which share of some time the library took. */
void session_print_shares(const session *s, uint64_t ns);

/** Continues the prompt several times and prints the texts.
 * @return CLI_DONE, or CLI_FAILED with a line */
int session_continue_parallel(session *s);

#endif
