/* How runs are divided into parts. */
#include <math.h>
#include <stdlib.h>

#include "attention/schedule.h"
#include "support/support.h"

enum { MOST_BATCH = 64, PART_ROWS = 64 };

/* A run, its schedule, and scratch that ends where the schedule says. */
typedef struct fixture {
    const kvc__job *job;
    kvc__schedule schedule;
    void *scratch;
    kvc__division division;
} fixture;

static fixture divide(const kvc__job *job, int threads) {
    fixture f = {.job = job, .schedule = {.executor = {.threads = threads}, .batch = job->batch}};
    f.schedule.worker_floats = f.schedule.slot_floats = 16;
    assert_ok(kvc__schedule_size(&f.schedule));
    f.scratch = aligned_alloc(64, (f.schedule.bytes + 63) / 64 * 64);
    assert_non_null(f.scratch);
    f.division = kvc__divide(job, &f.schedule, PART_ROWS, f.scratch);
    return f;
}

static int64_t cost_of(const kvc__part *part) {
    return part->end - part->begin;
}

/* A part's place among all: which rows, and where in their order of positions. */
static int64_t rows_of(const fixture *f, const kvc__part *part) {
    return (part->sequence * f->job->kv_heads + part->kv_head) * f->division.row_blocks +
           part->row / PART_ROWS;
}

/* All rows of every sequence and head, each with the positions that they see, once and in order of
 * slots; every slot once. */
static void check(const fixture *f) {
    const kvc__job *job = f->job;
    const int64_t groups = job->batch * job->kv_heads * f->division.row_blocks;
    int64_t *positions = calloc((size_t)groups, sizeof *positions);
    int *slots = calloc((size_t)f->schedule.slots + 1, sizeof *slots);
    int64_t rows = 0;
    assert_true(positions && slots);
    for (int64_t i = 0; i < f->division.parts; i++) {
        const kvc__part part = kvc__division_part(&f->division, i);
        const kvc__range seen = kvc__reach(job, part.sequence, part.row / job->group,
                                           (part.row + part.rows - 1) / job->group);
        assert_in_range(part.sequence, 0, job->batch - 1);
        assert_in_range(part.kv_head, 0, job->kv_heads - 1);
        assert_true(part.begin >= seen.begin && part.begin <= part.end && part.end <= seen.end);
        positions[rows_of(f, &part)] += cost_of(&part);
        if (part.begin == seen.begin && (part.splits == 1 || part.slot == part.first_slot))
            rows += part.rows;
        if (part.splits == 1) continue;
        assert_in_range(part.slot, 0, f->schedule.slots - 1);
        assert_int_equal(slots[part.slot]++, 0);
        assert_int_equal((part.slot - part.first_slot) % part.step, 0);
        assert_in_range((part.slot - part.first_slot) / part.step, 0, part.splits - 1);
        assert_int_equal(f->division.left[part.first_slot], part.splits);
    }
    assert_int_equal(rows, job->batch * job->kv_heads * job->group * job->queries);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t first = g % f->division.row_blocks * PART_ROWS;
        int64_t last = first + PART_ROWS - 1;
        if (last >= job->group * job->queries) last = job->group * job->queries - 1;
        const kvc__range seen = kvc__reach(job, g / f->division.row_blocks / job->kv_heads,
                                           first / job->group, last / job->group);
        assert_int_equal(positions[g], seen.end - seen.begin);
    }
    free(positions);
    free(slots);
}

static void schedule__covers_every_row_and_position_once(void **state) {
    (void)state;
    uint64_t seed = test_seed(61);
    int64_t lengths[MOST_BATCH];
    for (int round = 0; round < 3000; round++) {
        const int64_t longest = 1 + test_below(&seed, test_below(&seed, 2) ? 20000 : 200);
        const kvc__job job = {.batch = 1 + test_below(&seed, MOST_BATCH),
                              .kv_heads = 1 + test_below(&seed, 9),
                              .group = 1 + test_below(&seed, 9),
                              .queries = test_below(&seed, 3) ? 1 : 1 + test_below(&seed, 60),
                              .length = longest,
                              .lengths = test_below(&seed, 4) ? lengths : NULL,
                              .window =
                                  test_below(&seed, 3) ? INT64_MAX : 1 + test_below(&seed, 5000),
                              .causal = test_below(&seed, 4) > 0};
        for (int b = 0; b < MOST_BATCH; b++)
            lengths[b] = test_below(&seed, 5) ? test_below(&seed, longest + 1) : longest * (b % 2);
        fixture f = divide(&job, 1 + (int)test_below(&seed, 20));
        check(&f);
        free(f.scratch);
    }
}

/* How long threads take that each fetch a part when they are done with one, to how long they would
 * if all worked to the end. */
static double time_to_ideal(const fixture *f) {
    int64_t busy[64] = {0}, total = 0, end = 0;
    const int threads = f->schedule.executor.threads;
    for (int64_t i = 0; i < f->division.parts; i++) {
        const kvc__part part = kvc__division_part(&f->division, i);
        int next = 0;
        for (int t = 1; t < threads; t++)
            if (busy[t] < busy[next]) next = t;
        busy[next] += cost_of(&part);
        total += cost_of(&part);
        if (busy[next] > end) end = busy[next];
    }
    return (double)end * threads / (double)total;
}

static void schedule__keeps_threads_busy_to_the_end(void **state) {
    (void)state;
    uint64_t seed = test_seed(62);
    int64_t lengths[16];
    for (int round = 0; round < 300; round++)
        for (int threads = 1; threads <= 16; threads *= 2) {
            const bool one_long = round % 3 == 0;
            const kvc__job job = {.batch = round % 3 == 1 ? 1 : 16,
                                  .kv_heads = 1 + test_below(&seed, 8),
                                  .group = 4,
                                  .queries = 1,
                                  .length = 32000,
                                  .lengths = lengths,
                                  .window = INT64_MAX,
                                  .causal = true};
            for (int b = 0; b < 16; b++)
                lengths[b] = 100 + test_below(&seed, one_long ? 200 : 7901);
            lengths[test_below(&seed, job.batch)] = one_long ? 32000 : 8000;
            fixture f = divide(&job, threads);
            const double ratio = time_to_ideal(&f);
            if (!(ratio <= 1.125))
                fail_msg("%d threads, batch %d, %d heads: %.3f of the ideal time", threads,
                         (int)job.batch, (int)job.kv_heads, ratio);
            free(f.scratch);
        }
}

static void schedule__cuts_nothing_for_one_thread_or_enough_heads(void **state) {
    (void)state;
    const kvc__job job = {.batch = 8,
                          .kv_heads = 8,
                          .group = 4,
                          .queries = 1,
                          .length = 5000,
                          .window = INT64_MAX,
                          .causal = true};
    for (int threads = 1; threads <= 8; threads *= 8) {
        fixture f = divide(&job, threads);
        assert_int_equal(f.division.parts, 8 * 8);
        for (int64_t i = 0; i < f.division.parts; i++)
            assert_int_equal(kvc__division_part(&f.division, i).splits, 1);
        free(f.scratch);
    }
}

static void schedule__hands_out_the_longest_first(void **state) {
    (void)state;
    uint64_t seed = test_seed(63);
    int64_t lengths[16];
    const kvc__job job = {.batch = 16,
                          .kv_heads = 2,
                          .group = 1,
                          .queries = 1,
                          .length = 8000,
                          .lengths = lengths,
                          .window = INT64_MAX,
                          .causal = true};
    for (int b = 0; b < 16; b++) lengths[b] = test_below(&seed, 8001);
    fixture f = divide(&job, 2);
    int64_t before = INT64_MAX;
    for (int64_t i = 0; i < f.division.parts; i++) {
        const kvc__part part = kvc__division_part(&f.division, i);
        assert_true(lengths[part.sequence] - 8000 / 64 - 1 <= before);
        before = lengths[part.sequence];
    }
    free(f.scratch);
}

static void schedule__begins_with_the_rows_that_see_most(void **state) {
    (void)state;
    const kvc__job job = {.batch = 1,
                          .kv_heads = 2,
                          .group = 2,
                          .queries = 500,
                          .length = 500,
                          .window = INT64_MAX,
                          .causal = true};
    fixture f = divide(&job, 2);
    int64_t before = INT64_MAX;
    for (int64_t i = 0; i < f.division.parts; i++) {
        const kvc__part part = kvc__division_part(&f.division, i);
        if (i % f.division.row_blocks == 0) before = INT64_MAX; /* the next head */
        assert_int_equal(part.kv_head, i / f.division.row_blocks);
        assert_true(cost_of(&part) < before);
        before = cost_of(&part);
    }
    free(f.scratch);
}

static void schedule__takes_lengths_that_no_memory_has(void **state) {
    (void)state;
    const int64_t lengths[3] = {INT64_MAX, 0, INT64_MAX - 1};
    const kvc__job job = {.batch = 3,
                          .kv_heads = 3,
                          .group = 2,
                          .queries = 1,
                          .length = INT64_MAX,
                          .lengths = lengths,
                          .window = INT64_MAX,
                          .causal = true};
    for (int threads = 1; threads <= 64; threads *= 4) {
        fixture f = divide(&job, threads);
        assert_true(f.division.parts >= 9);
        free(f.scratch);
    }
}

static void schedule__refuses_scratch_that_no_size_holds(void **state) {
    (void)state;
    kvc__schedule s = {.executor = {.threads = 2}, .batch = INT64_MAX};
    assert_fails(kvc__schedule_size(&s), KVC_E_RANGE);
    s.batch = 1;
    s.slot_floats = SIZE_MAX / 8;
    assert_fails(kvc__schedule_size(&s), KVC_E_RANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule__covers_every_row_and_position_once),
        cmocka_unit_test(schedule__keeps_threads_busy_to_the_end),
        cmocka_unit_test(schedule__cuts_nothing_for_one_thread_or_enough_heads),
        cmocka_unit_test(schedule__hands_out_the_longest_first),
        cmocka_unit_test(schedule__begins_with_the_rows_that_see_most),
        cmocka_unit_test(schedule__takes_lengths_that_no_memory_has),
        cmocka_unit_test(schedule__refuses_scratch_that_no_size_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
