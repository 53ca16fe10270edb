#include <string.h>

#include <kvcache/array.h>

#include "array/view.h"
#include "base/error.h"
#include "memory/convert.h"

/* Compares the innermost row that two element pointers begin. */
static bool rows_equal(const kvc_array *a, const char *pa, const kvc_array *b, const char *pb) {
    const int inner = a->ndim - 1;
    const int64_t size = (int64_t)kvc_dtype_size_bytes(a->dtype);
    const int64_t n = inner < 0 ? 1 : a->shape[inner];
    const int64_t sa = inner < 0 ? 0 : a->strides[inner] * size;
    const int64_t sb = inner < 0 ? 0 : b->strides[inner] * size;
    for (int64_t i = 0; i < n; i++)
        if (kvc__convert_load(pa + i * sa, a->dtype) != kvc__convert_load(pb + i * sb, b->dtype))
            return false;
    return true;
}

static bool elements_equal(const kvc_array *a, const kvc_array *b) {
    const int64_t size = (int64_t)kvc_dtype_size_bytes(a->dtype);
    int64_t at[KVC_MAX_DIMS] = {0};
    if (kvc_array_size(a) == 0) return true;
    for (;;) {
        int64_t oa = 0, ob = 0;
        for (int i = 0; i < a->ndim - 1; i++) {
            oa += at[i] * a->strides[i];
            ob += at[i] * b->strides[i];
        }
        if (!rows_equal(a, (const char *)a->data + oa * size, b, (const char *)b->data + ob * size))
            return false;
        int i = a->ndim - 2;
        while (i >= 0 && ++at[i] == a->shape[i]) at[i--] = 0;
        if (i < 0) return true;
    }
}

kvc_status kvc_array_equal(bool *out, const kvc_array *a, const kvc_array *b) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = false;
    KVC_TRY(kvc__array_check(a, "a"));
    KVC_TRY(kvc__array_check(b, "b"));
    if (kvc__array_device(a) != kvc_device_cpu() || kvc__array_device(b) != kvc_device_cpu())
        return kvc__fail(KVC_E_UNSUPPORTED, "a, b: arrays of the cpu wanted; bring them to the "
                                            "host with kvc_array_to_host");
    const size_t shape_bytes = (size_t)a->ndim * sizeof a->shape[0];
    *out = a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, shape_bytes) == 0 && elements_equal(a, b);
    return KVC_OK;
}
