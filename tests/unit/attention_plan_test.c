/* The plan: descriptions, checks of every argument, choice of path, sentences, figures. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/allocator.h>
#include <kvcache/trace.h>

#include "attention/plan.h"
#include "base/isa.h"
#include "support/attend.h"
#include "support/support.h"

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* The call fails, and its sentence names what is wrong. */
#define assert_names(call, status, name)                                                           \
    do {                                                                                           \
        assert_fails(call, status);                                                                \
        assert_contains(kvc_last_error(), name);                                                   \
    } while (0)

static const kvc_attention_desc good = {
    .struct_size = sizeof(kvc_attention_desc),
    .batch = 2,
    .q_heads = 4,
    .kv_heads = 2,
    .key_dim = 16,
    .value_dim = 8,
    .max_q_len = 3,
    .kv_dtype = KVC_F16,
};

static kvc_attention *new_plan(kvc_attention_desc desc) {
    kvc_attention *plan;
    assert_ok(kvc_attention_plan(&plan, &desc));
    return plan;
}

static kvc_attention_stats stats_of(const kvc_attention *plan) {
    kvc_attention_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_attention_stats_get(plan, &stats));
    return stats;
}

/* Arrays that fit `good`: 3 queries, 20 positions. */
static test_problem good_problem(void) {
    static uint64_t seed = 1;
    const test_case c = {.batch = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .key_dim = 16,
                         .value_dim = 8,
                         .queries = 3,
                         .length = 20,
                         .kv_dtype = KVC_F16};
    return test_problem_new(&c, &seed);
}

static void plan__names_the_field_that_is_wrong(void **state) {
    (void)state;
    kvc_attention *plan;
#define REFUSED(field, value, status)                                                              \
    do {                                                                                           \
        kvc_attention_desc desc = good;                                                            \
        desc.field = (value);                                                                      \
        plan = (kvc_attention *)&desc;                                                             \
        assert_names(kvc_attention_plan(&plan, &desc), status, #field);                            \
        assert_null(plan);                                                                         \
    } while (0)
    REFUSED(struct_size, 0, KVC_E_INVALID);
    REFUSED(batch, -1, KVC_E_INVALID);
    REFUSED(q_heads, 0, KVC_E_INVALID);
    REFUSED(q_heads, 5, KVC_E_INVALID);
    REFUSED(kv_heads, 0, KVC_E_INVALID);
    REFUSED(kv_heads, -2, KVC_E_INVALID);
    REFUSED(key_dim, 0, KVC_E_INVALID);
    REFUSED(value_dim, -1, KVC_E_INVALID);
    REFUSED(value_dim, INT64_MAX, KVC_E_RANGE);
    REFUSED(value_dim, INT64_MAX / 4, KVC_E_RANGE);
    REFUSED(max_q_len, -1, KVC_E_INVALID);
    REFUSED(kv_dtype, (kvc_dtype)0, KVC_E_INVALID);
    REFUSED(kv_dtype, KVC_I8, KVC_E_INVALID);
    REFUSED(scale, NAN, KVC_E_INVALID);
    REFUSED(scale, INFINITY, KVC_E_INVALID);
    REFUSED(path, (kvc_path)9, KVC_E_INVALID);
#undef REFUSED
    assert_fails(kvc_attention_plan(NULL, &good), KVC_E_INVALID);
    assert_fails(kvc_attention_plan(&plan, NULL), KVC_E_INVALID);
    assert_null(plan);
}

static void plan__fills_in_defaults(void **state) {
    (void)state;
    kvc_attention *plan = new_plan((kvc_attention_desc){.struct_size = sizeof(kvc_attention_desc),
                                                        .q_heads = 1,
                                                        .kv_heads = 1,
                                                        .key_dim = 64,
                                                        .kv_dtype = KVC_F32});
    assert_int_equal(plan->desc.batch, 1);
    assert_int_equal(plan->desc.value_dim, 64);
    assert_int_equal(plan->desc.max_q_len, 1);
    assert_true(plan->desc.scale == 0.125f);
    assert_int_equal(plan->path, KVC_PATH_FUSED);
    kvc_attention_free(plan);
    kvc_attention_free(NULL);
}

static void plan__takes_as_many_queries_as_there_may_be(void **state) {
    (void)state;
    kvc_attention_desc desc = good;
    desc.max_q_len = INT64_MAX;
    kvc_attention *plan = new_plan(desc);
    assert_true(plan->bytes < 200000);
    kvc_attention_free(plan);
}

static void plan__chooses_the_reference_for_dims_beyond_1024(void **state) {
    (void)state;
    kvc_attention *plan;
    for (int of_v = 0; of_v < 2; of_v++) {
        kvc_attention_desc desc = good;
        *(of_v ? &desc.value_dim : &desc.key_dim) = 1025;
        plan = new_plan(desc);
        assert_int_equal(plan->path, KVC_PATH_REFERENCE);
        kvc_explanation e = {.struct_size = sizeof e};
        assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
        assert_int_equal(e.path, KVC_PATH_REFERENCE);
        assert_true(e.slow);
        assert_contains(e.reason, "1025");
        assert_contains(e.remedy, "1024");
        kvc_attention_free(plan);

        desc.path = KVC_PATH_FUSED;
        assert_names(kvc_attention_plan(&plan, &desc), KVC_E_INVALID, "path");
        desc.path = KVC_PATH_AUTO;
        desc.strict = true;
        assert_names(kvc_attention_plan(&plan, &desc), KVC_E_SLOW, "1025");
        assert_null(plan);
    }
}

static void plan__refuses_a_strict_reference(void **state) {
    (void)state;
    kvc_attention *plan;
    kvc_attention_desc desc = good;
    desc.strict = true;
    desc.path = KVC_PATH_REFERENCE;
    assert_names(kvc_attention_plan(&plan, &desc), KVC_E_SLOW, "strict");
    desc.path = KVC_PATH_FUSED;
    kvc_attention_free(new_plan(desc));
}

static void run__names_the_argument_that_is_wrong(void **state) {
    (void)state;
    test_problem p = good_problem();
    kvc_attention *plan = new_plan(good);
    const size_t bytes = kvc_array_nbytes(&p.out.array);
    char before[4096];
    assert_true(bytes <= sizeof before);
    memcpy(before, p.out.memory, bytes);
#define REFUSED(argument, change, status, words)                                                   \
    do {                                                                                           \
        kvc_array k = p.k.array, v = p.v.array, q = p.q.array, out = p.out.array;                  \
        (argument).change;                                                                         \
        assert_names(kvc_attention_run_kv(plan, &k, &v, &q, &out, NULL), status, #argument ": ");  \
        assert_contains(kvc_last_error(), words);                                                  \
        assert_memory_equal(before, p.out.memory, bytes);                                          \
    } while (0)
    REFUSED(k, ndim = 3, KVC_E_SHAPE, "[2, 2, 20]");
    REFUSED(k, shape[0] = 1, KVC_E_SHAPE, "[1, 2, 20, 16] given, [2, 2, 20, 16] wanted");
    REFUSED(k, shape[1] = 4, KVC_E_SHAPE, "[2, 4, 20, 16]");
    REFUSED(k, shape[2] = -1, KVC_E_SHAPE, "[2, 2, -1, 16]");
    REFUSED(k, shape[3] = 8, KVC_E_SHAPE, "[2, 2, 20, 8]");
    REFUSED(k, dtype = KVC_BF16, KVC_E_SHAPE, "bf16 given, f16");
    REFUSED(k, dtype = KVC_U8, KVC_E_SHAPE, "u8");
    REFUSED(k, dtype = (kvc_dtype)0, KVC_E_INVALID, "dtype 0");
    REFUSED(k, data = NULL, KVC_E_INVALID, "data");
    REFUSED(k, data = (char *)p.k.memory + 1, KVC_E_INVALID, "multiple of 2");
    REFUSED(v, shape[2] = 19, KVC_E_SHAPE, "[2, 2, 19, 8] given, [2, 2, 20, 8] wanted");
    REFUSED(v, shape[3] = 16, KVC_E_SHAPE, "[2, 2, 20, 16]");
    REFUSED(v, dtype = KVC_F32, KVC_E_SHAPE, "f32 given, f16");
    REFUSED(q, shape[1] = 2, KVC_E_SHAPE, "[2, 2, 3, 16] given, [2, 4, 3, 16] wanted");
    REFUSED(q, shape[2] = 0, KVC_E_SHAPE, "1 to 3");
    REFUSED(q, shape[2] = 4, KVC_E_SHAPE, "4 query positions given, 1 to 3");
    REFUSED(q, shape[3] = 8, KVC_E_SHAPE, "[2, 4, 3, 8]");
    REFUSED(q, dtype = KVC_I8, KVC_E_SHAPE, "i8");
    REFUSED(q, strides[3] = 2, KVC_E_SHAPE, "last stride 2");
    REFUSED(q, data = (char *)p.q.memory + 2, KVC_E_INVALID, "multiple of 4");
    REFUSED(out, shape[2] = 2, KVC_E_SHAPE, "[2, 4, 2, 8] given, [2, 4, 3, 8] wanted");
    REFUSED(out, shape[3] = 16, KVC_E_SHAPE, "[2, 4, 3, 16]");
    REFUSED(out, dtype = KVC_U32, KVC_E_SHAPE, "u32");
    REFUSED(out, strides[3] = -1, KVC_E_SHAPE, "last stride -1");
    REFUSED(out, data = NULL, KVC_E_INVALID, "data");
#undef REFUSED
    kvc_array out = p.out.array;
    assert_names(kvc_attention_run_kv(NULL, &p.k.array, &p.v.array, &p.q.array, &out, NULL),
                 KVC_E_INVALID, "plan");
    assert_names(kvc_attention_run_kv(plan, NULL, &p.v.array, &p.q.array, &out, NULL),
                 KVC_E_INVALID, "k: NULL");
    assert_names(kvc_attention_run_kv(plan, &p.k.array, NULL, &p.q.array, &out, NULL),
                 KVC_E_INVALID, "v: NULL");
    assert_names(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, NULL, &out, NULL),
                 KVC_E_INVALID, "q: NULL");
    assert_names(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, NULL, NULL),
                 KVC_E_INVALID, "out: NULL");
    const kvc_attention_stats stats = stats_of(plan);
    assert_int_equal(stats.kv_bytes, 0);
    assert_int_equal(stats.runs[KVC_PATH_FUSED] + stats.runs[KVC_PATH_REFERENCE], 0);
    kvc_attention_free(plan);
    test_problem_free(&p);
}

/* Keys or values whose rows are not contiguous take the reference path, and every place says so. */
static void run__tells_of_the_slow_path_that_strides_take(void **state) {
    (void)state;
    for (int of_v = 0; of_v < 2; of_v++) {
        test_problem p = good_problem();
        test_tensor *side = of_v ? &p.v : &p.k;
        test_tensor_free(side);
        *side = test_tensor_new(KVC_F16, TEST_SPREAD, 2, 2, 20, of_v ? 8 : 16);
        uint64_t seed = 3;
        test_fill_random(&side->array, 1, &seed);
        kvc_array out = p.out.array;

        kvc_attention *plan = new_plan(good);
        kvc_explanation e = {.struct_size = sizeof e};
        assert_ok(kvc_attention_explain_kv(&e, plan, &p.k.array, &p.v.array));
        assert_int_equal(e.path, KVC_PATH_REFERENCE);
        assert_true(e.slow);
        assert_contains(e.reason, of_v ? "of v is not contiguous" : "of k is not contiguous");
        assert_contains(e.reason, "stride 2");
        assert_contains(e.remedy, "kvc_array_contiguous");

        kvc_attention_desc strict = good;
        strict.strict = true;
        kvc_attention *careful = new_plan(strict);
        assert_names(kvc_attention_run_kv(careful, &p.k.array, &p.v.array, &p.q.array, &out, NULL),
                     KVC_E_SLOW, of_v ? "v: " : "k: ");
        for (int64_t i = 0; i < kvc_array_size(&out); i++)
            assert_true(isnan(((const float *)p.out.memory)[i]));
        assert_int_equal(stats_of(careful).refused, 1);
        assert_int_equal(stats_of(careful).runs[KVC_PATH_REFERENCE], 0);
        assert_int_equal(stats_of(careful).kv_bytes, 0);

        assert_ok(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &out, NULL));
        assert_int_equal(stats_of(plan).runs[KVC_PATH_REFERENCE], 1);
        assert_int_equal(stats_of(plan).runs[KVC_PATH_FUSED], 0);
        assert_true(fabsf(((const float *)p.out.memory)[0]) <= 1);
        kvc_attention_free(careful);
        kvc_attention_free(plan);
        test_problem_free(&p);
    }
}

static void run__takes_no_account_of_the_stride_of_a_single_element(void **state) {
    (void)state;
    uint64_t seed = 4;
    const test_case c = {.key_dim = 1, .length = 9, .kv_layout = TEST_SPREAD};
    test_problem p = test_problem_new(&c, &seed);
    const kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    kvc_attention *plan = new_plan(desc);
    kvc_array out = p.out.array;
    assert_ok(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &out, NULL));
    assert_int_equal(stats_of(plan).runs[KVC_PATH_FUSED], 1);
    kvc_attention_free(plan);
    test_problem_free(&p);
}

static void run__counts_runs_and_bytes(void **state) {
    (void)state;
    test_problem p = good_problem();
    kvc_attention *plan = new_plan(good);
    kvc_array out = p.out.array;
    for (int i = 0; i < 3; i++)
        assert_ok(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &out, NULL));
    assert_int_equal(stats_of(plan).runs[KVC_PATH_FUSED], 3);
    assert_int_equal(stats_of(plan).runs[KVC_PATH_REFERENCE], 0);
    assert_int_equal(stats_of(plan).refused, 0);
    assert_true(stats_of(plan).kv_bytes == UINT64_C(3) * 2 * 2 * 20 * (16 + 8) * 2);
    kvc_attention_stats stats = {.struct_size = 0};
    assert_fails(kvc_attention_stats_get(plan, &stats), KVC_E_INVALID);
    stats.struct_size = sizeof stats;
    stats.kv_bytes = 7;
    assert_fails(kvc_attention_stats_get(NULL, &stats), KVC_E_INVALID);
    assert_int_equal(stats.kv_bytes, 0);
    kvc_attention_free(plan);
    test_problem_free(&p);
}

static void explain__says_why_of_each_path(void **state) {
    (void)state;
    kvc_explanation e = {.struct_size = sizeof e};
    kvc_attention *plan = new_plan(good);
    assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
    assert_int_equal(e.path, KVC_PATH_FUSED);
    assert_false(e.slow);
    const kvc__isa_choice *choice = kvc__isa_best();
    const bool generic = choice->isa == KVC__ISA_GENERIC;
    assert_contains(e.reason, generic ? "portable C" : choice->name);
    assert_contains(e.reason, "group of 2 query heads");
    assert_contains(e.reason, choice->limit);
    assert_true(test_rounds_to_bf16(good.kv_dtype) == !!strstr(e.reason, "rounded to bf16"));
    if (*choice->remedy) assert_string_equal(e.remedy, choice->remedy);
    else assert_true(generic == (strlen(e.remedy) > 0));

    test_problem p = good_problem();
    kvc_explanation same = {.struct_size = sizeof same};
    assert_ok(kvc_attention_explain_kv(&same, plan, &p.k.array, &p.v.array));
    assert_string_equal(same.reason, e.reason);
    assert_names(kvc_attention_explain_kv(&same, plan, &p.v.array, &p.k.array), KVC_E_SHAPE, "k: ");
    assert_string_equal(same.reason, "");
    test_problem_free(&p);
    kvc_attention_free(plan);

    kvc_attention_desc desc = good;
    desc.path = KVC_PATH_REFERENCE;
    plan = new_plan(desc);
    assert_ok(kvc_attention_explain(&e, plan, NULL, 0));
    assert_int_equal(e.path, KVC_PATH_REFERENCE);
    assert_true(e.slow);
    assert_contains(e.reason, "asks for it");
    assert_contains(e.remedy, "KVC_PATH_AUTO");

    e.struct_size = 0;
    assert_names(kvc_attention_explain(&e, plan, NULL, 0), KVC_E_INVALID, "struct_size");
    e.struct_size = sizeof e;
    assert_names(kvc_attention_explain(&e, NULL, NULL, 0), KVC_E_INVALID, "plan");
    assert_string_equal(e.reason, "");
    kvc_attention_free(plan);
}

static void path__has_a_name(void **state) {
    (void)state;
    assert_string_equal(kvc_path_name(KVC_PATH_AUTO), "auto");
    assert_string_equal(kvc_path_name(KVC_PATH_REFERENCE), "reference");
    assert_string_equal(kvc_path_name(KVC_PATH_FUSED), "fused");
    assert_string_equal(kvc_path_name((kvc_path)15), "?");
}

static void run__names_the_extra_that_is_wrong(void **state) {
    (void)state;
    test_problem p = good_problem();
    kvc_attention *plan = new_plan(good);
    const size_t bytes = kvc_array_nbytes(&p.out.array);
    const float numbers[8] = {0};
    const uint8_t kept[64] = {1};
    char before[4096];
    assert_true(bytes <= sizeof before);
    memcpy(before, p.out.memory, bytes);
#define REFUSED(change, status, words)                                                             \
    do {                                                                                           \
        kvc_array lse = p.lse.array, out = p.out.array, sinks;                                     \
        kvc_array mask;                                                                            \
        kvc_attention_extras e = {                                                                 \
            .struct_size = sizeof e, .mask = &mask, .sinks = &sinks, .lse = &lse};                 \
        assert_ok(kvc_array_borrow(&mask, KVC_U8, 2, (int64_t[]){3, 20}, NULL, kept));             \
        assert_ok(kvc_array_borrow(&sinks, KVC_F32, 1, (int64_t[]){4}, NULL, numbers));            \
        change;                                                                                    \
        assert_names(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &out, &e),     \
                     status, words);                                                               \
        assert_memory_equal(before, p.out.memory, bytes);                                          \
    } while (0)
    REFUSED(e.struct_size = 0, KVC_E_INVALID, "kvc_attention_extras.struct_size: 0 given");
    REFUSED(mask.ndim = 0, KVC_E_SHAPE,
            "extras.mask: shape [] given, one that broadcasts to [2, 4, 3, 20]");
    REFUSED(mask.ndim = 5, KVC_E_SHAPE, "extras.mask: shape [3, 20, ");
    REFUSED(mask.shape[0] = 2, KVC_E_SHAPE, "extras.mask: shape [2, 20] given");
    REFUSED(mask.shape[1] = 19, KVC_E_SHAPE, "extras.mask: shape [3, 19] given");
    REFUSED(mask.dtype = KVC_I8, KVC_E_SHAPE, "extras.mask: dtype i8 given, u8, f32, f16 or bf16");
    REFUSED(mask.data = NULL, KVC_E_INVALID, "extras.mask: data");
    REFUSED(sinks.shape[0] = 2, KVC_E_SHAPE, "extras.sinks: shape [2] given, [4] wanted");
    REFUSED(sinks.dtype = KVC_U8, KVC_E_SHAPE, "extras.sinks: dtype u8 given, f32, f16 or bf16");
    REFUSED(sinks.data = (char *)sinks.data + 1, KVC_E_INVALID, "extras.sinks: data");
    REFUSED(e.slopes = &lse, KVC_E_SHAPE, "extras.slopes: shape [2, 4, 3] given, [4] wanted");
    REFUSED(lse.ndim = 2, KVC_E_SHAPE, "extras.lse: shape [2, 4] given, [2, 4, 3] wanted");
    REFUSED(lse.shape[2] = 2, KVC_E_SHAPE, "extras.lse: shape [2, 4, 2] given, [2, 4, 3] wanted");
    REFUSED(lse.dtype = KVC_F16, KVC_E_SHAPE, "extras.lse: dtype f16 given, f32 wanted");
    REFUSED(lse.data = NULL, KVC_E_INVALID, "extras.lse: data");
#undef REFUSED
    kvc_attention_free(plan);
    test_problem_free(&p);
}

static void keep_span(void *context, const kvc_span *span) {
    *(kvc_span *)context = *span;
}

static void run__sends_a_span(void **state) {
    (void)state;
    test_problem p = good_problem();
    kvc_attention *plan = new_plan(good);
    kvc_array out = p.out.array;
    kvc_span span = {.kind = KVC_SPAN_FILL};
    kvc_trace_set(keep_span, &span);
    const kvc_status status =
        kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &out, NULL);
    kvc_trace_set(NULL, NULL);
    assert_ok(status);
    assert_int_equal(span.kind, KVC_SPAN_KERNEL);
    assert_string_equal(span.name, "fused");
    assert_true(span.bytes == UINT64_C(2) * 2 * 20 * (16 + 8) * 2);
    assert_true(span.end_ns >= span.start_ns);
    kvc_attention_free(plan);
    test_problem_free(&p);
}

/* An allocator that counts, fails when told to, and aligns as little as it may. */
typedef struct meter {
    int calls, alive, fail_at;
} meter;

static void *metered_allocate(void *context, size_t bytes) {
    meter *m = context;
    if (++m->calls == m->fail_at) return NULL;
    char *memory = aligned_alloc(64, (bytes + 16 + 63) / 64 * 64);
    if (!memory) return NULL;
    m->alive++;
    return memory + 16;
}

static void metered_deallocate(void *context, void *memory, size_t bytes) {
    meter *m = context;
    (void)bytes;
    m->alive--;
    free((char *)memory - 16);
}

static void plan__survives_every_failing_allocation(void **state) {
    (void)state;
    meter m = {.fail_at = 0};
    const kvc_allocator allocator = {metered_allocate, metered_deallocate, &m};
    kvc_allocator_set(&allocator);
    kvc_attention *plan = NULL;
    kvc_status status = KVC_E_NOMEM;
    for (m.fail_at = 1; m.fail_at < 10 && status == KVC_E_NOMEM; m.fail_at++) {
        m.calls = 0;
        status = kvc_attention_plan(&plan, &good);
        if (status != KVC_OK) assert_null(plan);
        assert_int_equal(m.alive, status == KVC_OK);
    }
    const uintptr_t scratch = status == KVC_OK ? (uintptr_t)plan->scratch : 1;
    kvc_attention_free(plan);
    kvc_allocator_set(NULL);
    assert_ok(status);
    assert_true(m.fail_at > 2); /* there was one to fail */
    assert_int_equal(m.alive, 0);
    assert_int_equal(scratch % 64, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan__names_the_field_that_is_wrong),
        cmocka_unit_test(plan__fills_in_defaults),
        cmocka_unit_test(plan__takes_as_many_queries_as_there_may_be),
        cmocka_unit_test(plan__chooses_the_reference_for_dims_beyond_1024),
        cmocka_unit_test(plan__refuses_a_strict_reference),
        cmocka_unit_test(plan__survives_every_failing_allocation),
        cmocka_unit_test(run__names_the_argument_that_is_wrong),
        cmocka_unit_test(run__names_the_extra_that_is_wrong),
        cmocka_unit_test(run__tells_of_the_slow_path_that_strides_take),
        cmocka_unit_test(run__takes_no_account_of_the_stride_of_a_single_element),
        cmocka_unit_test(run__counts_runs_and_bytes),
        cmocka_unit_test(run__sends_a_span),
        cmocka_unit_test(explain__says_why_of_each_path),
        cmocka_unit_test(path__has_a_name),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
