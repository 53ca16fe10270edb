#include "decoder.h"

#include <ctype.h>
#include <stdbool.h>

static const span nothing = {"", 0};

/* Returns the bytes of a character that begins so, 0 when none does. */
static size_t utf8_length(unsigned char first) {
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* Tells whether bytes of the right shape are a character: the shortest form, no surrogate. */
static bool is_character(const char *bytes, size_t length) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t point = (unsigned char)bytes[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) point = point << 6 | ((unsigned char)bytes[i] & 0x3Fu);
    return point >= least[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
}

static span add_byte(decoder *d, unsigned char byte) {
    const bool continues = (byte & 0xC0) == 0x80;
    if (!continues) d->length = 0; /* what was begun is dropped */
    if (continues && d->length == 0) return nothing;
    d->character[d->length++] = (char)byte;
    const size_t wanted = utf8_length((unsigned char)d->character[0]);
    if (d->length < wanted) return nothing;
    d->length = 0;
    if (wanted == 0 || (wanted > 1 && !is_character(d->character, wanted))) return nothing;
    if (wanted == 1 && iscntrl(byte) && !isspace(byte)) return nothing;
    return (span){d->character, wanted};
}

span decoder_next(decoder *d, int32_t id) {
    span text = d->tokens->pieces[id];
    const int byte = tokenizer_byte(d->tokens, id);
    const bool begins = d->previous == TOKEN_BOS;
    d->previous = id;
    if (byte >= 0) return add_byte(d, (unsigned char)byte);
    if (begins && text.length > 0 && *text.bytes == ' ')
        text = (span){text.bytes + 1, text.length - 1};
    if (text.length == 1) return add_byte(d, (unsigned char)*text.bytes);
    d->length = 0;
    return text;
}
