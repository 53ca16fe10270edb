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

void kvc__rows_init(kvc__rows *rows, const kvc_array *array) {
    int64_t elements = 1, runs = 1;
    *rows = (kvc__rows){
        .array = array, .outer = array->ndim, .run_bytes = kvc_dtype_size_bytes(array->dtype)};
    while (rows->outer > 0 && rows->run_bytes < KVC__LONG_BYTES &&
           (array->shape[rows->outer - 1] == 1 || array->strides[rows->outer - 1] == elements)) {
        const int64_t extent = array->shape[--rows->outer];
        elements *= extent;
        rows->run_bytes *= (size_t)extent;
    }
    for (int i = 0; i < rows->outer; i++) runs *= array->shape[i];
    rows->left = (size_t)runs * rows->run_bytes;
    rows->gathers = rows->run_bytes < KVC__DIRECT_BYTES && runs > 1;
}

static char *find(const kvc__rows *rows, const kvc__rows_place *place) {
    int64_t element = 0;
    for (int i = 0; i < rows->outer; i++) element += place->at[i] * rows->array->strides[i];
    return (char *)rows->array->data + element * (int64_t)kvc_dtype_size_bytes(rows->array->dtype) +
           place->past;
}

/* Bytes of `bytes` that lie without a gap from a place on. */
static size_t some_of(const kvc__rows *rows, const kvc__rows_place *place, size_t bytes) {
    const size_t left = rows->run_bytes - place->past;
    return bytes < left ? bytes : left;
}

/* Goes on by bytes of the same run. */
static void step(const kvc__rows *rows, kvc__rows_place *place, size_t bytes) {
    place->past += bytes;
    if (place->past < rows->run_bytes) return;
    place->past = 0;
    for (int i = rows->outer - 1; i >= 0; i--) {
        if (++place->at[i] < rows->array->shape[i]) return;
        place->at[i] = 0;
    }
}

bool kvc__rows_next(kvc__rows *rows, char *room, size_t most) {
    if (rows->left == 0) return false;
    rows->first = rows->next;
    rows->bytes = rows->left < most ? rows->left : most;
    if (!rows->gathers) rows->bytes = some_of(rows, &rows->first, rows->bytes);
    rows->piece = rows->gathers ? room : find(rows, &rows->first);
    for (size_t done = 0, some; done < rows->bytes; done += some) {
        some = some_of(rows, &rows->next, rows->bytes - done);
        step(rows, &rows->next, some);
    }
    rows->left -= rows->bytes;
    return true;
}

bool kvc__rows_ends_long(const kvc__rows *rows) {
    return rows->run_bytes >= KVC__LONG_BYTES && rows->next.past == 0;
}

static void copy_runs(const kvc__rows *rows, bool to_piece) {
    kvc__rows_place place = rows->first;
    if (!rows->gathers) return;
    for (size_t done = 0, some; done < rows->bytes; done += some) {
        char *in_array = find(rows, &place), *in_piece = rows->piece + done;
        some = some_of(rows, &place, rows->bytes - done);
        memcpy(to_piece ? in_piece : in_array, to_piece ? in_array : in_piece, some);
        step(rows, &place, some);
    }
}

void kvc__rows_gather(const kvc__rows *rows) {
    copy_runs(rows, true);
}

void kvc__rows_scatter(const kvc__rows *rows) {
    copy_runs(rows, false);
}
