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
    const kvc__ops *ops = kvc__ops_best();
    if (!wanted || !*wanted || strcmp(wanted, ops->name) == 0) return 0;
    print_message("%s: %s\n", ops->name, ops->limit);
    if (strstr(ops->limit, "names no instruction set")) return 1;
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
    memcpy(&word, from, sizeof word);
    return (double)(a->dtype == KVC_F16 ? kvc__f32_of_f16(word) : kvc__f32_of_bf16(word));
}

void test_set(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d, double value) {
    const float x = (float)value;
    const uint16_t word = a->dtype == KVC_F16 ? kvc__f16_of_f32(x) : kvc__bf16_of_f32(x);
    if (a->dtype == KVC_F32) memcpy(at(a, b, h, i, d), &x, sizeof x);
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

static test_tensor new_lse(const test_case *c) {
    test_tensor t = test_tensor_new(KVC_F32, c->out_layout, c->batch, c->q_heads, c->queries, 1);
    t.array.ndim = 3; /* the last dimension, of 1, stays readable */
    return t;
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
    const test_problem p = {
        .c = c,
        .q = test_tensor_new(c.q_dtype, c.q_layout, c.batch, c.q_heads, c.queries, c.key_dim),
        .k = test_tensor_new(c.kv_dtype, c.kv_layout, c.batch, c.kv_heads, c.length, c.key_dim),
        .v = test_tensor_new(c.kv_dtype, c.kv_layout, c.batch, c.kv_heads, c.length, c.value_dim),
        .out =
            test_tensor_new(c.out_dtype, c.out_layout, c.batch, c.q_heads, c.queries, c.value_dim),
        .lse = new_lse(&c),
    };
    test_fill_random(&p.q.array, c.amplitude, seed);
    test_fill_random(&p.k.array, c.amplitude, seed);
    test_fill_random(&p.v.array, 1, seed);
    return p;
}

void test_problem_free(test_problem *p) {
    test_tensor_free(&p->q);
    test_tensor_free(&p->k);
    test_tensor_free(&p->v);
    test_tensor_free(&p->out);
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
        .softcap = p->c.softcap,
        .not_causal = p->c.not_causal,
        .path = path,
    };
}

kvc_attention_extras test_extras(test_problem *p) {
    return (kvc_attention_extras){.struct_size = sizeof(kvc_attention_extras),
                                  .lse = &p->lse.array};
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

/* scale · q[b][h][i] · k[b][h / group][j] */
static double raw_score(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const test_case *c = &p->c;
    const int64_t group = c->q_heads / c->kv_heads;
    const double scale = c->scale != 0 ? (double)c->scale : 1 / sqrt((double)c->key_dim);
    double sum = 0;
    for (int64_t d = 0; d < c->key_dim; d++)
        sum += test_get(&p->q.array, b, h, i, d) * test_get(&p->k.array, b, h / group, j, d);
    return scale * sum;
}

double test_score(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const double cap = (double)p->c.softcap, s = raw_score(p, b, h, i, j);
    return cap > 0 ? cap * tanh(s / cap) : s;
}

static bool sees(const test_case *c, int64_t i, int64_t j) {
    const int64_t position = c->length - c->queries + i;
    if (c->not_causal) return true;
    return j <= position && (c->window == 0 || j > position - c->window);
}

void test_poison_unseen(const test_problem *p) {
    const test_case *c = &p->c;
    const int64_t group = c->q_heads / c->kv_heads;
    for (int64_t n = 0; n < c->batch * c->kv_heads * c->length; n++) {
        const int64_t b = n / c->length / c->kv_heads, h = n / c->length % c->kv_heads;
        const int64_t j = n % c->length;
        bool seen = false;
        for (int64_t row = 0; row < group * c->queries; row++)
            seen = seen || sees(c, row / group, j);
        if (seen) continue;
        for (int64_t d = 0; d < c->key_dim; d++) test_set(&p->k.array, b, h, j, d, (double)NAN);
        for (int64_t d = 0; d < c->value_dim; d++) test_set(&p->v.array, b, h, j, d, (double)NAN);
    }
}

/* One row; returns its log-sum-exp. */
static double attend_row(const test_problem *p, int64_t b, int64_t h, int64_t i, double *out) {
    const test_case *c = &p->c;
    const int64_t kv_head = h / (c->q_heads / c->kv_heads);
    double most = -INFINITY, total = 0;
    for (int64_t j = 0; j < c->length; j++)
        if (sees(c, i, j)) most = fmax(most, test_score(p, b, h, i, j));
    for (int64_t d = 0; d < c->value_dim; d++) out[d] = 0;
    if (most == -INFINITY) return most;
    for (int64_t j = 0; j < c->length; j++) {
        if (!sees(c, i, j)) continue;
        const double weight = exp(test_score(p, b, h, i, j) - most);
        if (weight == 0) continue;
        total += weight;
        for (int64_t d = 0; d < c->value_dim; d++)
            out[d] += weight * test_get(&p->v.array, b, kv_head, j, d);
    }
    for (int64_t d = 0; d < c->value_dim; d++) out[d] /= total;
    return most + log(total);
}

void test_attend(const test_problem *p, double *out, double *lse) {
    const test_case *c = &p->c;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++, out += c->value_dim)
                *lse++ = attend_row(p, b, h, i, out);
}

/* scale · Σ |q| |k|: what errors of q are multiplied by */
static double magnitude(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const test_case *c = &p->c;
    const int64_t group = c->q_heads / c->kv_heads;
    const double scale = c->scale != 0 ? (double)c->scale : 1 / sqrt((double)c->key_dim);
    double sum = 0;
    for (int64_t d = 0; d < c->key_dim; d++)
        sum += fabs(test_get(&p->q.array, b, h, i, d) * test_get(&p->k.array, b, h / group, j, d));
    return fabs(scale) * sum;
}

typedef double (*score_fn)(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);

static double largest(const test_problem *p, score_fn score) {
    const test_case *c = &p->c;
    double most = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++)
                for (int64_t j = 0; j < c->length; j++)
                    most = fmax(most, fabs(score(p, b, h, i, j)));
    return most;
}

/* What a score may be off by, as test_compare_paths has it. */
static double score_error(const test_problem *p) {
    const double rounding = 2.5e-7 * largest(p, raw_score);
    const bool splits = kvc__ops_best()->prepare[KVC__OPS_SLOT(p->c.kv_dtype)] != NULL;
    return splits ? rounding + 0x1p-18 * largest(p, magnitude) : rounding;
}

/* Half the step between numbers of a dtype at this value. */
static double half_step(kvc_dtype dtype, double value) {
    switch (dtype) {
    case KVC_F16: return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    case KVC_BF16: return fabs(value) * 0x1p-8;
    default: return 0;
    }
}

/* What is right for a problem, in row-major order. */
typedef struct truth {
    double *out, *lse;
} truth;

static truth new_truth(const test_case *c) {
    const size_t rows = (size_t)(c->batch * c->q_heads * c->queries);
    const truth t = {.out = malloc(rows * (size_t)c->value_dim * sizeof(double)),
                     .lse = malloc(rows * sizeof(double))};
    assert_non_null(t.out);
    assert_non_null(t.lse);
    return t;
}

static void free_truth(truth *t) {
    free(t->out);
    free(t->lse);
}

static void fail_at(const test_problem *p, const char *what, const int64_t at[4], double given,
                    double wanted, double bound) {
    const test_case *c = &p->c;
    fail_msg(
        "%s[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64 "]: %.9g given, %.9g wanted, "
        "bound %.3g; batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", dims %" PRId64 "/%" PRId64
        ", queries %" PRId64 ", length %" PRId64
        ", kv %s, q %s, out %s, layouts %d %d %d, not_causal %d, window %" PRId64 ", softcap %g",
        what, at[0], at[1], at[2], at[3], given, wanted, bound, c->batch, c->q_heads, c->kv_heads,
        c->key_dim, c->value_dim, c->queries, c->length, kvc_dtype_name(c->kv_dtype),
        kvc_dtype_name(c->q_dtype), kvc_dtype_name(c->out_dtype), c->kv_layout, c->q_layout,
        c->out_layout, c->not_causal, c->window, (double)c->softcap);
}

static void compare(const test_problem *p, const truth *right) {
    const double error = score_error(p), *out = right->out, *lse = right->lse;
    double value = 0;
    FOR_EACH(&p->v.array, b, h, j, d) {
        value = fmax(value, fabs(test_get(&p->v.array, b, h, j, d))); /* no NaN */
    }
    FOR_EACH(&p->lse.array, b, h, i, d) {
        const double given = test_get(&p->lse.array, b, h, i, d), wanted = *lse++;
        const double bound = 2e-6 + error + 2.5e-7 * fabs(wanted);
        if (given != wanted && !(fabs(given - wanted) <= bound))
            fail_at(p, "lse", (int64_t[]){b, h, i, d}, given, wanted, bound);
    }
    FOR_EACH(&p->out.array, b, h, i, d) {
        const double given = test_get(&p->out.array, b, h, i, d), wanted = *out++;
        const double exact = (2e-6 + error) * value;
        const double bound = exact + half_step(p->c.out_dtype, fabs(wanted) + exact);
        if (!(fabs(given - wanted) <= bound))
            fail_at(p, "out", (int64_t[]){b, h, i, d}, given, wanted, bound);
    }
}

void test_compare_paths(const test_problem *p) {
    const test_case *c = &p->c;
    truth right = new_truth(c);
    double *out = right.out, *lse = right.lse;
    test_problem slow = *p;
    slow.c.out_dtype = KVC_F32;
    slow.out =
        test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, c->batch, c->q_heads, c->queries, c->value_dim);
    slow.lse = new_lse(c);
    test_run(&slow, KVC_PATH_REFERENCE);
    FOR_EACH(&slow.out.array, b, h, i, d) {
        *out++ = test_get(&slow.out.array, b, h, i, d);
    }
    FOR_EACH(&slow.lse.array, b, h, i, d) {
        *lse++ = test_get(&slow.lse.array, b, h, i, d);
    }
    test_run(p, KVC_PATH_FUSED);
    compare(p, &right);
    test_tensor_free(&slow.out);
    test_tensor_free(&slow.lse);
    free_truth(&right);
}

void test_compare_formula(const test_problem *p) {
    truth right = new_truth(&p->c);
    test_attend(p, right.out, right.lse);
    compare(p, &right);
    free_truth(&right);
}
