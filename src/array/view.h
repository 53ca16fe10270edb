/** @file
 * What the array operations share: checks, sentences, and the geometry of views. */
#ifndef KVC_ARRAY_VIEW_H
#define KVC_ARRAY_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>

/** Room for a shape as text. */
enum { KVC__SHAPE_TEXT = 192 };

/** Writes "[2, 3, 4]" and returns text. */
const char *kvc__shape_text(char text[KVC__SHAPE_TEXT], int ndim, const int64_t *shape);

/** Verifies that an argument is an array: not NULL, a dtype, a count of dimensions.
 * @errors KVC_E_INVALID names it */
kvc_status kvc__array_check(const kvc_array *array, const char *name);

/** Fills dtype, shape and row-major strides of a view without memory, and tells its bytes.
 * @errors KVC_E_INVALID dtype, ndim, a negative extent; KVC_E_RANGE the product overflows */
kvc_status kvc__array_layout(kvc_array *out, size_t *bytes, kvc_dtype dtype, int ndim,
                             const int64_t *shape);

/** The device of an array's memory; the cpu for borrowed memory. */
const kvc_device *kvc__array_device(const kvc_array *array);

/** Copies elements of equal shape from one view to another, converting, on dst's device. */
kvc_status kvc__array_copy(const kvc_array *dst, const kvc_array *src);

/** What a slice does outside of the array. */
typedef enum kvc__outside { KVC__CLAMP, KVC__REFUSE } kvc__outside;

/** Narrows a view in place to array[start:stop:step]; no reference is taken.
 * @errors KVC_E_INVALID a step of 0; KVC_E_RANGE with KVC__REFUSE */
kvc_status kvc__array_narrow(kvc_array *view, const int64_t *start, const int64_t *stop,
                             const int64_t *step, kvc__outside policy);

/** Brings an axis that counts from the end into [0, ndim).
 * @errors KVC_E_INVALID */
kvc_status kvc__array_axis(int *out, int axis, int ndim, const char *name);

#endif
