#include "store/alloc.h"

#include <stdint.h>
#include <string.h>

#include <kvcache/allocator.h>
#include <kvcache/device.h>

#include "base/checked.h"
#include "base/error.h"

/* What is asked for where nothing is needed: NULL then always means that there is none. */
static size_t at_least_one(size_t bytes) {
    return bytes ? bytes : 1;
}

static kvc_status allocate(void **out, size_t bytes, const char *what) {
    const kvc_allocator *allocator = kvc_allocator_get();
    *out = allocator->allocate(allocator->context, bytes);
    return *out ? KVC_OK : kvc__fail(KVC_E_NOMEM, "%s: no memory for %zu bytes", what, bytes);
}

kvc_status kvc__store_calloc(void **out, size_t count, size_t bytes, const char *what) {
    size_t total;
    *out = NULL;
    if (!kvc__mul(&total, count, bytes))
        return kvc__fail(KVC_E_RANGE, "%s: %zu of %zu bytes is more than a size can hold", what,
                         count, bytes);
    KVC_TRY(allocate(out, at_least_one(total), what));
    memset(*out, 0, at_least_one(total));
    return KVC_OK;
}

void kvc__store_free(void *memory, size_t count, size_t bytes) {
    const kvc_allocator *allocator = kvc_allocator_get();
    if (memory) allocator->deallocate(allocator->context, memory, at_least_one(count * bytes));
}

kvc_status kvc__piece_init(kvc__piece *out, size_t bytes) {
    *out = (kvc__piece){0};
    if (!kvc__add(&out->bytes, bytes, KVC_ALIGNMENT_BYTES))
        return kvc__fail(KVC_E_RANGE, "a buffer: %zu bytes are more than a size can hold", bytes);
    KVC_TRY(allocate(&out->memory, out->bytes, "a buffer"));
    const size_t past = (uintptr_t)out->memory % KVC_ALIGNMENT_BYTES;
    out->data = (char *)out->memory + (KVC_ALIGNMENT_BYTES - past);
    return KVC_OK;
}

void kvc__piece_deinit(kvc__piece *piece) {
    kvc__store_free(piece->memory, piece->bytes, 1);
    *piece = (kvc__piece){0};
}
