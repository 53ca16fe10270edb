#include "support/faulty_device.h"

#include <sys/mman.h>

#include "support/support.h"

static bool fails(faulty_device *d, faulty_call call) {
    d->calls[call]++;
    if (d->good_calls == UINT64_MAX) return false;
    if (d->good_calls == 0) return true;
    d->good_calls--;
    return false;
}

static kvc_status allocate(void *context, void **out, size_t bytes) {
    faulty_device *d = context;
    const kvc_device *cpu = kvc_device_cpu();
    if (fails(d, FAULTY_ALLOCATE)) return KVC_E_NOMEM;
    d->held_bytes += bytes;
    return cpu->allocate(cpu->context, out, bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    faulty_device *d = context;
    const kvc_device *cpu = kvc_device_cpu();
    assert_true(d->held_bytes >= bytes);
    d->held_bytes -= bytes;
    cpu->deallocate(cpu->context, memory, bytes);
}

static kvc_status copy(void *context, const kvc_strided *dst, const kvc_strided *src, int ndim,
                       const int64_t *shape) {
    faulty_device *d = context;
    const kvc_device *cpu = kvc_device_cpu();
    uint64_t bytes = kvc_dtype_size_bytes(dst->dtype);
    if (fails(d, FAULTY_COPY)) return KVC_E_UNSUPPORTED;
    for (int i = 0; i < ndim; i++) bytes *= (uint64_t)shape[i];
    d->copied_bytes += bytes;
    return cpu->copy(cpu->context, dst, src, ndim, shape);
}

static kvc_status reserve(void *context, void **out, size_t bytes) {
    faulty_device *d = context;
    if (fails(d, FAULTY_RESERVE)) return KVC_E_NOMEM;
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return KVC_E_NOMEM;
    *out = memory;
    d->held_bytes += bytes;
    return KVC_OK;
}

static kvc_status commit(void *context, void *memory, size_t bytes) {
    faulty_device *d = context;
    if (fails(d, FAULTY_COMMIT)) return KVC_E_NOMEM;
    assert_int_equal((uintptr_t)memory % d->device.page_bytes, 0);
    assert_int_equal(bytes % d->device.page_bytes, 0);
    d->committed_bytes += bytes;
    return mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0 ? KVC_OK : KVC_E_NOMEM;
}

static void release(void *context, void *memory, size_t bytes) {
    faulty_device *d = context;
    assert_true(d->held_bytes >= bytes);
    d->held_bytes -= bytes;
    assert_int_equal(munmap(memory, bytes), 0);
}

void faulty_device_init(faulty_device *d) {
    *d = (faulty_device){.device = *kvc_device_cpu(), .good_calls = UINT64_MAX};
    d->device.name = "faulty";
    d->device.context = d;
    d->device.allocate = allocate;
    d->device.deallocate = deallocate;
    d->device.copy = copy;
    d->device.reserve = reserve;
    d->device.commit = commit;
    d->device.release = release;
}

void faulty_device_fail_after(faulty_device *d, uint64_t good) {
    d->good_calls = good;
}

uint64_t faulty_device_memory_calls(const faulty_device *d) {
    return d->calls[FAULTY_ALLOCATE] + d->calls[FAULTY_RESERVE] + d->calls[FAULTY_COMMIT];
}
