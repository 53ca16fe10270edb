#include "store/rows.h"

#include <string.h>

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

void kvc__rows_init(kvc__rows *rows, const kvc_array *array, char *buffer) {
    *rows = (kvc__rows){.array = array,
                        .outer = array->ndim,
                        .run_bytes = kvc_dtype_size_bytes(array->dtype),
                        .runs_left = 1};
    int64_t elements = 1;
    rows->buffer = buffer;
    while (rows->outer > 0 &&
           (array->shape[rows->outer - 1] == 1 || array->strides[rows->outer - 1] == elements))
        elements *= array->shape[--rows->outer];
    rows->run_bytes *= (size_t)elements;
    for (int i = 0; i < rows->outer; i++) rows->runs_left *= (size_t)array->shape[i];
}

static char *run_at(const kvc__rows *rows, const int64_t *at) {
    int64_t element = 0;
    for (int i = 0; i < rows->outer; i++) element += at[i] * rows->array->strides[i];
    return (char *)rows->array->data + element * (int64_t)kvc_dtype_size_bytes(rows->array->dtype);
}

static void step(const kvc__rows *rows, int64_t *at) {
    for (int i = rows->outer - 1; i >= 0; i--) {
        if (++at[i] < rows->array->shape[i]) return;
        at[i] = 0;
    }
}

bool kvc__rows_gather_at_all(const kvc__rows *rows) {
    return rows->run_bytes < KVC__DIRECT_BYTES && rows->runs_left > 1;
}

bool kvc__rows_next(kvc__rows *rows, char **piece, size_t *bytes) {
    if (rows->runs_left == 0) return false;
    if (!kvc__rows_gather_at_all(rows)) {
        const size_t left = rows->run_bytes - rows->done_bytes;
        rows->gathered = 0;
        *piece = run_at(rows, rows->at) + rows->done_bytes;
        *bytes = left < KVC__PIECE_BYTES ? left : KVC__PIECE_BYTES;
        rows->done_bytes += *bytes;
        if (*bytes < left) return true;
        rows->done_bytes = 0;
        rows->runs_left--;
        step(rows, rows->at);
        return true;
    }
    const size_t fit = KVC__PIECE_BYTES / rows->run_bytes;
    rows->gathered = rows->runs_left < fit ? rows->runs_left : fit;
    rows->runs_left -= rows->gathered;
    memcpy(rows->first, rows->at, sizeof rows->first);
    for (size_t i = 0; i < rows->gathered; i++) step(rows, rows->at);
    *piece = rows->buffer;
    *bytes = rows->gathered * rows->run_bytes;
    return true;
}

static void copy_runs(const kvc__rows *rows, bool to_buffer) {
    int64_t at[KVC_MAX_DIMS];
    char *in_buffer = rows->buffer;
    memcpy(at, rows->first, sizeof at);
    for (size_t i = 0; i < rows->gathered; i++, in_buffer += rows->run_bytes) {
        char *in_array = run_at(rows, at);
        memcpy(to_buffer ? in_buffer : in_array, to_buffer ? in_array : in_buffer, rows->run_bytes);
        step(rows, at);
    }
}

void kvc__rows_gather(const kvc__rows *rows) {
    copy_runs(rows, true);
}

void kvc__rows_scatter(const kvc__rows *rows) {
    copy_runs(rows, false);
}
