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

/** Bytes that begin with a line of the cache, what is in them undefined. Linux fills memory of less
 * than 32 bytes' alignment several times as slowly (AMD Zen 3: 2 GB/s where it is 12). */
typedef struct kvc__piece {
    char *data; /**< NULL: none */
    void *memory;
    size_t bytes;
} kvc__piece;

/** Allocates one. @errors KVC_E_RANGE, KVC_E_NOMEM: data is NULL then */
kvc_status kvc__piece_init(kvc__piece *out, size_t bytes);

/** Frees it; a zeroed one is allowed. */
void kvc__piece_deinit(kvc__piece *piece);

#endif
