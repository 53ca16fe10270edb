/** @file
 * Attention problems for tests: arrays in several layouts with NaN in every gap, and a comparison
 * of a path with the reference under a stated bound. */
#ifndef KVC_TEST_ATTEND_H
#define KVC_TEST_ATTEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/attention.h>

/** How the elements of [batch][head][position][dim] lie. */
typedef enum test_layout {
    TEST_HEAD_MAJOR = 0,  /**< contiguous */
    TEST_TOKEN_MAJOR = 1, /**< [batch][position][head][dim], as engines produce them */
    TEST_SPARE = 2,       /**< heads with room behind their positions, as a cache has them */
    TEST_SPREAD = 3       /**< two elements from one to the next: no contiguous row */
} test_layout;

/** An array over memory of its own. All that is not an element is NaN. */
typedef struct test_tensor {
    kvc_array array;
    void *memory;
} test_tensor;

/** What a random mask hides. */
typedef enum test_pattern {
    TEST_SCATTERED = 0, /**< every other key or so */
    TEST_RUNS = 1,      /**< runs of keys, some longer than a block */
    TEST_PADDED = 2,    /**< the first keys */
    TEST_WHOLE_ROWS = 3 /**< all keys of some queries, and none of the others */
} test_pattern;

/** A random mask. Zeroed, there is none. */
typedef struct test_mask {
    kvc_dtype dtype; /**< u8, or added to scores */
    test_pattern pattern;
    unsigned once;      /**< bit d: dimension d of four is 1 */
    int ndim;           /**< dimensions given, leading ones left out; 0 means 4 */
    bool stretch;       /**< those of 1 are given their whole extent, with a stride of 0 */
    test_layout layout; /**< of its elements */
} test_mask;

/** What to attend. Zeroed fields mean: batch, heads and queries 1, value_dim as key_dim, f32. */
typedef struct test_case {
    int64_t batch, q_heads, kv_heads, key_dim, value_dim, queries, length;
    kvc_dtype kv_dtype, q_dtype, out_dtype;
    test_layout kv_layout, q_layout, out_layout;
    bool not_causal;
    int64_t window, keep;
    const int64_t *lengths; /**< [batch] positions in use; NULL: length */
    float softcap;
    kvc_dtype sinks, slopes; /**< 0: none */
    test_mask mask;
    float scale;      /**< 0: the default of the library */
    double amplitude; /**< of the elements of q and k; 0 means 1. Those of v are below 1 */
} test_case;

/** A case with its arrays: q, k and v random, out and lse NaN. */
typedef struct test_problem {
    test_case c;
    test_tensor q, k, v, out;
    test_tensor mask;          /**< of four dimensions, if any */
    kvc_array given_mask;      /**< as the run is given it */
    test_tensor sinks, slopes; /**< [q_heads], if any */
    test_tensor lse;           /**< [batch][q_heads][queries], f32 */
    double score_slack;        /**< what scores may be off by besides */
    double value_slack;        /**< what out may be off by besides if one position had all weight */
} test_problem;

/** Setup of a group of tests that kvc_test_each_isa runs: where KVC_ISA names an instruction set
 * that this CPU lacks, ends the program as skipped. Fails where it names none. */
int test_isa_setup(void **state);

/** Makes an array whose elements are NaN too. Rows may end anywhere: only dtypes align. */
test_tensor test_tensor_new(kvc_dtype dtype, test_layout layout, int64_t batch, int64_t heads,
                            int64_t positions, int64_t dim);
void test_tensor_free(test_tensor *tensor);

/** Reads and writes element [b][h][i][d]. */
double test_get(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d);
void test_set(const kvc_array *a, int64_t b, int64_t h, int64_t i, int64_t d, double value);

/** Decodes row [b][h][i]. out: [shape[3]] */
void test_get_row(double *out, const kvc_array *a, int64_t b, int64_t h, int64_t i);

/** Sets every element to a random number in [-amplitude, amplitude). */
void test_fill_random(const kvc_array *a, double amplitude, uint64_t *seed);

/** Tells whether the fused path rounds queries to bf16 for keys and values in this
 * dtype. Those of a test problem are rounded before: the truth is that of what is computed. */
bool test_rounds_to_bf16(kvc_dtype kv_dtype);

test_problem test_problem_new(const test_case *given, uint64_t *seed);
void test_problem_free(test_problem *p);

/** Returns the description of a plan for a problem. */
kvc_attention_desc test_desc(const test_problem *p, kvc_path path);

/** Returns what a run of the problem takes and gives besides. */
kvc_attention_extras test_extras(test_problem *p);

/** Runs a problem on a path, into p->out and p->lse. */
void test_run(const test_problem *p, kvc_path path);

/** As test_run, on an executor. */
void test_run_on(const test_problem *p, kvc_path path, const kvc_executor *executor);

/** Makes the keys and values that no query of their heads sees NaN. */
void test_poison_unseen(const test_problem *p);

/** What is right for a problem, by the formula, in f64, without any code of the library. */
typedef struct test_truth {
    double *out;          /**< [batch][q_heads][queries][value_dim] */
    double *lse;          /**< [batch][q_heads][queries] */
    double largest_score; /**< of those that any query sees, in magnitude */
    double largest_parts; /**< the same of scale · Σ |q| |k|, of which scores are the signed sum */
} test_truth;

test_truth test_truth_new(const test_problem *p);
void test_truth_free(test_truth *truth);

/** Fails, printing the case, when p->out or p->lse are further from the truth than rounding
 * explains: |error| ≤ (2e-6 + 2.5e-7 · largest |score|) · largest |v| + half a unit of out's dtype,
 * and that of the log-sum-exp, 2e-6 + 2.5e-7 · (largest |score| + |lse|).
 * A score is rounded in f32, and that error grows with it. Instruction sets that split queries into
 * two bf16 may be off by another 2^-18 · largest parts of a score, of which rounding a key to bf16
 * takes up to 2^-9. Those that round queries split weights: 2^-17 · largest |v| more. A problem's
 * slack comes on top: of scores, and so twice that · largest |v|, every weight being off by it; and
 * of values, times the largest weight that a position can have. */
void test_compare(const test_problem *p, const test_truth *right);

/** Gives a problem whose keys and values are packed its slack. What products of integers are off by
 * (tile_quant.h): a query or weight is rounded to n times the largest of its group or block, n
 * being 32767 or 127, an error even over (-1/2, 1/2) of that, times (k - c) steps, which are even
 * over (-c, c). Added up over the dims of a key, or over a block of 64 positions, such errors are
 * off by sqrt(count) / (n · sqrt(12)) · c / sqrt(3) steps · largest, and six times as much happens
 * in 10^9 cases once. Many rows are unpacked into f32. */
void test_allow_packed(test_problem *p, int bits, const kvc_array *k_scales,
                       const kvc_array *v_scales);

/** test_compare with the problem's own truth. */
void test_compare_formula(const test_problem *p);

/** Runs a problem on both paths and compares each with the truth; the fused path's result stays. */
void test_compare_paths(const test_problem *p);

/** Tells whether a case of many is left out: of KVC_TEST_ONE_OF one is tried, which is 1 but where
 * the build is slow; and an instruction set with products of bf16 of its own has the loops of the
 * one before for all other rows, whose run tries these. */
bool test_leaves_out(const test_case *c, uint64_t *seed);

/** Checks a case on both paths, and on the fused one by an executor as well, what nobody sees being
 * NaN. */
void test_check(const test_case *c, const kvc_executor *executor, uint64_t *seed);

/** test_isa_setup, and two pools of threads, of 3 and of 7. */
int test_threads_setup(void **state);
int test_threads_teardown(void **state);

/** Returns the executor of the seven threads. */
kvc_executor test_seven_threads(void);

/** test_check on either pool. */
void test_check_threads(const test_case *c, uint64_t *seed);

#endif
