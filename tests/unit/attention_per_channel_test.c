/* Attention over caches whose keys are packed per channel, whose rows are rotated, or both: each
 * path against the formula on what the cache unpacks to. */
#include <math.h>
#include <string.h>

#include <kvcache/attention.h>

#include "array/rotate.h"
#include "attention/ops.h"
#include "support/attend.h"
#include "support/support.h"

/* How a cache packs, and where its positions lie. */
typedef struct form {
    int bits, group;
    kvc_dtype dtype;
    bool per_channel, rotated;
    kvc_growth growth;
} form;

static const int widths[] = {8, 4, 2, 3, 5, 6}, groups[] = {32, 64, 128};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static kvc_cache *open_cache(const test_problem *p, const kvc_layer_spec *spec, kvc_growth growth) {
    const kvc_blocks_desc blocks_desc = {
        .struct_size = sizeof blocks_desc, .layers = 1, .specs = spec, .spec_count = 1};
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = p->c.batch,
                           .layers = 1,
                           .specs = spec,
                           .spec_count = 1,
                           .growth = growth,
                           .chunk = 64,
                           .max_positions = 4096};
    kvc_blocks *blocks = NULL;
    kvc_pool *pool;
    kvc_cache *cache;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    if (growth == KVC_GROW_PAGED) assert_ok(kvc_blocks_new(&blocks, pool, &blocks_desc));
    desc.blocks = blocks;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_blocks_free(blocks);
    kvc_pool_free(pool);
    return cache;
}

static kvc_cache *fill_cache(const test_problem *p, const form *f) {
    const kvc_layer_spec spec = {.kv_heads = p->c.kv_heads,
                                 .key_dim = p->c.key_dim,
                                 .value_dim = p->c.value_dim,
                                 .dtype = f->dtype,
                                 .kv_bits = f->bits,
                                 .kv_group = f->group,
                                 .keys_per_channel = f->per_channel,
                                 .rotated = f->rotated};
    kvc_cache *cache = open_cache(p, &spec, f->growth);
    if (p->c.lengths)
        assert_ok(kvc_cache_append_ragged(cache, 0, &p->k.array, &p->v.array, p->c.lengths));
    else assert_ok(kvc_cache_append(cache, 0, &p->k.array, &p->v.array));
    return cache;
}

static void take_values(const kvc_array *to, const kvc_array *from, const kvc_cache *cache) {
    for (int64_t b = 0; b < from->shape[0]; b++)
        for (int64_t h = 0; h < from->shape[1]; h++)
            for (int64_t i = 0; i < kvc_cache_sequence_length(cache, 0, b); i++)
                for (int64_t d = 0; d < from->shape[3]; d++)
                    test_set(to, b, h, i, d, test_get(from, b, h, i, d));
}

/* Makes keys and values of a problem those that a reader of the cache gets. */
static void take_unpacked(const test_problem *p, const kvc_cache *cache) {
    const kvc_layer_spec plain = {.kv_heads = p->c.kv_heads,
                                  .key_dim = p->c.key_dim,
                                  .value_dim = p->c.value_dim,
                                  .dtype = KVC_F32};
    kvc_cache *copy = open_cache(p, &plain, KVC_GROW_CHUNK);
    kvc_array k, v;
    assert_ok(kvc_cache_copy(copy, cache));
    assert_ok(kvc_cache_view(copy, 0, &k, &v));
    take_values(&p->k.array, &k, copy);
    take_values(&p->v.array, &v, copy);
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(copy);
}

static double largest(const kvc_array *a, bool rotated) {
    float row[KVC__ROTATION_MOST];
    double most = 0;
    for (int64_t b = 0; b < a->shape[0]; b++)
        for (int64_t h = 0; h < a->shape[1]; h++)
            for (int64_t i = 0; i < a->shape[2]; i++) {
                for (int64_t d = 0; d < a->shape[3]; d++) row[d] = (float)test_get(a, b, h, i, d);
                if (rotated) kvc__rotate(row, a->shape[3]);
                for (int64_t d = 0; d < a->shape[3]; d++)
                    if (!isnan(row[d])) most = fmax(most, fabs((double)row[d]));
            }
    return most;
}

/* Rotating rounds: keys that the truth has, queries, sums and outputs. And what products of
 * integers are off by: attention_quantized_test.c; a scale is at most the span of a group by its
 * steps. */
static void allow_rounding(test_problem *p, const form *f) {
    if (f->rotated) p->score_slack += 3e-6;
    if (!kvc__ops_best()->prepare[KVC__OPS_Q8]) return; /* no products of integers */
    const double most = f->bits != 4 ? 32639 : 127, steps = (1 << f->bits) - 1;
    const double scale = p->c.scale > 0 ? (double)p->c.scale : 1 / sqrt((double)p->c.key_dim);
    const double middle = f->bits != 4 ? 128 : 8;
    p->score_slack += scale * largest(&p->q.array, f->rotated) * sqrt((double)p->c.key_dim) / most *
                      middle * 2 * largest(&p->k.array, f->rotated) / steps;
    p->value_slack += sqrt(fmin(64, (double)p->c.length)) / most * middle * 2 *
                      largest(&p->v.array, f->rotated) / steps;
}

static void run(test_problem *p, const kvc_cache *cache, kvc_path path,
                const kvc_executor *executor) {
    kvc_attention *plan;
    kvc_attention_desc desc = {.struct_size = sizeof desc}, wanted = test_desc(p, path);
    kvc_attention_extras extras = test_extras(p);
    extras.lengths = NULL; /* the cache's own */
    assert_ok(kvc_attention_desc_for(&desc, cache, 0));
    desc.q_heads = wanted.q_heads;
    desc.max_q_len = wanted.max_q_len;
    desc.scale = wanted.scale;
    desc.window = wanted.window;
    desc.keep = wanted.keep;
    desc.softcap = wanted.softcap;
    desc.not_causal = wanted.not_causal;
    desc.path = path;
    desc.executor = executor;
    assert_ok(kvc_attention_plan(&plan, &desc));
    memset(p->out.memory, 0xff, kvc_array_nbytes(&p->out.array));
    assert_ok(kvc_attention_run(plan, cache, 0, &p->q.array, &p->out.array, &extras));
    kvc_attention_free(plan);
}

static kvc_threads *two;

static int setup(void **state) {
    const int status = test_threads_setup(state);
    if (status == 0) assert_ok(kvc_threads_new(&two, 2));
    return status;
}

static int teardown(void **state) {
    kvc_threads_free(two);
    return test_threads_teardown(state);
}

/* On the fused path, now and then on the reference, which is slow, and by threads. */
static void check_cache(test_problem *p, const kvc_cache *cache, const form *f, uint64_t *seed) {
    const kvc_executor executor =
        test_below(seed, 2) ? test_seven_threads() : kvc_threads_executor(two);
    take_unpacked(p, cache);
    test_truth right = test_truth_new(p);
    const int begin = test_below(seed, 4) ? 1 : 0, end = test_below(seed, 3) ? 2 : 3;
    for (int turn = begin; turn < end; turn++) {
        p->score_slack = f->rotated ? 3e-6 : 0;
        p->value_slack = 0;
        if (turn) allow_rounding(p, f);
        run(p, cache, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE, turn == 2 ? &executor : NULL);
        test_compare(p, &right);
    }
    test_truth_free(&right);
}

static void check(const test_case *c, const form *f, uint64_t *seed) {
    if (test_leaves_out(c, seed)) return;
    test_problem p = test_problem_new(c, seed);
    kvc_cache *cache = fill_cache(&p, f);
    check_cache(&p, cache, f, seed);
    kvc_cache_free(cache);
    test_problem_free(&p);
}

static form random_form(uint64_t *seed) {
    form f = {.bits = widths[test_below(seed, 6)],
              .group = groups[test_below(seed, 3)],
              .dtype = dtypes[test_below(seed, 3)],
              .rotated = test_below(seed, 2)};
    f.per_channel = !f.rotated || test_below(seed, 2);
    f.growth = (kvc_growth)test_below(seed, f.per_channel ? 3 : 4);
    return f;
}

static void per_channel__every_width_group_and_dim_is_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(61);
    for (int b = 0; b < COUNT(widths); b++)
        for (int g = 0; g < COUNT(groups); g++)
            for (int kind = 1; kind < 4; kind++)
                for (int times = 1; times < 4; times += 2)
                    check(&(test_case){.kv_heads = 2,
                                       .q_heads = 2 * (1 + test_below(&seed, 5)),
                                       .key_dim = groups[g] * times,
                                       .value_dim = groups[g] * (4 - times),
                                       .length = 1 + test_below(&seed, 4 * groups[g])},
                          &(form){widths[b], groups[g], dtypes[test_below(&seed, 3)], kind & 1,
                                  kind & 2, (kvc_growth)test_below(&seed, 3)},
                          &seed);
}

static void per_channel__a_tail_of_every_length_is_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(62);
    for (int g = 0; g < COUNT(groups); g++)
        for (int64_t length = 1; length <= 2 * groups[g] + 1; length += g == 0 ? 1 : 1 + g * 3)
            check(&(test_case){.q_heads = 4, .key_dim = 128, .length = length},
                  &(form){.bits = 4, .group = groups[g], .dtype = KVC_BF16, .per_channel = true},
                  &seed);
}

/* Several queries, few and so many that panels take them. */
static void per_channel__many_rows_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(63);
    for (int64_t queries = 2; queries <= 60; queries += 3) {
        const form f = random_form(&seed);
        check(&(test_case){.kv_heads = 2,
                           .q_heads = 2 * (1 + test_below(&seed, 4)),
                           .key_dim = 128,
                           .value_dim = 256,
                           .queries = queries,
                           .length = queries + test_below(&seed, 300)},
              &f, &seed);
    }
}

/* As attention_variants_test.c makes them, ragged. */
static void per_channel__variants_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(64);
    for (int i = 0; i < 80; i++) {
        const form f = random_form(&seed);
        const int64_t heads = 1 + test_below(&seed, 2), queries = 1 + test_below(&seed, 4);
        const int64_t length = queries + test_below(&seed, 500);
        const int64_t lengths[] = {test_below(&seed, length + 1), length};
        const int64_t window = test_below(&seed, 2) ? 1 + test_below(&seed, 300) : 0;
        check(&(test_case){.batch = 2,
                           .kv_heads = heads,
                           .q_heads = heads * (1 + test_below(&seed, 6)),
                           .key_dim = 128 * (1 + test_below(&seed, 2)),
                           .value_dim = 128,
                           .queries = queries,
                           .length = length,
                           .lengths = lengths,
                           .window = window,
                           .keep = window > 1 ? test_below(&seed, window) : 0,
                           .softcap = test_below(&seed, 3) ? 0.0f : 2.0f,
                           .sinks = test_below(&seed, 3) ? 0 : KVC_F32,
                           .slopes = test_below(&seed, 3) ? 0 : KVC_F32,
                           .mask = {.dtype = test_below(&seed, 3) ? 0 : KVC_U8,
                                    .pattern = (test_pattern)test_below(&seed, 4)}},
              &f, &seed);
    }
}

/* Positions that were packed, and are read unpacked again; a shorter length than the cache's reads
 * them packed. */
static void per_channel__after_trims_the_tail_is_read(void **state) {
    (void)state;
    uint64_t seed = test_seed(65);
    for (int i = 0; i < 40; i++) {
        const form f = {.bits = 4, .group = 64, .dtype = KVC_F16, .per_channel = true};
        const int64_t length = 100 + test_below(&seed, 200);
        test_problem p =
            test_problem_new(&(test_case){.q_heads = 3, .key_dim = 64, .length = length}, &seed);
        kvc_cache *cache = fill_cache(&p, &f);
        const int64_t n = test_below(&seed, kvc_cache_trimmable(cache) + 1);
        if (i % 2) assert_ok(kvc_cache_trim(cache, n));
        const int64_t left = length - n;
        test_problem shorter =
            test_problem_new(&(test_case){.q_heads = 3, .key_dim = 64, .length = left}, &seed);
        take_unpacked(i % 2 ? &shorter : &p, cache);
        if (i % 2 == 0) {
            kvc_array k = p.k.array, v = p.v.array;
            k.shape[2] = v.shape[2] = left;
            for (int64_t j = 0; j < left; j++)
                for (int64_t d = 0; d < 64; d++) {
                    test_set(&shorter.k.array, 0, 0, j, d, test_get(&k, 0, 0, j, d));
                    test_set(&shorter.v.array, 0, 0, j, d, test_get(&v, 0, 0, j, d));
                }
        }
        test_truth right = test_truth_new(&shorter);
        kvc_attention *plan;
        kvc_attention_desc desc = {.struct_size = sizeof desc};
        kvc_attention_extras extras = test_extras(&shorter);
        extras.lengths = &left;
        assert_ok(kvc_attention_desc_for(&desc, cache, 0));
        desc.q_heads = 3;
        desc.path = i % 4 < 2 ? KVC_PATH_FUSED : KVC_PATH_REFERENCE;
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(kvc_attention_run(plan, cache, 0, &shorter.q.array, &shorter.out.array, &extras));
        if (desc.path == KVC_PATH_FUSED) allow_rounding(&shorter, &f);
        test_compare(&shorter, &right);
        kvc_attention_free(plan);
        test_truth_free(&right);
        test_problem_free(&shorter);
        test_problem_free(&p);
        kvc_cache_free(cache);
    }
}

/* Attends over the cache of a problem, all of it or the last positions. */
static void attend(test_problem *p, const kvc_cache *cache, kvc_path path, int64_t window) {
    p->c.window = window;
    run(p, cache, path, NULL);
}

/* An infinite element makes its channel NaN at all positions that are packed with it; who sees none
 * of them does not know. */
static void per_channel__a_channel_that_is_not_finite_stays_in_its_block(void **state) {
    (void)state;
    uint64_t seed = test_seed(67);
    for (int g = 0; g < COUNT(groups); g++)
        for (int bits = 4; bits <= 8; bits += 4) {
            const form f = {bits, groups[g], KVC_F32, true, false, KVC_GROW_RESERVE};
            test_problem p = test_problem_new(
                &(test_case){.q_heads = 3, .key_dim = 128, .length = 3 * groups[g] + 5}, &seed);
            test_set(&p.k.array, 0, 0, groups[g] + 7, test_below(&seed, 128), HUGE_VAL);
            kvc_cache *cache = fill_cache(&p, &f);
            attend(&p, cache, KVC_PATH_FUSED, 0);
            assert_true(isnan(test_get(&p.out.array, 0, 2, 0, 0)) != 0);
            attend(&p, cache, KVC_PATH_FUSED, groups[g] + 6);
            assert_true(isnan(test_get(&p.out.array, 0, 2, 0, 0)) != 0);
            attend(&p, cache, KVC_PATH_FUSED, groups[g] + 5);
            assert_true(isnan(test_get(&p.out.array, 0, 2, 0, 0)) == 0);
            kvc_cache_free(cache);
            test_problem_free(&p);
        }
}

/* Scores that integers do not take; the largest of them has all weight. */
static void per_channel__scores_of_any_size_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(68);
    for (int i = 0; i < 20; i++) {
        const int bits = i % 2 ? 4 : 8;
        const form f = {bits, 32, KVC_F32, true, false, KVC_GROW_RESERVE};
        const int64_t heads = 1 + test_below(&seed, 4);
        test_problem p = test_problem_new(
            &(test_case){.q_heads = heads, .key_dim = 64, .length = 33 + test_below(&seed, 99)},
            &seed);
        test_fill_random(&p.k.array, i < 10 ? 1e34 : 1e-42, &seed);
        kvc_cache *cache = fill_cache(&p, &f);
        double right[4];
        attend(&p, cache, KVC_PATH_REFERENCE, 0);
        for (int64_t h = 0; h < heads; h++) right[h] = test_get(&p.out.array, 0, h, 0, 9);
        attend(&p, cache, KVC_PATH_FUSED, 0);
        for (int64_t h = 0; h < heads; h++)
            assert_true(fabs(test_get(&p.out.array, 0, h, 0, 9) - right[h]) <
                        (i % 2 ? 0.05 : 1e-3));
        kvc_cache_free(cache);
        test_problem_free(&p);
    }
}

static void per_channel__plans_and_layers_must_fit(void **state) {
    (void)state;
    uint64_t seed = test_seed(66);
    test_problem p =
        test_problem_new(&(test_case){.q_heads = 1, .key_dim = 64, .length = 70}, &seed);
    const form f = {.bits = 4, .group = 32, .dtype = KVC_F32, .per_channel = true};
    kvc_cache *cache = fill_cache(&p, &f);
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_explanation e = {.struct_size = sizeof e};
    kvc_attention *plan;
    kvc_quantized k, v;
    assert_ok(kvc_attention_desc_for(&desc, cache, 0));
    assert_true(desc.kv_keys_per_channel && !desc.kv_rotated);
    desc.q_heads = 1;
    assert_ok(kvc_attention_plan(&plan, &desc));
    assert_ok(kvc_attention_explain(&e, plan, cache, 0));
    const bool integers = kvc__ops_best()->prepare[KVC__OPS_Q4];
    assert_non_null(strstr(e.reason, integers ? "keys per channel, multiplied as integers"
                                              : "keys multiplied channel by channel"));
    assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
    assert_ok(kvc_cache_view_quantized(cache, 0, &k, &v));
    assert_fails(kvc_attention_run_quantized(plan, &v, &v, &p.q.array, &p.out.array, NULL),
                 KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "per channel"));
    kvc_array *const all[] = {&k.words, &k.scales, &k.biases, &v.words, &v.scales, &v.biases};
    for (int i = 0; i < COUNT(all); i++) kvc_array_release(all[i]);
    kvc_attention_free(plan);
    for (int i = 0; i < 2; i++) {
        desc.kv_keys_per_channel = i;
        desc.kv_rotated = i;
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_fails(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out.array, NULL),
                     KVC_E_SHAPE);
        kvc_attention_free(plan);
    }
    desc.kv_bits = desc.kv_group = 0;
    assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
    kvc_cache_free(cache);
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_channel__every_width_group_and_dim_is_right),
        cmocka_unit_test(per_channel__a_tail_of_every_length_is_right),
        cmocka_unit_test(per_channel__many_rows_are_right),
        cmocka_unit_test(per_channel__variants_are_right),
        cmocka_unit_test(per_channel__after_trims_the_tail_is_read),
        cmocka_unit_test(per_channel__a_channel_that_is_not_finite_stays_in_its_block),
        cmocka_unit_test(per_channel__scores_of_any_size_are_right),
        cmocka_unit_test(per_channel__plans_and_layers_must_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
