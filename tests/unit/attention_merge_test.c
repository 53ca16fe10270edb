/* Partial results over disjoint sets of keys, merged. */
#include <math.h>
#include <string.h>

#include "support/attend.h"
#include "support/support.h"

static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};

enum { MOST = 6 };

/* Outputs of one problem, and their log-sum-exps as [batch][q_heads][n]. */
typedef struct result {
    test_tensor out, lse4; /* lse4 has a last dim of 1 more */
    kvc_array lse;
} result;

static result result_new(const test_case *c, kvc_dtype dtype, test_layout layout) {
    result r = {
        .out = test_tensor_new(dtype, layout, c->batch, c->q_heads, c->queries, c->value_dim),
        .lse4 = test_tensor_new(KVC_F32, layout, c->batch, c->q_heads, c->queries, 1),
    };
    r.lse = r.lse4.array;
    r.lse.ndim = 3;
    return r;
}

static void result_free(result *r) {
    test_tensor_free(&r->out);
    test_tensor_free(&r->lse4);
}

static double lse_at(const result *r, int64_t b, int64_t h, int64_t i) {
    return test_get(&r->lse4.array, b, h, i, 0);
}

static void set_lse(const result *r, int64_t b, int64_t h, int64_t i, double x) {
    test_set(&r->lse4.array, b, h, i, 0, x);
}

/* Attends over positions [begin, end). Only the last range has the keys of the queries. */
static void attend_range(result *r, const test_problem *p, int64_t begin, int64_t end,
                         kvc_path path) {
    const int64_t start[4] = {KVC_SLICE_ALL, KVC_SLICE_ALL, begin, KVC_SLICE_ALL};
    const int64_t stop[4] = {KVC_SLICE_ALL, KVC_SLICE_ALL, end, KVC_SLICE_ALL};
    kvc_array k, v;
    kvc_attention *plan;
    kvc_attention_desc desc = test_desc(p, path);
    desc.not_causal |= end < p->c.length;
    assert_ok(kvc_array_slice(&k, &p->k.array, start, stop, NULL));
    assert_ok(kvc_array_slice(&v, &p->v.array, start, stop, NULL));
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc_attention_extras extras = {.struct_size = sizeof extras, .lse = &r->lse};
    assert_ok(kvc_attention_run_kv(plan, &k, &v, &p->q.array, &r->out.array, &extras));
    kvc_attention_free(plan);
    kvc_array_release(&k);
    kvc_array_release(&v);
}

static void merge(result *into, const result *parts, size_t count) {
    kvc_array outs[MOST], lses[MOST];
    for (size_t i = 0; i < count; i++) {
        outs[i] = parts[i].out.array;
        lses[i] = parts[i].lse;
    }
    assert_ok(kvc_attention_merge(&into->out.array, &into->lse, outs, lses, count));
}

static double rounding(kvc_dtype dtype) {
    return dtype == KVC_F32 ? 0 : dtype == KVC_F16 ? 0x1p-11 : 0x1p-8;
}

/* Values are below 1, so errors are those of parts of f32, and what half types round off. */
static void compare(const result *given, const result *wanted, const test_case *c, double bound) {
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++) {
                const double lse = lse_at(wanted, b, h, i), got = lse_at(given, b, h, i);
                if (!(lse == got || fabs(lse - got) <= 1e-5))
                    fail_msg("lse[%d][%d][%d]: %.9g given, %.9g wanted", (int)b, (int)h, (int)i,
                             got, lse);
                for (int64_t d = 0; d < c->value_dim; d++) {
                    const double x = test_get(&given->out.array, b, h, i, d);
                    const double y = test_get(&wanted->out.array, b, h, i, d);
                    if (!(fabs(x - y) <= bound))
                        fail_msg("out[%d][%d][%d][%d]: %.9g given, %.9g wanted", (int)b, (int)h,
                                 (int)i, (int)d, x, y);
                }
            }
}

static test_case random_case(uint64_t *seed) {
    static const int64_t value_dims[] = {1, 7, 64, 127, 128, 129, 300};
    const int64_t queries = 1 + test_below(seed, 3);
    return (test_case){.batch = 1 + test_below(seed, 3),
                       .kv_heads = 2,
                       .q_heads = 2 * (1 + test_below(seed, 3)),
                       .key_dim = 1 + test_below(seed, 40),
                       .value_dim = value_dims[test_below(seed, 7)],
                       .queries = queries,
                       .length = queries + test_below(seed, 200),
                       .not_causal = test_below(seed, 2) == 0,
                       .amplitude = 2};
}

/* Cuts [0, length) anywhere, also into nothing, but leaves the queries their own keys. */
static void random_cuts(int64_t *cuts, size_t count, const test_case *c, uint64_t *seed) {
    cuts[0] = 0;
    cuts[count] = c->length;
    for (size_t i = 1; i < count; i++) {
        const int64_t at = test_below(seed, c->length - c->queries + 1);
        size_t to = i;
        for (; to > 1 && cuts[to - 1] > at; to--) cuts[to] = cuts[to - 1];
        cuts[to] = at;
    }
}

static void merge__of_random_ranges_is_attention_over_all_keys(void **state) {
    (void)state;
    uint64_t seed = test_seed(31);
    for (int round = 0; round < 60; round++) {
        const test_case drawn = random_case(&seed);
        test_problem p = test_problem_new(&drawn, &seed);
        const size_t count = 1 + (size_t)test_below(&seed, MOST);
        const kvc_dtype part_dtype = dtypes[test_below(&seed, 3)],
                        dtype = dtypes[test_below(&seed, 3)];
        int64_t cuts[MOST + 1];
        random_cuts(cuts, count, &p.c, &seed);
        result parts[MOST];
        for (size_t i = 0; i < count; i++) {
            parts[i] = result_new(&p.c, part_dtype, (test_layout)test_below(&seed, 3));
            attend_range(&parts[i], &p, cuts[i], cuts[i + 1],
                         test_below(&seed, 2) ? KVC_PATH_FUSED : KVC_PATH_REFERENCE);
        }
        result merged = result_new(&p.c, dtype, (test_layout)test_below(&seed, 3));
        result whole = result_new(&p.c, KVC_F32, TEST_HEAD_MAJOR);
        attend_range(&whole, &p, 0, p.c.length, KVC_PATH_REFERENCE);
        merge(&merged, parts, count);
        compare(&merged, &whole, &p.c, 5e-6 + rounding(part_dtype) + rounding(dtype));
        for (size_t i = 0; i < count; i++) result_free(&parts[i]);
        result_free(&merged);
        result_free(&whole);
        test_problem_free(&p);
    }
}

/* Rows as they are written down here: value i of part j is random, every lse is given. */
static result made_up(const test_case *c, const double *lses, uint64_t *seed) {
    result r = result_new(c, KVC_F32, TEST_HEAD_MAJOR);
    test_fill_random(&r.out.array, 1, seed);
    for (int64_t i = 0; i < c->queries; i++) set_lse(&r, 0, 0, i, lses[i]);
    return r;
}

static const test_case row_of_five = {.batch = 1, .q_heads = 1, .queries = 1, .value_dim = 5};

static size_t out_bytes(const result *r) {
    return kvc_array_nbytes(&r->out.array);
}

static void merge__of_one_part_is_that_part(void **state) {
    (void)state;
    uint64_t seed = test_seed(32);
    for (double lse = -1e4; lse < 2e4; lse += 777) {
        result part = made_up(&row_of_five, &lse, &seed);
        result merged = result_new(&row_of_five, KVC_F32, TEST_HEAD_MAJOR);
        merge(&merged, &part, 1);
        assert_memory_equal(merged.out.memory, part.out.memory, out_bytes(&part));
        assert_true(lse_at(&merged, 0, 0, 0) == (double)(float)lse);
        result_free(&part);
        result_free(&merged);
    }
}

static void merge__into_any_of_its_parts_gives_the_same_bits(void **state) {
    (void)state;
    uint64_t seed = test_seed(33);
    const test_case c = {.batch = 2, .q_heads = 3, .queries = 4, .value_dim = 200};
    for (size_t place = 0; place < 3; place++) {
        result parts[3], apart = result_new(&c, KVC_F32, TEST_HEAD_MAJOR);
        for (int i = 0; i < 3; i++) {
            parts[i] = result_new(&c, KVC_F32, TEST_HEAD_MAJOR);
            test_fill_random(&parts[i].out.array, 1, &seed);
            test_fill_random(&parts[i].lse4.array, 10, &seed);
        }
        merge(&apart, parts, 3);
        merge(&parts[place], parts, 3);
        assert_memory_equal(apart.out.memory, parts[place].out.memory, out_bytes(&apart));
        assert_memory_equal(apart.lse4.memory, parts[place].lse4.memory, 2 * 3 * 4 * sizeof(float));
        for (int i = 0; i < 3; i++) result_free(&parts[i]);
        result_free(&apart);
    }
}

/* One after another into the first, as parts arrive, or all at once. */
static void merge__does_not_mind_in_what_steps(void **state) {
    (void)state;
    uint64_t seed = test_seed(34);
    const test_case c = {.batch = 1, .q_heads = 4, .queries = 2, .value_dim = 33};
    result parts[MOST], at_once = result_new(&c, KVC_F32, TEST_HEAD_MAJOR);
    for (int i = 0; i < MOST; i++) {
        parts[i] = result_new(&c, KVC_F32, TEST_TOKEN_MAJOR);
        test_fill_random(&parts[i].out.array, 1, &seed);
        test_fill_random(&parts[i].lse4.array, 5, &seed);
    }
    merge(&at_once, parts, MOST);
    for (int i = 1; i < MOST; i++) {
        const result pair[2] = {parts[0], parts[i]};
        merge(&parts[0], pair, 2);
    }
    compare(&parts[0], &at_once, &c, 5e-6);
    for (int i = 0; i < MOST; i++) result_free(&parts[i]);
    result_free(&at_once);
}

static void merge__leaves_out_parts_that_saw_nothing(void **state) {
    (void)state;
    uint64_t seed = test_seed(35);
    const double lses[3] = {-(double)INFINITY, 3, -(double)INFINITY};
    result parts[3], merged = result_new(&row_of_five, KVC_F32, TEST_HEAD_MAJOR);
    for (int i = 0; i < 3; i++) parts[i] = made_up(&row_of_five, &lses[i], &seed);
    for (int i = 0; i < 3; i += 2) memset(parts[i].out.memory, 0xff, out_bytes(&parts[i]));
    merge(&merged, parts, 3);
    assert_memory_equal(merged.out.memory, parts[1].out.memory, out_bytes(&merged));
    assert_true(lse_at(&merged, 0, 0, 0) == 3);

    set_lse(&parts[1], 0, 0, 0, -(double)INFINITY); /* nobody saw anything */
    merge(&merged, parts, 3);
    for (int64_t d = 0; d < 5; d++) {
        const double x = test_get(&merged.out.array, 0, 0, 0, d);
        assert_true(x == 0 && !signbit(x));
    }
    assert_true(lse_at(&merged, 0, 0, 0) == -(double)INFINITY);
    for (int i = 0; i < 3; i++) result_free(&parts[i]);
    result_free(&merged);
}

/* Rows are apart: what is NaN in one does not reach the next. */
static void merge__keeps_nan_to_its_row(void **state) {
    (void)state;
    uint64_t seed = test_seed(36);
    const test_case c = {.batch = 1, .q_heads = 1, .queries = 3, .value_dim = 5};
    const double with_nan[3] = {1, (double)NAN, 2};
    const double others[3] = {0, -(double)INFINITY, 1};
    const result parts[2] = {made_up(&c, with_nan, &seed), made_up(&c, others, &seed)};
    result merged = result_new(&c, KVC_F32, TEST_HEAD_MAJOR);
    merge(&merged, parts, 2);
    for (int64_t i = 0; i < 3; i++) {
        assert_true(isnan(lse_at(&merged, 0, 0, i)) == (i == 1));
        for (int64_t d = 0; d < 5; d++)
            assert_true(isnan(test_get(&merged.out.array, 0, 0, i, d)) == (i == 1));
    }
    result all[2] = {parts[0], parts[1]};
    result_free(&all[0]);
    result_free(&all[1]);
    result_free(&merged);
}

static void merge__does_not_overflow_at_the_largest_scores(void **state) {
    (void)state;
    uint64_t seed = test_seed(37);
    const double pairs[][2] = {{3e38, 3e38}, {-3e38, -3e38}, {3e38, -3e38}, {1e4, 1e4}};
    for (int i = 0; i < 4; i++) {
        result parts[2], merged = result_new(&row_of_five, KVC_F32, TEST_HEAD_MAJOR);
        for (int j = 0; j < 2; j++) parts[j] = made_up(&row_of_five, &pairs[i][j], &seed);
        merge(&merged, parts, 2);
        for (int64_t d = 0; d < 5; d++) {
            const double a = test_get(&parts[0].out.array, 0, 0, 0, d);
            const double b = test_get(&parts[1].out.array, 0, 0, 0, d);
            const double wanted = i == 2 ? a : (a + b) / 2;
            assert_true(fabs(test_get(&merged.out.array, 0, 0, 0, d) - wanted) <= 1e-6);
        }
        result_free(&parts[0]);
        result_free(&parts[1]);
        result_free(&merged);
    }
}

/* The call fails, its sentence names the argument, and nothing is written. */
#define REFUSED(change, undo, status, name)                                                        \
    do {                                                                                           \
        change;                                                                                    \
        assert_fails(kvc_attention_merge(&out, &lse, outs, lses, 2), status);                      \
        if (!strstr(kvc_last_error(), name)) fail_msg("no %s in: %s", name, kvc_last_error());     \
        undo;                                                                                      \
        assert_true(isnan(test_get(&into.out.array, 0, 0, 0, 0)));                                 \
    } while (0)

static void merge__names_the_argument_that_does_not_fit(void **state) {
    (void)state;
    const test_case c = {.batch = 1, .q_heads = 2, .queries = 3, .value_dim = 5};
    result parts[2], into = result_new(&c, KVC_F16, TEST_HEAD_MAJOR);
    kvc_array outs[2], lses[2], out = into.out.array, lse = into.lse;
    for (int i = 0; i < 2; i++) {
        parts[i] = result_new(&c, KVC_F32, TEST_HEAD_MAJOR);
        outs[i] = parts[i].out.array;
        lses[i] = parts[i].lse;
    }
    const kvc_array plain_out = out, plain_lse = lse;
    REFUSED(outs[1].shape[3] = 4, outs[1].shape[3] = 5, KVC_E_SHAPE, "outs[1]: shape [1, 2, 3, 4]");
    REFUSED(outs[0].dtype = KVC_I8, outs[0].dtype = KVC_F32, KVC_E_SHAPE, "outs[0]: dtype i8");
    REFUSED(outs[0].strides[3] = 2, outs[0].strides[3] = 1, KVC_E_SHAPE, "outs[0]: last stride 2");
    REFUSED(outs[0].data = NULL, outs[0] = parts[0].out.array, KVC_E_INVALID, "outs[0]: data");
    REFUSED(lses[1].shape[2] = 9, lses[1].shape[2] = 3, KVC_E_SHAPE, "lses[1]: shape [1, 2, 9]");
    REFUSED(lses[0].ndim = 4, lses[0].ndim = 3, KVC_E_SHAPE, "lses[0]");
    REFUSED(lses[0].dtype = KVC_F16, lses[0].dtype = KVC_F32, KVC_E_SHAPE, "lses[0]: dtype f16");
    REFUSED(out.ndim = 3, out = plain_out, KVC_E_SHAPE, "out: 3 dimensions");
    REFUSED(out.dtype = KVC_U8, out = plain_out, KVC_E_SHAPE, "out: dtype u8");
    REFUSED(lse.shape[1] = 1, lse = plain_lse, KVC_E_SHAPE, "lse: shape [1, 1, 3]");
    assert_fails(kvc_attention_merge(&out, &lse, outs, lses, 0), KVC_E_INVALID);
    assert_fails(kvc_attention_merge(&out, &lse, NULL, lses, 2), KVC_E_INVALID);
    assert_fails(kvc_attention_merge(&out, &lse, outs, NULL, 2), KVC_E_INVALID);
    assert_fails(kvc_attention_merge(NULL, &lse, outs, lses, 2), KVC_E_SHAPE);
    for (int i = 0; i < 2; i++) {
        test_fill_random(&parts[i].out.array, 1, &(uint64_t){1});
        test_fill_random(&parts[i].lse4.array, 1, &(uint64_t){1});
    }
    assert_ok(kvc_attention_merge(&out, NULL, outs, lses, 2)); /* lse is not wanted */
    for (int i = 0; i < 2; i++) result_free(&parts[i]);
    result_free(&into);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge__of_random_ranges_is_attention_over_all_keys),
        cmocka_unit_test(merge__of_one_part_is_that_part),
        cmocka_unit_test(merge__into_any_of_its_parts_gives_the_same_bits),
        cmocka_unit_test(merge__does_not_mind_in_what_steps),
        cmocka_unit_test(merge__leaves_out_parts_that_saw_nothing),
        cmocka_unit_test(merge__keeps_nan_to_its_row),
        cmocka_unit_test(merge__does_not_overflow_at_the_largest_scores),
        cmocka_unit_test(merge__names_the_argument_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
