/** @file
 * Arrays from numbers and back, element by element through strides, so that no operation under test
 * is needed to look at another's result. For memory that the host can read. */
#ifndef KVC_TEST_ARRAYS_H
#define KVC_TEST_ARRAYS_H

#include <kvcache/array.h>

#include "support/support.h"

/** A list of positions or extents. */
#define I64(...) ((const int64_t[]){__VA_ARGS__})

/** A list of values. */
#define F64(...) ((const double[]){__VA_ARGS__})

/** Makes an array of values, in row-major order. */
kvc_array array_of(kvc_pool *pool, kvc_dtype dtype, int ndim, const int64_t *shape,
                   const double *values);

/** Makes an array of 0, 1, 2, … in row-major order. */
kvc_array array_counting(kvc_pool *pool, kvc_dtype dtype, int ndim, const int64_t *shape);

/** Returns where the element lies that is the nth in row-major order. */
char *array_element(const kvc_array *array, int64_t nth);

/** Returns the value of the nth element. */
double array_value(const kvc_array *array, int64_t nth);

/** Fails unless the array has this shape and these values; NaN equals NaN. */
void array_expect(const kvc_array *array, int ndim, const int64_t *shape, const double *values);

/** Fails unless the array is zeroed, as an output is after an error. */
void array_expect_none(const kvc_array *array);

/** Returns a slice of an array, or fails the test. */
kvc_array array_sliced(const kvc_array *array, const int64_t *start, const int64_t *stop,
                       const int64_t *step);

#endif
