#include <kvcache/array.h>

#include "array/view.h"
#include "base/error.h"

/* One axis of a slice: first element, elements, and the way between them. */
typedef struct range {
    int64_t first, count, step;
} range;

/* Brings one end of a slice into [low, high]; KVC_SLICE_ALL becomes `all`. */
static int64_t bring_in(int64_t at, int64_t all, int64_t extent, int64_t low, int64_t high,
                        bool *outside) {
    if (at == KVC_SLICE_ALL) return all;
    if (at < 0) at += extent;
    const int64_t in = at < low ? low : at > high ? high : at;
    *outside = *outside || in != at;
    return in;
}

static range resolve(int64_t extent, int64_t start, int64_t stop, int64_t step, bool *outside) {
    const int64_t longest = extent > 0 ? extent : 1; /* a longer step takes one element too */
    if (step > longest) step = longest;
    if (step < -longest) step = -longest;
    range r = {0, 0, step};
    if (step > 0) {
        r.first = bring_in(start, 0, extent, 0, extent, outside);
        const int64_t end = bring_in(stop, extent, extent, 0, extent, outside);
        if (end > r.first) r.count = (end - r.first - 1) / step + 1;
    } else {
        r.first = bring_in(start, extent - 1, extent, -1, extent - 1, outside);
        const int64_t end = bring_in(stop, -1, extent, -1, extent - 1, outside);
        if (r.first > end) r.count = (r.first - end - 1) / -step + 1;
    }
    return r;
}

kvc_status kvc__array_narrow(kvc_array *view, const int64_t *start, const int64_t *stop,
                             const int64_t *step, kvc__outside policy) {
    kvc_array narrowed = *view;
    int64_t offset = 0;
    for (int i = 0; i < view->ndim; i++) {
        const int64_t from = start ? start[i] : KVC_SLICE_ALL;
        const int64_t to = stop ? stop[i] : KVC_SLICE_ALL;
        const int64_t by = step ? step[i] : 1;
        bool outside = false;
        if (by == 0) return kvc__fail(KVC_E_INVALID, "step[%d]: 0 given", i);
        const range r = resolve(view->shape[i], from, to, by, &outside);
        if (outside && policy == KVC__REFUSE)
            return kvc__fail(KVC_E_RANGE,
                             "axis %d: start %lld and stop %lld given, both within its extent of "
                             "%lld wanted",
                             i, (long long)from, (long long)to, (long long)view->shape[i]);
        if (r.count > 0) offset += r.first * view->strides[i];
        narrowed.shape[i] = r.count;
        if (r.count > 1) narrowed.strides[i] = view->strides[i] * r.step; /* else it may overflow */
    }
    if (kvc_array_size(&narrowed) > 0)
        narrowed.data = (char *)view->data + offset * (int64_t)kvc_dtype_size_bytes(view->dtype);
    *view = narrowed;
    return KVC_OK;
}

kvc_status kvc_array_slice(kvc_array *out, const kvc_array *array, const int64_t *start,
                           const int64_t *stop, const int64_t *step) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_array){0};
    KVC_TRY(kvc__array_check(array, "array"));
    kvc_array view = *array;
    KVC_TRY(kvc__array_narrow(&view, start, stop, step, KVC__CLAMP));
    *out = kvc_array_retain(&view);
    return KVC_OK;
}
