/** @file
 * Arrays: n-dimensional views, by value, of counted buffers.
 *
 * A kvc_array is a small struct; copying it copies no elements. It owns one reference to its
 * buffer: give each array that an operation wrote to kvc_array_release. Slices share the buffer.
 * An array over borrowed memory (kvc_array_borrow) has no buffer and owns nothing. An output is
 * never one of the inputs, and whatever it held before is not released.
 *
 * Updates keep functional meaning without its cost: they write in place when the array is the only
 * one that holds the buffer, and copy first when another could see the change. The caller is told
 * which happened.
 * @source MLX's array operations of the same names; differences are told where they are. */
#ifndef KVCACHE_ARRAY_H
#define KVCACHE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/device.h>
#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/status.h>

/** A view of elements. Zeroed, it is the empty array, and releasing that does nothing. */
typedef struct kvc_array {
    kvc_buffer *buffer;            /**< counted; NULL when the memory is borrowed */
    void *data;                    /**< element [0]…[0], a device pointer */
    kvc_dtype dtype;               /**< of every element */
    int ndim;                      /**< dimensions in use, 0 to KVC_MAX_DIMS */
    int64_t shape[KVC_MAX_DIMS];   /**< elements along each, >= 0 */
    int64_t strides[KVC_MAX_DIMS]; /**< in elements; negative when a slice steps back */
} kvc_array;

/** How an update was done. */
typedef enum kvc_update {
    KVC_UPDATE_IN_PLACE = 0, /**< nobody else held the buffer: only the update's bytes moved */
    KVC_UPDATE_COPIED = 1    /**< the whole array was copied first */
} kvc_update;

/** In a slice's start or stop: from (or to) the end that the step's sign implies. */
#define KVC_SLICE_ALL INT64_MIN

KVC_BEGIN_DECLS

/** Makes an array of zeros: O(elements).
 * @param shape  [ndim], each >= 0; may be NULL when ndim is 0 (one element)
 * @errors KVC_E_INVALID a dtype, ndim or extent that none can have; KVC_E_RANGE the product of
 *         shape and element size overflows; those of kvc_buffer_new */
KVC_API KVC_MUST_USE kvc_status kvc_array_zeros(kvc_array *out, kvc_pool *pool, kvc_dtype dtype,
                                                int ndim, const int64_t *shape);

/** Makes an array of one value, converted to dtype. Errors as kvc_array_zeros. */
KVC_API KVC_MUST_USE kvc_status kvc_array_full(kvc_array *out, kvc_pool *pool, kvc_dtype dtype,
                                               int ndim, const int64_t *shape, double value);

/** Makes an array whose contents are undefined: no pass over the memory. As kvc_array_zeros. */
KVC_API KVC_MUST_USE kvc_status kvc_array_empty(kvc_array *out, kvc_pool *pool, kvc_dtype dtype,
                                                int ndim, const int64_t *shape);

/** Makes an array of elements copied from the host.
 * @param data  shape[0]×…×shape[ndim-1] elements of dtype, contiguous, of any alignment,
 *              borrowed for the call */
KVC_API KVC_MUST_USE kvc_status kvc_array_from_host(kvc_array *out, kvc_pool *pool, kvc_dtype dtype,
                                                    int ndim, const int64_t *shape,
                                                    const void *data);

/** Copies the elements of a contiguous array to the host, and waits for them.
 * @param bytes  room at dst; KVC_E_SHAPE when it is not exactly the array's size
 * @errors KVC_E_SHAPE also when the array is not contiguous (see kvc_array_contiguous) */
KVC_API kvc_status kvc_array_to_host(void *dst, size_t bytes, const kvc_array *array);

/** Describes memory of the caller as an array; nothing is copied or owned.
 * @param strides  [ndim] in elements, or NULL for contiguous
 * @param data     device memory, aligned to the element, borrowed for as long as the array and its
 *                 slices are used; arrays that are only read may be given memory that is const
 * @errors KVC_E_INVALID a dtype, ndim or extent that none can have, data that is NULL or not
 *         aligned; KVC_E_RANGE the shape or the strides span more bytes than a size can hold */
KVC_API KVC_MUST_USE kvc_status kvc_array_borrow(kvc_array *out, kvc_dtype dtype, int ndim,
                                                 const int64_t *shape, const int64_t *strides,
                                                 const void *data);

/** Returns a second owner of the same view. */
KVC_API kvc_array kvc_array_retain(const kvc_array *array);

/** Drops the array's reference and zeroes it. NULL and the empty array are allowed. */
KVC_API void kvc_array_release(kvc_array *array);

/** Returns the number of elements, the product of the shape. */
KVC_API int64_t kvc_array_size(const kvc_array *array);

/** Returns size × element size: the bytes of the elements, not of the buffer. */
KVC_API size_t kvc_array_nbytes(const kvc_array *array);

/** Tells whether the elements lie in row-major order without gaps. */
KVC_API bool kvc_array_is_contiguous(const kvc_array *array);

/** Makes a new array of the parts one after another along an axis: copies every part.
 * @param parts  [count], equal in dtype, ndim and every extent but that of the axis
 * @param axis   -ndim ≤ axis < ndim, negative from the end
 * @errors KVC_E_INVALID count or axis; KVC_E_SHAPE names the part that does not fit; KVC_E_RANGE;
 *         those of kvc_buffer_new */
KVC_API KVC_MUST_USE kvc_status kvc_array_concatenate(kvc_array *out, kvc_pool *pool,
                                                      const kvc_array *parts, size_t count,
                                                      int axis);

/** Takes a view of every step-th element from start to before stop, as Python's slices do: negative
 * positions count from the end, positions outside are moved to the nearest end. Copies nothing.
 * @param start  [ndim] or NULL for all; KVC_SLICE_ALL for one axis
 * @param stop   as start
 * @param step   [ndim], not 0, or NULL for 1
 * @errors KVC_E_INVALID a step of 0 */
KVC_API KVC_MUST_USE kvc_status kvc_array_slice(kvc_array *out, const kvc_array *array,
                                                const int64_t *start, const int64_t *stop,
                                                const int64_t *step);

/** Writes src into dst from `start` on along `axes` (0 along the others): the seed's
 * slice_update. Consumes dst's reference and leaves the result in dst. In place when dst solely
 * owns its buffer; else dst is copied first, and *how says so.
 * @param dst    owns a buffer (not borrowed memory); unchanged on error
 * @param src    dst's ndim; any float or integer dtype, converted. A slice of dst, or dst itself,
 *               has dst copied first; borrowed memory must not overlap dst
 * @param start  [naxes] first position along each axis, ≥ 0, start + extent ≤ dst's extent
 * @param axes   [naxes] distinct, negative from the end
 * @param how    may be NULL
 * @errors KVC_E_INVALID axes or counts; KVC_E_SHAPE src's ndim or extents; KVC_E_RANGE a start or
 *         an end outside dst, with both numbers: MLX drops such a write or overruns the heap */
KVC_API KVC_MUST_USE kvc_status kvc_array_slice_update(kvc_array *dst, const kvc_array *src,
                                                       const int64_t *start, const int *axes,
                                                       int naxes, kvc_update *how);

/** Writes src to the elements that kvc_array_slice would take: dst[start:stop:step] = src, the
 * seed's indexed assignment. src is broadcast: missing leading axes and extents of 1 repeat.
 * Ownership and *how as kvc_array_slice_update. Unlike a slice that is read, a start or stop
 * outside dst is an error.
 * @errors KVC_E_INVALID a step of 0, borrowed dst; KVC_E_RANGE; KVC_E_SHAPE no broadcast fits */
KVC_API KVC_MUST_USE kvc_status kvc_array_assign(kvc_array *dst, const kvc_array *src,
                                                 const int64_t *start, const int64_t *stop,
                                                 const int64_t *step, kvc_update *how);

/** Makes an array of another dtype: contiguous, converted as a device's copy converts. A second
 * owner of the same elements when the dtype is the same already. */
KVC_API KVC_MUST_USE kvc_status kvc_array_astype(kvc_array *out, kvc_pool *pool,
                                                 const kvc_array *array, kvc_dtype dtype);

/** Makes the elements contiguous: a second owner of the same view when they are, else a copy. */
KVC_API KVC_MUST_USE kvc_status kvc_array_contiguous(kvc_array *out, kvc_pool *pool,
                                                     const kvc_array *array);

/** Compares shape, dtype and elements; two NaNs differ, as in IEEE 754, and -0 equals +0.
 * Reads through host pointers: arrays of the cpu device, or borrowed host memory.
 * @param out  true when all are equal
 * @errors KVC_E_UNSUPPORTED an array of another device */
KVC_API kvc_status kvc_array_equal(bool *out, const kvc_array *a, const kvc_array *b);

KVC_END_DECLS

#endif
