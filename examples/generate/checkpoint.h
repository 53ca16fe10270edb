/** @file
 * The weights of a Llama model where they lie in the file.
 *
 * Seven little-endian int32 (dim, hidden_dim, layers, heads, kv_heads, vocab_size, seq_len), then
 * float32 without gaps, in the order of the pointers below. Between final_norm and classifier stand
 * two tables of seq_len * head_dim / 2 that are no longer used. A negative vocab_size says that the
 * classifier has weights of its own; otherwise the embedding serves.
 * @source llama2.c, version 0 of its checkpoints */
#ifndef GENERATE_CHECKPOINT_H
#define GENERATE_CHECKPOINT_H

#include <stdint.h>

#include "failure.h"
#include "file.h"

/** A model. Every size is > 0; heads * head_dim = dim, kv_heads * head_dim = kv_dim, head_dim is
 * even, and kv_heads divides heads. */
typedef struct checkpoint {
    int64_t dim, hidden_dim, layers, heads, kv_heads, vocab_size, seq_len, head_dim, kv_dim;
    const float *embedding;      /**< [vocab_size][dim] */
    const float *attention_norm; /**< [layers][dim] */
    const float *wq;             /**< [layers][dim][dim] */
    const float *wk, *wv;        /**< [layers][kv_dim][dim] */
    const float *wo;             /**< [layers][dim][dim] */
    const float *ffn_norm;       /**< [layers][dim] */
    const float *w1;             /**< [layers][hidden_dim][dim] */
    const float *w2;             /**< [layers][dim][hidden_dim] */
    const float *w3;             /**< [layers][hidden_dim][dim] */
    const float *final_norm;     /**< [dim] */
    const float *classifier;     /**< [vocab_size][dim] */
    mapped_file file;
} checkpoint;

/** Maps a checkpoint and checks its header against the size of the file, to the byte.
 * O(1): weights are read from the disk when they are first used. */
bool checkpoint_init(checkpoint *out, const char *path, failure *error);

/** The same over memory, borrowed until checkpoint_deinit.
 * @param name  of the checkpoint, for the sentence
 * @param data  [bytes], aligned as float is */
bool checkpoint_init_memory(checkpoint *out, const char *name, const void *data, size_t bytes,
                            failure *error);

/** Unmaps and zeroes it. One that could not be initialised is allowed. */
void checkpoint_deinit(checkpoint *model);

#endif
