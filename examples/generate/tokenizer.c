#include "tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTE_PIECE = 6 }; /* bytes of "<0x00>" */

static const char wanted[] = "a llama2.c tokenizer";

/* Looking up. */

static uint32_t hash(span text) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < text.length; i++) h = (h ^ (unsigned char)text.bytes[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Returns the slot of a text, or the empty slot where it would stand. */
static int32_t *find_slot(const tokenizer *t, span text) {
    for (uint32_t i = hash(text);; i++) {
        int32_t *slot = &t->slots[i & (t->slot_count - 1)];
        if (*slot < 0) return slot;
        const span known = t->pieces[*slot];
        if (known.length == text.length && memcmp(known.bytes, text.bytes, text.length) == 0)
            return slot;
    }
}

static int32_t find_token(const tokenizer *t, span text) {
    return *find_slot(t, text);
}

/* Reading. */

typedef struct reader {
    const char *at;
    size_t left;
} reader;

static bool read_bytes(reader *r, void *out, size_t bytes) {
    if (r->left < bytes) return false;
    memcpy(out, r->at, bytes);
    r->at += bytes;
    r->left -= bytes;
    return true;
}

static bool read_token(tokenizer *t, int64_t id, int32_t longest, reader *r, const char *name,
                       failure *error) {
    float score;
    int32_t length;
    if (!read_bytes(r, &score, sizeof score) || !read_bytes(r, &length, sizeof length))
        return failure_set(error,
                           "%s: ends after %lld tokens, %lld wanted by the model: truncated, "
                           "or another model's tokenizer",
                           name, (long long)id, (long long)t->vocab_size);
    if (length < 0 || length > longest || !isfinite(score))
        return failure_set(error,
                           "%s: token %lld has length %d and score %g, at most %d bytes and "
                           "a finite score wanted: no llama2.c tokenizer",
                           name, (long long)id, length, (double)score, longest);
    if ((size_t)length > r->left)
        return failure_set(error,
                           "%s: ends within token %lld of the %lld that the model wants: "
                           "truncated",
                           name, (long long)id, (long long)t->vocab_size);
    t->scores[id] = score;
    t->pieces[id] = (span){r->at, (size_t)length};
    if (t->pieces[id].length > t->longest) t->longest = t->pieces[id].length;
    r->at += length;
    r->left -= (size_t)length;
    return true;
}

static bool read_tokens(tokenizer *t, reader *r, const char *name, failure *error) {
    int32_t longest;
    if (!read_bytes(r, &longest, sizeof longest) || longest <= 0)
        return failure_set(error,
                           "%s: a longest token of more than 0 bytes should come first, %s "
                           "wanted",
                           name, wanted);
    for (int64_t id = 0; id < t->vocab_size; id++)
        if (!read_token(t, id, longest, r, name, error)) return false;
    if (r->left == 0) return true;
    return failure_set(error,
                       "%s: %zu bytes follow the %lld tokens that the model wants: another "
                       "model's tokenizer",
                       name, r->left, (long long)t->vocab_size);
}

static void index_tokens(tokenizer *t) {
    for (uint32_t i = 0; i < t->slot_count; i++) t->slots[i] = -1;
    for (int32_t id = 0; id < t->vocab_size; id++) {
        int32_t *slot = find_slot(t, t->pieces[id]);
        if (*slot < 0) *slot = id; /* of equal pieces the first counts */
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[BYTE_PIECE + 1];
        (void)snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        t->byte_ids[byte] = find_token(t, (span){text, BYTE_PIECE});
    }
}

bool tokenizer_init_memory(tokenizer *out, const char *name, const void *data, size_t bytes,
                           int64_t vocab_size, failure *error) {
    enum { LEAST_BYTES = sizeof(float) + sizeof(int32_t) };
    tokenizer t = {.vocab_size = vocab_size, .slot_count = 1};
    reader r = {data, bytes};
    *out = (tokenizer){0};
    if (vocab_size <= TOKEN_BOS || vocab_size > INT32_MAX / 4)
        return failure_set(error, "%s: the model has %lld tokens, 2 to %d wanted", name,
                           (long long)vocab_size, INT32_MAX / 4);
    /* What the file cannot hold is not allocated. */
    if (bytes / LEAST_BYTES < (size_t)vocab_size)
        return failure_set(error,
                           "%s: %zu bytes given, too few for the model's %lld tokens: "
                           "truncated, or another model's tokenizer",
                           name, bytes, (long long)vocab_size);
    while (t.slot_count < 2 * (uint64_t)vocab_size) t.slot_count *= 2;
    t.pieces = calloc((size_t)vocab_size, sizeof *t.pieces);
    t.scores = calloc((size_t)vocab_size, sizeof *t.scores);
    t.slots = calloc(t.slot_count, sizeof *t.slots);
    if (!t.pieces || !t.scores || !t.slots) {
        (void)failure_set(error, "%s: no memory for %lld tokens", name, (long long)vocab_size);
    } else if (read_tokens(&t, &r, name, error)) {
        index_tokens(&t);
        *out = t;
        return true;
    }
    tokenizer_deinit(&t);
    return false;
}

bool tokenizer_init(tokenizer *out, const char *path, int64_t vocab_size, failure *error) {
    mapped_file file;
    *out = (tokenizer){0};
    if (!file_map(&file, path, wanted, error)) return false;
    if (!tokenizer_init_memory(out, path, file.data, file.bytes, vocab_size, error)) {
        file_unmap(&file);
        return false;
    }
    out->file = file;
    return true;
}

void tokenizer_deinit(tokenizer *t) {
    free(t->pieces);
    free(t->scores);
    free(t->slots);
    file_unmap(&t->file);
    *t = (tokenizer){0};
}

/* Encoding. Symbols are a list in the order of the text, so that a merge is O(1). */

typedef struct symbol {
    int32_t id;
    int64_t previous, next; /* -1 at the ends */
} symbol;

/* A pair that forms a token. Merges elsewhere make it stale: then left or right has changed. */
typedef struct merge {
    float score;
    int64_t at; /* the left symbol */
    int32_t left, right, id;
} merge;

typedef struct encoder {
    const tokenizer *t;
    symbol *symbols; /* [text.length + 1] */
    int64_t count;
    merge *heap; /* [3 * (text.length + 1)]: every pair at first, then two new ones a merge */
    int64_t heap_count;
    char *joined; /* [2 * longest] */
} encoder;

static bool comes_first(const merge *a, const merge *b) {
    return a->score > b->score || (!(a->score < b->score) && a->at < b->at);
}

static void heap_push(encoder *e, merge m) {
    int64_t i = e->heap_count++;
    while (i > 0 && comes_first(&m, &e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = m;
}

static merge heap_pop(encoder *e) {
    const merge top = e->heap[0], last = e->heap[--e->heap_count];
    int64_t i = 0;
    for (int64_t child = 1; child < e->heap_count; child = 2 * i + 1) {
        if (child + 1 < e->heap_count && comes_first(&e->heap[child + 1], &e->heap[child])) child++;
        if (!comes_first(&e->heap[child], &last)) break;
        e->heap[i] = e->heap[child];
        i = child;
    }
    e->heap[i] = last;
    return top;
}

/* Puts the pair of a symbol and its right neighbour on the heap if it forms a token. */
static void propose(encoder *e, int64_t at) {
    if (at < 0 || e->symbols[at].next < 0) return;
    const int32_t left = e->symbols[at].id, right = e->symbols[e->symbols[at].next].id;
    const span a = e->t->pieces[left], b = e->t->pieces[right];
    memcpy(e->joined, a.bytes, a.length);
    memcpy(e->joined + a.length, b.bytes, b.length);
    const int32_t id = find_token(e->t, (span){e->joined, a.length + b.length});
    if (id >= 0) heap_push(e, (merge){e->t->scores[id], at, left, right, id});
}

static void merge_symbols(encoder *e) {
    for (int64_t i = 0; i < e->count; i++) propose(e, i);
    while (e->heap_count > 0) {
        const merge m = heap_pop(e);
        symbol *left = &e->symbols[m.at];
        if (left->id != m.left || left->next < 0 || e->symbols[left->next].id != m.right) continue;
        symbol *right = &e->symbols[left->next];
        left->id = m.id;
        left->next = right->next;
        right->id = -1; /* no pair has it any more */
        if (left->next >= 0) e->symbols[left->next].previous = m.at;
        propose(e, left->previous);
        propose(e, m.at);
    }
}

static void add_symbol(encoder *e, int32_t id) {
    const int64_t i = e->count++;
    e->symbols[i] = (symbol){id, i - 1, -1};
    if (i > 0) e->symbols[i - 1].next = i;
}

/* Adds one character: its token, or the tokens of its bytes. */
static bool add_character(encoder *e, span character, failure *error) {
    const int32_t id = find_token(e->t, character);
    if (id >= 0) {
        add_symbol(e, id);
        return true;
    }
    for (size_t i = 0; i < character.length; i++) {
        const unsigned char byte = (unsigned char)character.bytes[i];
        if (e->t->byte_ids[byte] < 0)
            return failure_set(error, "the tokenizer has no token for the byte 0x%02X of the text",
                               byte);
        add_symbol(e, e->t->byte_ids[byte]);
    }
    return true;
}

/* Splits at UTF-8's borders: a first byte and up to three that continue it, 10xxxxxx. */
static bool add_characters(encoder *e, span text, failure *error) {
    size_t end;
    if (!add_character(e, (span){" ", 1}, error)) return false;
    for (size_t start = 0; start < text.length; start = end) {
        end = start + 1;
        while (end < text.length && end < start + 4 && (text.bytes[end] & 0xC0) == 0x80) end++;
        if (!add_character(e, (span){text.bytes + start, end - start}, error)) return false;
    }
    return true;
}

/* Encodes into ids[text.length + 2]. */
static bool encode(encoder *e, span text, int32_t *ids, int64_t *count, failure *error) {
    ids[(*count)++] = TOKEN_BOS;
    if (text.length == 0) return true;
    if (!add_characters(e, text, error)) return false;
    merge_symbols(e);
    for (int64_t i = 0; i >= 0; i = e->symbols[i].next) ids[(*count)++] = e->symbols[i].id;
    return true;
}

bool tokenizer_encode(const tokenizer *t, span text, int32_t **ids, int64_t *count,
                      failure *error) {
    encoder e = {.t = t};
    bool done = false;
    *count = 0;
    *ids = calloc(text.length + 2, sizeof **ids);
    e.symbols = calloc(text.length + 1, sizeof *e.symbols);
    e.heap = calloc(text.length + 1, 3 * sizeof *e.heap);
    e.joined = malloc(2 * t->longest + 1);
    if (!*ids || !e.symbols || !e.heap || !e.joined)
        (void)failure_set(error, "no memory to encode a text of %zu bytes", text.length);
    else done = encode(&e, text, *ids, count, error);
    free(e.symbols);
    free(e.heap);
    free(e.joined);
    if (done) return true;
    free(*ids);
    *ids = NULL;
    *count = 0;
    return false;
}

int tokenizer_byte(const tokenizer *t, int32_t id) {
    if (t->pieces[id].length != BYTE_PIECE || memcmp(t->pieces[id].bytes, "<0x", 3) != 0) return -1;
    for (int byte = 0; byte < 256; byte++)
        if (t->byte_ids[byte] == id) return byte;
    return -1;
}
