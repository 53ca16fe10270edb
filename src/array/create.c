#include <kvcache/array.h>

#include "array/view.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/device.h"

kvc_status kvc_array_empty(kvc_array *out, kvc_pool *pool, kvc_dtype dtype, int ndim,
                           const int64_t *shape) {
    kvc_array a;
    size_t bytes;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_layout(&a, &bytes, dtype, ndim, shape));
    KVC_TRY(kvc_buffer_new(&a.buffer, pool, bytes));
    a.data = kvc_buffer_data(a.buffer);
    *out = a;
    return KVC_OK;
}

/* Ends a constructor: hands out the array, or drops it when filling it failed. */
static kvc_status finish(kvc_array *out, kvc_status status) {
    if (status != KVC_OK) kvc_array_release(out);
    return status;
}

kvc_status kvc_array_full(kvc_array *out, kvc_pool *pool, kvc_dtype dtype, int ndim,
                          const int64_t *shape, double value) {
    KVC_TRY(kvc_array_empty(out, pool, dtype, ndim, shape));
    const int64_t size = kvc_array_size(out);
    if (size == 0) return KVC_OK;
    return finish(out, kvc__device_fill(kvc__array_device(out), out->data, dtype, size, value));
}

kvc_status kvc_array_zeros(kvc_array *out, kvc_pool *pool, kvc_dtype dtype, int ndim,
                           const int64_t *shape) {
    return kvc_array_full(out, pool, dtype, ndim, shape, 0.0);
}

kvc_status kvc_array_from_host(kvc_array *out, kvc_pool *pool, kvc_dtype dtype, int ndim,
                               const int64_t *shape, const void *data) {
    kvc_array host;
    size_t bytes;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_layout(&host, &bytes, dtype, ndim, shape));
    if (!data && bytes) return kvc__fail(KVC_E_INVALID, "data: NULL given for %zu bytes", bytes);
    KVC_TRY(kvc_array_empty(out, pool, dtype, ndim, shape));
    if (bytes == 0) return KVC_OK;
    return finish(out, kvc__device_transfer(kvc__array_device(out), out->data, data, bytes));
}

kvc_status kvc_array_to_host(void *dst, size_t bytes, const kvc_array *a) {
    KVC_TRY(kvc__array_check(a, "array"));
    if (bytes != kvc_array_nbytes(a))
        return kvc__fail(KVC_E_SHAPE, "bytes: %zu given, the array has %zu", bytes,
                         kvc_array_nbytes(a));
    if (!kvc_array_is_contiguous(a))
        return kvc__fail(KVC_E_SHAPE,
                         "array: not contiguous; make it so with kvc_array_contiguous first");
    if (bytes == 0) return KVC_OK;
    if (!dst) return kvc__fail(KVC_E_INVALID, "dst: NULL given for %zu bytes", bytes);
    return kvc__device_transfer(kvc__array_device(a), dst, a->data, bytes);
}

kvc_status kvc_array_astype(kvc_array *out, kvc_pool *pool, const kvc_array *a, kvc_dtype dtype) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_check(a, "array"));
    if (a->dtype == dtype) {
        *out = kvc_array_retain(a);
        return KVC_OK;
    }
    KVC_TRY(kvc_array_empty(out, pool, dtype, a->ndim, a->shape));
    return finish(out, kvc__array_copy(out, a));
}

kvc_status kvc_array_contiguous(kvc_array *out, kvc_pool *pool, const kvc_array *a) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_check(a, "array"));
    if (kvc_array_is_contiguous(a)) {
        *out = kvc_array_retain(a);
        return KVC_OK;
    }
    KVC_TRY(kvc_array_empty(out, pool, a->dtype, a->ndim, a->shape));
    return finish(out, kvc__array_copy(out, a));
}

/* Verifies that parts fit and adds up their extents along the axis. */
static kvc_status joined_shape(int64_t *shape, const kvc_array *parts, size_t count, int axis) {
    const kvc_array *first = &parts[0];
    for (int i = 0; i < first->ndim; i++) shape[i] = i == axis ? 0 : first->shape[i];
    for (size_t p = 0; p < count; p++) {
        const kvc_array *part = &parts[p];
        bool fits = part->dtype == first->dtype && part->ndim == first->ndim;
        for (int i = 0; fits && i < first->ndim; i++)
            fits = i == axis || part->shape[i] == first->shape[i];
        if (!fits) {
            char a[KVC__SHAPE_TEXT], b[KVC__SHAPE_TEXT];
            return kvc__fail(
                KVC_E_SHAPE, "parts[%zu]: %s %s given, %s %s wanted but for axis %d", p,
                kvc_dtype_name(part->dtype), kvc__shape_text(a, part->ndim, part->shape),
                kvc_dtype_name(first->dtype), kvc__shape_text(b, first->ndim, first->shape), axis);
        }
        if (!kvc__add_i64(&shape[axis], shape[axis], part->shape[axis]))
            return kvc__fail(KVC_E_RANGE, "parts: their extents along axis %d overflow", axis);
    }
    return KVC_OK;
}

kvc_status kvc_array_concatenate(kvc_array *out, kvc_pool *pool, const kvc_array *parts,
                                 size_t count, int axis) {
    int64_t shape[KVC_MAX_DIMS];
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    if (!parts || count == 0)
        return kvc__fail(KVC_E_INVALID, "parts: %zu given, at least 1 wanted", count);
    for (size_t p = 0; p < count; p++) KVC_TRY(kvc__array_check(&parts[p], "parts"));
    KVC_TRY(kvc__array_axis(&axis, axis, parts[0].ndim, "axis"));
    KVC_TRY(joined_shape(shape, parts, count, axis));
    KVC_TRY(kvc_array_empty(out, pool, parts[0].dtype, parts[0].ndim, shape));

    kvc_array room = *out; /* the part of out that the next part fills */
    for (size_t p = 0; p < count; p++) {
        room.shape[axis] = parts[p].shape[axis];
        if (kvc_array_size(&room) == 0) continue;
        KVC_TRY(finish(out, kvc__array_copy(&room, &parts[p])));
        room.data = (char *)room.data + room.shape[axis] * room.strides[axis] *
                                            (int64_t)kvc_dtype_size_bytes(room.dtype);
    }
    return KVC_OK;
}
