/* Windows, soft caps, masks, sinks and slopes: each path, alone and in parts, against the formula.
 */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvcache/executor.h>

#include "attention/ops.h"
#include "base/isa.h"
#include "support/attend.h"
#include "support/support.h"

static const kvc_path paths[] = {KVC_PATH_REFERENCE, KVC_PATH_FUSED};
enum { PATHS = sizeof paths / sizeof *paths };

static const int64_t groups[] = {1, 2, 3, 4, 5, 8};
static const int64_t query_counts[] = {1, 2, 5, 17};
static const int64_t edges[] = {1, 2, 63, 64, 65, 127, 128, 129, 200};

/* Queries of zeros weigh all keys they see alike: the mean of their positions tells which. */
static void attention__window_counts_the_query_itself(void **state) {
    (void)state;
    enum { QUERIES = 4, LENGTH = 90, DIM = 8 };
    uint64_t seed = test_seed(31);
    for (int64_t window = 1; window <= LENGTH + 1; window++)
        for (int i = 0; i < PATHS; i++) {
            const test_case c = {
                .key_dim = DIM, .queries = QUERIES, .length = LENGTH, .window = window};
            test_problem p = test_problem_new(&c, &seed);
            test_fill_random(&p.q.array, 0, &seed);
            for (int64_t j = 0; j < LENGTH; j++)
                for (int64_t d = 0; d < DIM; d++) test_set(&p.v.array, 0, 0, j, d, (double)j);
            test_run(&p, paths[i]);
            for (int64_t row = 0; row < QUERIES; row++) {
                const int64_t last = LENGTH - QUERIES + row;
                const int64_t count = window < last + 1 ? window : last + 1;
                const double mean = (double)last - (double)(count - 1) / 2;
                const double lse = log((double)count);
                assert_true(fabs(test_get(&p.out.array, 0, 0, row, 3) - mean) <= 1e-5 * mean);
                assert_true(fabs(test_get(&p.lse.array, 0, 0, row, 0) - lse) <= 1e-6);
            }
            test_problem_free(&p);
        }
}

static void attention__windows_end_anywhere_in_a_block(void **state) {
    (void)state;
    uint64_t seed = test_seed(32);
    for (size_t w = 0; w < sizeof edges / sizeof *edges; w++)
        for (size_t n = 0; n < sizeof edges / sizeof *edges; n++)
            for (size_t q = 0; q < 4; q++)
                test_check_threads(
                    &(test_case){.q_heads = groups[test_below(&seed, 6)],
                                 .key_dim = 16,
                                 .value_dim = 1 + test_below(&seed, 20),
                                 .queries = query_counts[q],
                                 .length = edges[n],
                                 .window = edges[w],
                                 .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                                 .kv_layout = (test_layout)test_below(&seed, 3)},
                    &seed);
}

/* Rows of one tile, and of one block of 64 rows, that see nothing in common. */
static void attention__windows_of_a_tile_need_not_overlap(void **state) {
    (void)state;
    uint64_t seed = test_seed(33);
    for (int64_t window = 1; window <= 5; window++)
        for (int64_t queries = 2; queries <= 140; queries += 1 + queries / 3)
            test_check_threads(&(test_case){.q_heads = 1 + test_below(&seed, 2),
                                            .key_dim = 8,
                                            .queries = queries,
                                            .length = queries / 2 + test_below(&seed, 80),
                                            .window = window},
                               &seed);
}

/* A window of W of which K are kept: they count once, wherever they touch what is recent. */
static void attention__windows_keep_first_positions_in_sight(void **state) {
    (void)state;
    uint64_t seed = test_seed(39);
    for (size_t w = 0; w < sizeof edges / sizeof *edges; w++)
        for (size_t n = 0; n < sizeof edges / sizeof *edges; n++)
            for (size_t q = 0; q < 4; q++) {
                const int64_t keeps[] = {1, 4, 64, edges[w] - 1};
                const int64_t keep = keeps[test_below(&seed, 4)];
                test_check_threads(
                    &(test_case){.q_heads = groups[test_below(&seed, 6)],
                                 .key_dim = 1 + test_below(&seed, 40),
                                 .value_dim = 1 + test_below(&seed, 20),
                                 .queries = query_counts[q],
                                 .length = edges[n] * 2,
                                 .window = edges[w],
                                 .keep = keep < edges[w] ? keep : edges[w] - 1,
                                 .sinks = test_below(&seed, 2) ? KVC_F32 : 0,
                                 .slopes = test_below(&seed, 2) ? KVC_F32 : 0,
                                 .mask = {.dtype = test_below(&seed, 2) ? KVC_U8 : 0,
                                          .pattern = (test_pattern)test_below(&seed, 4)},
                                 .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                                 .kv_layout = (test_layout)test_below(&seed, 3)},
                    &seed);
            }
}

static void attention__refuses_to_keep_what_is_no_part_of_a_window(void **state) {
    (void)state;
    static const int64_t wrong[][2] = {{0, 1}, {4, 4}, {4, 5}, {4, -1}, {1, 1}, {0, INT64_MAX}};
    kvc_attention_desc desc = {
        .struct_size = sizeof desc, .q_heads = 1, .kv_heads = 1, .key_dim = 8, .kv_dtype = KVC_F32};
    kvc_attention *plan;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        desc.window = wrong[i][0];
        desc.keep = wrong[i][1];
        assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "desc.keep"));
    }
    desc.window = 4;
    desc.keep = 3;
    assert_ok(kvc_attention_plan(&plan, &desc));
    kvc_attention_free(plan);
}

/* Units in the last place of an f32 near a value, normal ones. */
static double ulps(double error, double value) {
    int exponent;
    (void)frexp(value, &exponent);
    return fabs(error) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

/* The bound that ops.h states, over all magnitudes, and at every count. */
static void cap__is_within_its_bound(void **state) {
    (void)state;
    static const float caps[] = {1e-3f, 1, 30, 50, 12345.678f};
    enum { N = 40 };
    const kvc__ops *ops = kvc__ops_best();
    uint64_t seed = test_seed(36);
    double worst = 0;
    for (int turn = 0; turn < 60000; turn++) {
        float s[N + KVC__UNIT_MOST], given[N + KVC__UNIT_MOST];
        const float cap = caps[turn % 5];
        const int64_t n = 1 + test_below(&seed, N);
        for (int i = 0; i < N + KVC__UNIT_MOST; i++) {
            const double unit = (double)(int64_t)test_random(&seed) * 0x1p-63;
            s[i] = (float)ldexp(unit * (double)cap, (int)test_below(&seed, 40) - 30);
        }
        memcpy(given, s, sizeof s);
        ops->cap(given, n, cap);
        for (int64_t i = 0; i < n; i++) {
            const double wanted = (double)cap * tanh((double)s[i] / (double)cap);
            worst = fmax(worst, ulps((double)given[i] - wanted, wanted));
        }
    }
    print_message("%s: %.2f ulp\n", kvc__isa_best()->name, worst);
    assert_true(worst <= 5);
    float edge[KVC__UNIT_MOST] = {INFINITY, -INFINITY, NAN, 0, -0.0f, 3e38f, -3e38f, 1e-30f};
    ops->cap(edge, 8, 30);
    assert_true(edge[0] == 30 && edge[1] == -30 && isnan(edge[2]) && edge[3] == 0);
    assert_true(edge[5] == 30 && edge[6] == -30 && ulps((double)edge[7] - 1e-30, 1e-30) <= 5);
    assert_true(signbit(edge[4]));
}

static void attention__caps_scores_before_it_weighs_them(void **state) {
    (void)state;
    uint64_t seed = test_seed(37);
    for (size_t g = 0; g < 6; g++)
        for (size_t q = 0; q < 4; q++)
            for (int dtype = KVC_F32; dtype <= KVC_BF16; dtype++)
                test_check_threads(
                    &(test_case){.q_heads = groups[g],
                                 .key_dim = 24,
                                 .queries = query_counts[q],
                                 .length = edges[test_below(&seed, 9)] + query_counts[q],
                                 .softcap = g % 2 ? 2 : 30,
                                 .window = test_below(&seed, 2) * 70,
                                 .amplitude = 3,
                                 .kv_dtype = (kvc_dtype)dtype},
                    &seed);
}

/* The largest score is beyond f32: its row is NaN without a cap, and right with one. */
static void attention__caps_scores_that_overflow(void **state) {
    (void)state;
    uint64_t seed = test_seed(38);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.key_dim = 1, .length = 50, .scale = 1, .softcap = 50};
        test_problem p = test_problem_new(&c, &seed);
        test_set(&p.q.array, 0, 0, 0, 0, 1e30);
        test_set(&p.k.array, 0, 0, 37, 0, 1e30);
        for (int64_t j = 0; j < 50; j++)
            if (j != 37) test_set(&p.k.array, 0, 0, j, 0, j % 2 ? -1e30 : 0);
        test_run(&p, paths[i]);
        assert_true(test_get(&p.out.array, 0, 0, 0, 0) == test_get(&p.v.array, 0, 0, 37, 0));
        assert_true(test_get(&p.lse.array, 0, 0, 0, 0) == 50);
        test_problem_free(&p);
    }
}

/* What lies before the window may not even be memory. */
static void attention__reads_nothing_before_the_window(void **state) {
    (void)state;
    enum { DIM = 64, LENGTH = 1024 + 96 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t row_bytes = DIM * sizeof(float), bytes = LENGTH * row_bytes;
    const int64_t hidden = (int64_t)(16 * page / row_bytes);
    const kvc_executor executor = test_seven_threads();
    uint64_t seed = test_seed(34);
    if (page > 4096) skip();
    for (int turn = 0; turn < 3; turn++) {
        const test_case c = {
            .q_heads = 4, .key_dim = DIM, .length = LENGTH, .window = LENGTH - hidden};
        test_problem p = test_problem_new(&c, &seed);
        test_tensor *sides[] = {&p.k, &p.v};
        for (int side = 0; side < 2; side++) {
            char *map =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_true(map != MAP_FAILED);
            memcpy(map, sides[side]->memory, bytes);
            assert_int_equal(mprotect(map, 16 * page, PROT_NONE), 0);
            sides[side]->array.data = map;
        }
        test_run_on(&p, paths[turn > 0], turn == 2 ? &executor : NULL);
        for (int side = 0; side < 2; side++) {
            assert_int_equal(munmap(sides[side]->array.data, bytes), 0);
            sides[side]->array.data = sides[side]->memory;
        }
        test_compare_formula(&p);
        test_problem_free(&p);
    }
}

static void attention__counts_the_bytes_of_the_window(void **state) {
    (void)state;
    uint64_t seed = test_seed(35);
    for (int i = 0; i < PATHS; i++) {
        const test_case c = {.batch = 2, .key_dim = 8, .queries = 3, .length = 100, .window = 10};
        test_problem p = test_problem_new(&c, &seed);
        const kvc_attention_desc desc = test_desc(&p, paths[i]);
        kvc_attention_stats stats = {.struct_size = sizeof stats};
        kvc_attention *plan;
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(
            kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &p.out.array, NULL));
        assert_ok(kvc_attention_stats_get(plan, &stats));
        assert_true(stats.kv_bytes == UINT64_C(2) * 12 * (8 + 8) * 4);
        assert_true(stats.runs[paths[i]] == 1);
        kvc_attention_free(plan);
        test_problem_free(&p);
    }
}

static void plan__refuses_a_window_that_cannot_be(void **state) {
    (void)state;
    uint64_t seed = 1;
    test_problem p = test_problem_new(&(test_case){.key_dim = 8, .length = 4}, &seed);
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    kvc_attention *plan;
    desc.window = -1;
    assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "desc.window: -1 given, at least 0 wanted"));
    desc.window = 3;
    desc.not_causal = true;
    assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "desc.window: 3 given with desc.not_causal"));
    test_problem_free(&p);
}

static void plan__refuses_a_softcap_that_is_none(void **state) {
    (void)state;
    static const float wrong[] = {-1, INFINITY, NAN, 1e-40f};
    uint64_t seed = 1;
    test_problem p = test_problem_new(&(test_case){.key_dim = 8, .length = 4}, &seed);
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    kvc_attention *plan;
    for (int i = 0; i < 4; i++) {
        desc.softcap = wrong[i];
        assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "desc.softcap: "));
    }
    test_problem_free(&p);
}

static void explain__names_the_variants_of_a_plan(void **state) {
    (void)state;
    uint64_t seed = 1;
    test_problem p = test_problem_new(
        &(test_case){.key_dim = 8, .length = 4, .window = 7, .softcap = 30}, &seed);
    const kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    kvc_explanation e = {.struct_size = sizeof e};
    kvc_attention *plan;
    assert_ok(kvc_attention_plan(&plan, &desc));
    assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
    assert_int_equal(e.path, KVC_PATH_FUSED);
    assert_false(e.slow);
    assert_non_null(strstr(e.reason, "window of 7 positions"));
    assert_non_null(strstr(e.reason, "capped to 30"));
    kvc_attention_free(plan);
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention__window_counts_the_query_itself),
        cmocka_unit_test(attention__windows_end_anywhere_in_a_block),
        cmocka_unit_test(attention__windows_keep_first_positions_in_sight),
        cmocka_unit_test(attention__refuses_to_keep_what_is_no_part_of_a_window),
        cmocka_unit_test(attention__windows_of_a_tile_need_not_overlap),
        cmocka_unit_test(cap__is_within_its_bound),
        cmocka_unit_test(attention__caps_scores_before_it_weighs_them),
        cmocka_unit_test(attention__caps_scores_that_overflow),
        cmocka_unit_test(attention__reads_nothing_before_the_window),
        cmocka_unit_test(attention__counts_the_bytes_of_the_window),
        cmocka_unit_test(plan__refuses_a_window_that_cannot_be),
        cmocka_unit_test(plan__refuses_a_softcap_that_is_none),
        cmocka_unit_test(explain__names_the_variants_of_a_plan),
    };
    return cmocka_run_group_tests(tests, test_threads_setup, test_threads_teardown);
}
