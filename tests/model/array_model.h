/** @file
 * Naive arrays: a shape and a flat list of doubles, every operation a loop over whole indices. What
 * the library's arrays are compared with. */
#ifndef KVC_TEST_ARRAY_MODEL_H
#define KVC_TEST_ARRAY_MODEL_H

#include <kvcache/array.h>

/** The most elements of a model. */
enum { MODEL_MOST = 512 };

/** An array; its values are those that its dtype has. */
typedef struct model {
    kvc_dtype dtype;
    int ndim;
    int64_t shape[KVC_MAX_DIMS];
    double values[MODEL_MOST]; /* row-major */
} model;

/** start, stop and step of every axis. */
typedef struct model_range {
    int64_t start[KVC_MAX_DIMS], stop[KVC_MAX_DIMS], step[KVC_MAX_DIMS];
} model_range;

/** Returns the number of elements. */
int64_t model_size(const model *m);

/** Takes array[start:stop:step] as Python does; steps are not 0. Returns whether a position was
 * outside and had to be moved. */
bool model_slice(model *out, const model *array, const model_range *range);

/** Joins parts that fit along an axis; false when there would be too many elements. */
bool model_concatenate(model *out, const model *parts, size_t count, int axis);

/** Tells whether src broadcasts to the shape of where. */
bool model_broadcasts(const model *src, const model *where);

/** dst[start:stop:step] = src; src broadcasts. Positions outside are moved. */
void model_assign(model *dst, const model *src, const model_range *range);

/** Rounds every value into a dtype. */
void model_convert(model *m, kvc_dtype dtype);

/** Tells whether shape, dtype and values are the same; NaN differs from itself. */
bool model_equal(const model *a, const model *b);

/** Fails unless the array is what the model says; NaN is NaN. */
void model_expect(const model *m, const kvc_array *array);

#endif
