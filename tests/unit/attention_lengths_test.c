/* Batches whose sequences differ in length: each path, alone and in parts, against the formula. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvcache/executor.h>

#include "support/attend.h"
#include "support/support.h"

enum { BATCH = 16, MOST = 1 << 15, THREADS = 7 };

static kvc_threads *pools[THREADS + 1]; /* by their threads; NULL where none is used */

static int set_up(void **state) {
    if (test_isa_setup(state)) return 1;
    for (int n = 2; n <= THREADS; n = n == 3 ? THREADS : n + 1)
        if (kvc_threads_new(&pools[n], n) != KVC_OK) return -1;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int n = 0; n <= THREADS; n++) kvc_threads_free(pools[n]);
    return 0;
}

/* The caller's own executors: one thread that says it is several, and takes parts in an order of
 * its own. */
static void run_backwards(void *context, int64_t count, kvc_task_fn task, void *argument) {
    const int *threads = context;
    for (int64_t i = count - 1; i >= 0; i--) task(argument, i, (int)(i % *threads));
}

static void run_shuffled(void *context, int64_t count, kvc_task_fn task, void *argument) {
    static int64_t order[1 << 14];
    static uint64_t seed = 1;
    const int *threads = context;
    assert_true(count <= 1 << 14);
    for (int64_t i = 0; i < count; i++) { /* each goes in at a random place */
        const int64_t at = test_below(&seed, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (int64_t i = 0; i < count; i++) task(argument, order[i], (int)test_below(&seed, *threads));
}

static int64_t rows_of(const test_problem *p) {
    return p->c.batch * p->c.q_heads * p->c.queries;
}

static int64_t results_of(const test_problem *p) {
    return rows_of(p) * (p->c.value_dim + 1);
}

/* Elements in row-major order, after each row its log-sum-exp. */
static void read_results(const test_problem *p, double *to) {
    const test_case *c = &p->c;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->q_heads; h++)
            for (int64_t i = 0; i < c->queries; i++) {
                for (int64_t d = 0; d < c->value_dim; d++)
                    *to++ = test_get(&p->out.array, b, h, i, d);
                *to++ = test_get(&p->lse.array, b, h, i, 0);
            }
}

static void poison_results(const test_problem *p) {
    const test_case *c = &p->c;
    for (int64_t row = 0; row < rows_of(p); row++) {
        const int64_t i = row % c->queries, h = row / c->queries % c->q_heads;
        const int64_t b = row / c->queries / c->q_heads;
        for (int64_t d = 0; d < c->value_dim; d++) test_set(&p->out.array, b, h, i, d, (double)NAN);
        test_set(&p->lse.array, b, h, i, 0, (double)NAN);
    }
}

/* To within bound, or for a log-sum-exp above 1 that part of it. */
static void assert_same(const double *given, const double *wanted, int64_t count, double bound) {
    for (int64_t n = 0; n < count; n++)
        if (!(given[n] == wanted[n] ||
              fabs(given[n] - wanted[n]) <= bound * fmax(1, fabs(wanted[n]))))
            fail_msg("result %lld is %.9g, not %.9g", (long long)n, given[n], wanted[n]);
}

/* On both paths right by the formula, and the same to 1e-6 on every executor. What no query sees is
 * NaN. */
static void check(const test_case *c, uint64_t *seed) {
    static double alone[MOST], shared[MOST];
    test_problem p = test_problem_new(c, seed);
    assert_true(results_of(&p) <= MOST);
    test_poison_unseen(&p);
    test_run(&p, KVC_PATH_REFERENCE);
    test_compare_formula(&p);
    poison_results(&p);
    test_run(&p, KVC_PATH_FUSED);
    test_compare_formula(&p);
    read_results(&p, alone);
    int few = 3, many = 64; /* the more there are, the shorter the parts */
    kvc_executor executors[5] = {{sizeof(kvc_executor), &few, few, run_backwards},
                                 {sizeof(kvc_executor), &many, many, run_shuffled}};
    for (int i = 2; i < 5; i++) executors[i] = kvc_threads_executor(pools[i < 4 ? i : THREADS]);
    for (int i = 0; i < 5; i++) {
        poison_results(&p);
        test_run_on(&p, KVC_PATH_FUSED, &executors[i]);
        read_results(&p, shared);
        assert_same(shared, alone, results_of(&p), 1e-6);
    }
    test_problem_free(&p);
}

static const int64_t edges[] = {0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 200};
enum { EDGES = sizeof edges / sizeof *edges };

static void lengths__around_every_edge_are_attended_exactly(void **state) {
    (void)state;
    uint64_t seed = test_seed(41);
    int64_t lengths[BATCH];
    for (int64_t group = 1; group <= 8; group++)
        for (int64_t queries = 1; queries <= 5; queries++) {
            const test_case c = {.batch = 1 + test_below(&seed, 5),
                                 .q_heads = group,
                                 .kv_heads = 1,
                                 .key_dim = 1 + test_below(&seed, 20),
                                 .queries = queries,
                                 .length = 200,
                                 .lengths = lengths,
                                 .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                                 .not_causal = test_below(&seed, 4) == 0};
            for (int b = 0; b < BATCH; b++) lengths[b] = edges[test_below(&seed, EDGES)];
            check(&c, &seed);
        }
}

static void lengths__of_large_batches_are_attended_exactly(void **state) {
    (void)state;
    static const kvc_dtype masks[4] = {0, KVC_U8, 0, KVC_F16};
    uint64_t seed = test_seed(42);
    int64_t lengths[BATCH];
    for (int64_t batch = 1; batch <= BATCH; batch++) {
        const bool causal = test_below(&seed, 4) > 0;
        const test_case c = {
            .batch = batch,
            .q_heads = 4,
            .kv_heads = 2,
            .key_dim = 16,
            .value_dim = 24,
            .queries = 1 + test_below(&seed, 3),
            .length = 300,
            .lengths = lengths,
            .window = causal && test_below(&seed, 3) == 0 ? 1 + test_below(&seed, 150) : 0,
            .softcap = test_below(&seed, 3) ? 0 : 2,
            .sinks = (kvc_dtype)test_below(&seed, 4),
            .slopes = (kvc_dtype)test_below(&seed, 4),
            .mask = {.dtype = masks[test_below(&seed, 4)],
                     .pattern = (test_pattern)test_below(&seed, 4)},
            .kv_layout = (test_layout)test_below(&seed, 3),
            .not_causal = !causal};
        for (int b = 0; b < BATCH; b++) lengths[b] = test_below(&seed, 301);
        check(&c, &seed);
    }
}

/* The long one is cut, the others are not; wherever it stands. */
static void lengths__of_one_long_sequence_among_short_ones(void **state) {
    (void)state;
    uint64_t seed = test_seed(43);
    int64_t lengths[BATCH];
    for (int64_t at = 0; at < BATCH; at += 5) {
        const test_case c = {.batch = BATCH,
                             .q_heads = 3,
                             .kv_heads = 1,
                             .key_dim = 8,
                             .length = 2500,
                             .lengths = lengths};
        for (int b = 0; b < BATCH; b++) lengths[b] = b == at ? 2500 : test_below(&seed, 20);
        check(&c, &seed);
    }
}

/* More rows than are worked on together, so that they are cut too. */
static void lengths__of_prompts_are_attended_exactly(void **state) {
    (void)state;
    uint64_t seed = test_seed(44);
    int64_t lengths[3];
    for (int round = 0; round < 6; round++) {
        const test_case c = {.batch = 3,
                             .q_heads = 8,
                             .kv_heads = 1 + round % 2,
                             .key_dim = 8,
                             .queries = 30 + test_below(&seed, 40),
                             .length = 400,
                             .lengths = lengths,
                             .not_causal = round == 5};
        for (int b = 0; b < 3; b++) lengths[b] = test_below(&seed, b == 1 ? 30 : 401);
        check(&c, &seed);
    }
}

static void lengths__of_zero_give_zeros(void **state) {
    (void)state;
    uint64_t seed = test_seed(45);
    const int64_t lengths[3] = {0, 0, 0};
    for (int i = KVC_PATH_REFERENCE; i <= KVC_PATH_FUSED; i++) {
        const test_case c = {.batch = 3, .key_dim = 8, .length = 9, .lengths = lengths};
        const kvc_executor executor = kvc_threads_executor(pools[2]);
        test_problem p = test_problem_new(&c, &seed);
        test_poison_unseen(&p);
        test_run_on(&p, (kvc_path)i, &executor);
        for (int64_t b = 0; b < 3; b++) {
            assert_true(test_get(&p.lse.array, b, 0, 0, 0) == -(double)INFINITY);
            for (int64_t d = 0; d < 8; d++) {
                const double x = test_get(&p.out.array, b, 0, 0, d);
                assert_true(x == 0 && !signbit(x));
            }
        }
        test_problem_free(&p);
    }
}

/* Sequences in a range of their own each, in which only the pages in use can be read. */
static void lengths__keep_runs_from_the_pages_behind(void **state) {
    (void)state;
    enum { DIM = 32, SEQUENCES = 6, REGION = 4 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), row = DIM * sizeof(float);
    const int64_t rows = (int64_t)(page / row); /* of a page */
    const int64_t lengths[SEQUENCES] = {rows, 0, 3 * rows, 2 * rows, REGION * rows, 0};
    const size_t bytes = SEQUENCES * REGION * page;
    uint64_t seed = test_seed(46);
    void *maps[2];
    const test_case c = {.batch = SEQUENCES,
                         .q_heads = 2,
                         .kv_heads = 1,
                         .key_dim = DIM,
                         .queries = 2,
                         .length = REGION * rows,
                         .lengths = lengths};
    test_problem p = test_problem_new(&c, &seed);
    kvc_array *const sides[2] = {&p.k.array, &p.v.array};
    for (int i = 0; i < 2; i++) {
        maps[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(maps[i] != MAP_FAILED);
        memcpy(maps[i], sides[i]->data, bytes);
    }
    test_run(&p, KVC_PATH_REFERENCE);
    static double right[MOST], given[MOST];
    read_results(&p, right);
    for (int i = 0; i < 2; i++) {
        sides[i]->data = maps[i];
        for (size_t b = 0; b < SEQUENCES; b++) {
            const size_t used = (size_t)lengths[b] * row;
            if (used < REGION * page)
                assert_int_equal(mprotect((char *)maps[i] + b * REGION * page + used,
                                          REGION * page - used, PROT_NONE),
                                 0);
        }
    }
    for (int turn = 0; turn < 3; turn++) {
        const kvc_executor executor = kvc_threads_executor(pools[3]);
        poison_results(&p);
        test_run_on(&p, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE, turn == 2 ? &executor : NULL);
        read_results(&p, given);
        assert_same(given, right, results_of(&p), 5e-6);
    }
    for (int i = 0; i < 2; i++) (void)munmap(maps[i], bytes);
    test_problem_free(&p);
}

static void lengths__give_the_same_bits_on_every_run(void **state) {
    (void)state;
    static double first[MOST], again[MOST];
    uint64_t seed = test_seed(47);
    const int64_t lengths[4] = {1500, 3, 700, 64};
    const test_case c = {.batch = 4,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .key_dim = 32,
                         .length = 1500,
                         .lengths = lengths,
                         .kv_dtype = KVC_F16};
    test_problem p = test_problem_new(&c, &seed);
    const kvc_executor threads = kvc_threads_executor(pools[3]);
    int three = 3;
    const kvc_executor own[2] = {{sizeof(kvc_executor), &three, three, run_backwards},
                                 {sizeof(kvc_executor), &three, three, run_shuffled}};
    test_run_on(&p, KVC_PATH_FUSED, &threads);
    read_results(&p, first);
    for (int i = 0; i < 60; i++) { /* whoever runs the parts of three threads, in any order */
        poison_results(&p);
        test_run_on(&p, KVC_PATH_FUSED, i % 3 ? &own[i % 3 - 1] : &threads);
        read_results(&p, again);
        assert_memory_equal(first, again, (size_t)results_of(&p) * sizeof *first);
    }
    test_problem_free(&p);
}

/* One plan, as lengths change from run to run: what an earlier run left in scratch has no say. */
static void lengths__may_change_from_run_to_run(void **state) {
    (void)state;
    uint64_t seed = test_seed(48);
    int64_t lengths[5];
    const test_case c = {.batch = 5,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .key_dim = 8,
                         .queries = 4,
                         .length = 700,
                         .lengths = lengths};
    test_problem p = test_problem_new(&c, &seed);
    kvc_executor executor = kvc_threads_executor(pools[2]);
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_FUSED);
    kvc_attention *plan;
    desc.executor = &executor;
    assert_ok(kvc_attention_plan(&plan, &desc));
    for (int round = 0; round < 40; round++) {
        for (int b = 0; b < 5; b++) lengths[b] = test_below(&seed, 3) ? test_below(&seed, 701) : 0;
        p.c.queries = 1 + test_below(&seed, 4);
        p.q.array.shape[2] = p.out.array.shape[2] = p.lse.array.shape[2] = p.c.queries;
        poison_results(&p);
        const kvc_attention_extras extras = test_extras(&p);
        assert_ok(
            kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &p.out.array, &extras));
        test_compare_formula(&p);
    }
    kvc_attention_free(plan);
    test_problem_free(&p);
}

static void lengths__outside_the_positions_are_refused(void **state) {
    (void)state;
    uint64_t seed = test_seed(49);
    const int64_t wrong[][3] = {{9, 10, 9}, {9, 9, -1}, {INT64_MAX, 0, 0}, {0, INT64_MIN, 0}};
    const char *names[] = {"lengths[1]: 10 given, 0 to 9", "lengths[2]: -1", "lengths[0]",
                           "lengths[1]"};
    for (int i = KVC_PATH_REFERENCE; i <= KVC_PATH_FUSED; i++)
        for (int j = 0; j < 4; j++) {
            const test_case c = {.batch = 3, .key_dim = 8, .length = 9, .lengths = wrong[j]};
            test_problem p = test_problem_new(&c, &seed);
            const kvc_attention_desc desc = test_desc(&p, (kvc_path)i);
            const kvc_attention_extras extras = test_extras(&p);
            kvc_attention *plan;
            assert_ok(kvc_attention_plan(&plan, &desc));
            assert_fails(kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array,
                                              &p.out.array, &extras),
                         KVC_E_RANGE);
            assert_non_null(strstr(kvc_last_error(), names[j]));
            assert_true(isnan(test_get(&p.out.array, 0, 0, 0, 0)));
            assert_true(isnan(test_get(&p.lse.array, 0, 0, 0, 0)));
            kvc_attention_free(plan);
            test_problem_free(&p);
        }
}

static void lengths__count_in_the_bytes_that_runs_attend_over(void **state) {
    (void)state;
    uint64_t seed = test_seed(50);
    const int64_t lengths[3] = {7, 0, 100};
    const test_case c = {.batch = 3,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .key_dim = 8,
                         .value_dim = 6,
                         .length = 100,
                         .lengths = lengths,
                         .kv_dtype = KVC_F16};
    for (int i = KVC_PATH_REFERENCE; i <= KVC_PATH_FUSED; i++) {
        test_problem p = test_problem_new(&c, &seed);
        const kvc_attention_desc desc = test_desc(&p, (kvc_path)i);
        const kvc_attention_extras extras = test_extras(&p);
        kvc_attention_stats stats = {.struct_size = sizeof stats};
        kvc_attention *plan;
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(
            kvc_attention_run_kv(plan, &p.k.array, &p.v.array, &p.q.array, &p.out.array, &extras));
        assert_ok(kvc_attention_stats_get(plan, &stats));
        assert_int_equal(stats.kv_bytes, 107 * 2 * (8 + 6) * 2);
        kvc_attention_free(plan);
        test_problem_free(&p);
    }
}

/* A cache has the length of its longest sequence. */
static void lengths__of_a_cache_are_those_of_its_view(void **state) {
    (void)state;
    enum { DIM = 16, POSITIONS = 150 };
    uint64_t seed = test_seed(51);
    const int64_t lengths[3] = {150, 11, 64}, beyond[3] = {150, 151, 64};
    const test_case c = {.batch = 3,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .key_dim = DIM,
                         .length = POSITIONS,
                         .lengths = lengths};
    test_problem p = test_problem_new(&c, &seed);
    test_poison_unseen(&p);
    const kvc_layer_spec spec = {.kv_heads = 2, .key_dim = DIM, .dtype = KVC_F32};
    const kvc_cache_desc cache_desc = {.struct_size = sizeof cache_desc,
                                       .layers = 1,
                                       .specs = &spec,
                                       .spec_count = 1,
                                       .batch = 3,
                                       .growth = KVC_GROW_CHUNK};
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_attention *plan;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&cache, pool, &cache_desc));
    assert_ok(kvc_cache_append(cache, 0, &p.k.array, &p.v.array));
    for (int i = KVC_PATH_REFERENCE; i <= KVC_PATH_FUSED; i++) {
        const kvc_attention_desc desc = test_desc(&p, (kvc_path)i);
        kvc_attention_extras extras = test_extras(&p);
        poison_results(&p);
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out.array, &extras));
        test_compare_formula(&p);
        extras.lengths = beyond;
        assert_fails(kvc_attention_run(plan, cache, 0, &p.q.array, &p.out.array, &extras),
                     KVC_E_RANGE);
        kvc_attention_free(plan);
    }
    kvc_cache_free(cache);
    kvc_pool_free(pool);
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths__around_every_edge_are_attended_exactly),
        cmocka_unit_test(lengths__of_large_batches_are_attended_exactly),
        cmocka_unit_test(lengths__of_one_long_sequence_among_short_ones),
        cmocka_unit_test(lengths__of_prompts_are_attended_exactly),
        cmocka_unit_test(lengths__of_zero_give_zeros),
        cmocka_unit_test(lengths__keep_runs_from_the_pages_behind),
        cmocka_unit_test(lengths__give_the_same_bits_on_every_run),
        cmocka_unit_test(lengths__may_change_from_run_to_run),
        cmocka_unit_test(lengths__outside_the_positions_are_refused),
        cmocka_unit_test(lengths__count_in_the_bytes_that_runs_attend_over),
        cmocka_unit_test(lengths__of_a_cache_are_those_of_its_view),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
