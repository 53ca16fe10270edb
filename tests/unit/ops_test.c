#include <math.h>
#include <stdlib.h>

#include "generate/ops.h"
#include "support/support.h"

static float random_float(uint64_t *random) {
    return (float)(test_random(random) % 2001) / 1000 - 1;
}

static float *make_floats(int64_t count, uint64_t *random) {
    float *out = malloc((size_t)count * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < count; i++) out[i] = random_float(random);
    return out;
}

static void ops__matmul_is_right_at_every_remainder(void **state) {
    (void)state;
    uint64_t random = test_seed(11);
    for (int64_t n = 1; n <= 3; n++) {
        for (int64_t columns = 1; columns <= 13; columns++) {
            for (int64_t rows = 1; rows <= 9; rows++) {
                float *x = make_floats(n * columns, &random);
                float *w = make_floats(rows * columns, &random);
                float *out = make_floats(n * rows, &random);
                matmul(out, x, w, n, columns, rows);
                for (int64_t p = 0; p < n; p++) {
                    for (int64_t r = 0; r < rows; r++) {
                        double sum = 0;
                        for (int64_t i = 0; i < columns; i++)
                            sum += (double)x[p * columns + i] * (double)w[r * columns + i];
                        assert_float_equal(out[p * rows + r], sum, 1e-5);
                    }
                }
                free(x);
                free(w);
                free(out);
            }
        }
    }
}

static void ops__rms_norm_takes_each_position_by_itself(void **state) {
    (void)state;
    float x[] = {3, 4, 0, 0, -1, -1, -1, -1};
    const float weight[] = {1, 2, 1, 1};
    rms_norm(x, x, weight, 2, 4);
    const float wanted[] = {1.2f, 3.2f, 0, 0, -1, -2, -1, -1};
    for (int i = 0; i < 8; i++) assert_float_equal(x[i], wanted[i], 1e-4);
}

static void ops__rope_turns_pairs_by_their_position(void **state) {
    (void)state;
    enum { N = 3, HEADS = 2, HEAD = 4, START = 5 };
    uint64_t random = test_seed(12);
    float turns[N * HEAD], x[N * HEADS * HEAD], before[N * HEADS * HEAD];
    for (int i = 0; i < N * HEADS * HEAD; i++) before[i] = x[i] = random_float(&random);
    rope_turns(turns, START, N, HEAD);
    rope(x, turns, N, HEADS, HEAD);
    for (int i = 0; i < N * HEADS * HEAD; i += 2) {
        const int position = START + i / (HEADS * HEAD);
        const double angle = position * pow(10000, -(double)(i % HEAD) / HEAD);
        const double a = (double)before[i], b = (double)before[i + 1];
        assert_float_equal(x[i], (a * cos(angle) - b * sin(angle)), 1e-5);
        assert_float_equal(x[i + 1], (a * sin(angle) + b * cos(angle)), 1e-5);
    }
}

static void ops__swiglu_and_add_take_element_by_element(void **state) {
    (void)state;
    float gate[] = {0, 1, -1, 20}, x[] = {1, 2, 3, 4};
    const float up[] = {5, 2, 2, -1};
    swiglu(gate, up, 4);
    const float wanted[] = {0, 1.4621172f, -0.5378828f, -20};
    for (int i = 0; i < 4; i++) assert_float_equal(gate[i], wanted[i], 1e-5);
    add(x, up, 4);
    assert_float_equal(x[0], 6, 0);
    assert_float_equal(x[3], 3, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops__matmul_is_right_at_every_remainder),
        cmocka_unit_test(ops__rms_norm_takes_each_position_by_itself),
        cmocka_unit_test(ops__rope_turns_pairs_by_their_position),
        cmocka_unit_test(ops__swiglu_and_add_take_element_by_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
