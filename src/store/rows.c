#include "store/rows.h"

#include "base/error.h"
#include "store/format.h"

kvc_status kvc__rows_check(size_t *bytes, const kvc_array *array, const char *what) {
    const kvc__format_dtype *dtype = array ? kvc__format_dtype_of(array->dtype) : NULL;
    if (!dtype || array->ndim < 0 || array->ndim > KVC_MAX_DIMS)
        return kvc__fail(KVC_E_INVALID, "%s: no array given", what);
    if (!kvc__format_bytes(bytes, dtype, array->ndim, array->shape))
        return kvc__fail(KVC_E_RANGE, "%s: its shape is more than a size can hold", what);
    if (*bytes && !array->data) return kvc__fail(KVC_E_INVALID, "%s: data is NULL", what);
    if (array->buffer && kvc_pool_device(kvc_buffer_pool(array->buffer)) != kvc_device_cpu())
        return kvc__fail(KVC_E_UNSUPPORTED, "%s: an array of the device %s given, of cpu wanted",
                         what, kvc_pool_device(kvc_buffer_pool(array->buffer))->name);
    return KVC_OK;
}

void kvc__rows_init(kvc__rows *rows, const kvc_array *array) {
    int64_t elements = 1;
    *rows = (kvc__rows){
        .array = array, .outer = array->ndim, .run_bytes = kvc_dtype_size_bytes(array->dtype)};
    while (rows->outer > 0 && rows->run_bytes < KVC__LONG_RUN_BYTES &&
           (array->shape[rows->outer - 1] == 1 || array->strides[rows->outer - 1] == elements)) {
        const int64_t extent = array->shape[--rows->outer];
        elements *= extent;
        rows->run_bytes *= (size_t)extent;
    }
}

char *kvc__rows_find(const kvc__rows *rows, size_t offset, size_t *bytes) {
    const kvc_array *array = rows->array;
    const size_t past = offset % rows->run_bytes;
    int64_t run = (int64_t)(offset / rows->run_bytes), element = 0;
    for (int i = rows->outer - 1; i >= 0; i--) {
        element += run % array->shape[i] * array->strides[i];
        run /= array->shape[i];
    }
    *bytes = rows->run_bytes - past;
    return (char *)array->data + element * (int64_t)kvc_dtype_size_bytes(array->dtype) + past;
}
