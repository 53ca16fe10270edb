#include "ops.h"

#include <math.h>

/* Four floats in a register on every machine that has such; no more alignment than a float's.
 * Spelled out, as compilers may not reorder a sum of floats to make lanes of it. */
typedef float lanes __attribute__((vector_size(16), aligned(4), may_alias));

enum { LANES = 4, ROWS = 4 };

static float sum(lanes v) {
    return (v[0] + v[1]) + (v[2] + v[3]);
}

static float dot(const float *restrict x, const float *restrict w, int64_t n) {
    float s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i] * w[i];
    return s;
}

/* out[r] = x · w[r], for four rows: each load of x serves four sums. */
static void dot_rows(float *restrict out, const float *restrict x, const float *restrict w,
                     int64_t columns) {
    const float *w0 = w, *w1 = w0 + columns, *w2 = w1 + columns, *w3 = w2 + columns;
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    int64_t i = 0;
    for (; i + LANES <= columns; i += LANES) {
        const lanes xi = *(const lanes *)(x + i);
        s0 += xi * *(const lanes *)(w0 + i);
        s1 += xi * *(const lanes *)(w1 + i);
        s2 += xi * *(const lanes *)(w2 + i);
        s3 += xi * *(const lanes *)(w3 + i);
    }
    const int64_t rest = columns - i;
    out[0] = sum(s0) + dot(x + i, w0 + i, rest);
    out[1] = sum(s1) + dot(x + i, w1 + i, rest);
    out[2] = sum(s2) + dot(x + i, w2 + i, rest);
    out[3] = sum(s3) + dot(x + i, w3 + i, rest);
}

void matmul(float *restrict out, const float *restrict x, const float *restrict w, int64_t n,
            int64_t columns, int64_t rows) {
    int64_t row = 0;
    /* Four rows stay in the nearest cache while all positions pass by. */
    for (; row + ROWS <= rows; row += ROWS)
        for (int64_t p = 0; p < n; p++)
            dot_rows(out + p * rows + row, x + p * columns, w + row * columns, columns);
    for (; row < rows; row++)
        for (int64_t p = 0; p < n; p++)
            out[p * rows + row] = dot(x + p * columns, w + row * columns, columns);
}

void rms_norm(float *out, const float *x, const float *weight, int64_t n, int64_t dim) {
    for (int64_t p = 0; p < n; p++, x += dim, out += dim) {
        const float scale = 1.0f / sqrtf(dot(x, x, dim) / (float)dim + 1e-5f);
        for (int64_t i = 0; i < dim; i++) out[i] = weight[i] * (scale * x[i]);
    }
}

void rope_turns(float *turns, int64_t start, int64_t n, int64_t head_dim) {
    for (int64_t i = 0; i < head_dim / 2; i++) {
        const float frequency = 1.0f / powf(10000.0f, (float)(2 * i) / (float)head_dim);
        for (int64_t p = 0; p < n; p++) {
            const float angle = (float)(start + p) * frequency;
            turns[p * head_dim + 2 * i] = cosf(angle);
            turns[p * head_dim + 2 * i + 1] = sinf(angle);
        }
    }
}

void rope(float *x, const float *turns, int64_t n, int64_t heads, int64_t head_dim) {
    for (int64_t p = 0; p < n; p++, turns += head_dim) {
        for (int64_t h = 0; h < heads; h++, x += head_dim) {
            for (int64_t i = 0; i < head_dim; i += 2) {
                const float a = x[i], b = x[i + 1], c = turns[i], s = turns[i + 1];
                x[i] = a * c - b * s;
                x[i + 1] = a * s + b * c;
            }
        }
    }
}

void swiglu(float *restrict gate, const float *restrict up, int64_t count) {
    for (int64_t i = 0; i < count; i++) gate[i] *= up[i] / (1.0f + expf(-gate[i]));
}

void add(float *restrict x, const float *restrict y, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] += y[i];
}
