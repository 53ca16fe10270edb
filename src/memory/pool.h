/** @file
 * The pool's insides, shared by pool.c (limits, figures, reuse) and buffer.c (what callers hold).
 */
#ifndef KVC_MEMORY_POOL_H
#define KVC_MEMORY_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/pool.h>
#include <kvcache/trace.h>

#include "memory/shelf.h"

struct kvc_buffer {
    kvc_pool *pool;
    void *data;
    size_t capacity_bytes; /* as first asked for; reuse keeps it */
    size_t resident_bytes; /* capacity, or what is committed of a reserved buffer */
    uint64_t *committed;   /* reserved buffers: a bit a commit unit; else NULL */
    bool mapped;           /* holds pages of a file: not for another, nor to be cut */
    atomic_uint references;
    kvc__shelf_links links; /* while the pool keeps it */
};

struct kvc_pool {
    const kvc_device *device;
    size_t commit_unit_bytes;

    pthread_mutex_t lock; /* over all below */
    kvc_pool_stats stats;
    size_t memory_limit_bytes, cache_limit_bytes;
    kvc_pressure_fn pressure;
    void *pressure_context;
    kvc__shelf shelf;
    size_t holds; /* owner, caches, buffers with callers: the last one ends it */
    bool freed;   /* by its owner: nothing is kept any more */
};

/** Returns the words of a reserved buffer's bit set. */
static inline size_t kvc__committed_words(const kvc_buffer *buffer) {
    return (buffer->capacity_bytes - 1) / buffer->pool->commit_unit_bytes / 64 + 1;
}

/** Takes a buffer that the rule allows from the shelf, or NULL. Counts the hit or the miss (none
 * for 0 bytes), and a hold either way. */
kvc_buffer *kvc__pool_take(kvc_pool *pool, size_t bytes, bool reserved);

/** Counts `bytes` as active if the limits allow, giving back cached buffers, then asking under
 * pressure. The caller then gets the memory from the device, and undoes this when it fails.
 * @errors KVC_E_LIMIT */
kvc_status kvc__pool_charge(kvc_pool *pool, size_t bytes);

/** Takes back what kvc__pool_charge counted. */
void kvc__pool_uncharge(kvc_pool *pool, size_t bytes);

/** Tells whether [offset, offset + bytes) of a reserved buffer is resident. */
bool kvc__buffer_is_committed(const kvc_buffer *buffer, size_t offset, size_t bytes);

/** Moves whole pages of a file from one reserved buffer to another (kvc_device.move).
 * @errors KVC_E_UNSUPPORTED; KVC_E_LIMIT, KVC_E_NOMEM. Nothing moved */
kvc_status kvc__buffer_move(kvc_buffer *to, size_t to_offset, kvc_buffer *from, size_t from_offset,
                            size_t bytes);

/** A call on the device that takes memory, or space for it: allocate, reserve or commit. */
typedef struct kvc__driver_call {
    kvc_status (*run)(const kvc_device *device, void **memory, size_t bytes);
    kvc_span_kind kind;
    const char *name;
} kvc__driver_call;

/** Runs a device call; when the device has no more, gives back all that is cached, asks under
 * pressure, and tries again.
 * @errors KVC_E_NOMEM */
kvc_status kvc__pool_drive(kvc_pool *pool, const kvc__driver_call *call, void **memory,
                           size_t bytes);

/** Counts a call on the device that ended, and notes the peaks where it took memory. */
void kvc__pool_count_driver(kvc_pool *pool, uint64_t ns, bool took);

/** Keeps the pool alive until kvc__pool_drop_hold. */
void kvc__pool_hold(kvc_pool *pool);

/** Ends one hold on the pool: an owner's or a buffer's. The last one ends the pool. */
void kvc__pool_drop_hold(kvc_pool *pool);

/** Takes in a buffer whose last reference is gone: keeps it or gives it back. */
void kvc__pool_give(kvc_pool *pool, kvc_buffer *buffer);

#endif
