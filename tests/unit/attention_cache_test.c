/* Attention over caches: the same as over their views, whatever the policy; what explain says of
 * them; no allocation and no system call in a run. */
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvcache/allocator.h>

#include "support/attend.h"
#include "support/support.h"

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static kvc_cache *new_cache(kvc_pool *pool, kvc_growth growth, int64_t chunk, kvc_dtype dtype,
                            int64_t dim) {
    const kvc_layer_spec specs[2] = {
        {.kv_heads = 2, .key_dim = dim, .dtype = dtype},
        {.kv_heads = 1, .key_dim = 8, .value_dim = 24, .dtype = KVC_F32}};
    const kvc_cache_desc desc = {
        .struct_size = sizeof desc,
        .batch = 2,
        .layers = 2,
        .specs = specs,
        .spec_count = 2,
        .growth = growth,
        .chunk = chunk,
        .max_positions = 1000,
    };
    kvc_cache *cache;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    return cache;
}

/* Appends random positions to layer 0. */
static void append(kvc_cache *cache, int64_t n, int64_t dim, uint64_t *seed) {
    test_tensor k = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 2, n, dim);
    test_tensor v = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 2, n, dim);
    test_fill_random(&k.array, 1, seed);
    test_fill_random(&v.array, 1, seed);
    assert_ok(kvc_cache_append(cache, 0, &k.array, &v.array));
    test_tensor_free(&k);
    test_tensor_free(&v);
}

static kvc_attention *new_plan(const kvc_cache *cache, int64_t q_heads, int64_t max_q_len) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_attention *plan;
    assert_ok(kvc_attention_desc_for(&desc, cache, 0));
    desc.q_heads = q_heads;
    desc.max_q_len = max_q_len;
    assert_ok(kvc_attention_plan(&plan, &desc));
    return plan;
}

/* What is spare in a cache is undefined, and a run over the view is checked elsewhere. */
static void cache__gives_what_its_view_gives_under_every_policy(void **state) {
    (void)state;
    enum { DIM = 40, QUERIES = 3 };
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    test_tensor q = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 4, QUERIES, DIM);
    test_tensor first = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 4, QUERIES, DIM);
    uint64_t seed = 1;
    test_fill_random(&q.array, 1, &seed);
    for (int growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        kvc_cache *cache = new_cache(pool, (kvc_growth)growth, 16, KVC_BF16, DIM);
        kvc_attention *plan = new_plan(cache, 4, QUERIES);
        test_tensor a = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 4, QUERIES, DIM);
        test_tensor b = test_tensor_new(KVC_F32, TEST_TOKEN_MAJOR, 2, 4, QUERIES, DIM);
        const size_t bytes = kvc_array_nbytes(&a.array);
        kvc_array k, v;
        seed = 2;
        assert_ok(kvc_attention_run(plan, cache, 0, &q.array, &a.array, NULL)); /* empty: zeros */
        for (size_t i = 0; i < bytes; i++) assert_int_equal(((const char *)a.memory)[i], 0);
        for (int64_t n = 1; n <= 64; n *= 2) {
            append(cache, n, DIM, &seed);
            assert_ok(kvc_attention_run(plan, cache, 0, &q.array, &a.array, NULL));
            assert_ok(kvc_cache_view(cache, 0, &k, &v));
            assert_ok(kvc_attention_run_kv(plan, &k, &v, &q.array, &b.array, NULL));
            assert_memory_equal(a.memory, b.memory, bytes);
            kvc_array_release(&k);
            kvc_array_release(&v);
        }
        if (growth == KVC_GROW_RESERVE) memcpy(first.memory, a.memory, bytes);
        assert_memory_equal(first.memory, a.memory, bytes);
        kvc_attention_free(plan);
        kvc_cache_free(cache);
        test_tensor_free(&a);
        test_tensor_free(&b);
    }
    test_tensor_free(&first);
    test_tensor_free(&q);
    kvc_pool_free(pool);
}

static void cache__describes_its_layers(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_cache *cache = new_cache(pool, KVC_GROW_CHUNK, 256, KVC_F16, 64);
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_attention_desc_for(&desc, cache, 1));
    assert_int_equal(desc.struct_size, sizeof desc);
    assert_int_equal(desc.batch, 2);
    assert_int_equal(desc.kv_heads, 1);
    assert_int_equal(desc.key_dim, 8);
    assert_int_equal(desc.value_dim, 24);
    assert_int_equal(desc.kv_dtype, KVC_F32);
    assert_int_equal(desc.q_heads, 0);
    assert_fails(kvc_attention_desc_for(&desc, cache, 2), KVC_E_INVALID);
    assert_int_equal(desc.kv_heads, 0);
    assert_fails(kvc_attention_desc_for(&desc, NULL, 0), KVC_E_INVALID);
    assert_fails(kvc_attention_desc_for(NULL, cache, 0), KVC_E_INVALID);
    desc.struct_size = 0;
    assert_fails(kvc_attention_desc_for(&desc, cache, 0), KVC_E_INVALID);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

static void cache__is_refused_where_the_plan_does_not_fit(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_cache *cache = new_cache(pool, KVC_GROW_CHUNK, 256, KVC_F16, 64);
    kvc_attention *plan = new_plan(cache, 4, 1);
    kvc_array q = {.ndim = 0}, out = {.ndim = 0};
    kvc_explanation e = {.struct_size = sizeof e};
    kvc_cuda_report report = {.struct_size = sizeof report};
    assert_fails(kvc_attention_run(plan, cache, 1, &q, &out, NULL), KVC_E_SHAPE);
    assert_contains(kvc_last_error(), "kv_heads 1, key_dim 8, value_dim 24, f32");
    assert_fails(kvc_attention_explain(&e, plan, cache, 1), KVC_E_SHAPE);
    assert_fails(kvc_attention_explain_cuda(&report, plan, cache, 1), KVC_E_SHAPE);
    assert_fails(kvc_attention_run(plan, cache, -1, &q, &out, NULL), KVC_E_INVALID);
    assert_fails(kvc_attention_explain(&e, plan, cache, 2), KVC_E_INVALID);
    assert_fails(kvc_attention_explain_cuda(&report, plan, cache, 2), KVC_E_INVALID);
    assert_fails(kvc_attention_run(plan, NULL, 0, &q, &out, NULL), KVC_E_INVALID);
    assert_fails(kvc_attention_run(NULL, cache, 0, &q, &out, NULL), KVC_E_INVALID);
    assert_fails(kvc_attention_explain_cuda(&report, NULL, cache, 0), KVC_E_INVALID);
    report.struct_size = 0;
    assert_fails(kvc_attention_explain_cuda(&report, plan, cache, 0), KVC_E_INVALID);
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

/* The kernels read through host pointers, and only the cpu's are known to be such. */
static void cache__of_another_device_is_refused(void **state) {
    (void)state;
    kvc_device device = *kvc_device_cpu();
    device.name = "elsewhere";
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, &device));
    kvc_cache *cache = new_cache(pool, KVC_GROW_CHUNK, 256, KVC_F32, 8);
    kvc_attention *plan = new_plan(cache, 2, 1);
    kvc_explanation e = {.struct_size = sizeof e};
    uint64_t seed = 1;
    append(cache, 3, 8, &seed);
    test_tensor q = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 2, 2, 1, 8);
    test_tensor out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 2, 2, 1, 8);
    assert_fails(kvc_attention_run(plan, cache, 0, &q.array, &out.array, NULL), KVC_E_UNSUPPORTED);
    assert_contains(kvc_last_error(), "elsewhere");
    assert_fails(kvc_attention_explain(&e, plan, cache, 0), KVC_E_UNSUPPORTED);
    kvc_array k, v;
    assert_ok(kvc_cache_view(cache, 0, &k, &v));
    assert_fails(kvc_attention_run_kv(plan, &k, &v, &q.array, &out.array, NULL), KVC_E_UNSUPPORTED);
    kvc_array_release(&k);
    kvc_array_release(&v);
    test_tensor_free(&q);
    test_tensor_free(&out);
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

static void cache__is_explained(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_cache *cache = new_cache(pool, KVC_GROW_RESERVE, 256, KVC_F16, 64);
    kvc_attention *plan = new_plan(cache, 8, 1);
    kvc_explanation e = {.struct_size = sizeof e};
    assert_ok(kvc_attention_explain(&e, plan, cache, 0));
    assert_int_equal(e.path, KVC_PATH_FUSED);
    assert_false(e.slow);
    assert_contains(e.reason, "4 query heads");
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

static kvc_cuda_report cuda_report(kvc_growth growth, int64_t chunk, int64_t length,
                                   kvc_dtype dtype, int64_t dim) {
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_cache *cache = new_cache(pool, growth, chunk, dtype, dim);
    kvc_attention *plan = new_plan(cache, 4, 1);
    kvc_cuda_report report = {.struct_size = sizeof report};
    uint64_t seed = 1;
    append(cache, length, dim, &seed);
    assert_ok(kvc_attention_explain_cuda(&report, plan, cache, 0));
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
    return report;
}

static const kvc_cuda_check *failing(const kvc_cuda_report *report) {
    size_t i = 0;
    while (i + 1 < report->count && report->checks[i].ok) i++;
    assert_false(report->checks[i].ok);
    return &report->checks[i];
}

static void cache__is_told_what_it_would_get_on_cuda(void **state) {
    (void)state;
    kvc_cuda_report r = cuda_report(KVC_GROW_CHUNK, 256, 256, KVC_BF16, 64);
    assert_int_equal(r.kernel, KVC_CUDA_CUDNN);
    r = cuda_report(KVC_GROW_RESERVE, 256, 300, KVC_F16, 64);
    assert_int_equal(r.kernel, KVC_CUDA_CUDNN);

    r = cuda_report(KVC_GROW_CHUNK, 256, 255, KVC_BF16, 64);
    assert_int_equal(r.kernel, KVC_CUDA_VECTOR);
    assert_string_equal(failing(&r)->name, "length");

    r = cuda_report(KVC_GROW_CHUNK, 100, 300, KVC_BF16, 64);
    assert_int_equal(r.kernel, KVC_CUDA_VECTOR);
    assert_string_equal(failing(&r)->name, "capacity");
    assert_contains(failing(&r)->remedy, "chunk 100");
    assert_contains(failing(&r)->remedy, "256");

    r = cuda_report(KVC_GROW_EXACT, 256, 300, KVC_BF16, 64);
    assert_string_equal(failing(&r)->name, "capacity");
    assert_contains(failing(&r)->remedy, "exact");

    r = cuda_report(KVC_GROW_CHUNK, 256, 300, KVC_F32, 64);
    assert_string_equal(failing(&r)->name, "dtype");

    r = cuda_report(KVC_GROW_CHUNK, 256, 512, KVC_BF16, 512);
    assert_int_equal(r.kernel, KVC_CUDA_UNFUSED);
    assert_string_equal(failing(&r)->name, "key_dim");
}

/* The pool gives a buffer that is freed and a little too large: MLX would not know the cache. */
static void cache__in_a_reused_buffer_is_told_so(void **state) {
    (void)state;
    const size_t bytes = (size_t)2 * 2 * 256 * 64 * 2; /* batch, kv heads, capacity, dim, bf16 */
    kvc_pool *pool;
    kvc_buffer *larger;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_buffer_new(&larger, pool, bytes + 4096));
    kvc_buffer_release(larger);
    kvc_cache *cache = new_cache(pool, KVC_GROW_CHUNK, 256, KVC_BF16, 64);
    kvc_attention *plan = new_plan(cache, 4, 1);
    kvc_cuda_report report = {.struct_size = sizeof report};
    uint64_t seed = 1;
    append(cache, 256, 64, &seed);
    assert_ok(kvc_attention_explain_cuda(&report, plan, cache, 0));
    assert_int_equal(report.kernel, KVC_CUDA_VECTOR);
    assert_string_equal(failing(&report)->name, "buffer");
    assert_contains(failing(&report)->remedy, "pool");
    kvc_attention_free(plan);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

static void *refuse_to_allocate(void *context, size_t bytes) {
    (void)bytes;
    ++*(int *)context;
    return NULL;
}

static void never_called(void *context, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    ++*(int *)context;
}

/* The run-time of ThreadSanitizer makes system calls of its own. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IS_WATCHED true
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define IS_WATCHED true
#endif
#ifndef IS_WATCHED
#define IS_WATCHED false
#endif

/* In a child that may do nothing but read, write and exit: any other system call kills it. */
static int run_confined(kvc_attention *plan, kvc_cache *cache, const kvc_array *q, kvc_array *out) {
    if (IS_WATCHED) return 77;
    const pid_t child = fork();
    if (child == 0) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(77);
        const kvc_status status = kvc_attention_run(plan, cache, 0, q, out, NULL);
        (void)syscall(SYS_exit, status == KVC_OK ? 0 : 1); /* _exit would call exit_group */
    }
    int status = 0;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void run__allocates_nothing_and_makes_no_system_call(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    kvc_cache *cache = new_cache(pool, KVC_GROW_RESERVE, 256, KVC_BF16, 64);
    uint64_t seed = 1;
    append(cache, 300, 64, &seed);
    test_tensor q = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, 2, 8, 20, 64);
    test_tensor out = test_tensor_new(KVC_BF16, TEST_HEAD_MAJOR, 2, 8, 20, 64);
    test_fill_random(&q.array, 1, &seed);
    for (int path = KVC_PATH_REFERENCE; path <= KVC_PATH_FUSED; path++) {
        kvc_attention_desc desc = {.struct_size = sizeof desc};
        kvc_attention *plan;
        assert_ok(kvc_attention_desc_for(&desc, cache, 0));
        desc.q_heads = 8;
        desc.max_q_len = 20;
        desc.path = (kvc_path)path;
        assert_ok(kvc_attention_plan(&plan, &desc));

        int calls = 0;
        const kvc_allocator none = {refuse_to_allocate, never_called, &calls};
        kvc_allocator_set(&none);
        const kvc_status status = kvc_attention_run(plan, cache, 0, &q.array, &out.array, NULL);
        kvc_allocator_set(NULL);
        assert_ok(status);
        assert_int_equal(calls, 0);

        const int exit_status = run_confined(plan, cache, &q.array, &out.array);
        if (exit_status == 77)
            print_message("skipped in part: nothing to confine a child with here\n");
        else assert_int_equal(exit_status, 0);
        kvc_attention_free(plan);
    }
    test_tensor_free(&q);
    test_tensor_free(&out);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache__gives_what_its_view_gives_under_every_policy),
        cmocka_unit_test(cache__describes_its_layers),
        cmocka_unit_test(cache__is_refused_where_the_plan_does_not_fit),
        cmocka_unit_test(cache__of_another_device_is_refused),
        cmocka_unit_test(cache__is_explained),
        cmocka_unit_test(cache__is_told_what_it_would_get_on_cuda),
        cmocka_unit_test(cache__in_a_reused_buffer_is_told_so),
        cmocka_unit_test(run__allocates_nothing_and_makes_no_system_call),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
