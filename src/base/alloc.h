/** @file
 * Memory of the library's own small objects, from the caller's allocator (kvc_allocator_set). */
#ifndef KVC_BASE_ALLOC_H
#define KVC_BASE_ALLOC_H

#include <stddef.h>

#include <kvcache/status.h>

/** Allocates zeroed memory for count × bytes.
 * @errors KVC_E_RANGE the product overflows; KVC_E_NOMEM. *out is NULL then. */
kvc_status kvc__calloc(void **out, size_t count, size_t bytes, const char *what);

/** The same without a sentence, for memory that the caller can do without; NULL when there is none.
 */
void *kvc__calloc_or_null(size_t count, size_t bytes);

/** Frees what either gave, with the same count and bytes. NULL is allowed. */
void kvc__free(void *memory, size_t count, size_t bytes);

#endif
