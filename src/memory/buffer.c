#include "base/alloc.h"
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/trace.h"
#include "memory/pool.h"

static kvc_status run_allocate(const kvc_device *device, void **memory, size_t bytes) {
    return device->allocate(device->context, memory, bytes);
}

static kvc_status run_reserve(const kvc_device *device, void **memory, size_t bytes) {
    return device->reserve(device->context, memory, bytes);
}

static kvc_status run_commit(const kvc_device *device, void **memory, size_t bytes) {
    return device->commit(device->context, *memory, bytes);
}

static const kvc__driver_call call_allocate = {run_allocate, KVC_SPAN_ALLOCATE, "allocate"};
static const kvc__driver_call call_reserve = {run_reserve, KVC_SPAN_ALLOCATE, "reserve"};
static const kvc__driver_call call_commit = {run_commit, KVC_SPAN_COMMIT, "commit"};

static kvc_status check_new(kvc_buffer **out, kvc_pool *pool, size_t bytes) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    if (!pool) return kvc__fail(KVC_E_INVALID, "pool: NULL given, a pool wanted");
    if (bytes > PTRDIFF_MAX)
        return kvc__fail(KVC_E_RANGE, "bytes: %zu given, at most %td wanted", bytes,
                         (ptrdiff_t)PTRDIFF_MAX);
    return KVC_OK;
}

static kvc_buffer *lend(kvc_buffer *b) {
    atomic_store_explicit(&b->references, 1, memory_order_relaxed);
    return b;
}

static kvc_status new_header(kvc_buffer **out, kvc_pool *pool, size_t capacity_bytes) {
    void *memory;
    KVC_TRY(kvc__calloc(&memory, 1, sizeof(kvc_buffer), "buffer"));
    *out = memory;
    (*out)->pool = pool;
    (*out)->capacity_bytes = capacity_bytes;
    return KVC_OK;
}

/* The miss: memory from the device. The hold on the pool is counted already. */
static kvc_status allocate(kvc_buffer **out, kvc_pool *pool, size_t bytes) {
    kvc_buffer *b;
    KVC_TRY(new_header(&b, pool, bytes));
    kvc_status status = KVC_OK;
    if (bytes) status = kvc__pool_charge(pool, bytes);
    if (bytes && status == KVC_OK) {
        status = kvc__pool_drive(pool, &call_allocate, &b->data, bytes);
        if (status != KVC_OK) kvc__pool_uncharge(pool, bytes);
    }
    if (status != KVC_OK) {
        kvc__free(b, 1, sizeof *b);
        return status;
    }
    b->resident_bytes = bytes;
    *out = lend(b);
    return KVC_OK;
}

static kvc_status reserve(kvc_buffer **out, kvc_pool *pool, size_t bytes) {
    kvc_buffer *b;
    void *bits;
    KVC_TRY(new_header(&b, pool, bytes));
    const size_t words = kvc__committed_words(b);
    kvc_status status = kvc__calloc(&bits, words, sizeof *b->committed, "buffer's commit set");
    if (status == KVC_OK) status = kvc__pool_drive(pool, &call_reserve, &b->data, bytes);
    if (status != KVC_OK) {
        kvc__free(bits, words, sizeof *b->committed);
        kvc__free(b, 1, sizeof *b);
        return status;
    }
    b->committed = bits;
    (void)pthread_mutex_lock(&pool->lock);
    pool->stats.reserved_bytes += bytes;
    (void)pthread_mutex_unlock(&pool->lock);
    *out = lend(b);
    return KVC_OK;
}

kvc_status kvc_buffer_new(kvc_buffer **out, kvc_pool *pool, size_t bytes) {
    KVC_TRY(check_new(out, pool, bytes));
    kvc_buffer *cached = kvc__pool_take(pool, bytes, false);
    if (cached) {
        *out = lend(cached);
        return KVC_OK;
    }
    const kvc_status status = allocate(out, pool, bytes);
    if (status != KVC_OK) kvc__pool_drop_hold(pool);
    return status;
}

kvc_status kvc_buffer_reserve(kvc_buffer **out, kvc_pool *pool, size_t bytes) {
    KVC_TRY(check_new(out, pool, bytes));
    if (!pool->device->reserve)
        return kvc__fail(KVC_E_UNSUPPORTED, "device '%s' cannot reserve address space",
                         pool->device->name);
    size_t rounded;
    if (bytes == 0 || !kvc__round_up(&rounded, bytes, pool->device->page_bytes))
        return kvc__fail(KVC_E_RANGE, "bytes: %zu given, more than 0 wanted", bytes);
    kvc_buffer *cached = kvc__pool_take(pool, rounded, true);
    if (cached) {
        *out = lend(cached);
        return KVC_OK;
    }
    const kvc_status status = reserve(out, pool, rounded);
    if (status != KVC_OK) kvc__pool_drop_hold(pool);
    return status;
}

static bool is_committed(const kvc_buffer *b, size_t unit) {
    return b->committed[unit / 64] >> (unit % 64) & 1u;
}

/* Notes that the units [first, end) are committed. */
static void mark_committed(kvc_buffer *b, size_t first, size_t end) {
    for (size_t unit = first, some; unit < end; unit += some) {
        const size_t past = unit % 64, left = end - unit;
        some = left < 64 - past ? left : 64 - past;
        b->committed[unit / 64] |= ~(uint64_t)0 >> (64 - some) << past;
    }
}

/* Commits the units [first, end), none of which is. */
static kvc_status commit_run(kvc_buffer *b, size_t first, size_t end) {
    const size_t unit_bytes = b->pool->commit_unit_bytes;
    const size_t from = first * unit_bytes;
    const size_t to = end * unit_bytes < b->capacity_bytes ? end * unit_bytes : b->capacity_bytes;
    void *memory = (char *)b->data + from;
    KVC_TRY(kvc__pool_charge(b->pool, to - from));
    const kvc_status status = kvc__pool_drive(b->pool, &call_commit, &memory, to - from);
    if (status != KVC_OK) {
        kvc__pool_uncharge(b->pool, to - from);
        return status;
    }
    mark_committed(b, first, end);
    b->resident_bytes += to - from;
    return KVC_OK;
}

kvc_status kvc_buffer_commit(kvc_buffer *b, size_t offset, size_t bytes) {
    if (!b || !b->committed)
        return kvc__fail(KVC_E_INVALID, "buffer: a reserved one wanted (kvc_buffer_reserve)");
    size_t end_byte;
    if (!kvc__add(&end_byte, offset, bytes) || end_byte > b->capacity_bytes)
        return kvc__fail(KVC_E_RANGE, "commit of %zu bytes at %zu: the buffer has %zu", bytes,
                         offset, b->capacity_bytes);
    if (bytes == 0) return KVC_OK;
    const size_t unit_bytes = b->pool->commit_unit_bytes;
    const size_t end = (end_byte - 1) / unit_bytes + 1;
    for (size_t first = offset / unit_bytes; first < end; first++) {
        if (is_committed(b, first)) continue;
        size_t past = first + 1;
        while (past < end && !is_committed(b, past)) past++;
        KVC_TRY(commit_run(b, first, past));
        first = past - 1;
    }
    return KVC_OK;
}

/* Gives back the units [first, end), all of which are committed. */
static void decommit_run(kvc_buffer *b, size_t first, size_t end) {
    const kvc_device *device = b->pool->device;
    const size_t unit_bytes = b->pool->commit_unit_bytes;
    const size_t from = first * unit_bytes;
    const size_t to = end * unit_bytes < b->capacity_bytes ? end * unit_bytes : b->capacity_bytes;
    const uint64_t start_ns = kvc__now_ns();
    device->decommit(device->context, (char *)b->data + from, to - from);
    kvc__pool_count_driver(b->pool, kvc__now_ns() - start_ns, false);
    kvc__pool_uncharge(b->pool, to - from);
    for (size_t unit = first; unit < end; unit++)
        b->committed[unit / 64] &= ~((uint64_t)1 << (unit % 64));
    b->resident_bytes -= to - from;
}

void kvc_buffer_decommit(kvc_buffer *b, size_t offset, size_t bytes) {
    if (!b || !b->committed || b->mapped || !b->pool->device->decommit) return;
    if (b->resident_bytes == 0) return;
    if (offset > b->capacity_bytes || bytes > b->capacity_bytes - offset) return;
    const size_t unit_bytes = b->pool->commit_unit_bytes, past = offset + bytes;
    /* The last unit may be short, and ends with the buffer. */
    const size_t end =
        past == b->capacity_bytes ? (past + unit_bytes - 1) / unit_bytes : past / unit_bytes;
    for (size_t first = (offset + unit_bytes - 1) / unit_bytes; first < end; first++) {
        if (!is_committed(b, first)) continue;
        size_t run = first + 1;
        while (run < end && is_committed(b, run)) run++;
        decommit_run(b, first, run);
        first = run - 1;
    }
}

static kvc_status check_map(const kvc_buffer *b, size_t offset, size_t bytes,
                            uint64_t file_offset) {
    size_t end;
    if (!b || !b->committed)
        return kvc__fail(KVC_E_INVALID, "buffer: a reserved one wanted (kvc_buffer_reserve)");
    const size_t page = b->pool->device->page_bytes;
    if (!b->pool->device->map)
        return kvc__fail(KVC_E_UNSUPPORTED, "device '%s' cannot map files", b->pool->device->name);
    if (offset % page || file_offset % page || bytes == 0 || !kvc__add(&end, offset, bytes) ||
        end > b->capacity_bytes)
        return kvc__fail(KVC_E_RANGE,
                         "map of %zu bytes at %zu, from %llu of a file: offsets of whole pages of "
                         "%zu and at most the buffer's %zu bytes wanted",
                         bytes, offset, (unsigned long long)file_offset, page, b->capacity_bytes);
    return KVC_OK;
}

/* Counts what a mapped part leaves of a commit unit, if it is the first to reach into that. */
static kvc_status commit_edge(kvc_buffer *b, size_t unit, size_t offset, size_t end) {
    const size_t from = unit * b->pool->commit_unit_bytes,
                 whole = from + b->pool->commit_unit_bytes;
    const size_t past = whole < b->capacity_bytes ? whole : b->capacity_bytes;
    const size_t before = offset > from ? offset - from : 0;
    const size_t behind = past > end ? past - end : 0;
    if (is_committed(b, unit) || before + behind == 0) return KVC_OK;
    KVC_TRY(kvc__pool_charge(b->pool, before + behind));
    b->resident_bytes += before + behind;
    mark_committed(b, unit, unit + 1);
    return KVC_OK;
}

/* Notes that all units are committed that a mapped part reaches into. */
static kvc_status commit_mapped(kvc_buffer *b, size_t offset, size_t end) {
    const size_t unit_bytes = b->pool->commit_unit_bytes;
    const size_t first = offset / unit_bytes, last = (end - 1) / unit_bytes;
    KVC_TRY(commit_edge(b, first, offset, end));
    KVC_TRY(commit_edge(b, last, offset, end));
    mark_committed(b, first, last + 1);
    return KVC_OK;
}

kvc_status kvc_buffer_map(kvc_buffer *b, size_t offset, size_t bytes, int fd,
                          uint64_t file_offset) {
    KVC_TRY(check_map(b, offset, bytes, file_offset));
    const kvc_device *device = b->pool->device;
    size_t whole;
    if (!kvc__round_up(&whole, bytes, device->page_bytes)) whole = bytes;
    kvc_buffer_decommit(b, offset, whole); /* of an earlier use, as long as no file is mapped */
    b->mapped = true;
    const uint64_t start_ns = kvc__now_ns();
    const kvc_status status =
        device->map(device->context, (char *)b->data + offset, whole, fd, file_offset);
    kvc__pool_count_driver(b->pool, kvc__now_ns() - start_ns, false);
    if (kvc__span_begin()) kvc__span_end(start_ns, KVC_SPAN_COMMIT, "map", whole);
    if (status != KVC_OK)
        return kvc__fail(status, "device '%s': cannot map %zu bytes of a file",
                         b->pool->device->name, whole);
    return commit_mapped(b, offset, offset + whole);
}

kvc_status kvc__buffer_move(kvc_buffer *to, size_t to_offset, kvc_buffer *from, size_t from_offset,
                            size_t bytes) {
    const kvc_device *device = to->pool->device;
    if (!device->move)
        return kvc__fail(KVC_E_UNSUPPORTED, "device '%s' cannot move pages", device->name);
    KVC_TRY(commit_mapped(to, to_offset, to_offset + bytes));
    const uint64_t start_ns = kvc__now_ns();
    const kvc_status status = device->move(device->context, (char *)to->data + to_offset,
                                           (char *)from->data + from_offset, bytes);
    kvc__pool_count_driver(to->pool, kvc__now_ns() - start_ns, false);
    if (kvc__span_begin()) kvc__span_end(start_ns, KVC_SPAN_COMMIT, "move", bytes);
    if (status != KVC_OK)
        return kvc__fail(status, "device '%s': cannot move %zu bytes of a file", device->name,
                         bytes);
    to->mapped = true;
    return KVC_OK;
}

bool kvc__buffer_is_committed(const kvc_buffer *b, size_t offset, size_t bytes) {
    const size_t unit_bytes = b->pool->commit_unit_bytes;
    for (size_t unit = offset / unit_bytes; unit * unit_bytes < offset + bytes; unit++)
        if (!is_committed(b, unit)) return false;
    return true;
}

size_t kvc_buffer_commit_unit_bytes(const kvc_pool *pool) {
    return pool->commit_unit_bytes;
}

kvc_buffer *kvc_buffer_retain(kvc_buffer *b) {
    if (b) (void)atomic_fetch_add_explicit(&b->references, 1, memory_order_relaxed);
    return b;
}

void kvc_buffer_release(kvc_buffer *b) {
    if (!b) return;
    /* Release and acquire: what every holder wrote is seen before the memory serves another. */
    const unsigned before = atomic_fetch_sub_explicit(&b->references, 1, memory_order_acq_rel);
    KVC_ASSERT(before > 0);
    if (before == 1) kvc__pool_give(b->pool, b);
}

void *kvc_buffer_data(const kvc_buffer *b) {
    return b->data;
}

size_t kvc_buffer_capacity_bytes(const kvc_buffer *b) {
    return b->capacity_bytes;
}

size_t kvc_buffer_resident_bytes(const kvc_buffer *b) {
    return b->resident_bytes;
}

bool kvc_buffer_is_sole(const kvc_buffer *b) {
    return atomic_load_explicit(&b->references, memory_order_acquire) == 1;
}

kvc_pool *kvc_buffer_pool(const kvc_buffer *b) {
    return b->pool;
}
