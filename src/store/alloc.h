/** @file
 * Memory of the store's small objects, from the caller's allocator as that of the core's. JSON
 * is the exception: jansson takes it from malloc. */
#ifndef KVC_STORE_ALLOC_H
#define KVC_STORE_ALLOC_H

#include <stddef.h>

#include <kvcache/status.h>

/** Allocates zeroed memory for count × bytes, also where that is 0.
 * @errors KVC_E_RANGE the product overflows; KVC_E_NOMEM. *out is NULL then */
kvc_status kvc__store_calloc(void **out, size_t count, size_t bytes, const char *what);

/** Frees it, with the same count and bytes. NULL is allowed. */
void kvc__store_free(void *memory, size_t count, size_t bytes);

#endif
