#include <stdio.h>
#include <string.h>

#include <kvcache/cuda_rule.h>

#include "support/support.h"

/* A cache that gets the fused kernel: 8 kv heads of 128, bf16, 600 of 1024 positions in use. */
static const kvc_cuda_shape good = {
    .struct_size = sizeof(kvc_cuda_shape),
    .kv_heads = 8,
    .key_dim = 128,
    .dtype = KVC_BF16,
    .capacity = 1024,
    .length = 600,
};

static kvc_cuda_report explain(kvc_cuda_shape shape) {
    kvc_cuda_report report = {.struct_size = sizeof report};
    assert_ok(kvc_cuda_explain(&report, &shape));
    return report;
}

static const kvc_cuda_check *find(const kvc_cuda_report *report, const char *name) {
    for (size_t i = 0; i < report->count; i++)
        if (strcmp(report->checks[i].name, name) == 0) return &report->checks[i];
    fail_msg("no check %s", name);
    return &report->checks[0];
}

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* The kernel is as wanted, and of the conditions only the named one fails, with words for it. */
static void assert_only(const char *failing, kvc_cuda_shape shape, kvc_cuda_kernel kernel) {
    const kvc_cuda_report report = explain(shape);
    assert_string_equal(kvc_cuda_kernel_name(report.kernel), kvc_cuda_kernel_name(kernel));
    for (size_t i = 0; i < report.count; i++) {
        const kvc_cuda_check *c = &report.checks[i];
        assert_string_not_equal(c->given, "");
        assert_string_not_equal(c->wanted, "");
        if (c->ok != (strcmp(c->name, failing) != 0))
            fail_msg("%s: %s, %s wanted: ok is %d", c->name, c->given, c->wanted, c->ok);
        if (c->ok) assert_string_equal(c->remedy, "");
        else assert_string_not_equal(c->remedy, "");
    }
    (void)find(&report, failing);
    assert_contains(report.reason, kvc_cuda_kernel_name(kernel));
    assert_contains(report.reason, find(&report, failing)->given);
}

static void cuda_rule__takes_cudnn_where_every_condition_holds(void **state) {
    (void)state;
    const kvc_cuda_report report = explain(good);
    assert_int_equal(report.kernel, KVC_CUDA_CUDNN);
    assert_int_equal(report.count, 12);
    for (size_t i = 0; i < report.count; i++) assert_true(report.checks[i].ok);
    assert_contains(report.reason, "cudnn");
}

static void cuda_rule__takes_cudnn_from_256_positions_on(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.length = 255;
    assert_only("length", shape, KVC_CUDA_VECTOR);
    shape.length = 256;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape.capacity = 256;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
}

/* 300 + 300 positions make mlx-lm's capacity 812; 2048 + 700 + 500 make 3262. */
static void cuda_rule__loses_cudnn_where_capacity_is_no_multiple_of_256(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.capacity = 812;
    assert_only("capacity", shape, KVC_CUDA_VECTOR);
    const kvc_cuda_report report = explain(shape);
    assert_string_equal(find(&report, "capacity")->given, "capacity 812");
    assert_string_equal(find(&report, "capacity")->wanted, "a multiple of 256");
    assert_contains(find(&report, "capacity")->remedy, "256");
    assert_contains(find(&report, "capacity")->remedy, "1024");

    shape.capacity = 3262;
    shape.length = 3248;
    assert_only("capacity", shape, KVC_CUDA_VECTOR_TWO);
    shape.capacity = 3328;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
}

static void cuda_rule__loses_cudnn_in_a_larger_buffer_of_the_pool(void **state) {
    (void)state;
    const int64_t exact = (int64_t)8 * 1024 * 128;
    kvc_cuda_shape shape = good;
    shape.buffer_elements = exact;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape.buffer_elements = exact + 16 * 1024 / 2; /* 16 KiB of bf16 */
    assert_only("buffer", shape, KVC_CUDA_VECTOR);
    const kvc_cuda_report larger = explain(shape);
    assert_contains(find(&larger, "buffer")->remedy, "pool");
    shape.buffer_elements = exact - 1;
    assert_only("buffer", shape, KVC_CUDA_VECTOR);
    shape.buffer_elements = exact;
    shape.value_buffer_elements = exact + 1;
    assert_only("value_buffer", shape, KVC_CUDA_VECTOR);
    shape.value_buffer_elements = 0;
    shape.batch = 2;
    shape.buffer_elements = 2 * exact;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
}

/* The seed's own table has a head dimension of 512. */
static void cuda_rule__never_fuses_the_seeds_own_table(void **state) {
    (void)state;
    for (int64_t length = 512; length <= 4096; length *= 2) {
        kvc_cuda_shape shape = good;
        shape.kv_heads = 4;
        shape.key_dim = 512;
        shape.length = shape.capacity = length;
        const kvc_cuda_report report = explain(shape);
        assert_int_equal(report.kernel, KVC_CUDA_UNFUSED);
        assert_false(find(&report, "key_dim")->ok);
        assert_false(find(&report, "value_dim")->ok);
        assert_contains(report.reason, "key_dim 512");
    }
}

static void cuda_rule__wants_dims_in_eights_up_to_128(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    for (int64_t dim = 1; dim <= 136; dim++) {
        shape.key_dim = dim;
        const bool fused = explain(shape).kernel == KVC_CUDA_CUDNN;
        assert_int_equal(fused, dim % 8 == 0 && dim <= 128);
    }
    shape = good;
    shape.value_dim = 100;
    assert_only("value_dim", shape, KVC_CUDA_UNFUSED);
    shape.value_dim = 64;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
}

static void cuda_rule__names_each_of_the_other_conditions(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.dtype = KVC_F32;
    assert_only("dtype", shape, KVC_CUDA_VECTOR);
    shape.dtype = KVC_F16;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape = good;
    shape.compute_capability = 75;
    assert_only("compute_capability", shape, KVC_CUDA_VECTOR);
    shape = good;
    shape.last_stride = 2;
    assert_only("last_stride", shape, KVC_CUDA_VECTOR);
    shape = good;
    shape.alignment_bytes = 8;
    assert_only("alignment", shape, KVC_CUDA_VECTOR);
    shape.alignment_bytes = 16;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape = good;
    shape.array_mask = true;
    assert_only("mask", shape, KVC_CUDA_UNFUSED);
}

static void cuda_rule__takes_two_passes_above_1024_keys(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.dtype = KVC_F32;
    shape.capacity = 2048;
    shape.length = 1024;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_VECTOR);
    shape.length = 1025;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_VECTOR_TWO);
}

static void cuda_rule__has_vector_kernels_for_three_dims_and_three_queries(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.dtype = KVC_F32;
    for (int64_t dim = 8; dim <= 256; dim += 8) {
        shape.key_dim = dim;
        const bool vector = dim == 64 || dim == 96 || dim == 128;
        assert_int_equal(explain(shape).kernel, vector ? KVC_CUDA_VECTOR : KVC_CUDA_UNFUSED);
    }
    shape.key_dim = 128;
    shape.q_len = 3;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_VECTOR);
    shape.q_len = 4;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_UNFUSED);
}

/* Several queries are a prefill: cuDNN takes keys and values wherever they lie. */
static void cuda_rule__frees_prefill_from_the_caches_layout(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.q_len = 300;
    shape.capacity = 812;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape.length = 300;
    assert_int_equal(explain(shape).kernel, KVC_CUDA_CUDNN);
    shape.length = 299;
    assert_only("q_len", shape, KVC_CUDA_UNFUSED);
}

static void cuda_rule__names_the_field_that_is_wrong(void **state) {
    (void)state;
    kvc_cuda_report report = {.struct_size = sizeof report};
#define REFUSED(field, value, wanted_status)                                                       \
    do {                                                                                           \
        kvc_cuda_shape shape = good;                                                               \
        shape.field = (value);                                                                     \
        memset(report.reason, 'x', sizeof report.reason);                                          \
        assert_fails(kvc_cuda_explain(&report, &shape), wanted_status);                            \
        assert_contains(kvc_last_error(), #field);                                                 \
        assert_string_equal(report.reason, "");                                                    \
    } while (0)
    REFUSED(struct_size, 0, KVC_E_INVALID);
    REFUSED(q_len, -1, KVC_E_INVALID);
    REFUSED(kv_heads, 0, KVC_E_INVALID);
    REFUSED(batch, -1, KVC_E_INVALID);
    REFUSED(key_dim, 0, KVC_E_INVALID);
    REFUSED(value_dim, -8, KVC_E_INVALID);
    REFUSED(dtype, KVC_I8, KVC_E_INVALID);
    REFUSED(dtype, (kvc_dtype)0, KVC_E_INVALID);
    REFUSED(capacity, -1, KVC_E_INVALID);
    REFUSED(length, 1025, KVC_E_INVALID);
    REFUSED(buffer_elements, -1, KVC_E_INVALID);
    REFUSED(value_buffer_elements, -1, KVC_E_INVALID);
    REFUSED(alignment_bytes, -16, KVC_E_INVALID);
    REFUSED(compute_capability, -80, KVC_E_INVALID);
    REFUSED(kv_heads, INT64_MAX / 2, KVC_E_RANGE);
#undef REFUSED
    report.struct_size = 0;
    assert_fails(kvc_cuda_explain(&report, &good), KVC_E_INVALID);
    assert_fails(kvc_cuda_explain(NULL, &good), KVC_E_INVALID);
    report.struct_size = sizeof report;
    assert_fails(kvc_cuda_explain(&report, NULL), KVC_E_INVALID);
}

static void cuda_rule__keeps_within_its_texts(void **state) {
    (void)state;
    kvc_cuda_shape shape = good;
    shape.kv_heads = 1;
    shape.key_dim = 1;
    shape.capacity = INT64_MAX;
    shape.length = INT64_MAX;
    shape.buffer_elements = INT64_MAX - 1;
    shape.last_stride = INT64_MIN;
    shape.alignment_bytes = INT64_MAX;
    shape.compute_capability = INT32_MAX;
    for (int64_t q_len = 1; q_len > 0; q_len = q_len == 1 ? INT64_MAX : 0) {
        shape.q_len = q_len;
        const kvc_cuda_report report = explain(shape);
        assert_true(strlen(report.reason) < sizeof report.reason - 1);
        for (size_t i = 0; i < report.count; i++) {
            assert_true(strlen(report.checks[i].given) < sizeof report.checks[i].given - 1);
            assert_true(strlen(report.checks[i].wanted) < sizeof report.checks[i].wanted - 1);
            assert_true(strlen(report.checks[i].remedy) < sizeof report.checks[i].remedy - 1);
        }
    }
}

static void cuda_rule__names_its_kernels(void **state) {
    (void)state;
    assert_string_equal(kvc_cuda_kernel_name(KVC_CUDA_CUDNN), "cudnn");
    assert_string_equal(kvc_cuda_kernel_name(KVC_CUDA_VECTOR), "vector");
    assert_string_equal(kvc_cuda_kernel_name(KVC_CUDA_VECTOR_TWO), "vector-two-pass");
    assert_string_equal(kvc_cuda_kernel_name(KVC_CUDA_UNFUSED), "unfused");
    assert_string_equal(kvc_cuda_kernel_name((kvc_cuda_kernel)99), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_rule__takes_cudnn_where_every_condition_holds),
        cmocka_unit_test(cuda_rule__takes_cudnn_from_256_positions_on),
        cmocka_unit_test(cuda_rule__loses_cudnn_where_capacity_is_no_multiple_of_256),
        cmocka_unit_test(cuda_rule__loses_cudnn_in_a_larger_buffer_of_the_pool),
        cmocka_unit_test(cuda_rule__never_fuses_the_seeds_own_table),
        cmocka_unit_test(cuda_rule__wants_dims_in_eights_up_to_128),
        cmocka_unit_test(cuda_rule__names_each_of_the_other_conditions),
        cmocka_unit_test(cuda_rule__takes_two_passes_above_1024_keys),
        cmocka_unit_test(cuda_rule__has_vector_kernels_for_three_dims_and_three_queries),
        cmocka_unit_test(cuda_rule__frees_prefill_from_the_caches_layout),
        cmocka_unit_test(cuda_rule__names_the_field_that_is_wrong),
        cmocka_unit_test(cuda_rule__keeps_within_its_texts),
        cmocka_unit_test(cuda_rule__names_its_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
