#include "support/attend.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"
#include "support/support.h"

int test_isa_setup(void **state) {
    (void)state;
    const char *wanted = getenv("KVC_ISA");
    const kvc__isa_choice *choice = kvc__isa_best();
    if (!wanted || !*wanted || strcmp(wanted, choice->name) == 0) return 0;
    print_message("%s: %s\n", choice->name, choice->limit);
    if (strstr(choice->limit, "names no instruction set")) return 1;
    exit(77);
}

test_tensor test_tensor_new(kvc_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                            int64_t positions, int64_t dim) {
    const int64_t spare = layout == TEST_SPARE ? 5 : 0;
    const int64_t spread = layout == TEST_SPREAD ? 2 : 1;
    const int64_t head = (positions + spare) * dim * spread;
    test_tensor t = {
        .array = {.dtype = dtype,
                  .ndim = 4,
                  .shape = {batch, heads, positions, dim},
                  .strides = {heads * head, head, dim * spread, spread}},
    };
    if (layout == TEST_TOKEN_MAJOR) {
        t.array.strides[1] = dim;
        t.array.strides[2] = heads * dim;
    }
    const size_t bytes = (size_t)(batch * heads * head) * kvc_dtype_size_bytes(dtype);
    t.array.data = t.memory = malloc(bytes ? bytes : 1);
    assert_non_null(t.memory);
    memset(t.memory, 0xff, bytes); /* NaN in f32, f16 and bf16 */
    return t;
}

void test_tensor_free(test_tensor *tensor) {
    free(tensor->memory);
    *tensor = (test_tensor){.memory = NULL};
}

static char *at(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d) {
    const int64_t element =
        b * a->strides[0] + h * a->strides[1] + i * a->strides[2] + d * a->strides[3];
    return (char *)a->data + element * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

double test_get(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d) {
    float x;
    uint16_t word;
    const char *from = at(a, b, h, i, d);
    if (a->dtype == KVC_F32) {
        memcpy(&x, from, sizeof x);
        return (double)x;
    }
    if (a->dtype == KVC_U8) return (double)*(const uint8_t *)from;
    memcpy(&word, from, sizeof word);
    return (double)(a->dtype == KVC_F16 ? kvc__f32_of_f16(word) : kvc__f32_of_bf16(word));
}

void test_get_row(double *out, const kvc_array *a, int64_t b, int64_t h, int64_t i) {
    const int64_t dim = a->shape[3];
    const size_t step = (size_t)a->strides[3] * kvc_dtype_size_bytes(a->dtype);
    const char *from = at(a, b, h, i, 0);
    float x;
    uint16_t word;
    switch (a->dtype) {
    case KVC_F32:
        for (int64_t d = 0; d < dim; d++, from += step) {
            memcpy(&x, from, sizeof x);
            out[d] = (double)x;
        }
        break;
    case KVC_BF16:
        for (int64_t d = 0; d < dim; d++, from += step) {
            memcpy(&word, from, sizeof word);
            out[d] = (double)kvc__f32_of_bf16(word);
        }
        break;
    default:
        for (int64_t d = 0; d < dim; d++) out[d] = test_get(a, b, h, i, d);
    }
}

void test_set(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d, double value) {
    const float x = (float)value;
    const uint16_t word = a->dtype == KVC_F16 ? kvc__f16_of_f32(x) : kvc__bf16_of_f32(x);
    if (a->dtype == KVC_F32) memcpy(at(a, b, h, i, d), &x, sizeof x);
    else if (a->dtype == KVC_U8) *at(a, b, h, i, d) = (char)x;
    else memcpy(at(a, b, h, i, d), &word, sizeof word);
}

#define FOR_EACH(a, b, h, i, d)                                                                    \
    for (int64_t b = 0; b < (a)->shape[0]; b++)                                                    \
        for (int64_t h = 0; h < (a)->shape[1]; h++)                                                \
            for (int64_t i = 0; i < (a)->shape[2]; i++)                                            \
                for (int64_t d = 0; d < (a)->shape[3]; d++)

void test_fill_random(const kvc_array *a, double amplitude, uint64_t *seed) {
    FOR_EACH(a, b, h, i, d) {
        const double unit = (double)(int64_t)test_random(seed) * 0x1p-63;
        test_set(a, b, h, i, d, unit * amplitude);
    }
}

/* A number for each query head. */
static test_tensor new_heads(kvc_dtype dtype, const test_case *c, double amplitude,
                             uint64_t *seed) {
    test_tensor t = test_tensor_new(dtype, TEST_SPREAD, 1, 1, 1, c->q_heads);
    test_fill_random(&t.array, amplitude, seed);
    t.array.ndim = 1;
    t.array.shape[0] = c->q_heads;
    t.array.strides[0] = t.array.strides[3];
    return t;
}

/* One row of a mask: each key kept or hidden. */
static void fill_mask_row(const kvc_array *a, test_pattern pattern, int64_t b, int64_t h, int64_t i,
                          uint64_t *seed) {
    const int64_t length = a->shape[3], padding = test_below(seed, length + 2);
    bool kept = test_below(seed, 3) != 0;
    for (int64_t j = 0; j < length; j++) {
        if (pattern == TEST_SCATTERED) kept = test_below(seed, 2);
        if (pattern == TEST_RUNS && test_below(seed, 25) == 0) kept = !kept;
        if (pattern == TEST_PADDED) kept = j >= padding;
        const double shown = a->dtype == KVC_U8 ? 1 + (double)test_below(seed, 100)
                                                : (double)test_below(seed, 400) / 100 - 2;
        const double hidden = a->dtype == KVC_U8 ? 0 : (double)-INFINITY;
        test_set(a, b, h, i, j, kept ? shown : hidden);
    }
}

static void new_mask(test_problem *p, uint64_t *seed) {
    const test_case *c = &p->c;
    const int64_t whole[4] = {c->batch, c->q_heads, c->queries, c->length};
    const int skipped = c->mask.ndim ? 4 - c->mask.ndim : 0;
    int64_t shape[4];
    for (int d = 0; d < 4; d++) shape[d] = d < skipped || c->mask.once >> d & 1 ? 1 : whole[d];
    p->mask =
        test_tensor_new(c->mask.dtype, c->mask.layout, shape[0], shape[1], shape[2], shape[3]);
    kvc_array *a = &p->mask.array, *given = &p->given_mask;
    for (int64_t row = 0; row < shape[0] * shape[1] * shape[2]; row++)
        fill_mask_row(a, c->mask.pattern, row / shape[2] / shape[1], row / shape[2] % shape[1],
                      row % shape[2], seed);
    *given = *a;
    given->ndim = 4 - skipped;
    for (int d = 0; d < 4; d++) {
        if (shape[d] == 1) a->strides[d] = 0; /* the tests index the whole problem */
        a->shape[d] = whole[d];
    }
    for (int d = 0; d < given->ndim; d++) {
        given->shape[d] = c->mask.stretch ? whole[skipped + d] : shape[skipped + d];
        given->strides[d] = c->mask.stretch ? a->strides[skipped + d] : given->strides[skipped + d];
    }
}

static test_tensor new_lse(const test_case *c) {
    test_tensor t = test_tensor_new(KVC_F32, c->out_layout, c->batch, c->q_heads, c->queries, 1);
    t.array.ndim = 3; /* the last dimension, of 1, stays readable */
    return t;
}

static void round_to_bf16(const kvc_array *a) {
    FOR_EACH(a, b, h, i, d) {
        const float x = (float)test_get(a, b, h, i, d);
        test_set(a, b, h, i, d, (double)kvc__f32_of_bf16(kvc__bf16_of_f32(x)));
    }
}

test_problem test_problem_new(const test_case *given, uint64_t *seed) {
    test_case c = *given;
    if (c.batch == 0) c.batch = 1;
    if (c.kv_heads == 0) c.kv_heads = 1;
    if (c.q_heads == 0) c.q_heads = c.kv_heads;
    if (c.value_dim == 0) c.value_dim = c.key_dim;
    if (c.queries == 0) c.queries = 1;
    if (c.kv_dtype == 0) c.kv_dtype = KVC_F32;
    if (c.q_dtype == 0) c.q_dtype = KVC_F32;
    if (c.out_dtype == 0) c.out_dtype = KVC_F32;
    if (c.amplitude == 0) c.amplitude = 1;
    test_problem p = {
        .c = c,
        .q = test_tensor_new(c.q_dtype, c.q_layout, c.batch, c.q_heads, c.queries, c.key_dim),
        .k = test_tensor_new(c.kv_dtype, c.kv_layout, c.batch, c.kv_heads, c.length, c.key_dim),
        .v = test_tensor_new(c.kv_dtype, c.kv_layout, c.batch, c.kv_heads, c.length, c.value_dim),
        .out =
            test_tensor_new(c.out_dtype, c.out_layout, c.batch, c.q_heads, c.queries, c.value_dim),
        .lse = new_lse(&c),
    };
    test_fill_random(&p.q.array, c.amplitude, seed);
    if (test_rounds_to_bf16(c.kv_dtype)) round_to_bf16(&p.q.array);
    test_fill_random(&p.k.array, c.amplitude, seed);
    test_fill_random(&p.v.array, 1, seed);
    if (c.mask.dtype) new_mask(&p, seed);
    if (c.sinks) p.sinks = new_heads(c.sinks, &c, 3, seed);
    if (c.slopes) p.slopes = new_heads(c.slopes, &c, 0.5, seed);
    return p;
}

void test_problem_free(test_problem *p) {
    test_tensor_free(&p->q);
    test_tensor_free(&p->k);
    test_tensor_free(&p->v);
    test_tensor_free(&p->out);
    test_tensor_free(&p->mask);
    test_tensor_free(&p->sinks);
    test_tensor_free(&p->slopes);
    test_tensor_free(&p->lse);
}

kvc_attention_desc test_desc(const test_problem *p, kvc_path path) {
    return (kvc_attention_desc){
        .struct_size = sizeof(kvc_attention_desc),
        .batch = p->c.batch,
        .q_heads = p->c.q_heads,
        .kv_heads = p->c.kv_heads,
        .key_dim = p->c.key_dim,
        .value_dim = p->c.value_dim,
        .max_q_len = p->c.queries,
        .kv_dtype = p->c.kv_dtype,
        .scale = p->c.scale,
        .window = p->c.window,
        .keep = p->c.keep,
        .softcap = p->c.softcap,
        .not_causal = p->c.not_causal,
        .path = path,
    };
}

kvc_attention_extras test_extras(test_problem *p) {
    return (kvc_attention_extras){.struct_size = sizeof(kvc_attention_extras),
                                  .mask = p->c.mask.dtype ? &p->given_mask : NULL,
                                  .sinks = p->c.sinks ? &p->sinks.array : NULL,
                                  .slopes = p->c.slopes ? &p->slopes.array : NULL,
                                  .lse = &p->lse.array,
                                  .lengths = p->c.lengths};
}

void test_run_on(const test_problem *p, kvc_path path, const kvc_executor *executor) {
    kvc_attention_desc desc = test_desc(p, path);
    test_problem own = *p;
    desc.executor = executor;
    const kvc_attention_extras extras = test_extras(&own);
    kvc_attention *plan;
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc_status status = kvc_attention_run_kv(plan, &own.k.array, &own.v.array, &own.q.array,
                                                   &own.out.array, &extras);
    kvc_attention_free(plan);
    assert_ok(status);
}

void test_run(const test_problem *p, kvc_path path) {
    test_run_on(p, path, NULL);
}

/* Half the step between numbers of a dtype at this value. */
static double half_step(kvc_dtype dtype, double value) {
    switch (dtype) {
    case KVC_F16: return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    case KVC_BF16: return fabs(value) * 0x1p-8;
    default: return 0;
    }
}

static void fail_at(const test_problem *p, const char *what, const int64_t at[4], double given,
                    double wanted, double bound) {
    const test_case *c = &p->c;
    fail_msg(
        "%s[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64 "]: %.9g given, %.9g wanted, "
        "bound %.3g; batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", dims %" PRId64 "/%" PRId64
        ", queries %" PRId64 ", length %" PRId64
        ", kv %s, q %s, out %s, layouts %d %d %d, not_causal %d, window %" PRId64 " keep %" PRId64
        ", softcap %g, sinks %s, slopes %s, mask %s pattern %d once %u ndim %d stretch %d",
        what, at[0], at[1], at[2], at[3], given, wanted, bound, c->batch, c->q_heads, c->kv_heads,
        c->key_dim, c->value_dim, c->queries, c->length, kvc_dtype_name(c->kv_dtype),
        kvc_dtype_name(c->q_dtype), kvc_dtype_name(c->out_dtype), c->kv_layout, c->q_layout,
        c->out_layout, c->not_causal, c->window, c->keep, (double)c->softcap,
        kvc_dtype_name(c->sinks), kvc_dtype_name(c->slopes), kvc_dtype_name(c->mask.dtype),
        c->mask.pattern, c->mask.once, c->mask.ndim, c->mask.stretch);
}

bool test_rounds_to_bf16(kvc_dtype kv_dtype) {
    return kvc__ops_best()->rounds[KVC__OPS_SLOT(kv_dtype)];
}

/* What a score may be off by. */
static double score_error(const test_problem *p, const test_truth *right) {
    const bool prepares = kvc__ops_best()->prepare[KVC__OPS_SLOT(p->c.kv_dtype)] != NULL;
    const bool splits = prepares && !test_rounds_to_bf16(p->c.kv_dtype);
    return 2.5e-7 * right->largest_score + (splits ? 0x1p-18 * right->largest_parts : 0);
}

/* The largest number of an array, in magnitude. */
static double largest(const kvc_array *a) {
    double most = 0;
    for (int64_t b = 0; b < a->shape[0]; b++)
        for (int64_t h = 0; h < a->shape[1]; h++)
            for (int64_t i = 0; i < a->shape[2]; i++)
                for (int64_t d = 0; d < a->shape[3]; d++)
                    most = fmax(most, fabs(test_get(a, b, h, i, d)));
    return most;
}

void test_allow_packed(test_problem *p, int bits, const kvc_array *k_scales,
                       const kvc_array *v_scales) {
    const kvc__ops *ops = kvc__ops_best();
    const int slot = bits == 4 ? KVC__OPS_Q4 : KVC__OPS_Q8;
    if (!ops->prepare[slot]) return;
    const double most = bits == 4 ? 127 : 32639, middle = bits == 4 ? 8 : 128;
    const double scale = p->c.scale > 0 ? (double)p->c.scale : 1 / sqrt((double)p->c.key_dim);
    const double positions = fmin(64, (double)p->c.length);
    p->score_slack = scale * largest(&p->q.array) * sqrt((double)p->c.key_dim) / most * middle *
                     largest(k_scales);
    p->value_slack = sqrt(positions) / most * middle * largest(v_scales);
}

void test_compare(const test_problem *p, const test_truth *right) {
    const double error = score_error(p, right), *out = right->out, *lse = right->lse;
    const double *row_lse = right->lse;
    const double weight_error = test_rounds_to_bf16(p->c.kv_dtype) ? 0x1p-17 : 0;
    double value = 0;
    FOR_EACH(&p->v.array, b, h, j, d) {
        value = fmax(value, fabs(test_get(&p->v.array, b, h, j, d))); /* no NaN */
    }
    FOR_EACH(&p->lse.array, b, h, i, d) {
        const double given = test_get(&p->lse.array, b, h, i, d), wanted = *lse++;
        const double bound = 2e-6 + error + p->score_slack + 2.5e-7 * fabs(wanted);
        if (given != wanted && !(fabs(given - wanted) <= bound))
            fail_at(p, "lse", (int64_t[]){b, h, i, d}, given, wanted, bound);
    }
    FOR_EACH(&p->out.array, b, h, i, d) {
        const double given = test_get(&p->out.array, b, h, i, d), wanted = *out++;
        const double weight = fmin(1, exp(right->largest_score - *row_lse));
        const double slack = 2 * p->score_slack * value + weight * p->value_slack;
        const double exact = (2e-6 + error + weight_error) * value + slack;
        const double bound = exact + half_step(p->c.out_dtype, fabs(wanted) + exact);
        if (!(fabs(given - wanted) <= bound))
            fail_at(p, "out", (int64_t[]){b, h, i, d}, given, wanted, bound);
        if (d == p->c.value_dim - 1) row_lse++;
    }
}

void test_compare_paths(const test_problem *p) {
    const test_case *c = &p->c;
    test_truth right = test_truth_new(p);
    test_problem slow = *p;
    slow.c.out_dtype = KVC_F32;
    slow.out =
        test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, c->batch, c->q_heads, c->queries, c->value_dim);
    slow.lse = new_lse(c);
    test_run(&slow, KVC_PATH_REFERENCE);
    test_compare(&slow, &right);
    test_run(p, KVC_PATH_FUSED);
    test_compare(p, &right);
    test_tensor_free(&slow.out);
    test_tensor_free(&slow.lse);
    test_truth_free(&right);
}

void test_compare_formula(const test_problem *p) {
    test_truth right = test_truth_new(p);
    test_compare(p, &right);
    test_truth_free(&right);
}

bool test_leaves_out(const test_case *c, uint64_t *seed) {
    const char *isa = getenv("KVC_ISA");
    if (isa && strstr(isa, "bf16") && c->kv_dtype != KVC_BF16) return true;
    return test_below(seed, KVC_TEST_ONE_OF) != 0;
}

void test_check(const test_case *c, const kvc_executor *executor, uint64_t *seed) {
    if (test_leaves_out(c, seed)) return;
    test_problem p = test_problem_new(c, seed);
    test_truth right = test_truth_new(&p);
    test_poison_unseen(&p);
    for (int turn = 0; turn < 3; turn++) {
        test_problem own = p; /* out and lse are NaN again */
        own.out = test_tensor_new(p.c.out_dtype, p.c.out_layout, p.c.batch, p.c.q_heads,
                                  p.c.queries, p.c.value_dim);
        own.lse = new_lse(&p.c);
        test_run_on(&own, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE, turn == 2 ? executor : NULL);
        test_compare(&own, &right);
        test_tensor_free(&own.out);
        test_tensor_free(&own.lse);
    }
    test_truth_free(&right);
    test_problem_free(&p);
}

static kvc_threads *pools[2];

int test_threads_setup(void **state) {
    if (test_isa_setup(state) != 0) return 1;
    assert_ok(kvc_threads_new(&pools[0], 3));
    assert_ok(kvc_threads_new(&pools[1], 7));
    return 0;
}

int test_threads_teardown(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) kvc_threads_free(pools[i]);
    return 0;
}

kvc_executor test_seven_threads(void) {
    return kvc_threads_executor(pools[1]);
}

void test_check_threads(const test_case *c, uint64_t *seed) {
    const kvc_executor executor = kvc_threads_executor(pools[test_below(seed, 2)]);
    test_check(c, &executor, seed);
}
