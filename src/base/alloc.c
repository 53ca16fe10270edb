#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#include <kvcache/allocator.h>

#include "base/checked.h"
#include "base/error.h"

static void *system_allocate(void *context, size_t bytes) {
    (void)context;
    return malloc(bytes);
}

static void system_deallocate(void *context, void *memory, size_t bytes) {
    (void)context;
    (void)bytes;
    free(memory);
}

static const kvc_allocator system_allocator = {system_allocate, system_deallocate, NULL};
static kvc_allocator current = {system_allocate, system_deallocate, NULL};

void kvc_allocator_set(const kvc_allocator *allocator) {
    current = allocator ? *allocator : system_allocator;
}

const kvc_allocator *kvc_allocator_get(void) {
    return &current;
}

void *kvc__calloc_or_null(size_t count, size_t bytes) {
    size_t total;
    if (!kvc__mul(&total, count, bytes)) return NULL;
    void *memory = current.allocate(current.context, total);
    return memory ? memset(memory, 0, total) : NULL;
}

kvc_status kvc__calloc(void **out, size_t count, size_t bytes, const char *what) {
    size_t total;
    *out = kvc__calloc_or_null(count, bytes);
    if (*out) return KVC_OK;
    if (!kvc__mul(&total, count, bytes))
        return kvc__fail(KVC_E_RANGE, "%s: %zu of %zu bytes is more than a size can hold", what,
                         count, bytes);
    return kvc__fail(KVC_E_NOMEM, "%s: no memory for %zu bytes", what, total);
}

void kvc__free(void *memory, size_t count, size_t bytes) {
    if (memory) current.deallocate(current.context, memory, count * bytes);
}
