#include "memory/vm.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { HUGE_PAGE_BYTES = 2 << 20 };

size_t kvc__vm_page_bytes(void) {
    static _Atomic(size_t) known;
    size_t bytes = atomic_load_explicit(&known, memory_order_relaxed);
    if (bytes == 0) {
        bytes = (size_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

size_t kvc__vm_memory_bytes(void) {
    size_t bytes;
    const long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 && kvc__mul(&bytes, (size_t)pages, kvc__vm_page_bytes()) ? bytes : 0;
}

static void *map_anonymous(size_t bytes, int flags) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Writes to every page what it holds: the way of systems that cannot populate. */
static void touch(volatile char *memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += kvc__vm_page_bytes()) memory[at] = memory[at];
}

static kvc_status populate(void *memory, size_t bytes) {
    int failed;
    do failed = madvise(memory, bytes, MADV_POPULATE_WRITE);
    while (failed && errno == EINTR);
    if (failed && errno == EINVAL) {
        touch(memory, bytes);
        failed = 0;
    }
    return failed ? KVC_E_NOMEM : KVC_OK;
}

/* Maps a range that starts on a huge page's boundary, by cutting a larger one. */
static void *map_aligned(size_t bytes) {
    size_t larger;
    if (!kvc__add(&larger, bytes, HUGE_PAGE_BYTES)) return NULL;
    char *memory = map_anonymous(larger, 0);
    if (!memory) return NULL;
    const size_t past = (uintptr_t)memory % HUGE_PAGE_BYTES;
    const size_t head = past ? HUGE_PAGE_BYTES - past : 0;
    if (head) (void)munmap(memory, head);
    (void)munmap(memory + head + bytes, larger - head - bytes);
    return memory + head;
}

kvc_status kvc__vm_map(void **out, size_t bytes) {
    size_t rounded;
    *out = NULL;
    if (!kvc__round_up(&rounded, bytes, kvc__vm_page_bytes())) return KVC_E_NOMEM;
    const bool huge = rounded >= HUGE_PAGE_BYTES;
    void *memory = huge ? map_aligned(rounded) : map_anonymous(rounded, 0);
    if (!memory) return KVC_E_NOMEM;
    if (huge) (void)madvise(memory, rounded, MADV_HUGEPAGE); /* refused: small pages serve too */
    if (populate(memory, rounded) != KVC_OK) {
        (void)munmap(memory, rounded);
        return KVC_E_NOMEM;
    }
    *out = memory;
    return KVC_OK;
}

kvc_status kvc__vm_reserve(void **out, size_t bytes) {
    void *memory = map_anonymous(bytes, MAP_NORESERVE);
    *out = memory;
    if (!memory) return KVC_E_NOMEM;
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE); /* fails only where there are none */
    return KVC_OK;
}

kvc_status kvc__vm_commit(void *memory, size_t bytes) {
    return populate(memory, bytes);
}

void kvc__vm_decommit(void *memory, size_t bytes) {
    (void)madvise(memory, bytes, MADV_DONTNEED); /* fails for no range that is mapped */
}

kvc_status kvc__vm_map_file(void *memory, size_t bytes, int fd, uint64_t offset) {
    if (offset > INT64_MAX) return KVC_E_IO;
    const void *mapped =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, (off_t)offset);
    return mapped == MAP_FAILED ? KVC_E_IO : KVC_OK;
}

kvc_status kvc__vm_move_file(void *to, void *from, size_t bytes) {
#ifdef MREMAP_DONTUNMAP
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (mremap(from, bytes, bytes, flags, to) != MAP_FAILED) return KVC_OK;
    return errno == EINVAL ? KVC_E_UNSUPPORTED : KVC_E_NOMEM;
#else
    (void)to, (void)from, (void)bytes;
    return KVC_E_UNSUPPORTED;
#endif
}

void kvc__vm_unmap(void *memory, size_t bytes) {
    size_t rounded;
    if (kvc__round_up(&rounded, bytes, kvc__vm_page_bytes())) (void)munmap(memory, rounded);
}
