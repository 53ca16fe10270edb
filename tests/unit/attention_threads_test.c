/* Attention in parts: shared by threads, or by whatever the caller calls an executor. */
#include <math.h>
#include <string.h>

#include <kvcache/executor.h>

#include "support/attend.h"
#include "support/support.h"

/* The caller's own executor: one thread, last part first. */
static void run_backwards(void *context, int64_t count, kvc_task_fn task, void *argument) {
    int64_t *parts = context;
    for (int64_t i = count - 1; i >= 0; i--) task(argument, i, 0);
    *parts += count;
}

static void run_with(test_problem *p, const kvc_executor *executor) {
    test_run_on(p, KVC_PATH_FUSED, executor);
}

static int64_t size_of(const test_problem *p) {
    return p->c.batch * p->c.q_heads * p->c.queries * (p->c.value_dim + 1);
}

/* Elements in row-major order, each row's log-sum-exp behind it. */
static void read_out(const test_problem *p, double *out) {
    const test_case *c = &p->c;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++) {
                for (int64_t d = 0; d < c->value_dim; d++)
                    *out++ = test_get(&p->out.array, b, h, i, d);
                *out++ = test_get(&p->lse.array, b, h, i, 0);
            }
}

enum { MOST = 1 << 15 };

/* Runs on 1, 2, 3 and 7 threads and backwards: the same to 1e-6, and right by the reference. */
static void compare_threads(const test_case *c, uint64_t *seed) {
    static double alone[MOST], shared[MOST];
    test_problem p = test_problem_new(c, seed);
    assert_true(size_of(&p) <= MOST);
    test_compare_paths(&p);
    run_with(&p, NULL);
    read_out(&p, alone);
    for (int threads = 0; threads <= 7; threads = threads == 3 ? 7 : threads + 1) {
        kvc_threads *pool = NULL;
        int64_t parts = 0;
        kvc_executor executor = {sizeof executor, &parts, 1, run_backwards};
        if (threads > 0) {
            assert_ok(kvc_threads_new(&pool, threads));
            executor = kvc_threads_executor(pool);
        }
        run_with(&p, &executor);
        read_out(&p, shared);
        for (int64_t i = 0; i < size_of(&p); i++)
            if (shared[i] != alone[i] &&
                !(fabs(shared[i] - alone[i]) <= 1e-6 * fmax(1, fabs(alone[i]))))
                fail_msg("%d threads: element %lld is %.9g, alone %.9g", threads, (long long)i,
                         shared[i], alone[i]);
        if (threads == 0) assert_true(parts >= p.c.batch * p.c.kv_heads);
        kvc_threads_free(pool);
    }
    test_problem_free(&p);
}

static void threads__give_the_same_for_one_long_sequence(void **state) {
    (void)state;
    uint64_t seed = test_seed(21);
    for (int dtype = KVC_F32; dtype <= KVC_BF16; dtype++)
        for (int64_t length = 1; length < 3000; length = length * 3 + 7) {
            const test_case c = {.q_heads = 4,
                                 .key_dim = 64,
                                 .value_dim = 48,
                                 .length = length,
                                 .kv_dtype = (kvc_dtype)dtype};
            compare_threads(&c, &seed);
        }
}

static void threads__give_the_same_for_many_heads_and_queries(void **state) {
    (void)state;
    uint64_t seed = test_seed(22);
    for (int i = 0; i < 12; i++) {
        const int64_t kv_heads = 1 + (int64_t)(test_random(&seed) % 4);
        const test_case c = {.batch = 1 + (int64_t)(test_random(&seed) % 3),
                             .q_heads = kv_heads * (1 + (int64_t)(test_random(&seed) % 5)),
                             .kv_heads = kv_heads,
                             .key_dim = 1 + (int64_t)(test_random(&seed) % 40),
                             .queries = 1 + (int64_t)(test_random(&seed) % 20),
                             .length = 1 + (int64_t)(test_random(&seed) % 400),
                             .not_causal = i % 4 == 0,
                             .kv_dtype = (kvc_dtype)(KVC_F32 + i % 3)};
        compare_threads(&c, &seed);
    }
}

/* Of 9 queries over 4 keys the first five see none: in every range of positions, or in some. */
static void threads__keep_rows_that_see_nothing_at_zero(void **state) {
    (void)state;
    uint64_t seed = test_seed(23);
    const test_case c = {.key_dim = 8, .queries = 9, .length = 4};
    test_problem p = test_problem_new(&c, &seed);
    kvc_threads *pool;
    assert_ok(kvc_threads_new(&pool, 2));
    const kvc_executor executor = kvc_threads_executor(pool);
    run_with(&p, &executor);
    for (int64_t i = 0; i < 9; i++)
        for (int64_t d = 0; d < 8; d++)
            assert_true((test_get(&p.out.array, 0, 0, i, d) == 0) == (i < 5));
    kvc_threads_free(pool);
    test_problem_free(&p);
}

/* A NaN that only the last query sees lies in one range of positions. */
static void threads__show_nan_to_those_who_see_it(void **state) {
    (void)state;
    uint64_t seed = test_seed(24);
    const test_case c = {.key_dim = 8, .queries = 3, .length = 900};
    test_problem p = test_problem_new(&c, &seed);
    kvc_threads *pool;
    assert_ok(kvc_threads_new(&pool, 3));
    const kvc_executor executor = kvc_threads_executor(pool);
    test_set(&p.v.array, 0, 0, 899, 2, (double)NAN);
    run_with(&p, &executor);
    for (int64_t i = 0; i < 3; i++)
        assert_true(isnan(test_get(&p.out.array, 0, 0, i, 2)) == (i == 2));
    kvc_threads_free(pool);
    test_problem_free(&p);
}

static void plan__gives_the_same_bits_on_every_run(void **state) {
    (void)state;
    static double first[MOST], again[MOST];
    uint64_t seed = test_seed(25);
    const test_case c = {.q_heads = 2, .key_dim = 32, .length = 2000, .kv_dtype = KVC_F16};
    test_problem p = test_problem_new(&c, &seed);
    kvc_threads *pool;
    assert_ok(kvc_threads_new(&pool, 3));
    const kvc_executor executor = kvc_threads_executor(pool);
    run_with(&p, &executor);
    read_out(&p, first);
    for (int i = 0; i < 50; i++) {
        run_with(&p, &executor);
        read_out(&p, again);
        assert_memory_equal(first, again, (size_t)size_of(&p) * sizeof *first);
    }
    kvc_threads_free(pool);
    test_problem_free(&p);
}

static void plan__refuses_an_executor_that_cannot_run(void **state) {
    (void)state;
    uint64_t seed = 1;
    int64_t parts = 0;
    const kvc_executor wrong[] = {{0, &parts, 1, run_backwards},
                                  {sizeof(kvc_executor), &parts, 0, run_backwards},
                                  {sizeof(kvc_executor), &parts, -2, run_backwards},
                                  {sizeof(kvc_executor), &parts, 2, NULL}};
    const test_case c = {.key_dim = 8, .length = 4};
    test_problem p = test_problem_new(&c, &seed);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
        kvc_attention *plan;
        desc.executor = &wrong[i];
        assert_fails(kvc_attention_plan(&plan, &desc), KVC_E_INVALID);
        assert_null(plan);
        assert_non_null(strstr(kvc_last_error(), "executor"));
    }
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads__give_the_same_for_one_long_sequence),
        cmocka_unit_test(threads__give_the_same_for_many_heads_and_queries),
        cmocka_unit_test(threads__keep_rows_that_see_nothing_at_zero),
        cmocka_unit_test(threads__show_nan_to_those_who_see_it),
        cmocka_unit_test(plan__gives_the_same_bits_on_every_run),
        cmocka_unit_test(plan__refuses_an_executor_that_cannot_run),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
