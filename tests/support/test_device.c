#include "support/test_device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/fault.h"
#include "support/support.h"

static void note_misuse(test_device *d, const char *what) {
    if (!d->misuse) d->misuse = what;
}

static void enter(test_device *d, test_call call) {
    (void)pthread_mutex_lock(&d->lock);
    d->calls[call]++;
}

/* Tells whether the call that was entered is to fail. */
static bool fails_now(const test_device *d, test_call call) {
    const size_t nth = d->calls[call];
    return (nth >= d->fail_from[call] && nth < d->fail_until[call]) || test_fault_here();
}

static void leave(test_device *d) {
    (void)pthread_mutex_unlock(&d->lock);
}

static void add_block(test_device *d, void *memory, size_t bytes, bool reserved) {
    if (d->count == TEST_DEVICE_BLOCKS) abort(); /* a test that wants more than this device has */
    d->blocks[d->count++] = (test_block){memory, bytes, reserved};
}

static void drop_block(test_device *d, void *memory, size_t bytes, bool reserved) {
    size_t i = 0;
    while (i < d->count && d->blocks[i].memory != memory) i++;
    if (i == d->count) note_misuse(d, "memory given back that the device did not give");
    else if (d->blocks[i].bytes != bytes) note_misuse(d, "memory given back with another size");
    else if (d->blocks[i].reserved != reserved) note_misuse(d, "memory given back by another call");
    else d->blocks[i] = d->blocks[--d->count];
    d->last_given_back = memory;
}

static kvc_status allocate(void *context, void **out, size_t bytes) {
    test_device *d = context;
    void *memory = NULL;
    enter(d, TEST_ALLOCATE);
    const bool fails = fails_now(d, TEST_ALLOCATE);
    if (bytes == 0) note_misuse(d, "allocate of 0 bytes");
    if (bytes > d->largest_asked) d->largest_asked = bytes;
    const bool fits = bytes <= d->room_bytes && d->held_bytes <= d->room_bytes - bytes;
    if (!fails && fits && posix_memalign(&memory, KVC_ALIGNMENT_BYTES, bytes) == 0) {
        memset(memory, TEST_POISON, bytes);
        d->held_bytes += bytes;
        add_block(d, memory, bytes, false);
        *out = memory;
    } else {
        memory = NULL;
    }
    leave(d);
    return memory ? KVC_OK : KVC_E_NOMEM;
}

static void deallocate(void *context, void *memory, size_t bytes) {
    test_device *d = context;
    enter(d, TEST_DEALLOCATE);
    drop_block(d, memory, bytes, false);
    d->held_bytes -= bytes;
    leave(d);
    free(memory);
}

static kvc_status reserve(void *context, void **out, size_t bytes) {
    test_device *d = context;
    enter(d, TEST_RESERVE);
    const bool fails = fails_now(d, TEST_RESERVE);
    if (bytes == 0 || bytes % TEST_PAGE_BYTES != 0) note_misuse(d, "reserve of broken pages");
    if (bytes > d->largest_asked) d->largest_asked = bytes;
    void *memory = MAP_FAILED;
    if (!fails)
        memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
        add_block(d, memory, bytes, true);
        *out = memory;
    }
    leave(d);
    return memory != MAP_FAILED ? KVC_OK : KVC_E_NOMEM;
}

static bool is_reserved(const test_device *d, const char *memory, size_t bytes) {
    for (size_t i = 0; i < d->count; i++) {
        const test_block *b = &d->blocks[i];
        if (b->reserved && memory >= b->memory && bytes <= b->bytes &&
            (size_t)(memory - b->memory) <= b->bytes - bytes)
            return true;
    }
    return false;
}

static kvc_status commit(void *context, void *memory, size_t bytes) {
    test_device *d = context;
    enter(d, TEST_COMMIT);
    const bool fails = fails_now(d, TEST_COMMIT);
    if (bytes == 0 || bytes % TEST_PAGE_BYTES != 0) note_misuse(d, "commit of broken pages");
    if (!is_reserved(d, memory, bytes)) note_misuse(d, "commit outside of what is reserved");
    if (!fails) {
        d->committed_bytes += bytes;
        if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) note_misuse(d, "commit");
    }
    leave(d);
    return fails ? KVC_E_NOMEM : KVC_OK;
}

/* What was there is gone, and traps until it is committed again. */
static void decommit(void *context, void *memory, size_t bytes) {
    test_device *d = context;
    enter(d, TEST_DECOMMIT);
    if (bytes == 0 || bytes % TEST_PAGE_BYTES != 0) note_misuse(d, "decommit of broken pages");
    if (!is_reserved(d, memory, bytes)) note_misuse(d, "decommit outside of what is reserved");
    d->decommitted_bytes += bytes;
    if (mprotect(memory, bytes, PROT_NONE) != 0 || madvise(memory, bytes, MADV_DONTNEED) != 0)
        note_misuse(d, "decommit");
    leave(d);
}

static void release(void *context, void *memory, size_t bytes) {
    test_device *d = context;
    enter(d, TEST_RELEASE);
    drop_block(d, memory, bytes, true);
    leave(d);
    (void)munmap(memory, bytes);
}

/* Counts a call that moves or waits; what it does is the cpu's. */
static kvc_status work(test_device *d, test_call call) {
    enter(d, call);
    const bool fails = fails_now(d, call);
    leave(d);
    return fails ? KVC_E_UNSUPPORTED : KVC_OK;
}

static kvc_status copy(void *context, const kvc_strided *dst, const kvc_strided *src, int ndim,
                       const int64_t *shape) {
    test_device *d = context;
    const kvc_device *cpu = kvc_device_cpu();
    const kvc_status status = work(d, TEST_COPY);
    if (status != KVC_OK) return status;
    size_t bytes = kvc_dtype_size_bytes(dst->dtype);
    for (int i = 0; i < ndim; i++) bytes *= (size_t)shape[i];
    (void)pthread_mutex_lock(&d->lock);
    d->copied_bytes += bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return cpu->copy(cpu->context, dst, src, ndim, shape);
}

static kvc_status fill(void *context, void *dst, kvc_dtype dtype, int64_t count, double value) {
    const kvc_device *cpu = kvc_device_cpu();
    const kvc_status status = work(context, TEST_FILL);
    return status == KVC_OK ? cpu->fill(cpu->context, dst, dtype, count, value) : status;
}

static kvc_status transfer(void *context, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) note_misuse(context, "transfer of 0 bytes");
    const kvc_status status = work(context, TEST_TRANSFER);
    if (status == KVC_OK) memcpy(dst, src, bytes);
    return status;
}

static kvc_status synchronize(void *context) {
    return work(context, TEST_SYNCHRONIZE);
}

void test_device_init(test_device *device) {
    memset(device, 0, sizeof *device);
    device->table = (kvc_device){.struct_size = sizeof(kvc_device),
                                 .name = "test",
                                 .context = device,
                                 .page_bytes = TEST_PAGE_BYTES,
                                 .allocate = allocate,
                                 .deallocate = deallocate,
                                 .copy = copy,
                                 .fill = fill,
                                 .transfer = transfer,
                                 .synchronize = synchronize,
                                 .reserve = reserve,
                                 .commit = commit,
                                 .release = release,
                                 .decommit = decommit};
    device->room_bytes = TEST_ROOM_BYTES;
    (void)pthread_mutex_init(&device->lock, NULL);
}

void test_device_deinit(test_device *device) {
    (void)pthread_mutex_destroy(&device->lock);
    if (device->misuse) fail_msg("device: %s", device->misuse);
    if (device->count)
        fail_msg("device: %zu blocks were not given back, the first of %zu bytes", device->count,
                 device->blocks[0].bytes);
}

void test_device_fail(test_device *device, test_call call, size_t nth, size_t count) {
    device->fail_from[call] = device->calls[call] + nth;
    device->fail_until[call] = device->fail_from[call] + count;
}

size_t test_device_driver_calls(const test_device *device) {
    const size_t *calls = device->calls;
    return calls[TEST_ALLOCATE] + calls[TEST_DEALLOCATE] + calls[TEST_RESERVE] +
           calls[TEST_COMMIT] + calls[TEST_RELEASE] + calls[TEST_DECOMMIT];
}
