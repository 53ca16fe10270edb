/* Attention over packed keys and values, compared with the formula on what they unpack to. */
#include <math.h>
#include <string.h>

#include <kvcache/attention.h>
#include <kvcache/executor.h>

#include "attention/ops.h"
#include "support/attend.h"
#include "support/guarded.h"
#include "support/support.h"

static const int widths[] = {8, 4, 2, 3, 5, 6}, groups[] = {32, 64, 128};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static kvc_threads *threads;

/* Keys or values, packed. */
typedef struct side {
    test_tensor words, scales, biases;
    kvc_quantized packed;
} side;

/* Packs an array, and makes its elements those that it unpacks to. */
static side side_new(const kvc_array *x, int bits, int group, kvc_dtype scaling,
                     test_layout layout) {
    const int64_t b = x->shape[0], h = x->shape[1], n = x->shape[2], dim = x->shape[3];
    side s = {.words = test_tensor_new(KVC_U8, layout, b, h, n, dim * bits / 8),
              .scales = test_tensor_new(scaling, layout, b, h, n, dim / group),
              .biases = test_tensor_new(scaling, layout, b, h, n, dim / group)};
    s.packed = (kvc_quantized){.struct_size = sizeof s.packed,
                               .bits = bits,
                               .group = group,
                               .words = s.words.array,
                               .scales = s.scales.array,
                               .biases = s.biases.array};
    assert_ok(kvc_quantize(&s.packed, x));
    assert_ok(kvc_dequantize(x, &s.packed));
    return s;
}

static void side_free(side *s) {
    test_tensor_free(&s->words);
    test_tensor_free(&s->scales);
    test_tensor_free(&s->biases);
}

/* Rows that are NaN in x are made so in the packed form. */
static void poison(const side *s, const kvc_array *x) {
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; i < x->shape[2]; i++) {
                if (!isnan(test_get(x, b, h, i, 0))) continue;
                for (int64_t g = 0; g < s->scales.array.shape[3]; g++) {
                    test_set(&s->scales.array, b, h, i, g, (double)NAN);
                    test_set(&s->biases.array, b, h, i, g, (double)NAN);
                }
            }
}

/* On the fused path, there by threads, and now and then on the reference, which is slow. */
static void check(const test_case *c, int bits, int group, kvc_dtype scaling, uint64_t *seed) {
    if (test_leaves_out(c, seed)) return;
    test_problem p = test_problem_new(c, seed);
    side k = side_new(&p.k.array, bits, group, scaling, c->kv_layout);
    side v = side_new(&p.v.array, bits, group, scaling, c->kv_layout);
    const test_truth right = test_truth_new(&p);
    const kvc_executor executor = kvc_threads_executor(threads);
    test_allow_packed(&p, bits, &k.scales.array, &v.scales.array);
    const double slacks[] = {p.score_slack, p.value_slack};
    test_poison_unseen(&p);
    poison(&k, &p.k.array);
    poison(&v, &p.v.array);
    for (int turn = test_below(seed, 5) ? 1 : 0; turn < 3; turn++) {
        kvc_attention *plan;
        kvc_attention_desc desc = test_desc(&p, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE);
        const kvc_attention_extras extras = test_extras(&p);
        desc.kv_dtype = scaling;
        desc.kv_bits = bits;
        desc.kv_group = group;
        desc.executor = turn == 2 ? &executor : NULL;
        assert_ok(kvc_attention_plan(&plan, &desc));
        memset(p.out.memory, 0xff, kvc_array_nbytes(&p.out.array));
        assert_ok(kvc_attention_run_quantized(plan, &k.packed, &v.packed, &p.q.array, &p.out.array,
                                              &extras));
        kvc_attention_free(plan);
        p.score_slack = turn ? slacks[0] : 0;
        p.value_slack = turn ? slacks[1] : 0;
        test_compare(&p, &right);
    }
    test_truth_free((test_truth *)&right);
    side_free(&k);
    side_free(&v);
    test_problem_free(&p);
}

static void quantized__every_width_group_and_dim_is_right(void **state) {
    (void)state;
    static const int times[] = {1, 2, 3, 4};
    uint64_t seed = test_seed(51);
    for (int b = 0; b < COUNT(widths); b++)
        for (int g = 0; g < COUNT(groups); g++)
            for (int t = 0; t < COUNT(times); t++)
                for (int s = 0; s < COUNT(dtypes); s++)
                    check(&(test_case){.kv_heads = 2,
                                       .q_heads = 2 * (1 + test_below(&seed, 5)),
                                       .key_dim = groups[g] * times[t],
                                       .value_dim = groups[g] * times[COUNT(times) - 1 - t],
                                       .kv_layout = (test_layout)test_below(&seed, 3),
                                       .length = 1 + test_below(&seed, 200)},
                          widths[b], groups[g], dtypes[s], &seed);
}

static void quantized__every_number_of_rows_and_tail_is_right(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 7, 8, 15, 16}; /* from 16 on panels */
    uint64_t seed = test_seed(52);
    for (int b = 0; b < 3; b++)
        for (int r = 0; r < COUNT(rows); r++)
            for (int l = 0; l < COUNT(lengths); l++)
                check(&(test_case){.q_heads = rows[r], .key_dim = 128, .length = lengths[l]},
                      widths[b], 64, KVC_BF16, &seed);
}

static void quantized__many_rows_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(53);
    for (int b = 0; b < COUNT(widths); b++)
        for (int64_t queries = 5; queries <= 40; queries += 7)
            check(&(test_case){.kv_heads = 2,
                               .q_heads = 8,
                               .key_dim = 64,
                               .value_dim = 32,
                               .queries = queries,
                               .length = queries + test_below(&seed, 100)},
                  widths[b], 32, KVC_F16, &seed);
}

/* As attention_variants_test.c makes them. */
static void quantized__variants_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(54);
    for (int i = 0; i < 150; i++) {
        const int64_t heads = 1 + test_below(&seed, 2), queries = 1 + test_below(&seed, 4);
        const int64_t length = queries + test_below(&seed, 260);
        const int64_t lengths[] = {test_below(&seed, length + 1), length};
        check(
            &(test_case){
                .batch = 2,
                .kv_heads = heads,
                .q_heads = heads * (1 + test_below(&seed, 6)),
                .key_dim = 64 * (1 + test_below(&seed, 2)),
                .queries = queries,
                .length = length,
                .lengths = test_below(&seed, 2) ? lengths : NULL,
                .kv_layout = (test_layout)test_below(&seed, 3),
                .window = test_below(&seed, 2) ? 1 + test_below(&seed, 150) : 0,
                .softcap = test_below(&seed, 3) ? 0 : 5,
                .sinks = test_below(&seed, 3) ? 0 : KVC_F32,
                .slopes = test_below(&seed, 3) ? 0 : KVC_F16,
                .mask = {.dtype = test_below(&seed, 2)   ? 0
                                  : test_below(&seed, 2) ? KVC_U8
                                                         : KVC_F32,
                         .pattern = (test_pattern)test_below(&seed, 4)},
            },
            widths[test_below(&seed, COUNT(widths))], groups[test_below(&seed, 2)],
            dtypes[test_below(&seed, COUNT(dtypes))], &seed);
    }
}

static void quantized__words_of_32_bits_are_the_same_bytes(void **state) {
    (void)state;
    uint64_t seed = test_seed(55);
    test_problem p = test_problem_new(
        &(test_case){.kv_heads = 2, .q_heads = 4, .key_dim = 64, .length = 70}, &seed);
    side k = side_new(&p.k.array, 4, 32, KVC_F32, TEST_HEAD_MAJOR);
    side v = side_new(&p.v.array, 4, 32, KVC_F32, TEST_HEAD_MAJOR);
    kvc_array *words[] = {&k.packed.words, &v.packed.words};
    for (int i = 0; i < 2; i++) {
        words[i]->dtype = KVC_U32;
        words[i]->shape[3] /= 4;
        for (int d = 0; d < 3; d++) words[i]->strides[d] /= 4;
    }
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_FUSED);
    desc.kv_bits = 4;
    desc.kv_group = 32;
    kvc_attention *plan;
    kvc_attention_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc_attention_extras extras = test_extras(&p);
    assert_ok(
        kvc_attention_run_quantized(plan, &k.packed, &v.packed, &p.q.array, &p.out.array, &extras));
    test_allow_packed(&p, 4, &k.scales.array, &v.scales.array);
    test_compare_formula(&p);
    assert_ok(kvc_attention_stats_get(plan, &stats));
    assert_int_equal(stats.kv_bytes, 2 * 70 * 2 * (64 / 2 + 2 * 2 * 4));
    kvc_explanation e = {.struct_size = sizeof e};
    assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
    assert_non_null(strstr(e.reason, "of 4 bits"));

    assert_fails(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &p.out.array, NULL),
                 KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "kvc_attention_run_quantized"));
    k.packed.group = 64;
    assert_fails(
        kvc_attention_run_quantized(plan, &k.packed, &v.packed, &p.q.array, &p.out.array, NULL),
        KVC_E_SHAPE);
    k.packed.group = 32;
    v.packed.scales.shape[2]--;
    assert_fails(
        kvc_attention_run_quantized(plan, &k.packed, &v.packed, &p.q.array, &p.out.array, NULL),
        KVC_E_SHAPE);
    assert_non_null(strstr(kvc_last_error(), "v.scales"));
    kvc_attention_free(plan);
    side_free(&k);
    side_free(&v);
    test_problem_free(&p);
}

/* Runs both paths; gives the outputs of the fused one. */
static void run_both(test_problem *p, const side *k, const side *v, kvc_dtype scaling, int bits,
                     int group, test_tensor *reference) {
    for (int fused = 0; fused < 2; fused++) {
        kvc_attention *plan;
        kvc_attention_desc desc = test_desc(p, fused ? KVC_PATH_FUSED : KVC_PATH_REFERENCE);
        const kvc_attention_extras extras = test_extras(p);
        desc.kv_dtype = scaling;
        desc.kv_bits = bits;
        desc.kv_group = group;
        kvc_array *out = fused ? &p->out.array : &reference->array;
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(
            kvc_attention_run_quantized(plan, &k->packed, &v->packed, &p->q.array, out, &extras));
        kvc_attention_free(plan);
    }
}

/* Queries of whole numbers of steps are not rounded: scores are as exact as in f32. */
static void quantized__queries_of_whole_steps_score_exactly(void **state) {
    (void)state;
    uint64_t seed = test_seed(56);
    for (int i = 0; i < 200; i++) {
        const int bits = widths[i % 2], group = groups[i % COUNT(groups)];
        const int64_t most = bits == 8 ? 32639 : 127, rows = 1 + test_below(&seed, 7);
        test_problem p = test_problem_new(&(test_case){.q_heads = rows,
                                                       .key_dim = group * (1 + i % 4),
                                                       .value_dim = group,
                                                       .length = 1 + test_below(&seed, 150)},
                                          &seed);
        for (int64_t h = 0; h < rows; h++)
            for (int64_t d = 0; d < p.c.key_dim; d++)
                test_set(&p.q.array, 0, h, 0, d,
                         d % group == 5 ? (double)most
                                        : (double)(test_below(&seed, 2 * most + 1) - most));
        p.c.scale = (float)(0.5 / (double)most);
        side k = side_new(&p.k.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        side v = side_new(&p.v.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        test_tensor reference =
            test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, rows, 1, p.c.value_dim);
        test_allow_packed(&p, bits, &k.scales.array, &v.scales.array);
        p.score_slack = 0;
        run_both(&p, &k, &v, KVC_F32, bits, group, &reference);
        test_compare_formula(&p);
        test_tensor_free(&reference);
        side_free(&k);
        side_free(&v);
        test_problem_free(&p);
    }
}

/* Moves what is packed to before a page that traps, or behind one. */
static void guard(guarded memory[3], side *s, bool at_end) {
    kvc_array *arrays[] = {&s->packed.words, &s->packed.scales, &s->packed.biases};
    for (int i = 0; i < 3; i++) {
        const size_t bytes = kvc_array_nbytes(arrays[i]);
        memory[i] = guarded_new(bytes);
        arrays[i]->data = memcpy(guarded_place(&memory[i], bytes, at_end), arrays[i]->data, bytes);
    }
}

/* By tiles and by panels; what is unpacked likewise. */
static void quantized__touches_nothing_before_or_behind_its_arrays(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 5, 35, 64, 65}, rows[] = {1, 4, 50};
    uint64_t seed = test_seed(58);
    for (int i = 0; i < COUNT(widths) * COUNT(groups) * COUNT(lengths) * COUNT(rows); i++) {
        const int bits = widths[i % COUNT(widths)], group = groups[i / 6 % COUNT(groups)];
        const test_case c = {.q_heads = rows[i / 18 % COUNT(rows)],
                             .key_dim = 128,
                             .value_dim = group,
                             .length = lengths[i / 54]};
        if (test_leaves_out(&c, &seed)) continue;
        test_problem p = test_problem_new(&c, &seed);
        side k = side_new(&p.k.array, bits, group, KVC_BF16, TEST_HEAD_MAJOR);
        side v = side_new(&p.v.array, bits, group, KVC_BF16, TEST_HEAD_MAJOR);
        guarded memory[6];
        guard(memory, &k, i % 2);
        guard(memory + 3, &v, i % 2);
        assert_ok(kvc_dequantize(&p.k.array, &k.packed));
        test_tensor reference = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, p.c.q_heads, 1, group);
        run_both(&p, &k, &v, KVC_BF16, bits, group, &reference);
        test_allow_packed(&p, bits, &k.scales.array, &v.scales.array);
        test_compare_formula(&p);
        for (int m = 0; m < 6; m++) guarded_free(&memory[m]);
        test_tensor_free(&reference);
        side_free(&k);
        side_free(&v);
        test_problem_free(&p);
    }
}

/* All elements are the largest, and so are all integers of queries and weights: whatever is added
 * up in 32 or 16 bits is as large as it gets. Outputs have the signs of the values' scales. */
static void quantized__largest_integers_do_not_overflow(void **state) {
    (void)state;
    static const int64_t lengths[] = {64, 128, 300}, rows[] = {1, 2, 4};
    uint64_t seed = test_seed(58);
    for (int i = 0; i < COUNT(widths) * COUNT(groups) * COUNT(lengths) * COUNT(rows); i++) {
        const int bits = widths[i % COUNT(widths)], group = groups[i / COUNT(widths) % 3];
        const int64_t length = lengths[i / 18 % 3], heads = rows[i / 54 % 3];
        test_problem p = test_problem_new(
            &(test_case){.q_heads = heads, .key_dim = 128, .queries = 1, .length = length}, &seed);
        side k = side_new(&p.k.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        side v = side_new(&p.v.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        test_tensor reference = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, heads, 1, 128);
        const double step = 1 / (double)((1 << bits) - 1);
        memset(k.packed.words.data, 0xff, kvc_array_nbytes(&k.packed.words));
        memset(v.packed.words.data, 0xff, kvc_array_nbytes(&v.packed.words));
        for (int64_t j = 0; j < length; j++)
            for (int64_t g = 0; g < 128 / group; g++) {
                test_set(&k.scales.array, 0, 0, j, g, step);
                test_set(&k.biases.array, 0, 0, j, g, 0);
                test_set(&v.scales.array, 0, 0, j, g, g % 2 ? -step : step);
                test_set(&v.biases.array, 0, 0, j, g, 0);
            }
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < 128; d++) test_set(&p.q.array, 0, h, 0, d, h % 2 ? -1 : 1);
        run_both(&p, &k, &v, KVC_F32, bits, group, &reference);
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < 128; d++) {
                const double wanted = d / group % 2 ? -1 : 1;
                assert_true(fabs(test_get(&reference.array, 0, h, 0, d) - wanted) < 1e-5);
                assert_true(fabs(test_get(&p.out.array, 0, h, 0, d) - wanted) < 1e-5);
            }
        test_tensor_free(&reference);
        side_free(&k);
        side_free(&v);
        test_problem_free(&p);
    }
}

/* Scales that are not finite, or overflow when multiplied, give what the reference gives. */
static void quantized__wild_scales_give_what_the_reference_gives(void **state) {
    (void)state;
    static const double wild[] = {(double)NAN, (double)INFINITY, (double)-INFINITY, 1e35, -2e35};
    uint64_t seed = test_seed(57);
    for (int i = 0; i < 300; i++) {
        const int bits = widths[i % COUNT(widths)], group = groups[i / COUNT(widths) % 2];
        const int64_t rows = 1 + test_below(&seed, 7), length = 1 + test_below(&seed, 150);
        test_problem p = test_problem_new(
            &(test_case){
                .q_heads = rows, .key_dim = 128, .queries = 1, .length = length, .amplitude = 0.1},
            &seed);
        side k = side_new(&p.k.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        side v = side_new(&p.v.array, bits, group, KVC_F32, TEST_HEAD_MAJOR);
        const side *which = i % 3 ? &v : &k;
        const int64_t at = test_below(&seed, length), g = test_below(&seed, 128 / group);
        const kvc_array *of = i % 5 ? &which->scales.array : &which->biases.array;
        test_set(of, 0, 0, at, g, wild[test_below(&seed, COUNT(wild))]);
        test_tensor reference = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 1, rows, 1, 128);
        run_both(&p, &k, &v, KVC_F32, bits, group, &reference);
        for (int64_t h = 0; h < rows; h++)
            for (int64_t d = 0; d < 128; d++) {
                const double given = test_get(&p.out.array, 0, h, 0, d);
                const double wanted = test_get(&reference.array, 0, h, 0, d);
                const bool alike =
                    isnan(wanted)
                        ? isnan(given)
                        : given == wanted || fabs(given - wanted) <= 0.02 * fmax(1, fabs(wanted));
                if (!alike)
                    fail_msg("case %d, %d bits: out[%d][%d] is %g, wanted %g", i, bits, (int)h,
                             (int)d, given, wanted);
            }
        test_tensor_free(&reference);
        side_free(&k);
        side_free(&v);
        test_problem_free(&p);
    }
}

static void quantized__explain_says_how_rows_are_unpacked(void **state) {
    (void)state;
    for (int b = 0; b < COUNT(widths); b++) {
        kvc_attention *plan;
        kvc_explanation e = {.struct_size = sizeof e};
        kvc_attention_desc desc = {.struct_size = sizeof desc,
                                   .q_heads = 2,
                                   .kv_heads = 2,
                                   .key_dim = 64,
                                   .kv_dtype = KVC_BF16,
                                   .kv_bits = widths[b],
                                   .kv_group = 64};
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
        const bool integers = kvc__ops_best()->score[KVC__OPS_Q8][0] != NULL;
        const bool split = integers && widths[b] != 8 && widths[b] != 4;
        assert_true(integers == !!strstr(e.reason, "multiplied as integers"));
        assert_true(split == !!strstr(e.reason, "split to bytes"));
        if (!integers) assert_non_null(strstr(e.reason, "unpacked by blocks"));
        kvc_attention_free(plan);
    }
}

static void quantized__plans_refuse_what_no_packing_has(void **state) {
    (void)state;
    kvc_attention_desc right = {.struct_size = sizeof right,
                                .q_heads = 2,
                                .kv_heads = 1,
                                .key_dim = 64,
                                .kv_dtype = KVC_F16,
                                .kv_bits = 8,
                                .kv_group = 64};
    kvc_attention *plan;
    kvc_attention_desc wrong = right;
    wrong.kv_bits = 7;
    assert_fails(kvc_attention_plan(&plan, &wrong), KVC_E_INVALID);
    wrong = right;
    wrong.kv_group = 0;
    assert_fails(kvc_attention_plan(&plan, &wrong), KVC_E_INVALID);
    wrong = right;
    wrong.value_dim = 96;
    assert_fails(kvc_attention_plan(&plan, &wrong), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "value_dim 96"));
    right.kv_bits = 0; /* the plan is not for packed ones */
    assert_ok(kvc_attention_plan(&plan, &right));
    const kvc_quantized none = {.struct_size = sizeof none};
    kvc_array out = {.data = NULL};
    assert_fails(kvc_attention_run_quantized(plan, &none, &none, &out, &out, NULL), KVC_E_INVALID);
    assert_fails(kvc_attention_run_quantized(plan, NULL, &none, &out, &out, NULL), KVC_E_INVALID);
    assert_fails(kvc_attention_run_quantized(NULL, &none, &none, &out, &out, NULL), KVC_E_INVALID);
    kvc_attention_free(plan);
}

static int begin(void **state) {
    if (kvc_threads_new(&threads, 3)) return 1;
    return test_isa_setup(state);
}

static int end(void **state) {
    (void)state;
    kvc_threads_free(threads);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantized__every_width_group_and_dim_is_right),
        cmocka_unit_test(quantized__every_number_of_rows_and_tail_is_right),
        cmocka_unit_test(quantized__many_rows_are_right),
        cmocka_unit_test(quantized__variants_are_right),
        cmocka_unit_test(quantized__words_of_32_bits_are_the_same_bytes),
        cmocka_unit_test(quantized__queries_of_whole_steps_score_exactly),
        cmocka_unit_test(quantized__touches_nothing_before_or_behind_its_arrays),
        cmocka_unit_test(quantized__largest_integers_do_not_overflow),
        cmocka_unit_test(quantized__wild_scales_give_what_the_reference_gives),
        cmocka_unit_test(quantized__explain_says_how_rows_are_unpacked),
        cmocka_unit_test(quantized__plans_refuse_what_no_packing_has),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
