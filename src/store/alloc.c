#include "store/alloc.h"

#include <string.h>

#include <kvcache/allocator.h>

#include "base/checked.h"
#include "base/error.h"

/* What is asked for where nothing is needed: NULL then always means that there is none. */
static size_t at_least_one(size_t bytes) {
    return bytes ? bytes : 1;
}

kvc_status kvc__store_calloc(void **out, size_t count, size_t bytes, const char *what) {
    const kvc_allocator *allocator = kvc_allocator_get();
    size_t total;
    *out = NULL;
    if (!kvc__mul(&total, count, bytes))
        return kvc__fail(KVC_E_RANGE, "%s: %zu of %zu bytes is more than a size can hold", what,
                         count, bytes);
    *out = allocator->allocate(allocator->context, at_least_one(total));
    if (!*out) return kvc__fail(KVC_E_NOMEM, "%s: no memory for %zu bytes", what, total);
    memset(*out, 0, at_least_one(total));
    return KVC_OK;
}

void kvc__store_free(void *memory, size_t count, size_t bytes) {
    const kvc_allocator *allocator = kvc_allocator_get();
    if (memory) allocator->deallocate(allocator->context, memory, at_least_one(count * bytes));
}
