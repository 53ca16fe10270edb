#include "array/rotate.h"

#include <math.h>

/* Sums and differences of elements `half` apart. */
static void step(float *restrict x, int64_t n, int64_t half) {
    for (int64_t start = 0; start < n; start += 2 * half)
        for (int64_t i = start; i < start + half; i++) {
            const float a = x[i], b = x[i + half];
            x[i] = a + b;
            x[i + half] = a - b;
        }
}

void kvc__rotate(float *x, int64_t dim) {
    const int64_t order = kvc__rotation_order(dim);
    const float scale = (float)(1 / sqrt((double)order));
    for (int64_t half = 1; half < order; half *= 2) step(x, dim, half);
    for (int64_t i = 0; i < dim; i++) x[i] *= scale;
}
