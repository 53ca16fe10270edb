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
    print_message("%s: %s\n", ops->name, ops->cap);
    if (strstr(ops->cap, "names no instruction set")) return 1;
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
        .not_causal = p->c.not_causal,
        .path = path,
    };
}

void test_run(const test_problem *p, kvc_path path) {
    const kvc_attention_desc desc = test_desc(p, path);
    kvc_attention *plan;
    kvc_array out = p->out.array;
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc_status status =
        kvc_attention_run_kv(plan, &p->k.array, &p->v.array, &p->q.array, &out);
    kvc_attention_free(plan);
    assert_ok(status);
}

static double largest_score(const test_problem *p) {
    const test_case *c = &p->c;
    const int64_t group = c->q_heads / c->kv_heads;
    const double scale = c->scale != 0 ? (double)c->scale : 1 / sqrt((double)c->key_dim);
    double largest = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++)
                for (int64_t j = 0; j < c->length; j++) {
                    double sum = 0;
                    for (int64_t d = 0; d < c->key_dim; d++)
                        sum += test_get(&p->q.array, b, h, i, d) *
                               test_get(&p->k.array, b, h / group, j, d);
                    largest = fmax(largest, fabs(scale * sum));
                }
    return largest;
}

/* Half the step between numbers of a dtype at this value. */
static double half_step(kvc_dtype dtype, double value) {
    switch (dtype) {
    case KVC_F16: return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    case KVC_BF16: return fabs(value) * 0x1p-8;
    default: return 0;
    }
}

void test_compare_paths(const test_problem *p) {
    const test_case *c = &p->c;
    test_problem truth = *p;
    truth.c.out_dtype = KVC_F32;
    truth.out =
        test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, c->batch, c->q_heads, c->queries, c->value_dim);
    test_run(&truth, KVC_PATH_REFERENCE);
    test_run(p, KVC_PATH_FUSED);

    double largest_v = 0;
    FOR_EACH(&p->v.array, b, h, j, d) {
        largest_v = fmax(largest_v, fabs(test_get(&p->v.array, b, h, j, d)));
    }
    const double bound = (2e-6 + 2.5e-7 * largest_score(p)) * largest_v;
    FOR_EACH(&p->out.array, b, h, i, d) {
        const double given = test_get(&p->out.array, b, h, i, d);
        const double wanted = test_get(&truth.out.array, b, h, i, d);
        if (!(fabs(given - wanted) <= bound + half_step(c->out_dtype, fabs(wanted) + bound)))
            fail_msg("out[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64 "]: %.9g given, %.9g "
                     "wanted, bound %.3g; batch %" PRId64 ", heads %" PRId64 "/%" PRId64
                     ", dims %" PRId64 "/%" PRId64 ", queries %" PRId64 ", length %" PRId64
                     ", kv %s, q %s, out %s, layouts %d %d %d, not_causal %d",
                     b, h, i, d, given, wanted, bound, c->batch, c->q_heads, c->kv_heads,
                     c->key_dim, c->value_dim, c->queries, c->length, kvc_dtype_name(c->kv_dtype),
                     kvc_dtype_name(c->q_dtype), kvc_dtype_name(c->out_dtype), c->kv_layout,
                     c->q_layout, c->out_layout, c->not_causal);
    }
    test_tensor_free(&truth.out);
}
