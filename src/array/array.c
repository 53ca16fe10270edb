#include <stdio.h>
#include <string.h>

#include <kvcache/array.h>

#include "array/view.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "memory/device.h"

const char *kvc__shape_text(char text[KVC__SHAPE_TEXT], int ndim, const int64_t *shape) {
    size_t at = 0;
    text[at++] = '[';
    for (int i = 0; i < ndim; i++)
        at += (size_t)snprintf(text + at, KVC__SHAPE_TEXT - at, i ? ", %lld" : "%lld",
                               (long long)shape[i]);
    text[at++] = ']';
    text[at] = '\0';
    return text;
}

kvc_status kvc__array_check(const kvc_array *a, const char *name) {
    if (!a) return kvc__fail(KVC_E_INVALID, "%s: NULL given, an array wanted", name);
    if (kvc_dtype_size_bytes(a->dtype) == 0 || a->ndim < 0 || a->ndim > KVC_MAX_DIMS)
        return kvc__fail(KVC_E_INVALID, "%s: not an array (dtype %d, ndim %d)", name, (int)a->dtype,
                         a->ndim);
    return KVC_OK;
}

kvc_status kvc__array_layout(kvc_array *out, size_t *bytes, kvc_dtype dtype, int ndim,
                             const int64_t *shape) {
    *out = (kvc_array){.dtype = dtype, .ndim = ndim};
    if (kvc_dtype_size_bytes(dtype) == 0)
        return kvc__fail(KVC_E_INVALID, "dtype: %d given, a kvc_dtype wanted", (int)dtype);
    if (ndim < 0 || ndim > KVC_MAX_DIMS)
        return kvc__fail(KVC_E_INVALID, "ndim: %d given, 0 to %d wanted", ndim, KVC_MAX_DIMS);
    if (ndim > 0 && !shape) return kvc__fail(KVC_E_INVALID, "shape: NULL given");
    bool empty = false;
    size_t product = kvc_dtype_size_bytes(dtype); /* extents of 0 count as 1: strides must fit */
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] < 0)
            return kvc__fail(KVC_E_INVALID, "shape[%d]: %lld given, at least 0 wanted", i,
                             (long long)shape[i]);
        out->shape[i] = shape[i];
        out->strides[i] = (int64_t)(product / kvc_dtype_size_bytes(dtype));
        empty = empty || shape[i] == 0;
        if (!kvc__mul(&product, product, shape[i] ? (size_t)shape[i] : 1) ||
            product > PTRDIFF_MAX) {
            char text[KVC__SHAPE_TEXT];
            return kvc__fail(KVC_E_RANGE, "shape: %s of %s is more bytes than a size can hold",
                             kvc__shape_text(text, ndim, shape), kvc_dtype_name(dtype));
        }
    }
    *bytes = empty ? 0 : product;
    return KVC_OK;
}

const kvc_device *kvc__array_device(const kvc_array *a) {
    return a->buffer ? kvc_pool_device(kvc_buffer_pool(a->buffer)) : kvc_device_cpu();
}

kvc_status kvc__array_copy(const kvc_array *dst, const kvc_array *src) {
    const kvc_strided to = {dst->data, dst->dtype, dst->strides};
    const kvc_strided from = {src->data, src->dtype, src->strides};
    return kvc__device_copy(kvc__array_device(dst), &to, &from, dst->ndim, dst->shape);
}

kvc_status kvc__array_axis(int *out, int axis, int ndim, const char *name) {
    if (ndim == 0)
        return kvc__fail(KVC_E_INVALID, "%s: %d given, the array has no dimensions", name, axis);
    if (axis < -ndim || axis >= ndim)
        return kvc__fail(KVC_E_INVALID, "%s: %d given, %d to %d wanted", name, axis, -ndim,
                         ndim - 1);
    *out = axis < 0 ? axis + ndim : axis;
    return KVC_OK;
}

/* Verifies that the way from the first element to the last is a number of bytes. */
static kvc_status check_strides(const kvc_array *a, const int64_t *strides) {
    size_t span = kvc_dtype_size_bytes(a->dtype);
    for (int i = 0; i < a->ndim; i++) {
        const size_t step = strides[i] < 0 ? 0 - (size_t)strides[i] : (size_t)strides[i];
        size_t way;
        if (a->shape[i] <= 1) continue; /* never stepped */
        if (!kvc__mul(&way, step, (size_t)a->shape[i] - 1) ||
            !kvc__mul(&way, way, kvc_dtype_size_bytes(a->dtype)) || !kvc__add(&span, span, way) ||
            span > PTRDIFF_MAX)
            return kvc__fail(KVC_E_RANGE,
                             "strides[%d]: %lld given for an extent of %lld: more bytes than a "
                             "size can hold",
                             i, (long long)strides[i], (long long)a->shape[i]);
    }
    return KVC_OK;
}

kvc_status kvc_array_borrow(kvc_array *out, kvc_dtype dtype, int ndim, const int64_t *shape,
                            const int64_t *strides, const void *data) {
    kvc_array a;
    size_t bytes;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_layout(&a, &bytes, dtype, ndim, shape));
    if (!data && bytes) return kvc__fail(KVC_E_INVALID, "data: NULL given for %zu bytes", bytes);
    if ((uintptr_t)data % kvc_dtype_size_bytes(dtype) != 0)
        return kvc__fail(KVC_E_INVALID, "data: %p given, a multiple of %zu wanted for %s", data,
                         kvc_dtype_size_bytes(dtype), kvc_dtype_name(dtype));
    if (strides) {
        KVC_TRY(check_strides(&a, strides));
        memcpy(a.strides, strides, (size_t)ndim * sizeof *strides);
    }
    memcpy(&a.data, &data, sizeof data); /* const goes: updates refuse borrowed memory */
    *out = a;
    return KVC_OK;
}

kvc_array kvc_array_retain(const kvc_array *a) {
    (void)kvc_buffer_retain(a->buffer);
    return *a;
}

void kvc_array_release(kvc_array *a) {
    if (!a) return;
    kvc_buffer_release(a->buffer);
    *a = (kvc_array){0};
}

int64_t kvc_array_size(const kvc_array *a) {
    int64_t size = a->dtype ? 1 : 0;
    for (int i = 0; i < a->ndim; i++) size *= a->shape[i];
    return size;
}

size_t kvc_array_nbytes(const kvc_array *a) {
    return (size_t)kvc_array_size(a) * kvc_dtype_size_bytes(a->dtype);
}

bool kvc_array_is_contiguous(const kvc_array *a) {
    int64_t expected = 1;
    if (kvc_array_size(a) == 0) return true;
    for (int i = a->ndim - 1; i >= 0; i--) {
        if (a->shape[i] != 1 && a->strides[i] != expected) return false;
        expected *= a->shape[i];
    }
    return true;
}
