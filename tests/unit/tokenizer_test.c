#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate/decoder.h"
#include "support/support.h"

/* A vocabulary in memory: unknown, BOS, EOS, the bytes, then words with a score each. */
typedef struct word {
    const char *text;
    float score;
} word;

enum { FIRST_BYTE = 3, FIRST_WORD = FIRST_BYTE + 256 };

typedef struct image {
    char data[1 << 14];
    size_t bytes;
    int64_t count;
} image;

static void put(image *file, const void *data, size_t bytes) {
    assert_true(bytes <= sizeof file->data - file->bytes);
    memcpy(file->data + file->bytes, data, bytes);
    file->bytes += bytes;
}

static void put_token(image *file, const char *text, float score) {
    const int32_t length = (int32_t)strlen(text);
    put(file, &score, sizeof score);
    put(file, &length, sizeof length);
    put(file, text, (size_t)length);
    file->count++;
}

static void make_image(image *file, const word *words, size_t count) {
    const int32_t longest = 8;
    *file = (image){.bytes = 0};
    put(file, &longest, sizeof longest);
    put_token(file, "<unk>", 0);
    put_token(file, "\n<s>\n", 0);
    put_token(file, "\n</s>\n", 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        (void)snprintf(text, sizeof text, "<0x%02X>", byte);
        put_token(file, text, 0);
    }
    for (size_t i = 0; i < count; i++) put_token(file, words[i].text, words[i].score);
}

static const word words[] = {{" ", -100},        {"a", -101},   {"b", -102},  {"c", -103},
                             {"\xc3\xa9", -104}, /* e with an acute accent */
                             {"ab", -1},         {"bc", -2},    {" a", -3},   {"abc", -4},
                             {" abc", -5},       {"aa", -6},    {"aaaa", -7}, {"bb", -9},
                             {"cb", -9},         {"<0x41>", -9}};
enum { WORDS = sizeof words / sizeof *words };

/* Returns the token of the word that two pieces of text make, -1 when it is no word. */
static int32_t find_word(const char *a, const char *b) {
    const size_t left = strlen(a), right = strlen(b);
    for (int32_t i = 0; i < WORDS; i++) {
        const char *text = words[i].text;
        if (strlen(text) == left + right && memcmp(text, a, left) == 0 &&
            memcmp(text + left, b, right) == 0)
            return FIRST_WORD + i;
    }
    return -1;
}

static int32_t id_of(const char *text) {
    const int32_t id = find_word(text, "");
    if (id < 0) fail_msg("no word '%s'", text);
    return id;
}

static int setup(void **state) {
    static image file;
    static tokenizer t;
    failure error;
    make_image(&file, words, WORDS);
    if (!tokenizer_init_memory(&t, "t.bin", file.data, file.bytes, file.count, &error)) return -1;
    *state = &t;
    return 0;
}

static int teardown(void **state) {
    tokenizer_deinit(*state);
    return 0;
}

/* Compares the tokens of a text after BOS with those wanted, which end with a -1. */
static void assert_encodes(const tokenizer *t, const char *text, const int32_t *wanted) {
    failure error;
    int32_t *ids;
    int64_t count;
    assert_true(tokenizer_encode(t, (span){text, strlen(text)}, &ids, &count, &error));
    assert_int_equal(ids[0], TOKEN_BOS);
    for (int64_t i = 1; i < count; i++) assert_int_equal(ids[i], wanted[i - 1]);
    assert_int_equal(wanted[count - 1], -1);
    free(ids);
}

#define ENCODES(text, ...) assert_encodes(t, text, (const int32_t[]){__VA_ARGS__, -1})

static void tokenizer__no_text_gives_no_token(void **state) {
    const tokenizer *t = *state;
    assert_encodes(t, "", (const int32_t[]){-1});
}

static void tokenizer__the_best_score_is_merged_first(void **state) {
    const tokenizer *t = *state;
    ENCODES(" ", id_of(" "), id_of(" "));
    ENCODES("a", id_of(" a"));
    ENCODES("ab", id_of(" "), id_of("ab")); /* not " a", "b" */
    ENCODES("abc", id_of(" abc"));
    ENCODES("bcc", id_of(" "), id_of("bc"), id_of("c"));
}

static void tokenizer__of_equal_scores_the_leftmost_is_merged(void **state) {
    const tokenizer *t = *state;
    ENCODES("cbb", id_of(" "), id_of("cb"), id_of("b"));
    ENCODES("bbcb", id_of(" "), id_of("b"), id_of("bc"), id_of("b"));
    ENCODES("bbb", id_of(" "), id_of("bb"), id_of("b"));
    /* " a" first, then "aa" from the left; a merge makes the pair to its right stale. */
    ENCODES("aaaaaaaa", id_of(" a"), id_of("aaaa"), id_of("aa"), id_of("a"));
}

static void tokenizer__characters_without_a_token_become_bytes(void **state) {
    const tokenizer *t = *state;
    ENCODES("\xc3\xa9", id_of(" "), id_of("\xc3\xa9"));
    ENCODES("z", id_of(" "), FIRST_BYTE + 'z');
    ENCODES("\xe2\x82\xac", id_of(" "), FIRST_BYTE + 0xe2, FIRST_BYTE + 0x82, FIRST_BYTE + 0xac);
    /* Broken UTF-8 is bytes too: a lone first byte, too many that continue. */
    ENCODES("\xc3", id_of(" "), FIRST_BYTE + 0xc3);
    ENCODES("\x80\x80\x80\x80\x80", id_of(" "), FIRST_BYTE + 0x80, FIRST_BYTE + 0x80,
            FIRST_BYTE + 0x80, FIRST_BYTE + 0x80, FIRST_BYTE + 0x80);
}

/* The rule as it is written down: scan for the best pair, merge it, begin again. */
static int64_t encode_slowly(const tokenizer *t, const char *text, int32_t *ids) {
    int64_t count = 0;
    ids[count++] = id_of(" ");
    for (const char *c = text; *c; c++) {
        const char one[2] = {*c, '\0'};
        ids[count++] = id_of(one);
    }
    for (;;) {
        int64_t best = -1;
        int32_t best_id = -1;
        for (int64_t i = 0; i + 1 < count; i++) {
            const int32_t id =
                find_word(words[ids[i] - FIRST_WORD].text, words[ids[i + 1] - FIRST_WORD].text);
            if (id < 0 || (best >= 0 && !(t->scores[id] > t->scores[best_id]))) continue;
            best = i;
            best_id = id;
        }
        if (best < 0) return count;
        ids[best] = best_id;
        memmove(ids + best + 1, ids + best + 2, (size_t)(count - best - 2) * sizeof *ids);
        count--;
    }
}

static void tokenizer__the_heap_merges_as_the_scan_does(void **state) {
    const tokenizer *t = *state;
    uint64_t random = test_seed(8);
    for (int round = 0; round < 2000; round++) {
        char text[64];
        int32_t wanted[66] = {0};
        const size_t length = 1 + test_random(&random) % 63;
        for (size_t i = 0; i < length; i++) text[i] = " aaabbc"[test_random(&random) % 7];
        text[length] = '\0';
        const int64_t count = encode_slowly(t, text, wanted);
        wanted[count] = -1;
        assert_encodes(t, text, wanted);
    }
}

/* Decodes tokens that end with a -1, after `previous`. */
static void assert_decodes(const tokenizer *t, int32_t previous, const int32_t *ids,
                           const char *wanted) {
    char text[64];
    size_t length = 0;
    decoder d = {.tokens = t, .previous = previous};
    for (; *ids >= 0; ids++) {
        const span added = decoder_next(&d, *ids);
        assert_true(added.length < sizeof text - length);
        memcpy(text + length, added.bytes, added.length);
        length += added.length;
    }
    text[length] = '\0';
    assert_string_equal(text, wanted);
}

#define DECODES(wanted, previous, ...)                                                             \
    assert_decodes(t, previous, (const int32_t[]){__VA_ARGS__, -1}, wanted)

static void tokenizer__decoding_drops_the_space_after_bos_only(void **state) {
    const tokenizer *t = *state;
    DECODES("abc", TOKEN_BOS, id_of(" abc"));
    DECODES(" abc", id_of("a"), id_of(" abc"));
    DECODES("abc abc", TOKEN_BOS, id_of("abc"), id_of(" abc"));
    DECODES(" abc", TOKEN_BOS, id_of(" "), id_of(" abc"));
    DECODES("abc", TOKEN_BOS, id_of("abc"));
}

static void tokenizer__byte_tokens_decode_to_bytes_but_for_controls(void **state) {
    const tokenizer *t = *state;
    DECODES("z\n\tz", 5, FIRST_BYTE + 'z', FIRST_BYTE + '\n', FIRST_BYTE + '\t', FIRST_BYTE + 'z');
    DECODES("", 5, FIRST_BYTE + 0, FIRST_BYTE + 0x1b, FIRST_BYTE + 0x7f);
    /* The first of equal pieces is the byte. */
    DECODES("A<0x41>", 5, FIRST_BYTE + 'A', id_of("<0x41>"));
}

static void tokenizer__bytes_decode_to_characters_or_to_nothing(void **state) {
    const tokenizer *t = *state;
    enum { X = FIRST_BYTE };
    DECODES("\xc2\x80", 5, X + 0xc2, X + 0x80);
    DECODES("\xe2\x82\xac", 5, X + 0xe2, X + 0x82, X + 0xac);
    DECODES("\xf4\x8f\xbf\xbf", 5, X + 0xf4, X + 0x8f, X + 0xbf, X + 0xbf);
    DECODES("az", 5, id_of("a"), X + 0x80, X + 'z');                  /* continues nothing */
    DECODES("az", 5, id_of("a"), X + 0xe2, X + 0x82, X + 'z');        /* ends early */
    DECODES("abc", 5, X + 0xc3, id_of("abc"), X + 0xa9);              /* a piece between */
    DECODES("\xc3\xa9", 5, X + 0xc3, X + 0xc3, X + 0xa9, X + 0xa9);   /* begins twice */
    DECODES("", 5, X + 0xc0, X + 0x80, X + 0xc1, X + 0xbf, X + 0xff); /* never in UTF-8 */
    DECODES("", 5, X + 0xe0, X + 0x9f, X + 0xbf);                     /* longer than need be */
    DECODES("", 5, X + 0xed, X + 0xa0, X + 0x80);                     /* a surrogate */
    DECODES("", 5, X + 0xf4, X + 0x90, X + 0x80, X + 0x80);           /* beyond the last */
}

/* Returns the sentence of a refusal. The memory ends where the file does. */
static const char *refusal(const image *file, size_t bytes, int64_t vocab_size) {
    static failure error;
    tokenizer t;
    char *data = malloc(bytes ? bytes : 1);
    assert_non_null(data);
    memcpy(data, file->data, bytes);
    assert_false(tokenizer_init_memory(&t, "t.bin", data, bytes, vocab_size, &error));
    assert_int_equal(strncmp(error.sentence, "t.bin: ", 7), 0);
    assert_null(strchr(error.sentence, '\n'));
    assert_null(t.pieces);
    free(data);
    return error.sentence;
}

static void tokenizer__a_file_for_another_model_is_refused(void **state) {
    (void)state;
    static image file;
    make_image(&file, words, WORDS);
    assert_non_null(strstr(refusal(&file, file.bytes, file.count - 1), "another model"));
    assert_non_null(strstr(refusal(&file, file.bytes, file.count + 1), "another model"));
    assert_non_null(strstr(refusal(&file, file.bytes, INT32_MAX / 4), "too few"));
    assert_non_null(refusal(&file, file.bytes, INT64_MAX));
    assert_non_null(refusal(&file, file.bytes, 1));
    assert_non_null(refusal(&file, file.bytes, 0));
    assert_non_null(refusal(&file, file.bytes, -1));
}

static void tokenizer__every_truncation_is_refused(void **state) {
    (void)state;
    static image file;
    make_image(&file, words, WORDS);
    for (size_t bytes = 0; bytes < file.bytes; bytes++) (void)refusal(&file, bytes, file.count);
}

static void tokenizer__absurd_lengths_and_scores_are_refused(void **state) {
    (void)state;
    static image file;
    const int32_t lengths[] = {-1, INT32_MIN, INT32_MAX, 9};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        make_image(&file, words, WORDS);
        memcpy(file.data + 8, &lengths[i], sizeof *lengths);
        assert_non_null(strstr(refusal(&file, file.bytes, file.count), "token 0 has length"));
    }
    const float nan = strtof("nan", NULL);
    make_image(&file, words, WORDS);
    memcpy(file.data + 4, &nan, sizeof nan);
    assert_non_null(strstr(refusal(&file, file.bytes, file.count), "score"));
    const int32_t longest[] = {0, -1};
    for (size_t i = 0; i < sizeof longest / sizeof *longest; i++) {
        memcpy(file.data, &longest[i], sizeof *longest);
        assert_non_null(strstr(refusal(&file, file.bytes, file.count), "longest"));
    }
}

static void tokenizer__a_byte_without_a_token_fails_the_text_that_needs_it(void **state) {
    (void)state;
    static image file;
    const int32_t longest = 1;
    const int64_t vocab_size = 4;
    failure error;
    tokenizer t;
    int32_t *ids;
    int64_t count;
    file.bytes = 0;
    put(&file, &longest, sizeof longest);
    put_token(&file, "", 0);
    put_token(&file, "", 0);
    put_token(&file, " ", 0);
    put_token(&file, "a", 0);
    assert_true(tokenizer_init_memory(&t, "t.bin", file.data, file.bytes, vocab_size, &error));
    assert_encodes(&t, "aa", (const int32_t[]){2, 3, 3, -1});
    assert_false(tokenizer_encode(&t, (span){"ab", 2}, &ids, &count, &error));
    assert_null(ids);
    assert_int_equal(count, 0);
    assert_non_null(strstr(error.sentence, "0x62"));
    tokenizer_deinit(&t);
}

/* Reads numbers with spaces between into ids[room]. */
static int64_t read_numbers(const char *path, int32_t *ids, int64_t room) {
    char text[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    int64_t count = 0;
    char *end;
    for (const char *at = text; count < room; at = end) {
        const long id = strtol(at, &end, 10);
        if (end == at) break;
        ids[count++] = (int32_t)id;
    }
    return count;
}

/* The text that stories260K gives, and the tokens that it was made of. */
static void tokenizer__known_texts_have_their_known_tokens(void **state) {
    (void)state;
    failure error;
    tokenizer t;
    int32_t ids[128] = {0};
    const int64_t count =
        read_numbers(test_shared_path("models/stories260K/greedy100.ids"), ids, 127);
    assert_int_equal(count, 100);
    ids[count] = -1;
    assert_true(tokenizer_init(&t, test_shared_path("models/stories260K/tok512.bin"), 512, &error));
    char text[512];
    size_t length = 0;
    decoder d = {.tokens = &t, .previous = TOKEN_BOS};
    for (int64_t i = 0; i < count; i++) {
        const span piece = decoder_next(&d, ids[i]);
        memcpy(text + length, piece.bytes, piece.length);
        length += piece.length;
    }
    text[length] = '\0';
    assert_encodes(&t, text, ids);
    tokenizer_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokenizer__no_text_gives_no_token, setup, teardown),
        cmocka_unit_test_setup_teardown(tokenizer__the_best_score_is_merged_first, setup, teardown),
        cmocka_unit_test_setup_teardown(tokenizer__of_equal_scores_the_leftmost_is_merged, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tokenizer__characters_without_a_token_become_bytes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tokenizer__the_heap_merges_as_the_scan_does, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tokenizer__decoding_drops_the_space_after_bos_only, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tokenizer__byte_tokens_decode_to_bytes_but_for_controls,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(tokenizer__bytes_decode_to_characters_or_to_nothing, setup,
                                        teardown),
        cmocka_unit_test(tokenizer__a_file_for_another_model_is_refused),
        cmocka_unit_test(tokenizer__every_truncation_is_refused),
        cmocka_unit_test(tokenizer__absurd_lengths_and_scores_are_refused),
        cmocka_unit_test(tokenizer__a_byte_without_a_token_fails_the_text_that_needs_it),
        cmocka_unit_test(tokenizer__known_texts_have_their_known_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
