/* Rows by the dozen and the hundred, which panels take in: every count of them, every edge, each
 * path, alone and in parts, against the formula. */
#include <math.h>
#include <string.h>

#include <kvcache/executor.h>

#include "attention/ops.h"
#include "support/attend.h"
#include "support/guarded.h"
#include "support/support.h"

static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
static const int64_t edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 200};
enum { EDGES = sizeof edges / sizeof *edges };

/* Every count of rows: of tiles, and of lanes left over by one panel and several. */
static void prefill__takes_every_count_of_rows(void **state) {
    (void)state;
    uint64_t seed = test_seed(61);
    for (int64_t rows = 1; rows <= 200; rows++) {
        test_case c = {.key_dim = 1 + test_below(&seed, 20),
                       .value_dim = 1 + test_below(&seed, 20),
                       .length = edges[test_below(&seed, EDGES)],
                       .kv_dtype = dtypes[test_below(&seed, 3)],
                       .q_dtype = dtypes[test_below(&seed, 3)],
                       .out_dtype = dtypes[test_below(&seed, 3)],
                       .kv_layout = (test_layout)test_below(&seed, 3),
                       .q_layout = (test_layout)test_below(&seed, 3),
                       .out_layout = (test_layout)test_below(&seed, 3)};
        c.q_heads = rows % 4 == 0 ? 4 : rows % 3 == 0 ? 3 : 1;
        c.queries = rows / c.q_heads;
        c.not_causal = rows % 5 == 0;
        test_check_threads(&c, &seed);
    }
}

/* Parts of rows have at most a few hundred. */
static void prefill__takes_more_rows_than_a_part_has(void **state) {
    (void)state;
    static const int64_t counts[] = {191, 193, 384, 385, 500};
    uint64_t seed = test_seed(62);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const test_case narrow = {
            .key_dim = 8, .queries = counts[i], .length = 140, .kv_dtype = dtypes[i % 3]};
        const test_case wide = {.key_dim = 250,
                                .value_dim = 20,
                                .queries = counts[i],
                                .length = 30,
                                .not_causal = true};
        test_check_threads(&narrow, &seed);
        test_check_threads(&wide, &seed);
    }
}

static void prefill__takes_every_dim(void **state) {
    (void)state;
    static const int64_t dims[] = {1,  3,  7,   8,   9,   15,  16,  17,  31,  32,  33,   64,
                                   80, 96, 100, 112, 128, 192, 256, 500, 512, 576, 1000, 1024};
    uint64_t seed = test_seed(63);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int t = 0; t < 3; t++) {
            const test_case c = {.q_heads = 3,
                                 .key_dim = dims[i],
                                 .value_dim =
                                     test_below(&seed, 2) ? dims[i] : 1 + test_below(&seed, 100),
                                 .queries = 17, /* 51 rows */
                                 .length = dims[i] < 200 ? 80 : 20,
                                 .kv_dtype = dtypes[t]};
            test_check_threads(&c, &seed);
        }
}

static void prefill__takes_positions_to_every_edge_of_a_block(void **state) {
    (void)state;
    uint64_t seed = test_seed(64);
    for (int64_t length = 1; length <= 135; length++) {
        test_case c = {.q_heads = 4, .key_dim = 5, .queries = 13, .length = length};
        test_check_threads(&c, &seed);
        c.window = 1 + test_below(&seed, length);
        test_check_threads(&c, &seed);
    }
}

static const kvc_dtype mask_dtypes[] = {KVC_U8, KVC_F32, KVC_F16, KVC_BF16};

/* What a variant does to scores it does in the order in which panels hold them. */
static void prefill__combines_all_variants(void **state) {
    (void)state;
    uint64_t seed = test_seed(65);
    for (int variants = 0; variants < 128; variants++) {
        test_case c = {.batch = 1 + test_below(&seed, 2),
                       .q_heads = 6,
                       .kv_heads = 2,
                       .key_dim = 1 + test_below(&seed, 33),
                       .queries = 8 + test_below(&seed, 30),
                       .length = edges[test_below(&seed, EDGES)],
                       .kv_dtype = dtypes[test_below(&seed, 3)]};
        int64_t lengths[2];
        for (int b = 0; b < 2; b++) lengths[b] = test_below(&seed, c.length + 1);
        if (variants & 1) c.window = edges[test_below(&seed, EDGES)];
        if (variants & 2) c.softcap = 1 + (float)test_below(&seed, 50);
        if (variants & 4) c.sinks = dtypes[test_below(&seed, 3)];
        if (variants & 8) c.slopes = dtypes[test_below(&seed, 3)];
        if (variants & 16) c.lengths = lengths;
        if (variants & 96)
            c.mask = (test_mask){.dtype = mask_dtypes[test_below(&seed, 4)],
                                 .pattern = (test_pattern)test_below(&seed, 4),
                                 .once = (unsigned)test_below(&seed, 16)};
        test_check_threads(&c, &seed);
    }
}

/* Tells whether a row's output and log-sum-exp are NaN; all of one, or none. */
static bool is_nan_row(const test_problem *p, int64_t head, int64_t i) {
    const bool lse = isnan(test_get(&p->lse.array, 0, head, i, 0));
    for (int64_t d = 0; d < p->c.value_dim; d++)
        assert_true(isnan(test_get(&p->out.array, 0, head, i, d)) || !lse);
    return isnan(test_get(&p->out.array, 0, head, i, 2));
}

/* One position of one kv head is NaN, in its key or its value: row for row, those that see it tell,
 * and no other. */
static void prefill__shows_nan_to_those_who_see_it(void **state) {
    (void)state;
    enum { QUERIES = 49, LENGTH = 131 };
    uint64_t seed = test_seed(66);
    for (int turn = 0; turn < 120; turn++) {
        const int64_t at = test_below(&seed, LENGTH), group = 1 + test_below(&seed, 3);
        const bool is_masked = turn % 3 == 0;
        const test_case c = {.q_heads = 2 * group,
                             .kv_heads = 2,
                             .key_dim = 9,
                             .queries = QUERIES,
                             .length = LENGTH,
                             .window = turn % 2 ? 1 + test_below(&seed, 100) : 0,
                             .kv_dtype = dtypes[test_below(&seed, 3)],
                             .mask = {.dtype = is_masked ? KVC_U8 : 0, .once = 3}};
        if (test_leaves_out(&c, &seed)) continue;
        test_problem p = test_problem_new(&c, &seed);
        test_set(turn % 4 < 2 ? &p.v.array : &p.k.array, 0, 1, at, 2, (double)NAN);
        test_run(&p, KVC_PATH_FUSED);
        for (int64_t h = 0; h < 2 * group; h++)
            for (int64_t i = 0; i < QUERIES; i++) {
                const int64_t own = LENGTH - QUERIES + i;
                bool sees = h >= group && at <= own && (c.window == 0 || at > own - c.window);
                if (is_masked) sees = sees && test_get(&p.mask.array, 0, 0, i, at) != 0;
                assert_int_equal(is_nan_row(&p, h, i), sees);
            }
        test_problem_free(&p);
    }
}

/* Scores that rise from block to block, and fall: sums must shrink as later ones outweigh them. */
static void prefill__follows_scores_that_rise_and_fall(void **state) {
    (void)state;
    uint64_t seed = test_seed(67);
    for (int falls = 0; falls < 2; falls++) {
        const test_case c = {.key_dim = 8, .queries = 40, .length = 300, .scale = 1};
        test_problem p = test_problem_new(&c, &seed);
        for (int64_t i = 0; i < 40; i++) test_set(&p.q.array, 0, 0, i, 0, 1);
        for (int64_t j = 0; j < 300; j++)
            test_set(&p.k.array, 0, 0, j, 0, (double)(falls ? 300 - j : j));
        test_compare_paths(&p);
        test_problem_free(&p);
    }
    const test_case large = {.key_dim = 64, .queries = 33, .length = 200, .amplitude = 100};
    test_check_threads(&large, &seed);
}

/* All scores of -inf are as if nothing were seen, and some of them weigh nothing. */
static void prefill__lets_scores_of_minus_infinity_weigh_nothing(void **state) {
    (void)state;
    enum { QUERIES = 30, LENGTH = 100 };
    uint64_t seed = test_seed(68);
    for (int64_t from = 0; from <= LENGTH; from += 20) {
        const test_case c = {.key_dim = 3, .queries = QUERIES, .length = LENGTH};
        test_problem p = test_problem_new(&c, &seed);
        for (int64_t i = 0; i < QUERIES; i++)
            for (int64_t d = 0; d < 3; d++) test_set(&p.q.array, 0, 0, i, d, d == 0);
        for (int64_t j = 0; j < from; j++) {
            test_set(&p.k.array, 0, 0, j, 0, (double)-INFINITY);
            test_set(&p.v.array, 0, 0, j, 0, 1e30);
        }
        test_run(&p, KVC_PATH_FUSED);
        for (int64_t i = 0; i < QUERIES; i++) {
            const bool blind = LENGTH - QUERIES + i < from;
            assert_true(fabs(test_get(&p.out.array, 0, 0, i, 0)) < 1);
            assert_int_equal(test_get(&p.out.array, 0, 0, i, 1) == 0, blind);
            assert_int_equal(test_get(&p.lse.array, 0, 0, i, 0) == -INFINITY, blind);
        }
        test_problem_free(&p);
    }
}

/* Arrays whose first or last element touches a page that traps. */
static void prefill__touches_nothing_before_or_behind_its_arrays(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 7, 16, 100, 200};
    uint64_t seed = test_seed(69);
    for (int turn = 0; turn < 60; turn++) {
        const test_case c = {.q_heads = 2,
                             .key_dim = dims[turn % 5],
                             .queries = 21,
                             .length = edges[test_below(&seed, EDGES)],
                             .kv_dtype = dtypes[turn / 5 % 3]};
        test_problem p = test_problem_new(&c, &seed);
        kvc_array *arrays[] = {&p.q.array, &p.k.array, &p.v.array, &p.out.array};
        guarded memory[4];
        for (int i = 0; i < 4; i++) {
            const size_t bytes = kvc_array_nbytes(arrays[i]);
            memory[i] = guarded_new(bytes);
            char *place = guarded_place(&memory[i], bytes, turn % 2 == 0);
            memcpy(place, arrays[i]->data, bytes);
            arrays[i]->data = place;
        }
        test_compare_paths(&p);
        for (int i = 0; i < 4; i++) guarded_free(&memory[i]);
        test_problem_free(&p);
    }
}

/* However many threads, to 1e-6. With one kv head positions are cut; with hundreds of rows, rows
 * are. */
static void prefill__gives_the_same_on_any_number_of_threads(void **state) {
    (void)state;
    enum { DIM = 8 };
    static const int64_t counts[] = {9, 40, 420};
    uint64_t seed = test_seed(70);
    for (int turn = 0; turn < 6; turn++) {
        const test_case c = {.q_heads = 2,
                             .key_dim = DIM,
                             .queries = counts[turn / 2],
                             .length = turn % 2 ? 700 : 90,
                             .kv_dtype = dtypes[turn % 3]};
        test_problem p = test_problem_new(&c, &seed), again = p;
        again.out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, 2, c.queries, DIM);
        test_run(&p, KVC_PATH_FUSED);
        for (int count = 2; count <= 7; count += 5) {
            kvc_threads *own;
            assert_ok(kvc_threads_new(&own, count));
            const kvc_executor executor = kvc_threads_executor(own);
            test_run_on(&again, KVC_PATH_FUSED, &executor);
            for (int64_t h = 0; h < 2; h++)
                for (int64_t i = 0; i < c.queries; i++)
                    for (int64_t d = 0; d < DIM; d++) {
                        const double one = test_get(&p.out.array, 0, h, i, d);
                        const double many = test_get(&again.out.array, 0, h, i, d);
                        assert_true(fabs(one - many) <= 1e-6);
                    }
            kvc_threads_free(own);
        }
        test_tensor_free(&again.out);
        test_problem_free(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill__takes_every_count_of_rows),
        cmocka_unit_test(prefill__takes_more_rows_than_a_part_has),
        cmocka_unit_test(prefill__takes_every_dim),
        cmocka_unit_test(prefill__takes_positions_to_every_edge_of_a_block),
        cmocka_unit_test(prefill__combines_all_variants),
        cmocka_unit_test(prefill__shows_nan_to_those_who_see_it),
        cmocka_unit_test(prefill__follows_scores_that_rise_and_fall),
        cmocka_unit_test(prefill__lets_scores_of_minus_infinity_weigh_nothing),
        cmocka_unit_test(prefill__touches_nothing_before_or_behind_its_arrays),
        cmocka_unit_test(prefill__gives_the_same_on_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, test_threads_setup, test_threads_teardown);
}
