#include <string.h>

#include <kvcache/dtype.h>

#include "base/error.h"

size_t kvc_dtype_size_bytes(kvc_dtype dtype) {
    switch (dtype) {
#define CASE(id, value, text, bytes)                                                               \
    case id: return bytes;
        KVC_DTYPE_LIST(CASE)
#undef CASE
    }
    return 0;
}

const char *kvc_dtype_name(kvc_dtype dtype) {
    switch (dtype) {
#define CASE(id, value, text, bytes)                                                               \
    case id: return text;
        KVC_DTYPE_LIST(CASE)
#undef CASE
    }
    return "?";
}

kvc_status kvc_dtype_from_name(kvc_dtype *out, const char *name) {
    if (!out || !name) return kvc__fail(KVC_E_INVALID, "dtype name: NULL given");
#define MATCH(id, value, text, bytes)                                                              \
    if (strcmp(name, text) == 0) {                                                                 \
        *out = id;                                                                                 \
        return KVC_OK;                                                                             \
    }
    KVC_DTYPE_LIST(MATCH)
#undef MATCH
    return kvc__fail(KVC_E_INVALID, "dtype: '%s' given, f32, f16, bf16, i8, u8 or u32 wanted",
                     name);
}
