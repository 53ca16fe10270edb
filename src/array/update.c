#include <string.h>

#include <kvcache/array.h>

#include "array/view.h"
#include "base/checked.h"
#include "base/error.h"

/* Where an update goes: dst[start:stop:step], valid for every array of dst's shape. */
typedef struct region {
    int64_t start[KVC_MAX_DIMS], stop[KVC_MAX_DIMS], step[KVC_MAX_DIMS];
} region;

static kvc_status check_destination(const kvc_array *dst, const kvc_array *src) {
    KVC_TRY(kvc__array_check(dst, "dst"));
    KVC_TRY(kvc__array_check(src, "src"));
    if (!dst->buffer)
        return kvc__fail(KVC_E_INVALID, "dst: borrowed memory given, an array with a buffer of "
                                        "its own wanted (kvc_array_from_host)");
    return KVC_OK;
}

/* Gives src the region's shape; missing leading axes and extents of 1 repeat by strides of 0. */
static kvc_status broadcast(kvc_array *src, const kvc_array *where) {
    kvc_array wide = *src;
    const int missing = where->ndim - src->ndim;
    bool fits = missing >= 0;
    for (int i = 0; fits && i < where->ndim; i++) {
        const int from = i - missing;
        const int64_t extent = from < 0 ? 1 : src->shape[from];
        fits = extent == where->shape[i] || extent == 1;
        wide.shape[i] = where->shape[i];
        wide.strides[i] = extent == 1 ? 0 : src->strides[from];
    }
    if (!fits) {
        char a[KVC__SHAPE_TEXT], b[KVC__SHAPE_TEXT];
        return kvc__fail(KVC_E_SHAPE, "src: %s given, %s or what broadcasts to it wanted",
                         kvc__shape_text(a, src->ndim, src->shape),
                         kvc__shape_text(b, where->ndim, where->shape));
    }
    wide.ndim = where->ndim;
    *src = wide;
    return KVC_OK;
}

/* Writes src to a region of an array that nobody else can see. */
static kvc_status write_region(const kvc_array *array, const region *r, const kvc_array *src) {
    kvc_array where = *array;
    KVC_TRY(kvc__array_narrow(&where, r->start, r->stop, r->step, KVC__REFUSE));
    if (kvc_array_size(&where) == 0) return KVC_OK;
    return kvc__array_copy(&where, src);
}

/* The update itself, all arguments being right: in place, or on a copy that takes dst's name. */
static kvc_status update(kvc_array *dst, const region *r, const kvc_array *src, kvc_update *how) {
    /* dst itself may be src, which adds no reference to the buffer. */
    const bool sole = kvc_buffer_is_sole(dst->buffer) && src->buffer != dst->buffer;
    if (sole) {
        KVC_TRY(write_region(dst, r, src));
    } else {
        kvc_array copy;
        kvc_pool *pool = kvc_buffer_pool(dst->buffer);
        KVC_TRY(kvc_array_empty(&copy, pool, dst->dtype, dst->ndim, dst->shape));
        kvc_status status = kvc__array_copy(&copy, dst);
        if (status == KVC_OK) status = write_region(&copy, r, src);
        if (status != KVC_OK) {
            kvc_array_release(&copy);
            return status;
        }
        kvc_array_release(dst);
        *dst = copy;
    }
    if (how) *how = sole ? KVC_UPDATE_IN_PLACE : KVC_UPDATE_COPIED;
    return KVC_OK;
}

kvc_status kvc_array_assign(kvc_array *dst, const kvc_array *src, const int64_t *start,
                            const int64_t *stop, const int64_t *step, kvc_update *how) {
    KVC_TRY(check_destination(dst, src));
    region r;
    for (int i = 0; i < dst->ndim; i++) {
        r.start[i] = start ? start[i] : KVC_SLICE_ALL;
        r.stop[i] = stop ? stop[i] : KVC_SLICE_ALL;
        r.step[i] = step ? step[i] : 1;
    }
    kvc_array where = *dst, wide = *src;
    KVC_TRY(kvc__array_narrow(&where, r.start, r.stop, r.step, KVC__REFUSE));
    KVC_TRY(broadcast(&wide, &where));
    return update(dst, &r, &wide, how);
}

/* Verifies one axis of a slice_update and writes where it goes. */
static kvc_status place(region *r, int axis, int64_t start, const kvc_array *dst,
                        const kvc_array *src) {
    int64_t stop;
    if (src->shape[axis] > dst->shape[axis])
        return kvc__fail(KVC_E_SHAPE, "src: extent %lld given along axis %d, at most %lld wanted",
                         (long long)src->shape[axis], axis, (long long)dst->shape[axis]);
    if (start < 0 || !kvc__add_i64(&stop, start, src->shape[axis]) || stop > dst->shape[axis])
        return kvc__fail(KVC_E_RANGE,
                         "start: %lld given along axis %d for %lld positions, at most %lld wanted",
                         (long long)start, axis, (long long)src->shape[axis],
                         (long long)(dst->shape[axis] - src->shape[axis]));
    r->start[axis] = start;
    r->stop[axis] = stop;
    return KVC_OK;
}

kvc_status kvc_array_slice_update(kvc_array *dst, const kvc_array *src, const int64_t *start,
                                  const int *axes, int naxes, kvc_update *how) {
    KVC_TRY(check_destination(dst, src));
    if (src->ndim != dst->ndim)
        return kvc__fail(KVC_E_SHAPE, "src: %d dimensions given, dst has %d", src->ndim, dst->ndim);
    if (naxes < 0 || naxes > dst->ndim || (naxes > 0 && (!start || !axes)))
        return kvc__fail(KVC_E_INVALID, "naxes: %d given with start and axes, 0 to %d wanted",
                         naxes, dst->ndim);
    int64_t first[KVC_MAX_DIMS] = {0};
    bool seen[KVC_MAX_DIMS] = {false};
    for (int i = 0; i < naxes; i++) {
        int axis;
        KVC_TRY(kvc__array_axis(&axis, axes[i], dst->ndim, "axes"));
        if (seen[axis]) return kvc__fail(KVC_E_INVALID, "axes: %d given twice", axes[i]);
        seen[axis] = true;
        first[axis] = start[i];
    }
    region r;
    for (int i = 0; i < dst->ndim; i++) {
        r.step[i] = 1;
        KVC_TRY(place(&r, i, first[i], dst, src));
    }
    return update(dst, &r, src, how);
}
