#include "store/format.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

/* As the reference implementation has them (safetensors/src/tensor.rs, Dtype, version 0.8). */
static const kvc__format_dtype dtypes[] = {
    {"BOOL", 8, (kvc_dtype)0},
    {"F4", 4, (kvc_dtype)0},
    {"F6_E2M3", 6, (kvc_dtype)0},
    {"F6_E3M2", 6, (kvc_dtype)0},
    {"U8", 8, KVC_U8},
    {"I8", 8, KVC_I8},
    {"F8_E5M2", 8, (kvc_dtype)0},
    {"F8_E4M3", 8, (kvc_dtype)0},
    {"F8_E8M0", 8, (kvc_dtype)0},
    {"F8_E4M3FNUZ", 8, (kvc_dtype)0},
    {"F8_E5M2FNUZ", 8, (kvc_dtype)0},
    {"I16", 16, (kvc_dtype)0},
    {"U16", 16, (kvc_dtype)0},
    {"F16", 16, KVC_F16},
    {"BF16", 16, KVC_BF16},
    {"I32", 32, (kvc_dtype)0},
    {"U32", 32, KVC_U32},
    {"F32", 32, KVC_F32},
    {"C64", 64, (kvc_dtype)0},
    {"F64", 64, (kvc_dtype)0},
    {"I64", 64, (kvc_dtype)0},
    {"U64", 64, (kvc_dtype)0},
};

const kvc__format_dtype *kvc__format_dtype_named(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const kvc__format_dtype *kvc__format_dtype_of(kvc_dtype dtype) {
    if (kvc_dtype_size_bytes(dtype) == 0) return NULL;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

bool kvc__format_bytes(size_t *out, const kvc__format_dtype *dtype, int ndim,
                       const int64_t *shape) {
    size_t bits = dtype->bits;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return false;
        if (shape[i] == 0) empty = true; /* strides of the others must not overflow either */
        else if (!kvc__mul(&bits, bits, (size_t)shape[i])) return false;
    }
    *out = empty ? 0 : bits / 8;
    return empty || bits % 8 == 0;
}

const char *kvc__shape_shown(char out[KVC__SHAPE_SHOWN], int ndim, const int64_t *shape) {
    size_t at = 1;
    (void)snprintf(out, KVC__SHAPE_SHOWN, "[");
    for (int i = 0; i < ndim; i++)
        at += (size_t)snprintf(out + at, KVC__SHAPE_SHOWN - at, "%s%lld", i ? ", " : "",
                               (long long)shape[i]);
    (void)snprintf(out + at, KVC__SHAPE_SHOWN - at, "]");
    return out;
}
