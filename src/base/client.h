/** @file
 * What libraries above the core want of base/, in a header alone: what the core does not export
 * they cannot link. */
#ifndef KVC_BASE_CLIENT_H
#define KVC_BASE_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <kvcache/allocator.h>
#include <kvcache/status.h>

#include "base/checked.h"
#include "base/error.h"

/** Nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t kvc__client_now_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/** Allocates zeroed memory for count × bytes, more than 0, from the caller's allocator.
 * @errors KVC_E_RANGE the product overflows; KVC_E_NOMEM. *out is NULL then. */
static inline kvc_status kvc__client_calloc(void **out, size_t count, size_t bytes,
                                            const char *what) {
    const kvc_allocator *allocator = kvc_allocator_get();
    size_t total;
    *out = NULL;
    if (!kvc__mul(&total, count, bytes))
        return kvc__fail(KVC_E_RANGE, "%s: %zu of %zu bytes is more than a size can hold", what,
                         count, bytes);
    *out = allocator->allocate(allocator->context, total);
    if (!*out) return kvc__fail(KVC_E_NOMEM, "%s: no memory for %zu bytes", what, total);
    memset(*out, 0, total);
    return KVC_OK;
}

/** Frees it, with the same count and bytes. NULL is allowed. */
static inline void kvc__client_free(void *memory, size_t count, size_t bytes) {
    const kvc_allocator *allocator = kvc_allocator_get();
    if (memory) allocator->deallocate(allocator->context, memory, count * bytes);
}

/** Learns how many bytes of a tagged struct the caller and we both know.
 * @errors KVC_E_INVALID it is NULL or its struct_size is not set */
static inline kvc_status kvc__client_tag(size_t *known, const void *tagged, size_t full_bytes,
                                         const char *type) {
    size_t bytes;
    if (!tagged) return kvc__fail(KVC_E_INVALID, "%s: NULL given, a struct wanted", type);
    memcpy(&bytes, tagged, sizeof bytes);
    if (bytes <= sizeof bytes || bytes > 65536)
        return kvc__fail(KVC_E_INVALID, "%s.struct_size: %zu given, sizeof(%s) wanted", type, bytes,
                         type);
    *known = bytes < full_bytes ? bytes : full_bytes;
    return KVC_OK;
}

/** Copies a caller's description into a full one; fields that the caller does not know are 0. */
static inline kvc_status kvc__client_struct_in(void *full, size_t full_bytes, const void *desc,
                                               const char *type) {
    size_t known;
    KVC_TRY(kvc__client_tag(&known, desc, full_bytes, type));
    memset(full, 0, full_bytes);
    memcpy(full, desc, known);
    return KVC_OK;
}

/** Copies a full output struct to a caller's, whose struct_size stays. */
static inline kvc_status kvc__client_struct_out(void *out, const void *full, size_t full_bytes,
                                                const char *type) {
    size_t known;
    KVC_TRY(kvc__client_tag(&known, out, full_bytes, type));
    memcpy((char *)out + sizeof known, (const char *)full + sizeof known, known - sizeof known);
    return KVC_OK;
}

#endif
