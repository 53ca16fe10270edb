#include <stdlib.h>
#include <string.h>

#include "generate/generate.h"
#include "support/support.h"

enum { CONTEXT = 100, VOCAB = 40, HEADER = 7 };

/* A model of random weights: dim 24, 4 query heads over 2, 3 layers. */
typedef struct fixture {
    float *file;
    size_t bytes;
    checkpoint model;
    kvc_pool *pool;
    int32_t tokens[CONTEXT];
} fixture;

static int setup(void **state) {
    static fixture f;
    static const int32_t header[HEADER] = {24, 40, 3, 4, 2, VOCAB, CONTEXT};
    uint64_t random = 5;
    failure error;
    enum { LAYER = 2 * 24 + 2 * 24 * 24 + 2 * 24 * 12 + 3 * 24 * 40 };
    enum { FLOATS = VOCAB * 24 + 3 * LAYER + 24 + CONTEXT * 6 };
    f.bytes = (HEADER + FLOATS) * sizeof *f.file;
    f.file = malloc(f.bytes);
    if (!f.file) return -1;
    memcpy(f.file, header, sizeof header);
    for (int64_t i = 0; i < FLOATS; i++)
        f.file[HEADER + i] = (float)(test_random(&random) % 2001) / 2000 - 0.5f;
    for (int i = 0; i < CONTEXT; i++) f.tokens[i] = (int32_t)(test_random(&random) % VOCAB);
    if (!checkpoint_init_memory(&f.model, "m", f.file, f.bytes, &error)) return -1;
    if (kvc_pool_new(&f.pool, kvc_device_cpu()) != KVC_OK) return -1;
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    checkpoint_deinit(&f->model);
    kvc_pool_free(f->pool);
    free(f->file);
    return 0;
}

static transformer make_transformer(const fixture *f, transformer_options options) {
    failure error;
    transformer t;
    if (!options.kv_dtype) options.kv_dtype = KVC_F32;
    if (!options.max_positions) options.max_positions = CONTEXT;
    if (!transformer_init(&t, &f->model, f->pool, &options, &error)) fail_msg("%s", error.sentence);
    return t;
}

static void forward_told(transformer *t, const int32_t *tokens, int64_t n, int64_t told) {
    failure error;
    if (!transformer_forward(t, tokens, n, told, &error)) fail_msg("%s", error.sentence);
}

static void forward(transformer *t, const int32_t *tokens, int64_t n) {
    forward_told(t, tokens, n, 1);
}

static void transformer__many_positions_at_once_are_the_same_as_one_by_one(void **state) {
    const fixture *f = *state;
    transformer one = make_transformer(f, (transformer_options){0});
    transformer many = make_transformer(f, (transformer_options){0});
    const int64_t counts[] = {1, 2, 3, 30, TRANSFORMER_MOST};
    int64_t done = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; done += counts[i], i++) {
        forward(&many, f->tokens + done, counts[i]);
        for (int64_t p = 0; p < counts[i]; p++) forward(&one, f->tokens + done + p, 1);
        for (int id = 0; id < VOCAB; id++)
            assert_float_equal(many.logits[id], one.logits[id], 1e-4);
    }
    assert_int_equal(done, CONTEXT);
    transformer_deinit(&one);
    transformer_deinit(&many);
}

static void transformer__each_row_of_logits_is_that_of_its_position(void **state) {
    const fixture *f = *state;
    transformer one = make_transformer(f, (transformer_options){0});
    transformer many = make_transformer(f, (transformer_options){0});
    const int64_t counts[][2] = {{1, 1}, {2, 2}, {5, 3}, {28, 28}, {TRANSFORMER_MOST, 63}};
    int64_t done = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int64_t n = counts[i][0], told = counts[i][1];
        forward_told(&many, f->tokens + done, n, told);
        for (int64_t p = 0; p < n; p++) {
            forward(&one, f->tokens + done + p, 1);
            const float *row = many.logits + (p - (n - told)) * VOCAB;
            for (int id = 0; p >= n - told && id < VOCAB; id++)
                assert_float_equal(row[id], one.logits[id], 1e-4);
        }
        done += n;
    }
    assert_int_equal(done, CONTEXT);
    transformer_deinit(&one);
    transformer_deinit(&many);
}

static void transformer__what_is_trimmed_leaves_no_trace(void **state) {
    const fixture *f = *state;
    const kvc_growth growths[] = {KVC_GROW_RESERVE, KVC_GROW_CHUNK, KVC_GROW_EXACT};
    for (int g = 0; g < 3; g++) {
        const transformer_options options = {.growth = growths[g], .chunk = 16};
        transformer straight = make_transformer(f, options), astray = make_transformer(f, options);
        forward(&straight, f->tokens, 20);
        forward(&astray, f->tokens, 20);
        for (int64_t wrong = 1; wrong < 20; wrong += 6) {
            forward_told(&astray, f->tokens + 60, wrong, wrong);
            assert_int_equal(kvc_cache_trim(astray.cache, wrong), KVC_OK);
            forward(&astray, f->tokens + 20, 1);
            forward(&straight, f->tokens + 20, 1);
            assert_memory_equal(astray.logits, straight.logits, VOCAB * sizeof(float));
        }
        transformer_deinit(&straight);
        transformer_deinit(&astray);
    }
}

static void transformer__all_growths_give_the_same_bits(void **state) {
    const fixture *f = *state;
    const kvc_growth growths[] = {KVC_GROW_RESERVE, KVC_GROW_CHUNK, KVC_GROW_EXACT};
    const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
    for (int d = 0; d < 3; d++) {
        float wanted[VOCAB];
        for (int g = 0; g < 3; g++) {
            transformer t = make_transformer(
                f, (transformer_options){.growth = growths[g], .kv_dtype = dtypes[d], .chunk = 16});
            forward(&t, f->tokens, 20);
            for (int p = 20; p < 70; p++) forward(&t, f->tokens + p, 1);
            if (g == 0) memcpy(wanted, t.logits, sizeof wanted);
            assert_memory_equal(t.logits, wanted, sizeof wanted);
            assert_int_equal(kvc_cache_length(t.cache, 2), 70);
            transformer_deinit(&t);
        }
    }
}

static void transformer__positions_beyond_the_most_are_refused(void **state) {
    const fixture *f = *state;
    failure error;
    transformer t;
    transformer_options options = {.kv_dtype = KVC_F32, .max_positions = 3};
    t = make_transformer(f, options);
    forward(&t, f->tokens, 3);
    assert_false(transformer_forward(&t, f->tokens + 3, 1, 1, &error));
    assert_string_not_equal(error.sentence, "");
    transformer_deinit(&t);
    transformer_deinit(&t);
    const int64_t wrong[] = {-1, 0, CONTEXT + 1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.max_positions = wrong[i];
        assert_false(transformer_init(&t, &f->model, f->pool, &options, &error));
        assert_non_null(strstr(error.sentence, "max_positions"));
        assert_null(t.cache);
    }
}

static void transformer__a_pool_without_memory_is_told(void **state) {
    const fixture *f = *state;
    failure error;
    transformer t = make_transformer(f, (transformer_options){.growth = KVC_GROW_CHUNK});
    kvc_pool_clear(f->pool);
    const size_t limit = kvc_pool_memory_limit_set(f->pool, 1);
    assert_false(transformer_forward(&t, f->tokens, 1, 1, &error));
    assert_non_null(strstr(error.sentence, "the cache: "));
    (void)kvc_pool_memory_limit_set(f->pool, limit);
    transformer_deinit(&t);
}

static void transformer__a_dtype_that_no_cache_holds_is_told(void **state) {
    const fixture *f = *state;
    failure error;
    transformer t;
    const transformer_options options = {.kv_dtype = KVC_I8, .max_positions = 4};
    assert_false(transformer_init(&t, &f->model, f->pool, &options, &error));
    assert_non_null(strstr(error.sentence, "the cache: "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformer__many_positions_at_once_are_the_same_as_one_by_one),
        cmocka_unit_test(transformer__each_row_of_logits_is_that_of_its_position),
        cmocka_unit_test(transformer__what_is_trimmed_leaves_no_trace),
        cmocka_unit_test(transformer__all_growths_give_the_same_bits),
        cmocka_unit_test(transformer__positions_beyond_the_most_are_refused),
        cmocka_unit_test(transformer__a_pool_without_memory_is_told),
        cmocka_unit_test(transformer__a_dtype_that_no_cache_holds_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
