/** @file
 * Text to tokens: SentencePiece's byte-pair encoding over a vocabulary in a file.
 *
 * The file, little-endian: int32 max_token_length, then per token float32 score, int32 length and
 * so many bytes. Token 1 is BOS; the 256 tokens "<0x00>" to "<0xFF>" stand for single bytes.
 * @source llama2.c, tokenizer.bin. There every merge scans the text; here a heap holds the pairs.
 */
#ifndef GENERATE_TOKENIZER_H
#define GENERATE_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "failure.h"
#include "file.h"

/** Begins a text; a model that gives it has ended one. */
enum { TOKEN_BOS = 1 };

/** Some bytes of text, borrowed. */
typedef struct span {
    const char *bytes;
    size_t length;
} span;

/** A vocabulary. */
typedef struct tokenizer {
    int64_t vocab_size;
    size_t longest;        /**< bytes of the longest piece */
    span *pieces;          /**< [vocab_size], in the file's memory */
    float *scores;         /**< [vocab_size]; of two possible merges the higher is made first */
    int32_t *slots;        /**< [slot_count] hash table of tokens by their bytes, -1 where empty */
    uint32_t slot_count;   /**< a power of two, at least twice vocab_size */
    int32_t byte_ids[256]; /**< the token of each single byte, -1 where there is none */
    mapped_file file;
} tokenizer;

/** Maps and reads a tokenizer of exactly vocab_size tokens: O(vocab_size).
 * @param vocab_size  the model's, from 2 on */
bool tokenizer_init(tokenizer *out, const char *path, int64_t vocab_size, failure *error);

/** The same over memory, borrowed until tokenizer_deinit.
 * @param name  of the tokenizer, for the sentence */
bool tokenizer_init_memory(tokenizer *out, const char *name, const void *data, size_t bytes,
                           int64_t vocab_size, failure *error);

/** Frees, unmaps and zeroes it. One that could not be initialised is allowed. */
void tokenizer_deinit(tokenizer *t);

/** Encodes a text: a space in front, one token per character or, where there is none, per byte;
 * then of all neighbours that form a token the pair of the best score is merged, the leftmost of
 * equals, until none is left. O(length · log length). No text gives no token but BOS.
 * @param ids    receives [*count], BOS and the tokens of the text; free it. NULL on failure.
 * @param count  receives how many */
bool tokenizer_encode(const tokenizer *t, span text, int32_t **ids, int64_t *count, failure *error);

/** Returns the byte that a token stands for, -1 when it is text. O(1) for text.
 * @param id  0 <= id < vocab_size */
int tokenizer_byte(const tokenizer *t, int32_t id);

#endif
