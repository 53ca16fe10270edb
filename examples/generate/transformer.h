/** @file
 * A Llama model at work: tokens in, logits out, keys and values in a kvc_cache.
 *
 * This is the part that shows libkvcache. One kvc_cache holds the keys and values of all layers,
 * one kvc_attention serves them all. The engine computes position by position, [n][heads][dim], and
 * lends such arrays to the library with their strides: nothing is transposed or copied on the way.
 * @source llama2.c's forward, here for many positions at once */
#ifndef GENERATE_TRANSFORMER_H
#define GENERATE_TRANSFORMER_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/kvcache.h>

#include "checkpoint.h"
#include "failure.h"

/** The most positions of one forward, and the most sequences; more raise the arithmetic per byte of
 * weights little. */
enum { TRANSFORMER_MOST = 64 };

/** What is free to choose. Zeroed but for kv_dtype and max_positions, it is a sound choice. */
typedef struct transformer_options {
    kvc_growth growth;     /**< of the cache */
    kvc_dtype kv_dtype;    /**< of the cache: KVC_F32, KVC_F16 or KVC_BF16 */
    int64_t window, keep;  /**< of every layer, as in kvc_layer_spec; 0: all positions are kept */
    int kv_bits, kv_group; /**< likewise; 0: keys and values are not packed */
    bool keys_per_channel, rotated; /**< likewise */
    int64_t block;         /**< positions of a block, by KVC_GROW_PAGED; 0: the library's */
    int64_t chunk;         /**< of the cache, in positions; 0: the library's */
    int64_t max_positions; /**< that a sequence will hold, 1 to the model's seq_len */
    int64_t slack;         /**< positions that windows give back, for guesses that were wrong */
    int64_t sequences;     /**< that continue the same prompt, 1 to TRANSFORMER_MOST; 0 means 1.
                                More than one want KVC_GROW_PAGED: they share its blocks */
    bool strict;           /**< refuse slow paths of attention */
} transformer_options;

/** A model and its state. */
typedef struct transformer {
    const checkpoint *model;
    int64_t sequences;
    kvc_cache *cache;
    kvc_blocks *blocks;       /**< of the cache, where it has some */
    kvc_attention *attention; /**< of the first sequence, up to TRANSFORMER_MOST queries */
    kvc_attention *step;      /**< of all sequences, one query each; NULL where there is one */
    float *memory;            /**< one allocation for all that follows; n is TRANSFORMER_MOST */
    float *x;                 /**< [n][dim] what goes from layer to layer */
    float *normed;            /**< [n][dim] */
    float *q;                 /**< [n][heads][head_dim] */
    float *k, *v;             /**< [n][kv_heads][head_dim] */
    float *mixed;             /**< [n][heads][head_dim] what attention gives */
    float *gate;              /**< [n][hidden_dim] */
    float *up;                /**< [n][hidden_dim] */
    float *turns;             /**< [n][head_dim / 2][2] */
    float *logits;            /**< [n][vocab_size], of the last positions of the last forward */
    uint64_t append_ns, attention_ns; /**< time spent in the library's two calls */
} transformer;

/** Makes a transformer with an empty cache.
 * @param model  borrowed until transformer_deinit
 * @param pool   borrowed for the call, where the cache's memory comes from */
bool transformer_init(transformer *out, const checkpoint *model, kvc_pool *pool,
                      const transformer_options *options, failure *error);

/** Frees and zeroes it. One that could not be initialised is allowed. */
void transformer_deinit(transformer *t);

/** Computes n more positions of the first sequence, and the logits of the last ones.
 * Allocates nothing. One forward of many positions gives what many of one give, but for the last
 * bits: attention sums in another order when it has more queries.
 * @param tokens  [n], each 0 <= token < vocab_size
 * @param n       1 to TRANSFORMER_MOST
 * @param told    1 to n: how many rows of logits to compute, the last being the last position's
 * @return        false leaves a transformer that can only be ended */
bool transformer_forward(transformer *t, const int32_t *tokens, int64_t n, int64_t told,
                         failure *error);

/** Gives all sequences what the first one has: they share its blocks. O(blocks). */
bool transformer_fork(transformer *t, failure *error);

/** Computes one more position of each sequence that goes on, and logits for each: row b is that of
 * sequence b. Allocates nothing.
 * @param tokens   [sequences]; of those that rest any that is a token
 * @param goes_on  [sequences]
 * @return         as transformer_forward */
bool transformer_step(transformer *t, const int32_t *tokens, const bool *goes_on, failure *error);

#endif
