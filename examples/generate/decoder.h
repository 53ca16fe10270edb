/** @file
 * Tokens to text, one after another. */
#ifndef GENERATE_DECODER_H
#define GENERATE_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "tokenizer.h"

/** What decoding has to remember. Begin with tokens and the token before the first; the rest 0. */
typedef struct decoder {
    const tokenizer *tokens; /**< borrowed */
    int32_t previous;        /**< TOKEN_BOS when the text begins */
    char character[4];       /**< single bytes that came, until they are a character */
    size_t length;
} decoder;

/** Returns the text that the next token adds: its piece, without the leading space after BOS, which
 * the tokenizer put there. Tokens of single bytes add a character once they make one in UTF-8;
 * bytes that never do, and control characters but for white space, add nothing.
 * @param id  0 <= id < vocab_size
 * @lifetime  until the next call, and the tokenizer's
 * @source llama2.c, which drops single bytes from 0x80 on, and so other scripts in a prompt */
span decoder_next(decoder *d, int32_t id);

#endif
