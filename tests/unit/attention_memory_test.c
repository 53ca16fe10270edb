/* Where keys, values, queries and outputs lie: against pages that trap, and off every alignment. */
#include <string.h>

#include "support/attend.h"
#include "support/guarded.h"
#include "support/support.h"

static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};

/* Below, at and beyond a unit of every loader; and those that models use. */
static const int64_t dims[] = {1, 7, 16, 33, 64, 80, 96, 100, 112, 128, 192, 576};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, DIMS = sizeof dims / sizeof *dims };

/* The arrays of a problem, each in memory between pages that trap. */
typedef struct guarded_problem {
    test_problem p;
    guarded memory[4];
} guarded_problem;

/* Places each array `shift` elements behind the page that traps before it, or with its last element
 * that many before the one behind it. Arrays are contiguous. */
static guarded_problem guarded_problem_new(const test_case *c, bool at_end, int64_t shift,
                                           uint64_t *seed) {
    guarded_problem g = {.p = test_problem_new(c, seed)};
    kvc_array *arrays[4] = {&g.p.q.array, &g.p.k.array, &g.p.v.array, &g.p.out.array};
    for (int i = 0; i < 4; i++) {
        const size_t bytes = kvc_array_nbytes(arrays[i]);
        const size_t shift_bytes = (size_t)shift * kvc_dtype_size_bytes(arrays[i]->dtype);
        g.memory[i] = guarded_new(bytes + shift_bytes);
        char *place = guarded_place(&g.memory[i], bytes + shift_bytes, at_end);
        if (!at_end) place += shift_bytes;
        memcpy(place, arrays[i]->data, bytes);
        arrays[i]->data = place;
    }
    return g;
}

static void guarded_problem_free(guarded_problem *g) {
    for (int i = 0; i < 4; i++) guarded_free(&g->memory[i]);
    test_problem_free(&g->p);
}

static void compare_guarded(const test_case *c, bool at_end, int64_t shift, uint64_t *seed) {
    guarded_problem g = guarded_problem_new(c, at_end, shift, seed);
    test_compare_paths(&g.p);
    guarded_problem_free(&g);
}

static void attention__touches_nothing_before_or_behind_its_arrays(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 5, 35, 64, 65};
    uint64_t seed = test_seed(31);
    for (int d = 0; d < DIMS; d++)
        for (int t = 0; t < DTYPES; t++)
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
                const test_case c = {.key_dim = dims[d],
                                     .q_heads = 1 + (int64_t)(test_random(&seed) % 7),
                                     .queries = 1 + (int64_t)(test_random(&seed) % 2),
                                     .length = lengths[n],
                                     .kv_dtype = dtypes[t],
                                     .q_dtype = dtypes[t],
                                     .out_dtype = dtypes[t]};
                compare_guarded(&c, false, 0, &seed);
                compare_guarded(&c, true, 0, &seed);
            }
}

/* One element off, and every other offset within a line of the caches. */
static void attention__takes_arrays_off_any_alignment(void **state) {
    (void)state;
    uint64_t seed = test_seed(32);
    for (int t = 0; t < DTYPES; t++) {
        test_case c = {.q_heads = 5, .length = 70, .kv_dtype = dtypes[t]};
        for (int d = 0; d < DIMS; d++) {
            c.key_dim = dims[d];
            compare_guarded(&c, false, 1, &seed);
            compare_guarded(&c, true, 1, &seed);
        }
        c.key_dim = 64;
        for (int64_t shift = 2; shift < 64 / (int64_t)kvc_dtype_size_bytes(dtypes[t]); shift++)
            compare_guarded(&c, false, shift, &seed);
    }
}

/* Rows one element further apart than they are long, with NaN between: each lies differently. */
static void attention__takes_rows_that_lie_differently_each(void **state) {
    (void)state;
    uint64_t seed = test_seed(33);
    for (int d = 0; d < DIMS; d++)
        for (int t = 0; t < DTYPES; t++) {
            const test_case c = {.key_dim = dims[d],
                                 .q_heads = 6,
                                 .kv_heads = 2,
                                 .queries = 2,
                                 .length = 67,
                                 .kv_dtype = dtypes[t]};
            test_problem p = test_problem_new(&c, &seed);
            test_tensor *sides[] = {&p.k, &p.v};
            for (int i = 0; i < 2; i++) {
                test_tensor_free(sides[i]);
                *sides[i] = test_tensor_new(dtypes[t], TEST_HEAD_MAJOR, 1, 2, 67, dims[d] + 1);
                sides[i]->array.shape[3] = dims[d];
                test_fill_random(&sides[i]->array, 1, &seed);
            }
            test_compare_paths(&p);
            test_problem_free(&p);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention__touches_nothing_before_or_behind_its_arrays),
        cmocka_unit_test(attention__takes_arrays_off_any_alignment),
        cmocka_unit_test(attention__takes_rows_that_lie_differently_each),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
