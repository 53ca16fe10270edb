/* The kernels: the fused path against the reference, and what both do at the edges. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "support/attend.h"
#include "support/support.h"

static const kvc_path paths[] = {KVC_PATH_REFERENCE, KVC_PATH_FUSED};
enum { PATHS = sizeof paths / sizeof *paths };

static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};

/* The rest of a case with this dim, small enough for the reference to be quick. */
static test_case random_case(int64_t key_dim, uint64_t *seed) {
    static const int64_t groups[] = {1, 2, 3, 4, 8};
    static const int64_t around[] = {0, 1, 31, 32, 33, 63, 64, 65, 96, 255, 256, 257};
    test_case c = {.key_dim = key_dim};
    c.value_dim = test_below(seed, 3) ? key_dim : 1 + test_below(seed, key_dim < 300 ? 300 : 512);
    c.batch = 1 + test_below(seed, 3);
    c.kv_heads = 1 + test_below(seed, 3);
    c.q_heads = c.kv_heads * groups[test_below(seed, 5)];
    c.queries = test_below(seed, 2) ? 1 : 1 + test_below(seed, 70);
    c.length = test_below(seed, 2) ? around[test_below(seed, 12)] : 1 + test_below(seed, 300);
    c.kv_dtype = dtypes[test_below(seed, 3)];
    c.q_dtype = dtypes[test_below(seed, 3)];
    c.out_dtype = dtypes[test_below(seed, 3)];
    c.kv_layout = (test_layout)test_below(seed, 3);
    c.q_layout = (test_layout)test_below(seed, 3);
    c.out_layout = (test_layout)test_below(seed, 3);
    c.not_causal = test_below(seed, 4) == 0;
    const int64_t work = c.batch * c.q_heads * c.queries * c.length * (key_dim + c.value_dim);
    if (work > 4000000) c.queries = 1 + (c.queries - 1) * 4000000 / work;
    return c;
}

static bool is_nan(const kvc_array *a, int64_t head, int64_t i, int64_t d) {
    return isnan(test_get(a, 0, head, i, d));
}

static void compare(const test_case *c, uint64_t *seed) {
    if (test_leaves_out(c, seed)) return;
    test_problem p = test_problem_new(c, seed);
    test_compare_paths(&p);
    test_problem_free(&p);
}

static void fused__equals_the_reference_for_every_dim(void **state) {
    (void)state;
    static const int64_t dims[] = {1,   3,   8,   32,  64,  80,   96,  112,
                                   128, 192, 256, 512, 576, 1000, 1024};
    uint64_t seed = test_seed(1);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const test_case c = random_case(dims[i], &seed);
        compare(&c, &seed);
    }
    /* Multi-head latent attention: 512 values and 64 more dims of keys. */
    const test_case latent = {
        .key_dim = 576, .value_dim = 512, .q_heads = 16, .length = 100, .kv_dtype = KVC_BF16};
    compare(&latent, &seed);
}

/* Whole units, halves of one and odd ends; odd counts of positions, tiles of 1, 2 and 4 rows. */
static void fused__equals_the_reference_in_each_dtype_at_the_end_of_rows(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 2, 15, 31, 33, 64, 80, 96, 112};
    static const int64_t groups[] = {1, 2, 7};
    static const int64_t lengths[] = {1, 18, 35};
    uint64_t seed = test_seed(19);
    for (size_t i = 0; i < 9 * 3 * 3 * 3; i++)
        compare(&(test_case){.key_dim = dims[i % 9],
                             .value_dim = dims[(i + i / 9) % 9],
                             .q_heads = groups[i / 9 % 3],
                             .kv_heads = 1,
                             .length = lengths[i / 27 % 3],
                             .kv_dtype = dtypes[i / 81]},
                &seed);
}

static void fused__equals_the_reference_on_random_cases(void **state) {
    (void)state;
    uint64_t seed = test_seed(2);
    const double end = test_now() + test_seconds(2);
    do {
        const test_case c = random_case(1 + test_below(&seed, 160), &seed);
        compare(&c, &seed);
    } while (test_now() < end);
}

/* Every count of rows left over by tiles of 4 and blocks of 64, and of positions by blocks of 32.
 */
static void fused__equals_the_reference_at_every_tail(void **state) {
    (void)state;
    uint64_t seed = test_seed(3);
    for (int64_t n = 1; n <= 70; n++) {
        compare(&(test_case){.key_dim = 12, .queries = n, .length = n + 40}, &seed);
        compare(&(test_case){.key_dim = 5, .value_dim = 9, .length = n}, &seed);
        compare(&(test_case){.key_dim = 8, .q_heads = n, .length = 33}, &seed);
    }
}

static void fused__takes_rows_by_the_hundred(void **state) {
    (void)state;
    uint64_t seed = test_seed(4);
    const test_case c = {.key_dim = 16, .q_heads = 6, .kv_heads = 2, .queries = 200, .length = 230};
    compare(&c, &seed);
}

static void fused__keeps_its_error_over_many_positions(void **state) {
    (void)state;
    uint64_t seed = test_seed(5);
    for (size_t i = 0; i < 3; i++) {
        const test_case c = {.key_dim = 32, .length = 65536, .kv_dtype = dtypes[i]};
        compare(&c, &seed);
    }
}

/* The error of a kernel that rounds queries is that of giving it rounded ones. */
static void fused__rounds_queries_to_bf16_or_not_at_all(void **state) {
    (void)state;
    uint64_t seed = test_seed(18);
    const test_case c = {.key_dim = 80,
                         .q_heads = 4,
                         .kv_heads = 1,
                         .length = 50,
                         .kv_dtype = KVC_BF16,
                         .amplitude = 3};
    test_problem p = test_problem_new(&c, &seed);
    test_problem exact = p;
    exact.q = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, 4, 1, 80);
    exact.out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, 4, 1, 80);
    for (int64_t h = 0; h < 4; h++)
        for (int64_t d = 0; d < 80; d++) {
            const double x = test_get(&p.q.array, 0, h, 0, d), less = x * (1 - 0x1p-10);
            test_set(&exact.q.array, 0, h, 0, d, test_rounds_to_bf16(KVC_BF16) ? less : x);
        }
    test_run(&p, KVC_PATH_FUSED);
    test_run(&exact, KVC_PATH_FUSED);
    assert_memory_equal(exact.out.memory, p.out.memory, kvc_array_nbytes(&p.out.array));
    test_tensor_free(&exact.q);
    test_tensor_free(&exact.out);
    test_problem_free(&p);
}

/* The root mean square of the fused path's error, of values that average to nothing. */
static double error_over(int64_t length, kvc_dtype dtype, uint64_t *seed) {
    enum { DIM = 64, HEADS = 4 };
    const test_case c = {
        .key_dim = DIM, .q_heads = HEADS, .kv_heads = 1, .length = length, .kv_dtype = dtype};
    test_problem p = test_problem_new(&c, seed);
    double truth[HEADS][DIM], sum = 0;
    for (int i = 0; i < PATHS; i++) {
        test_run(&p, paths[i]);
        for (int h = 0; h < HEADS; h++)
            for (int d = 0; d < DIM; d++) {
                const double x = test_get(&p.out.array, 0, h, 0, d);
                if (paths[i] == KVC_PATH_REFERENCE) truth[h][d] = x;
                else sum += (x - truth[h][d]) * (x - truth[h][d]);
            }
    }
    test_problem_free(&p);
    return sqrt(sum / (DIM * HEADS));
}

/* What weights lose in bf16 averages out; rounding in f32 stays what it is. */
static void fused__errs_less_over_more_positions(void **state) {
    (void)state;
    uint64_t seed = test_seed(17);
    for (size_t i = 0; i < 3; i++) {
        const double few = error_over(128, dtypes[i], &seed);
        const double many = error_over(8192, dtypes[i], &seed);
        print_message("%s: %.2g over 128 positions, %.2g over 8192\n", kvc_dtype_name(dtypes[i]),
                      few, many);
        assert_true(many < few / 3 || many < 1e-7);
    }
}

static void fused__keeps_its_error_at_large_scores(void **state) {
    (void)state;
    uint64_t seed = test_seed(6);
    /* Scores of some 1e4, far beyond where exp overflows. */
    const test_case c = {
        .key_dim = 64, .q_heads = 4, .kv_heads = 2, .queries = 5, .length = 200, .amplitude = 100};
    compare(&c, &seed);
}

static void attention__takes_one_key_for_the_answer(void **state) {
    (void)state;
    uint64_t seed = test_seed(7);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.key_dim = 64, .value_dim = 40, .q_heads = 2, .length = 1};
        test_problem p = test_problem_new(&c, &seed);
        test_run(&p, paths[i]);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t d = 0; d < 40; d++)
                assert_true(test_get(&p.out.array, 0, h, 0, d) == test_get(&p.v.array, 0, 0, 0, d));
        test_problem_free(&p);
    }
}

/* Queries of zeros weigh all keys they see alike: query i gives the mean of the values before it.
 */
static void attention__aligns_the_causal_mask_to_the_last_key(void **state) {
    (void)state;
    enum { QUERIES = 7, LENGTH = 45 };
    uint64_t seed = test_seed(8);
    for (int causal = 0; causal < 2; causal++)
        for (int i = 0; i < PATHS; i++) {
            const test_case c = {
                .key_dim = 8, .queries = QUERIES, .length = LENGTH, .not_causal = !causal};
            test_problem p = test_problem_new(&c, &seed);
            test_fill_random(&p.q.array, 0, &seed);
            for (int64_t j = 0; j < LENGTH; j++)
                for (int64_t d = 0; d < 8; d++) test_set(&p.v.array, 0, 0, j, d, (double)j);
            test_run(&p, paths[i]);
            for (int64_t row = 0; row < QUERIES; row++) {
                const int64_t last = causal ? LENGTH - QUERIES + row : LENGTH - 1;
                const double mean = (double)last / 2;
                assert_true(fabs(test_get(&p.out.array, 0, 0, row, 3) - mean) <= 1e-5 * mean);
            }
            test_problem_free(&p);
        }
}

static void attention__gives_zeros_to_queries_that_see_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(9);
    for (int64_t length = 0; length < 6; length++)
        for (int i = 0; i < PATHS; i++) {
            const test_case c = {.key_dim = 8, .q_heads = 3, .queries = 9, .length = length};
            test_problem p = test_problem_new(&c, &seed);
            test_run(&p, paths[i]);
            for (int64_t h = 0; h < 3; h++)
                for (int64_t row = 0; row < 9; row++) {
                    const double x = test_get(&p.out.array, 0, h, row, 0);
                    if (row < 9 - length) assert_true(x == 0 && !signbit(x));
                    else assert_true(x != 0);
                }
            test_problem_free(&p);
        }
}

/* A key that is NaN, or a value, reaches the queries that see it, and no other. */
static void attention__shows_nan_to_those_who_see_it(void **state) {
    (void)state;
    enum { QUERIES = 70, LENGTH = 90, HEADS = 4 };
    uint64_t seed = test_seed(10);
    for (int in_v = 0; in_v < 2; in_v++)
        for (int64_t at = 15; at < LENGTH; at += 11)
            for (int i = 0; i < PATHS * 3; i++) {
                const test_case c = {.key_dim = 16,
                                     .q_heads = HEADS,
                                     .kv_heads = 2,
                                     .queries = QUERIES,
                                     .length = LENGTH,
                                     .kv_dtype = dtypes[i / PATHS]};
                test_problem p = test_problem_new(&c, &seed);
                const test_tensor *into = in_v ? &p.v : &p.k;
                test_set(&into->array, 0, 1, at, 0, (double)NAN);
                test_run(&p, paths[i % PATHS]);
                for (int64_t h = 0; h < HEADS; h++)
                    for (int64_t row = 0; row < QUERIES; row++) {
                        const bool sees = h >= 2 && at <= LENGTH - QUERIES + row;
                        assert_int_equal(isnan(test_get(&p.out.array, 0, h, row, 0)) != 0, sees);
                        assert_true(is_nan(&p.out.array, h, row, 0) == sees);
                    }
                test_problem_free(&p);
            }
}

static void attention__lets_scores_of_minus_infinity_weigh_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(11);
    for (int64_t masked = 1; masked <= 80; masked += 13)
        for (int i = 0; i < PATHS * 3; i++) {
            const test_case c = {
                .key_dim = 8, .length = 80, .scale = 1, .kv_dtype = dtypes[i / PATHS]};
            test_problem p = test_problem_new(&c, &seed);
            for (int64_t d = 0; d < 8; d++) test_set(&p.q.array, 0, 0, 0, d, d == 0);
            for (int64_t j = 0; j < masked; j++) {
                test_set(&p.k.array, 0, 0, j, 0, (double)-INFINITY);
                test_set(&p.v.array, 0, 0, j, 0, 6e4);
            }
            double sum = 0, total = 0; /* of the others, whose scores are their first elements */
            for (int64_t j = masked; j < 80; j++) {
                const double weight = exp(test_get(&p.k.array, 0, 0, j, 0));
                sum += weight * test_get(&p.v.array, 0, 0, j, 0);
                total += weight;
            }
            test_run(&p, paths[i % PATHS]);
            assert_true(fabs(test_get(&p.out.array, 0, 0, 0, 0) - sum / total) <= 1e-5);
            test_problem_free(&p);
        }
    for (int i = 0; i < PATHS * 3; i++) { /* of all keys: as if nothing were seen */
        const test_case c = {.key_dim = 1, .length = 40, .kv_dtype = dtypes[i / PATHS]};
        test_problem p = test_problem_new(&c, &seed);
        test_set(&p.q.array, 0, 0, 0, 0, 1);
        for (int64_t j = 0; j < 40; j++) test_set(&p.k.array, 0, 0, j, 0, (double)-INFINITY);
        test_set(&p.v.array, 0, 0, 7, 0, (double)INFINITY);
        test_run(&p, paths[i % PATHS]);
        assert_true(test_get(&p.out.array, 0, 0, 0, 0) == 0);
        test_problem_free(&p);
    }
}

/* Where a block of positions begins, one query sees none of it and the next ones see a few, the
 * first of which outweighs all before: what they have summed up must shrink to nothing. */
static void attention__forgets_what_a_later_score_outweighs(void **state) {
    (void)state;
    uint64_t seed = test_seed(15);
    for (int64_t start = 32; start <= 256; start += 32)
        for (int64_t queries = 2; queries <= 9; queries++)
            for (int64_t group = 1; group <= 3; group++) {
                const test_case c = {.q_heads = group,
                                     .key_dim = 16,
                                     .queries = queries,
                                     .length = start + queries - 1,
                                     .scale = 1};
                test_problem p = test_problem_new(&c, &seed);
                for (int64_t h = 0; h < group; h++)
                    for (int64_t i = 0; i < queries; i++) test_set(&p.q.array, 0, h, i, 0, 1);
                test_set(&p.k.array, 0, 0, start, 0, 100);
                test_compare_paths(&p);
                test_problem_free(&p);
            }
}

static void attention__does_not_overflow_at_the_largest_scores(void **state) {
    (void)state;
    uint64_t seed = test_seed(12);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.key_dim = 1, .length = 50, .scale = 1};
        test_problem p = test_problem_new(&c, &seed);
        test_set(&p.q.array, 0, 0, 0, 0, 1);
        for (int64_t j = 0; j < 50; j++)
            test_set(&p.k.array, 0, 0, j, 0, (double)FLT_MAX * (j == 37 ? 1 : j % 2 ? -1 : 0.5));
        test_run(&p, paths[i]);
        assert_true(test_get(&p.out.array, 0, 0, 0, 0) == test_get(&p.v.array, 0, 0, 37, 0));
        test_problem_free(&p);
    }
}

/* In f32 and bf16: f16 has no numbers so small. */
static void attention__takes_the_largest_queries(void **state) {
    (void)state;
    uint64_t seed = test_seed(13);
    for (int i = 0; i < PATHS * 3; i++) {
        const test_case c = {.key_dim = 8, .length = 50, .scale = 1, .kv_dtype = dtypes[i / PATHS]};
        if (c.kv_dtype == KVC_F16) continue;
        test_problem p = test_problem_new(&c, &seed);
        for (int64_t d = 0; d < 8; d++) test_set(&p.q.array, 0, 0, 0, d, d ? 0 : (double)FLT_MAX);
        for (int64_t j = 0; j < 50; j++)
            test_set(&p.k.array, 0, 0, j, 0, (double)(j + 1) * 0x1p-120);
        test_run(&p, paths[i % PATHS]);
        assert_true(test_get(&p.out.array, 0, 0, 0, 0) == test_get(&p.v.array, 0, 0, 49, 0));
        test_problem_free(&p);
    }
}

/* A test tensor is NaN wherever there is no element, and so is the output before a run. */
static void attention__writes_its_elements_and_nothing_else(void **state) {
    (void)state;
    uint64_t seed = test_seed(14);
    for (int i = 0; i < 3 * PATHS; i++) {
        const test_case c = {.key_dim = 24,
                             .value_dim = 13,
                             .q_heads = 4,
                             .kv_heads = 2,
                             .queries = 3,
                             .length = 50,
                             .out_dtype = dtypes[i % 3],
                             .kv_layout = TEST_SPARE,
                             .out_layout = TEST_SPARE};
        test_problem p = test_problem_new(&c, &seed);
        test_run(&p, paths[i / 3]);
        kvc_array spare = p.out.array; /* five positions behind those of each head */
        spare.shape[2] += 5;
        for (int64_t h = 0; h < 4; h++)
            for (int64_t row = 0; row < 8; row++)
                for (int64_t d = 0; d < 13; d++)
                    assert_true(is_nan(&spare, h, row, d) == (row >= 3));
        test_problem_free(&p);
    }
}

static void reference__takes_any_strides(void **state) {
    (void)state;
    uint64_t seed = test_seed(15);
    const test_case c = {
        .key_dim = 10, .q_heads = 4, .kv_heads = 2, .queries = 3, .length = 20, .batch = 2};
    test_problem p = test_problem_new(&c, &seed);
    test_run(&p, KVC_PATH_REFERENCE);
    test_problem spread = p;
    spread.k = test_tensor_new(KVC_F32, TEST_SPREAD, 2, 2, 20, 10);
    spread.v = test_tensor_new(KVC_F32, TEST_SPREAD, 2, 2, 20, 10);
    spread.out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 2, 4, 3, 10);
    for (int i = 0; i < 2 * 2 * 20 * 10; i++) { /* positions backwards, as if stepped by -1 */
        const int64_t b = i / 400, h = i / 200 % 2, j = i / 10 % 20, d = i % 10;
        test_set(&spread.k.array, b, h, 19 - j, d, test_get(&p.k.array, b, h, j, d));
        test_set(&spread.v.array, b, h, 19 - j, d, test_get(&p.v.array, b, h, j, d));
    }
    kvc_array *sides[] = {&spread.k.array, &spread.v.array};
    for (int i = 0; i < 2; i++) {
        sides[i]->data = (float *)sides[i]->data + 19 * sides[i]->strides[2];
        sides[i]->strides[2] = -sides[i]->strides[2];
    }
    test_run(&spread, KVC_PATH_REFERENCE);
    assert_memory_equal(spread.out.memory, p.out.memory, kvc_array_nbytes(&p.out.array));
    test_tensor_free(&spread.k);
    test_tensor_free(&spread.v);
    test_tensor_free(&spread.out);
    test_problem_free(&p);
}

/* By the formula, with code of the tests alone: the reference is the truth for all else. */
static void reference__is_what_the_formula_says(void **state) {
    (void)state;
    uint64_t seed = test_seed(17);
    for (int n = 0; n < 60; n++) {
        const test_case c = {.batch = 1 + test_below(&seed, 2),
                             .q_heads = 4,
                             .kv_heads = 1 << test_below(&seed, 3),
                             .key_dim = 1 + test_below(&seed, 20),
                             .value_dim = 1 + test_below(&seed, 20),
                             .queries = 1 + test_below(&seed, 6),
                             .length = test_below(&seed, 40),
                             .kv_dtype = dtypes[test_below(&seed, 3)],
                             .out_dtype = dtypes[test_below(&seed, 3)],
                             .kv_layout = (test_layout)test_below(&seed, 4),
                             .out_layout = (test_layout)test_below(&seed, 3),
                             .not_causal = test_below(&seed, 3) == 0};
        test_problem p = test_problem_new(&c, &seed);
        test_run(&p, KVC_PATH_REFERENCE);
        test_compare_formula(&p);
        test_problem_free(&p);
    }
}

static void attention__gives_minus_infinity_for_the_lse_of_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(18);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.key_dim = 8, .q_heads = 2, .queries = 5, .length = 3};
        test_problem p = test_problem_new(&c, &seed);
        test_run(&p, paths[i]);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t row = 0; row < 5; row++)
                assert_true((test_get(&p.lse.array, 0, h, row, 0) == -INFINITY) == (row < 2));
        test_problem_free(&p);
    }
}

static void attention__gives_the_same_bits_on_every_run(void **state) {
    (void)state;
    uint64_t seed = test_seed(16);
    const test_case c = {.key_dim = 80, .q_heads = 6, .kv_heads = 2, .queries = 5, .length = 77};
    test_problem p = test_problem_new(&c, &seed);
    test_problem again = p;
    again.out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, 6, 5, 80);
    test_run(&p, KVC_PATH_FUSED);
    test_run(&again, KVC_PATH_FUSED);
    assert_memory_equal(again.out.memory, p.out.memory, kvc_array_nbytes(&p.out.array));
    test_tensor_free(&again.out);
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused__equals_the_reference_for_every_dim),
        cmocka_unit_test(fused__equals_the_reference_in_each_dtype_at_the_end_of_rows),
        cmocka_unit_test(fused__equals_the_reference_on_random_cases),
        cmocka_unit_test(fused__equals_the_reference_at_every_tail),
        cmocka_unit_test(fused__takes_rows_by_the_hundred),
        cmocka_unit_test(fused__keeps_its_error_over_many_positions),
        cmocka_unit_test(fused__rounds_queries_to_bf16_or_not_at_all),
        cmocka_unit_test(fused__errs_less_over_more_positions),
        cmocka_unit_test(fused__keeps_its_error_at_large_scores),
        cmocka_unit_test(attention__takes_one_key_for_the_answer),
        cmocka_unit_test(attention__aligns_the_causal_mask_to_the_last_key),
        cmocka_unit_test(attention__gives_zeros_to_queries_that_see_nothing),
        cmocka_unit_test(attention__shows_nan_to_those_who_see_it),
        cmocka_unit_test(attention__lets_scores_of_minus_infinity_weigh_nothing),
        cmocka_unit_test(attention__forgets_what_a_later_score_outweighs),
        cmocka_unit_test(attention__does_not_overflow_at_the_largest_scores),
        cmocka_unit_test(attention__takes_the_largest_queries),
        cmocka_unit_test(attention__writes_its_elements_and_nothing_else),
        cmocka_unit_test(reference__takes_any_strides),
        cmocka_unit_test(reference__is_what_the_formula_says),
        cmocka_unit_test(attention__gives_minus_infinity_for_the_lse_of_nothing),
        cmocka_unit_test(attention__gives_the_same_bits_on_every_run),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
