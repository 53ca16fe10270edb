/** @file
 * The rotation of rows before they are packed: a Hadamard matrix, times 1 / sqrt of its order, so
 * that it is orthonormal and its own inverse. Rows of other lengths have it several times along
 * their diagonal.
 * @source QuIP# (randomized there, with signs), QuaRot */
#ifndef KVC_ARRAY_ROTATE_H
#define KVC_ARRAY_ROTATE_H

#include <stdint.h>

/** The largest order: so many elements are rotated together at most. */
#define KVC__ROTATION_MOST 1024

/** Returns how many elements of a row are rotated together: the largest power of two that divides
 * its dim, up to KVC__ROTATION_MOST. */
static inline int64_t kvc__rotation_order(int64_t dim) {
    const int64_t order = dim & -dim;
    return order < KVC__ROTATION_MOST ? order : KVC__ROTATION_MOST;
}

/** Rotates a row in place: O(dim · log order). Twice gives the row again, but for rounding. A NaN
 * or an infinity makes NaN or infinities of all that is rotated with it. */
void kvc__rotate(float *x, int64_t dim);

#endif
