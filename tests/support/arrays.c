#include "support/arrays.h"

#include <math.h>
#include <stdlib.h>

#include "support/reference.h"

kvc_array array_of(kvc_pool *pool, kvc_dtype dtype, int ndim, const int64_t *shape,
                   const double *values) {
    const size_t bytes = kvc_dtype_size_bytes(dtype);
    kvc_array out;
    int64_t size = 1;
    for (int i = 0; i < ndim; i++) size *= shape[i];
    char *data = malloc((size_t)size * bytes + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < size; i++)
        reference_store(data + (size_t)i * bytes, dtype, values ? values[i] : (double)i);
    assert_ok(kvc_array_from_host(&out, pool, dtype, ndim, shape, data));
    free(data);
    return out;
}

kvc_array array_counting(kvc_pool *pool, kvc_dtype dtype, int ndim, const int64_t *shape) {
    return array_of(pool, dtype, ndim, shape, NULL);
}

char *array_element(const kvc_array *array, int64_t nth) {
    int64_t offset = 0;
    for (int i = array->ndim - 1; i >= 0; i--) {
        offset += nth % array->shape[i] * array->strides[i];
        nth /= array->shape[i];
    }
    return (char *)array->data + offset * (int64_t)kvc_dtype_size_bytes(array->dtype);
}

double array_value(const kvc_array *array, int64_t nth) {
    return reference_load(array_element(array, nth), array->dtype);
}

void array_expect(const kvc_array *array, int ndim, const int64_t *shape, const double *values) {
    int64_t size = 1;
    assert_int_equal(array->ndim, ndim);
    for (int i = 0; i < ndim; i++) {
        assert_int_equal(array->shape[i], shape[i]);
        size *= shape[i];
    }
    assert_int_equal(kvc_array_size(array), size);
    for (int64_t i = 0; i < size; i++) {
        const double value = array_value(array, i);
        if (value != values[i] && !(isnan(value) && isnan(values[i])))
            fail_msg("element %lld is %g, %g wanted", (long long)i, value, values[i]);
    }
}

void array_expect_none(const kvc_array *array) {
    const kvc_array none = {0};
    assert_null(array->buffer);
    assert_null(array->data);
    assert_int_equal(array->dtype, 0);
    assert_int_equal(array->ndim, 0);
    assert_memory_equal(array->shape, none.shape, sizeof none.shape);
    assert_memory_equal(array->strides, none.strides, sizeof none.strides);
}

kvc_array array_sliced(const kvc_array *array, const int64_t *start, const int64_t *stop,
                       const int64_t *step) {
    kvc_array out;
    assert_ok(kvc_array_slice(&out, array, start, stop, step));
    return out;
}
