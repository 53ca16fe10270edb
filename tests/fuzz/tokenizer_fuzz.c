/* The tokenizer on any bytes: two of vocabulary size, two of text length, the text, the file. The
 * reader refuses the file in a sentence, or the text is encoded and what is decoded is in bounds.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "generate/decoder.h"

enum { HEADER = 4, MOST_TEXT = 1024 };

static volatile char seen;

static void decode(const tokenizer *t, const int32_t *ids, int64_t count) {
    decoder d = {.tokens = t, .previous = ids[0]};
    for (int64_t i = 1; i < count; i++) {
        FUZZ_WANT(ids[i] >= 0 && ids[i] < t->vocab_size);
        const span piece = decoder_next(&d, ids[i]);
        for (size_t at = 0; at < piece.length; at++) seen = piece.bytes[at];
    }
}

static void encode(const tokenizer *t, span text) {
    failure error = {""};
    int32_t *ids;
    int64_t count;
    if (tokenizer_encode(t, text, &ids, &count, &error)) {
        FUZZ_WANT(count >= 1 && (size_t)count <= text.length + 2 && ids[0] == TOKEN_BOS);
        decode(t, ids, count);
    } else {
        FUZZ_WANT(count == 0 && !ids && *error.sentence);
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < HEADER) return 0;
    const int64_t vocab_size = data[0] | data[1] << 8;
    size_t length = data[2] | (size_t)data[3] << 8;
    const char *text = (const char *)data + HEADER;
    bytes -= HEADER;
    if (length > MOST_TEXT) length = MOST_TEXT;
    if (length > bytes) length = bytes;
    tokenizer t;
    failure error = {""};
    if (!tokenizer_init_memory(&t, "input", text + length, bytes - length, vocab_size, &error)) {
        FUZZ_WANT(strncmp(error.sentence, "input: ", 7) == 0 && !t.pieces);
        return 0;
    }
    encode(&t, (span){text, length});
    tokenizer_deinit(&t);
    return 0;
}
