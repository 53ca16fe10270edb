#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/device.h>

#include "base/checked.h"
#include "memory/convert.h"
#include "memory/vm.h"

/* Below this malloc serves: a mapping costs a page at least, and two system calls. */
enum { SMALL_BYTES = 64 << 10 };

static kvc_status cpu_allocate(void *context, void **out, size_t bytes) {
    (void)context;
    if (bytes >= SMALL_BYTES) return kvc__vm_map(out, bytes);
    *out = aligned_alloc(KVC_ALIGNMENT_BYTES,
                         (bytes + KVC_ALIGNMENT_BYTES - 1) & ~(size_t)(KVC_ALIGNMENT_BYTES - 1));
    return *out ? KVC_OK : KVC_E_NOMEM;
}

static void cpu_deallocate(void *context, void *memory, size_t bytes) {
    (void)context;
    if (bytes >= SMALL_BYTES) kvc__vm_unmap(memory, bytes);
    else free(memory);
}

static kvc_status cpu_copy(void *context, const kvc_strided *dst, const kvc_strided *src, int ndim,
                           const int64_t *shape) {
    (void)context;
    kvc__convert_copy(dst, src, ndim, shape);
    return KVC_OK;
}

static kvc_status cpu_fill(void *context, void *dst, kvc_dtype dtype, int64_t count, double value) {
    (void)context;
    kvc__convert_fill(dst, dtype, count, value);
    return KVC_OK;
}

static kvc_status cpu_transfer(void *context, void *dst, const void *src, size_t bytes) {
    (void)context;
    if (bytes) memcpy(dst, src, bytes);
    return KVC_OK;
}

static kvc_status cpu_synchronize(void *context) {
    (void)context;
    return KVC_OK; /* every call above has ended when it returns */
}

static kvc_status cpu_reserve(void *context, void **out, size_t bytes) {
    (void)context;
    return kvc__vm_reserve(out, bytes);
}

static kvc_status cpu_commit(void *context, void *memory, size_t bytes) {
    (void)context;
    return kvc__vm_commit(memory, bytes);
}

static void cpu_decommit(void *context, void *memory, size_t bytes) {
    (void)context;
    kvc__vm_decommit(memory, bytes);
}

static kvc_status cpu_map(void *context, void *memory, size_t bytes, int fd, uint64_t offset) {
    (void)context;
    return kvc__vm_map_file(memory, bytes, fd, offset);
}

static kvc_status cpu_move(void *context, void *to, void *from, size_t bytes) {
    (void)context;
    return kvc__vm_move_file(to, from, bytes);
}

static void cpu_release(void *context, void *memory, size_t bytes) {
    (void)context;
    kvc__vm_unmap(memory, bytes);
}

static kvc_device cpu = {
    .struct_size = sizeof(kvc_device),
    .name = "cpu",
    .allocate = cpu_allocate,
    .deallocate = cpu_deallocate,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .transfer = cpu_transfer,
    .synchronize = cpu_synchronize,
    .reserve = cpu_reserve,
    .commit = cpu_commit,
    .release = cpu_release,
    .decommit = cpu_decommit,
    .map = cpu_map,
    .move = cpu_move,
};

static void ask_system(void) {
    cpu.page_bytes = kvc__vm_page_bytes();
    cpu.memory_bytes = kvc__vm_memory_bytes();
}

const kvc_device *kvc_device_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, ask_system);
    return &cpu;
}
