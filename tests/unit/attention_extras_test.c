/* What a run can take besides: masks, sinks and slopes, on each path, against the formula. */
#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvcache/executor.h>

#include "support/attend.h"
#include "support/support.h"

static const kvc_path paths[] = {KVC_PATH_REFERENCE, KVC_PATH_FUSED};
enum { PATHS = sizeof paths / sizeof *paths };

static const int64_t groups[] = {1, 2, 3, 4, 5, 8};
static const int64_t query_counts[] = {1, 2, 5, 17};
static const int64_t edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 200};

static const kvc_dtype mask_dtypes[] = {KVC_U8, KVC_F32, KVC_F16, KVC_BF16};

static test_mask random_mask(uint64_t *seed) {
    return (test_mask){.dtype = mask_dtypes[test_below(seed, 4)],
                       .pattern = (test_pattern)test_below(seed, 4),
                       .once = (unsigned)test_below(seed, 16),
                       .ndim = 1 + (int)test_below(seed, 4),
                       .stretch = test_below(seed, 2),
                       .layout = (test_layout)test_below(seed, 4)};
}

static void attention__counts_a_sink_once(void **state) {
    (void)state;
    uint64_t seed = test_seed(39);
    for (size_t g = 0; g < 6; g++)
        for (size_t n = 0; n < sizeof edges / sizeof *edges; n++)
            test_check_threads(
                &(test_case){.kv_heads = 2,
                             .q_heads = 2 * groups[g],
                             .key_dim = 12,
                             .queries = query_counts[test_below(&seed, 4)],
                             .length = edges[n] * 3 - 2,
                             .window = test_below(&seed, 2) * 90,
                             .softcap = (float)test_below(&seed, 2) * 2,
                             .sinks = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                             .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3))},
                &seed);
}

/* A query that sees no key gives zeros; what it has is its sink. */
static void attention__has_a_sink_where_it_sees_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(40);
    for (int64_t length = 0; length < 3; length++)
        test_check_threads(
            &(test_case){
                .q_heads = 3, .key_dim = 8, .queries = 4, .length = length, .sinks = KVC_F32},
            &seed);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.q_heads = 2, .key_dim = 8, .sinks = KVC_BF16};
        test_problem p = test_problem_new(&c, &seed);
        test_set(&p.sinks.array, 0, 0, 0, 0, 5);
        test_set(&p.sinks.array, 1, 0, 0, 0, (double)-INFINITY); /* none for head 1 */
        test_run(&p, paths[i]);
        assert_true(test_get(&p.lse.array, 0, 0, 0, 0) == 5);
        assert_true(test_get(&p.lse.array, 0, 1, 0, 0) == -INFINITY);
        for (int64_t d = 0; d < 16; d++)
            assert_true(test_get(&p.out.array, 0, d / 8, 0, d % 8) == 0);
        test_problem_free(&p);
    }
}

static void attention__gives_way_to_a_sink_far_above(void **state) {
    (void)state;
    uint64_t seed = test_seed(41);
    for (int i = 0; i < PATHS; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const test_case c = {.key_dim = 8, .length = 70, .sinks = KVC_F32};
            test_problem p = test_problem_new(&c, &seed);
            test_set(&p.sinks.array, 0, 0, 0, 0, sign * 1e30);
            test_run(&p, paths[i]);
            if (sign > 0) assert_true(test_get(&p.out.array, 0, 0, 0, 2) == 0);
            else test_compare_formula(&p);
            test_problem_free(&p);
        }
}

/* Slopes of both signs: those above 0 favour far keys when a plan is not causal. */
static void attention__slopes_count_from_the_query(void **state) {
    (void)state;
    uint64_t seed = test_seed(42);
    for (size_t g = 0; g < 6; g++)
        for (size_t n = 0; n < sizeof edges / sizeof *edges; n++)
            test_check_threads(
                &(test_case){.batch = 2,
                             .q_heads = groups[g],
                             .key_dim = 12,
                             .queries = query_counts[test_below(&seed, 4)],
                             .length = edges[n],
                             .not_causal = n % 3 == 0,
                             .window = n % 3 == 1 ? 70 : 0,
                             .softcap = (float)test_below(&seed, 2) * 2,
                             .slopes = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                             .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3))},
                &seed);
}

/* Queries of zeros, slope ln 2: each key weighs twice the one before it. */
static void attention__halves_a_weight_with_each_position(void **state) {
    (void)state;
    enum { LENGTH = 8 };
    uint64_t seed = test_seed(43);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.key_dim = 4, .queries = 2, .length = LENGTH, .slopes = KVC_F32};
        test_problem p = test_problem_new(&c, &seed);
        test_fill_random(&p.q.array, 0, &seed);
        test_fill_random(&p.v.array, 0, &seed);
        test_set(&p.slopes.array, 0, 0, 0, 0, log(2));
        test_set(&p.v.array, 0, 0, LENGTH - 2, 0, 1);
        test_run(&p, paths[i]);
        const double last = 1 / (2 - ldexp(1, 1 - LENGTH)); /* of the last key a query sees */
        assert_true(fabs(test_get(&p.out.array, 0, 0, 1, 0) - last / 2) < 1e-6);
        assert_true(fabs(test_get(&p.out.array, 0, 0, 0, 0) - 1 / (2 - ldexp(1, 2 - LENGTH))) <
                    1e-6);
        test_problem_free(&p);
    }
}

/* What a mask hides is NaN for these, where no other query sees it. */
static void attention__masks_broadcast_from_any_shape(void **state) {
    (void)state;
    uint64_t seed = test_seed(44);
    for (unsigned once = 0; once < 16; once++)
        for (int ndim = 1; ndim <= 4; ndim++)
            for (int stretch = 0; stretch < 2; stretch++) {
                test_case c = {.batch = 2,
                               .kv_heads = 2,
                               .q_heads = 6,
                               .key_dim = 8,
                               .queries = 3,
                               .length = 70,
                               .not_causal = test_below(&seed, 2),
                               .mask = random_mask(&seed)};
                c.mask.once = once;
                c.mask.ndim = ndim;
                c.mask.stretch = stretch;
                test_check_threads(&c, &seed);
            }
}

static void attention__masks_hide_runs_of_any_length(void **state) {
    (void)state;
    uint64_t seed = test_seed(45);
    for (int turn = 0; turn < 4; turn++)
        for (size_t g = 0; g < 6; g++)
            for (size_t n = 0; n < sizeof edges / sizeof *edges; n++)
                test_check_threads(
                    &(test_case){.q_heads = groups[g],
                                 .key_dim = 12,
                                 .queries = query_counts[test_below(&seed, 4)],
                                 .length = edges[n],
                                 .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                                 .mask = {.dtype = mask_dtypes[turn],
                                          .pattern = (test_pattern)test_below(&seed, 4),
                                          .once = test_below(&seed, 2) ? 2 : 0}},
                    &seed);
}

/* Blocks of 64 rows that begin and end within the heads of a query: what one query alone sees is at
 * either end of them. */
static void attention__masks_of_any_row_count(void **state) {
    (void)state;
    uint64_t seed = test_seed(52);
    for (int64_t group = 1; group <= 7; group++)
        for (int turn = 0; turn < 12; turn++) {
            const int64_t queries = 1 + test_below(&seed, 60);
            test_check_threads(
                &(test_case){.q_heads = group,
                             .key_dim = 4,
                             .queries = queries,
                             .length = edges[test_below(&seed, 9)] + 64 * test_below(&seed, 3),
                             .not_causal = true,
                             .mask = {.dtype = mask_dtypes[test_below(&seed, 4)],
                                      .pattern = turn % 2 ? TEST_PADDED : TEST_WHOLE_ROWS,
                                      .once = test_below(&seed, 4) ? 2 : 0}},
                &seed);
        }
    for (int64_t seer = 0; seer < 30; seer++) { /* alone */
        const test_case c = {.q_heads = 5,
                             .key_dim = 4,
                             .queries = 30,
                             .length = 200,
                             .not_causal = true,
                             .mask = {.dtype = KVC_U8, .once = 2}};
        test_problem p = test_problem_new(&c, &seed);
        for (int64_t n = 0; n < 30 * 200; n++)
            test_set(&p.mask.array, 0, 0, n / 200, n % 200, n / 200 == seer);
        test_run(&p, KVC_PATH_FUSED);
        test_compare_formula(&p);
        test_problem_free(&p);
    }
}

/* A batch padded on the left over memory that was never written. */
static void attention__padding_may_hold_anything(void **state) {
    (void)state;
    enum { LENGTH = 150 };
    static const double anything[] = {NAN, INFINITY, -INFINITY, 3e38};
    uint64_t seed = test_seed(46);
    for (int64_t padding = 1; padding <= LENGTH; padding += 16)
        for (int i = 0; i < PATHS * 4; i++) {
            const test_case c = {.q_heads = 4,
                                 .key_dim = 16,
                                 .length = LENGTH,
                                 .mask = {.dtype = mask_dtypes[i / PATHS], .once = 7}};
            test_problem p = test_problem_new(&c, &seed);
            for (int64_t j = 0; j < LENGTH; j++) {
                const bool kept = j >= padding;
                const bool is_u8 = c.mask.dtype == KVC_U8;
                test_set(&p.mask.array, 0, 0, 0, j, is_u8 ? kept : kept ? 0 : (double)-INFINITY);
                for (int64_t d = 0; d < 16 && !kept; d++) {
                    test_set(&p.k.array, 0, 0, j, d, anything[test_below(&seed, 4)]);
                    test_set(&p.v.array, 0, 0, j, d, anything[test_below(&seed, 4)]);
                }
            }
            test_run(&p, paths[i % PATHS]);
            if (padding < LENGTH) {
                for (int64_t j = 0; j < padding * 16; j++) /* for the bound alone */
                    test_set(&p.v.array, 0, 0, j / 16, j % 16, 0);
                test_compare_formula(&p);
            } else
                for (int64_t h = 0; h < 4; h++) {
                    assert_true(test_get(&p.out.array, 0, h, 0, 5) == 0);
                    assert_true(test_get(&p.lse.array, 0, h, 0, 0) == -INFINITY);
                }
            test_problem_free(&p);
        }
}

static void check_combination(int64_t group, int64_t queries, kvc_dtype dtype, uint64_t *seed) {
    const int64_t variants = test_below(seed, 64);
    int64_t lengths[2];
    test_case c = {.batch = 1 + test_below(seed, 2),
                   .kv_heads = 1 + test_below(seed, 2),
                   .key_dim = 1 + test_below(seed, 33),
                   .queries = queries,
                   .length = edges[test_below(seed, 9)],
                   .kv_dtype = dtype,
                   .q_dtype = (kvc_dtype)(KVC_F32 + test_below(seed, 3)),
                   .out_dtype = (kvc_dtype)(KVC_F32 + test_below(seed, 3)),
                   .kv_layout = (test_layout)test_below(seed, 3),
                   .out_layout = (test_layout)test_below(seed, 3)};
    c.q_heads = c.kv_heads * group;
    if (variants & 1) c.window = edges[test_below(seed, 9)];
    else c.not_causal = test_below(seed, 3) == 0;
    if (variants & 2) c.softcap = 1 + (float)test_below(seed, 50);
    if (variants & 4) c.mask = random_mask(seed);
    if (variants & 8) c.sinks = (kvc_dtype)(KVC_F32 + test_below(seed, 3));
    if (variants & 16) c.slopes = (kvc_dtype)(KVC_F32 + test_below(seed, 3));
    for (int b = 0; b < 2; b++) lengths[b] = test_below(seed, c.length + 1);
    if (variants & 32) c.lengths = lengths;
    test_check_threads(&c, seed);
}

/* Every dtype, group and count of queries once, then any, with any of the variants. */
static void attention__combines_all_variants(void **state) {
    (void)state;
    uint64_t seed = test_seed(47);
    const double end = test_now() + test_seconds(1);
    for (int64_t n = 0; n < 6 * 4 * 3 || test_now() < end; n++) {
        const int64_t one = n < 6 * 4 * 3 ? n : test_below(&seed, 6 * 4 * 3);
        check_combination(groups[one / 12], query_counts[one / 3 % 4],
                          (kvc_dtype)(KVC_F32 + one % 3), &seed);
    }
}

/* Blocks that a mask hides from all are not read; keys that it shows are, each once. */
static void attention__reads_no_block_that_a_mask_hides(void **state) {
    (void)state;
    enum { DIM = 64, LENGTH = 1024 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t row_bytes = DIM * sizeof(float), bytes = LENGTH * row_bytes;
    uint64_t seed = test_seed(48);
    if (page != 4096) skip(); /* 16 rows */
    for (int turn = 0; turn < 2; turn++) {
        const test_case c = {
            .q_heads = 4, .key_dim = DIM, .length = LENGTH, .mask = {.dtype = KVC_U8, .once = 7}};
        test_problem p = test_problem_new(&c, &seed);
        test_tensor *sides[] = {&p.k, &p.v};
        for (int64_t j = 0; j < LENGTH; j++)
            test_set(&p.mask.array, 0, 0, 0, j, j < 100 || j >= 640);
        for (int side = 0; side < 2; side++) {
            char *map =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_true(map != MAP_FAILED);
            memcpy(map, sides[side]->memory, bytes);
            assert_int_equal(mprotect(map + 8 * page, 32 * page, PROT_NONE), 0); /* 128 to 639 */
            sides[side]->array.data = map;
        }
        test_run(&p, paths[turn]);
        for (int side = 0; side < 2; side++) {
            assert_int_equal(munmap(sides[side]->array.data, bytes), 0);
            sides[side]->array.data = sides[side]->memory;
        }
        test_compare_formula(&p);
        test_problem_free(&p);
    }
}

/* One query and dim: scores are the keys themselves. */
static test_problem problem_of_keys(int64_t length, kvc_dtype mask, double (*key)(int64_t),
                                    uint64_t *seed) {
    const test_case c = {.key_dim = 1, .length = length, .scale = 1, .mask = {.dtype = mask}};
    test_problem p = test_problem_new(&c, seed);
    test_set(&p.q.array, 0, 0, 0, 0, 1);
    for (int64_t j = 0; j < length; j++) {
        test_set(&p.k.array, 0, 0, j, 0, key(j));
        if (mask) test_set(&p.mask.array, 0, 0, 0, j, mask == KVC_U8);
    }
    return p;
}

static double huge_key(int64_t j) {
    return j == 137 ? 1e30 : j == 20 ? 0.5e30 : j % 3 ? -1e30 : j % 2 ? (double)-INFINITY : 1;
}

/* The largest of huge scores takes it all, and where a mask hides it, the next. */
static void attention__takes_the_largest_of_huge_scores(void **state) {
    (void)state;
    const kvc_executor executor = test_seven_threads();
    uint64_t seed = test_seed(49);
    for (int turn = 0; turn < 3 * 4; turn++) {
        const kvc_dtype mask = mask_dtypes[turn / 3];
        const double hidden = mask == KVC_U8 ? 0 : (double)-INFINITY;
        const kvc_path path = paths[turn % 3 > 0];
        test_problem p = problem_of_keys(300, mask, huge_key, &seed);
        for (int64_t wanted = 137; wanted > 0; wanted = wanted == 137 ? 20 : 0) {
            test_run_on(&p, path, turn % 3 == 2 ? &executor : NULL);
            assert_true(test_get(&p.out.array, 0, 0, 0, 0) ==
                        test_get(&p.v.array, 0, 0, wanted, 0));
            assert_true(test_get(&p.lse.array, 0, 0, 0, 0) ==
                        test_get(&p.k.array, 0, 0, wanted, 0));
            test_set(&p.mask.array, 0, 0, 0, 137, hidden);
            test_set(&p.k.array, 0, 0, 137, 0, (double)NAN);
        }
        test_problem_free(&p);
    }
}

static double modest_key(int64_t j) {
    return (double)(j % 5) / 4;
}

/* A product beyond f32 is an infinity in the fused path: NaN for its row, nothing where a mask
 * hides it, and below nothing at all. */
static void fused__shows_a_score_that_overflows(void **state) {
    (void)state;
    uint64_t seed = test_seed(50);
    for (int sign = -1; sign <= 1; sign += 2)
        for (int hidden = 0; hidden < 2; hidden++) {
            test_problem p = problem_of_keys(100, KVC_U8, modest_key, &seed);
            test_set(&p.q.array, 0, 0, 0, 0, 1e30);
            for (int64_t j = 0; j < 100; j++)
                test_set(&p.k.array, 0, 0, j, 0, j == 70 ? sign * 1e30 : 1e-30 * modest_key(j));
            if (hidden) test_set(&p.mask.array, 0, 0, 0, 70, 0);
            test_run(&p, KVC_PATH_FUSED);
            if (sign > 0 && !hidden) assert_true(isnan(test_get(&p.out.array, 0, 0, 0, 0)));
            else {
                test_set(&p.mask.array, 0, 0, 0, 70, 0); /* as if it were */
                test_compare_formula(&p);
            }
            test_problem_free(&p);
        }
}

/* The lowest number of a dtype hides keys from those who see others; alone, it leaves all alike. */
static void attention__masks_by_the_lowest_number_as_others_do(void **state) {
    (void)state;
    uint64_t seed = test_seed(51);
    for (int i = 0; i < PATHS; i++)
        for (int64_t shown = 0; shown <= 90; shown += 30) {
            test_problem p = problem_of_keys(130, KVC_F32, modest_key, &seed);
            double mean = 0;
            for (int64_t j = shown; j < 130; j++)
                test_set(&p.mask.array, 0, 0, 0, j, -(double)FLT_MAX);
            for (int64_t j = 0; j < 130; j++) mean += test_get(&p.v.array, 0, 0, j, 0) / 130;
            test_run(&p, paths[i]);
            if (shown == 0) assert_true(fabs(test_get(&p.out.array, 0, 0, 0, 0) - mean) < 1e-6);
            else {
                for (int64_t j = shown; j < 130; j++)
                    test_set(&p.mask.array, 0, 0, 0, j, (double)-INFINITY);
                test_compare_formula(&p);
            }
            test_problem_free(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention__counts_a_sink_once),
        cmocka_unit_test(attention__has_a_sink_where_it_sees_nothing),
        cmocka_unit_test(attention__gives_way_to_a_sink_far_above),
        cmocka_unit_test(attention__slopes_count_from_the_query),
        cmocka_unit_test(attention__halves_a_weight_with_each_position),
        cmocka_unit_test(attention__masks_broadcast_from_any_shape),
        cmocka_unit_test(attention__masks_hide_runs_of_any_length),
        cmocka_unit_test(attention__masks_of_any_row_count),
        cmocka_unit_test(attention__padding_may_hold_anything),
        cmocka_unit_test(attention__combines_all_variants),
        cmocka_unit_test(attention__takes_the_largest_of_huge_scores),
        cmocka_unit_test(fused__shows_a_score_that_overflows),
        cmocka_unit_test(attention__masks_by_the_lowest_number_as_others_do),
        cmocka_unit_test(attention__reads_no_block_that_a_mask_hides),
    };
    return cmocka_run_group_tests(tests, test_threads_setup, test_threads_teardown);
}
