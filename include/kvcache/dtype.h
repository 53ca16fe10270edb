/** @file
 * Element types of arrays and caches. f16 and bf16 are stored as 16-bit words; compilers need no
 * type for them. */
#ifndef KVCACHE_DTYPE_H
#define KVCACHE_DTYPE_H

#include <stddef.h>

#include <kvcache/export.h>
#include <kvcache/status.h>

/** Element types: value, name, bytes. */
#define KVC_DTYPE_LIST(X)                                                                          \
    X(KVC_F32, 1, "f32", 4)                                                                        \
    X(KVC_F16, 2, "f16", 2)                                                                        \
    X(KVC_BF16, 3, "bf16", 2)                                                                      \
    X(KVC_I8, 4, "i8", 1)                                                                          \
    X(KVC_U8, 5, "u8", 1)                                                                          \
    X(KVC_U32, 6, "u32", 4)

/** The type of an element. Zero is no type, so that a zeroed description is refused. */
typedef enum kvc_dtype {
#define KVC_DTYPE_ENUM(id, value, text, bytes) id = (value),
    KVC_DTYPE_LIST(KVC_DTYPE_ENUM)
#undef KVC_DTYPE_ENUM
} kvc_dtype;

KVC_BEGIN_DECLS

/** Returns the bytes of one element, 0 for a value that is no dtype. */
KVC_API size_t kvc_dtype_size_bytes(kvc_dtype dtype);

/** Returns "f32", "f16", …; "?" for a value that is no dtype. Static storage. */
KVC_API const char *kvc_dtype_name(kvc_dtype dtype);

/** Finds the dtype of a name such as "bf16".
 * @param out  receives the dtype
 * @errors     KVC_E_INVALID no such name; the sentence lists them */
KVC_API KVC_MUST_USE kvc_status kvc_dtype_from_name(kvc_dtype *out, const char *name);

KVC_END_DECLS

#endif
