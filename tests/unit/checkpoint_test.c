#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "generate/checkpoint.h"
#include "support/support.h"

/* A checkpoint in memory, each weight holding its own index. */
typedef struct image {
    char *data;
    size_t bytes;
} image;

enum { DIM = 8, HIDDEN = 12, LAYERS = 2, HEADS = 4, KV_HEADS = 2, VOCAB = 5, SEQ = 16 };

/* Floats of the weights for these sizes, counted apart from the reader. */
enum {
    HEAD = DIM / HEADS,
    KV = KV_HEADS * HEAD,
    EMBEDDING = VOCAB * DIM,
    LAYER = DIM + DIM * DIM + 2 * KV * DIM + DIM * DIM + DIM + 3 * HIDDEN * DIM,
    SHARED = EMBEDDING + LAYERS * LAYER + DIM + SEQ * HEAD,
    HEADER = 28
};

static const int32_t good_header[7] = {DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ};

static image make_image(const int32_t header[7], size_t floats) {
    image out = {.bytes = HEADER + floats * sizeof(float)};
    out.data = malloc(out.bytes);
    assert_non_null(out.data);
    memcpy(out.data, header, HEADER);
    for (size_t i = 0; i < floats; i++) {
        const float value = (float)i;
        memcpy(out.data + HEADER + i * sizeof value, &value, sizeof value);
    }
    return out;
}

/* Reads the header with `bytes` of file behind it; returns the sentence, NULL when it was taken.
 * The allocation ends where the file does, so that a reader that goes on is seen by a sanitizer. */
static const char *refusal(const int32_t header[7], size_t floats) {
    static failure error;
    checkpoint model;
    image file = make_image(header, floats);
    const bool taken = checkpoint_init_memory(&model, "m.bin", file.data, file.bytes, &error);
    if (!taken) {
        assert_int_equal(strncmp(error.sentence, "m.bin: ", 7), 0);
        assert_null(strchr(error.sentence, '\n'));
        assert_int_equal(model.dim, 0);
        assert_null(model.embedding);
    }
    free(file.data);
    return taken ? NULL : error.sentence;
}

static void checkpoint__weights_lie_in_the_order_of_the_format(void **state) {
    (void)state;
    failure error;
    checkpoint m;
    image file = make_image(good_header, SHARED);
    assert_true(checkpoint_init_memory(&m, "m.bin", file.data, file.bytes, &error));
    assert_int_equal(m.head_dim, HEAD);
    assert_int_equal(m.kv_dim, KV);
    assert_int_equal(m.vocab_size, VOCAB);
    const struct {
        const float *first;
        int count;
    } parts[] = {{m.embedding, EMBEDDING},
                 {m.attention_norm, LAYERS * DIM},
                 {m.wq, LAYERS * DIM * DIM},
                 {m.wk, LAYERS * KV * DIM},
                 {m.wv, LAYERS * KV * DIM},
                 {m.wo, LAYERS * DIM * DIM},
                 {m.ffn_norm, LAYERS * DIM},
                 {m.w1, LAYERS * HIDDEN * DIM},
                 {m.w2, LAYERS * HIDDEN * DIM},
                 {m.w3, LAYERS * HIDDEN * DIM},
                 {m.final_norm, DIM}};
    int at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; at += parts[i].count, i++)
        assert_float_equal(*parts[i].first, at, 0);
    assert_ptr_equal(m.classifier, m.embedding);
    checkpoint_deinit(&m);
    free(file.data);
}

static void checkpoint__a_negative_vocabulary_brings_its_own_classifier(void **state) {
    (void)state;
    failure error;
    checkpoint m;
    int32_t header[7];
    memcpy(header, good_header, sizeof header);
    header[5] = -VOCAB;
    image file = make_image(header, SHARED + EMBEDDING);
    assert_true(checkpoint_init_memory(&m, "m.bin", file.data, file.bytes, &error));
    assert_int_equal(m.vocab_size, VOCAB);
    assert_float_equal(m.classifier[0], SHARED, 0);
    assert_float_equal(m.classifier[EMBEDDING - 1], SHARED + EMBEDDING - 1, 0);
    checkpoint_deinit(&m);
    free(file.data);
    assert_non_null(refusal(header, SHARED));
}

static void checkpoint__a_file_of_any_other_length_is_refused(void **state) {
    (void)state;
    assert_null(refusal(good_header, SHARED));
    assert_non_null(strstr(refusal(good_header, SHARED - 1), "truncated"));
    assert_non_null(strstr(refusal(good_header, 0), "truncated"));
    assert_non_null(strstr(refusal(good_header, SHARED + 1), "damaged"));
    failure error;
    checkpoint m;
    image file = make_image(good_header, SHARED);
    for (size_t bytes = 0; bytes < file.bytes; bytes++)
        assert_false(checkpoint_init_memory(&m, "m.bin", file.data, bytes, &error));
    free(file.data);
}

static void checkpoint__every_absurd_size_is_refused(void **state) {
    (void)state;
    const int32_t absurd[] = {0, -1, INT32_MIN, INT32_MAX, 1 << 30, 7};
    for (int field = 0; field < 7; field++) {
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            int32_t header[7];
            memcpy(header, good_header, sizeof header);
            header[field] = absurd[i];
            assert_non_null(refusal(header, SHARED));
        }
    }
}

static void checkpoint__sizes_that_wrap_to_the_right_length_are_refused(void **state) {
    (void)state;
    /* 2^31 · 2^31 · 4 is 0 in 64 bits. */
    const int32_t header[7] = {1 << 30, 1 << 30, 1 << 30, 1 << 29, 1, 1 << 30, 1 << 30};
    assert_non_null(strstr(refusal(header, 0), "more weights than a file can hold"));
    assert_non_null(strstr(refusal(header, SHARED), "more weights than a file can hold"));
}

static void checkpoint__heads_that_do_not_divide_are_refused(void **state) {
    (void)state;
    int32_t header[7];
    memcpy(header, good_header, sizeof header);
    header[3] = 3;
    assert_non_null(strstr(refusal(header, SHARED), "2 * n_heads = 6"));
    header[3] = DIM; /* a head of one element has no pair to turn */
    assert_non_null(strstr(refusal(header, SHARED), "2 * n_heads = 16"));
    header[3] = HEADS;
    header[4] = 3;
    assert_non_null(strstr(refusal(header, SHARED), "n_kv_heads is 3"));
    header[4] = 2 * HEADS;
    assert_non_null(refusal(header, SHARED));
}

static void checkpoint__a_later_version_is_named(void **state) {
    (void)state;
    const int32_t header[7] = {0x616b3432, 2};
    assert_non_null(strstr(refusal(header, SHARED), "version 2"));
}

static void checkpoint__memory_that_no_float_can_lie_in_is_refused(void **state) {
    (void)state;
    failure error;
    checkpoint m;
    image file = make_image(good_header, SHARED + 1);
    memmove(file.data + 1, file.data, file.bytes - sizeof(float));
    assert_false(
        checkpoint_init_memory(&m, "m.bin", file.data + 1, file.bytes - sizeof(float), &error));
    assert_non_null(strstr(error.sentence, "aligned"));
    free(file.data);
}

static void checkpoint__files_are_mapped_and_what_is_no_file_is_refused(void **state) {
    (void)state;
    failure error;
    checkpoint m;
    char path[] = "/tmp/kvc-checkpoint-XXXXXX";
    image file = make_image(good_header, SHARED);
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_false(checkpoint_init(&m, path, &error));
    assert_non_null(strstr(error.sentence, "empty"));
    assert_int_equal(write(descriptor, file.data, file.bytes), file.bytes);
    assert_true(checkpoint_init(&m, path, &error));
    assert_float_equal(m.final_norm[0], SHARED - DIM - SEQ * HEAD, 0);
    checkpoint_deinit(&m);
    checkpoint_deinit(&m);
    assert_int_equal(ftruncate(descriptor, (off_t)file.bytes - 1), 0);
    assert_false(checkpoint_init(&m, path, &error));
    assert_non_null(strstr(error.sentence, path));
    (void)close(descriptor);
    (void)unlink(path);
    free(file.data);
    assert_false(checkpoint_init(&m, path, &error));
    assert_non_null(strstr(error.sentence, "No such file"));
    assert_false(checkpoint_init(&m, "/tmp", &error));
    assert_non_null(strstr(error.sentence, "a directory given"));
    assert_false(checkpoint_init(&m, "/dev/null", &error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoint__weights_lie_in_the_order_of_the_format),
        cmocka_unit_test(checkpoint__a_negative_vocabulary_brings_its_own_classifier),
        cmocka_unit_test(checkpoint__a_file_of_any_other_length_is_refused),
        cmocka_unit_test(checkpoint__every_absurd_size_is_refused),
        cmocka_unit_test(checkpoint__sizes_that_wrap_to_the_right_length_are_refused),
        cmocka_unit_test(checkpoint__heads_that_do_not_divide_are_refused),
        cmocka_unit_test(checkpoint__a_later_version_is_named),
        cmocka_unit_test(checkpoint__memory_that_no_float_can_lie_in_is_refused),
        cmocka_unit_test(checkpoint__files_are_mapped_and_what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
