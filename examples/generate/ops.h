/** @file
 * The arithmetic of a Llama layer, over n positions at once; all arrays are contiguous float32. */
#ifndef GENERATE_OPS_H
#define GENERATE_OPS_H

#include <stdint.h>

/** out = x · wᵀ.
 * @param out  [n][rows], written; no overlap with x and w
 * @param x    [n][columns]
 * @param w    [rows][columns], read once for all n positions */
void matmul(float *restrict out, const float *restrict x, const float *restrict w, int64_t n,
            int64_t columns, int64_t rows);

/** out = x / rms(x) · weight, position by position.
 * @param out     [n][dim], written; may be x
 * @param weight  [dim] */
void rms_norm(float *out, const float *x, const float *weight, int64_t n, int64_t dim);

/** Writes the turns of n positions from `start` on: pair i of a head turns by
 * position · 10000^(-2i / head_dim).
 * @param turns  [n][head_dim / 2][2]: cosine and sine, written */
void rope_turns(float *turns, int64_t start, int64_t n, int64_t head_dim);

/** Turns each pair (x[2i], x[2i + 1]) of each head.
 * @param x      [n][heads][head_dim], in place
 * @param turns  as rope_turns writes them */
void rope(float *x, const float *turns, int64_t n, int64_t heads, int64_t head_dim);

/** gate = silu(gate) · up, over count elements. */
void swiglu(float *restrict gate, const float *restrict up, int64_t count);

/** x += y, over count elements. */
void add(float *restrict x, const float *restrict y, int64_t count);

#endif
