/** @file
 * Where the library's own small objects live (handles, tables, plans). Tensor memory does not come
 * from here but from a device (device.h). */
#ifndef KVCACHE_ALLOCATOR_H
#define KVCACHE_ALLOCATOR_H

#include <stddef.h>

#include <kvcache/export.h>

/** malloc and free by the caller. Both must be thread-safe. */
typedef struct kvc_allocator {
    void *(*allocate)(void *context, size_t bytes); /**< 16-byte aligned; NULL when it has none */
    void (*deallocate)(void *context, void *memory, size_t bytes); /**< memory is never NULL */
    void *context;                                                 /**< handed to both */
} kvc_allocator;

KVC_BEGIN_DECLS

/** Replaces the allocator of every object made from now on; NULL restores malloc and free.
 * Call it before any other call, or when no object is alive: an object must be freed by the
 * allocator that made it. Not thread-safe. */
KVC_API void kvc_allocator_set(const kvc_allocator *allocator);

/** Returns the allocator in use, for libraries above this one. Never NULL.
 * @lifetime until the next kvc_allocator_set */
KVC_API const kvc_allocator *kvc_allocator_get(void);

KVC_END_DECLS

#endif
