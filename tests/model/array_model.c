#include "model/array_model.h"

#include <string.h>

#include "support/arrays.h"
#include "support/reference.h"

int64_t model_size(const model *m) {
    int64_t size = 1;
    for (int i = 0; i < m->ndim; i++) size *= m->shape[i];
    return size;
}

/* The index along every axis of the nth element. */
static void unravel(int64_t index[KVC_MAX_DIMS], int64_t nth, const model *m) {
    for (int i = m->ndim - 1; i >= 0; i--) {
        const int64_t extent = m->shape[i] ? m->shape[i] : 1;
        index[i] = nth % extent;
        nth /= extent;
    }
}

static int64_t ravel(const int64_t index[KVC_MAX_DIMS], const model *m) {
    int64_t nth = 0;
    for (int i = 0; i < m->ndim; i++) nth = nth * m->shape[i] + index[i];
    return nth;
}

/* One axis of a slice: which indices it takes, in order. */
typedef struct picks {
    int64_t at[MODEL_MOST];
    int64_t count;
} picks;

static int64_t moved_into(int64_t at, int64_t low, int64_t high, bool *outside) {
    if (at < low || at > high) *outside = true;
    return at < low ? low : at > high ? high : at;
}

static void pick(picks *p, int64_t n, int64_t start, int64_t stop, int64_t step, bool *outside) {
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    int64_t first = step > 0 ? 0 : n - 1, end = step > 0 ? n : -1;
    if (start != KVC_SLICE_ALL)
        first = moved_into(start < 0 ? start + n : start, low, high, outside);
    if (stop != KVC_SLICE_ALL) end = moved_into(stop < 0 ? stop + n : stop, low, high, outside);
    p->count = 0;
    for (int64_t at = first; step > 0 ? at < end : at > end; at += step) p->at[p->count++] = at;
}

/* Where the elements of array[range] lie in array; the shape of the slice goes to *shape. */
static bool places(int64_t where[MODEL_MOST], model *shape, const model *array,
                   const model_range *range) {
    static picks picked[KVC_MAX_DIMS];
    int64_t index[KVC_MAX_DIMS], taken[KVC_MAX_DIMS];
    bool outside = false;
    shape->dtype = array->dtype;
    shape->ndim = array->ndim;
    for (int i = 0; i < array->ndim; i++) {
        pick(&picked[i], array->shape[i], range->start[i], range->stop[i], range->step[i],
             &outside);
        shape->shape[i] = picked[i].count;
    }
    for (int64_t n = 0; n < model_size(shape); n++) {
        unravel(index, n, shape);
        for (int i = 0; i < array->ndim; i++) taken[i] = picked[i].at[index[i]];
        where[n] = ravel(taken, array);
    }
    return outside;
}

bool model_slice(model *out, const model *array, const model_range *range) {
    int64_t where[MODEL_MOST];
    const bool outside = places(where, out, array, range);
    for (int64_t n = 0; n < model_size(out); n++) out->values[n] = array->values[where[n]];
    return outside;
}

bool model_concatenate(model *out, const model *parts, size_t count, int axis) {
    int64_t index[KVC_MAX_DIMS];
    *out = parts[0];
    out->shape[axis] = 0;
    for (size_t p = 0; p < count; p++) out->shape[axis] += parts[p].shape[axis];
    if (model_size(out) > MODEL_MOST) return false;
    for (int64_t n = 0; n < model_size(out); n++) {
        size_t p = 0;
        for (unravel(index, n, out); index[axis] >= parts[p].shape[axis]; p++)
            index[axis] -= parts[p].shape[axis];
        out->values[n] = parts[p].values[ravel(index, &parts[p])];
    }
    return true;
}

bool model_broadcasts(const model *src, const model *where) {
    const int missing = where->ndim - src->ndim;
    if (missing < 0) return false;
    for (int i = 0; i < src->ndim; i++)
        if (src->shape[i] != 1 && src->shape[i] != where->shape[missing + i]) return false;
    return true;
}

void model_assign(model *dst, const model *src, const model_range *range) {
    int64_t where[MODEL_MOST] = {0}, index[KVC_MAX_DIMS] = {0};
    static model region;
    (void)places(where, &region, dst, range);
    const int missing = region.ndim - src->ndim;
    for (int64_t n = 0; n < model_size(&region); n++) {
        unravel(index, n, &region);
        for (int i = 0; i < src->ndim; i++) index[i] = src->shape[i] == 1 ? 0 : index[missing + i];
        dst->values[where[n]] = reference_round(dst->dtype, src->values[ravel(index, src)]);
    }
}

void model_convert(model *m, kvc_dtype dtype) {
    m->dtype = dtype;
    for (int64_t n = 0; n < model_size(m); n++) m->values[n] = reference_round(dtype, m->values[n]);
}

bool model_equal(const model *a, const model *b) {
    if (a->dtype != b->dtype || a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    for (int64_t n = 0; n < model_size(a); n++)
        if (a->values[n] != b->values[n]) return false;
    return true;
}

void model_expect(const model *m, const kvc_array *array) {
    assert_int_equal(array->dtype, m->dtype);
    array_expect(array, m->ndim, m->shape, m->values);
    assert_int_equal(kvc_array_nbytes(array),
                     (size_t)model_size(m) * kvc_dtype_size_bytes(m->dtype));
}
