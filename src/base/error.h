/** @file
 * How a call fails: one line that records the sentence and returns the status. */
#ifndef KVC_BASE_ERROR_H
#define KVC_BASE_ERROR_H

#include <stddef.h>

#include <kvcache/status.h>

/** Records a sentence (a format and its arguments) and yields status, for `return`. A macro, so
 * that compilers see which value a failing path returns. */
#define kvc__fail(status, ...) (kvc_last_error_set(__VA_ARGS__), (status))

/** Returns from the calling function when an expression is not KVC_OK. */
#define KVC_TRY(expression)                                                                        \
    do {                                                                                           \
        const kvc_status kvc_try_status = (expression);                                            \
        if (kvc_try_status != KVC_OK) return kvc_try_status;                                       \
    } while (0)

/** Copies a full output struct to a caller's, no more than the caller's struct_size says it has.
 * Both begin with `size_t struct_size`, which is kept.
 * @errors KVC_E_INVALID out is NULL or its struct_size is not set */
kvc_status kvc__struct_out(void *out, const void *full, size_t full_bytes, const char *type);

/** Copies a caller's description into a full one; fields that the caller does not know are 0.
 * @errors KVC_E_INVALID desc is NULL or its struct_size is not set */
kvc_status kvc__struct_in(void *full, size_t full_bytes, const void *desc, const char *type);

#endif
