/** @file
 * The buffer pool: freed buffers are kept, and reused only for a similarly sized request.
 *
 * The rule. A request of `size` takes the smallest cached buffer that holds it, and only if that
 * buffer is smaller than min(2 * size, size + 2 * page). Buffers are neither split nor joined. So
 * a cache that changes its size at every step never hits, and one that keeps its size always does.
 *
 * A hit makes no system call and its pages are resident. The least recently freed buffers go back
 * to the device when active + cached bytes would pass the memory limit, or when cached bytes pass
 * the cache limit: at first a quarter of the device's memory, as a cache that never hits would
 * otherwise fill it with buffers that nobody can reuse.
 *
 * Reserved buffers (address space first, memory page by page) are pooled under the same rule, by
 * their address space; what they have committed stays committed.
 * @source MLX's MetalAllocator and BufferCache. There the peak counts active bytes only; here both
 *         are told. There the memory limit is advice; here passing it is an error. */
#ifndef KVCACHE_POOL_H
#define KVCACHE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/device.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** A pool of one device's buffers. All calls on it are thread-safe. */
typedef struct kvc_pool kvc_pool;

/** A counted reference to device memory. Retain and release are thread-safe. */
typedef struct kvc_buffer kvc_buffer;

/** Figures of a pool, always on. Bytes are those the device gave, not those asked for. */
typedef struct kvc_pool_stats {
    size_t struct_size;         /**< sizeof(kvc_pool_stats), set by the caller */
    uint64_t active_bytes;      /**< held by callers now */
    uint64_t cached_bytes;      /**< kept for reuse now */
    uint64_t reserved_bytes;    /**< address space of reserved buffers, held and kept */
    uint64_t peak_active_bytes; /**< largest active_bytes since the last reset */
    uint64_t peak_total_bytes;  /**< largest active + cached since the last reset */
    uint64_t hits;              /**< requests served from the pool */
    uint64_t misses;            /**< requests that went to the device */
    uint64_t driver_calls;      /**< allocate, deallocate, reserve, commit, decommit and release
                                     calls */
    uint64_t driver_ns;         /**< time spent in them */
    uint64_t evictions;         /**< buffers given back to the device by a limit or by clear */
} kvc_pool_stats;

/** Asked when a request of `bytes` would pass the memory limit or the device has no more.
 * Frees what the caller can spare and returns true to have the request tried again, at most eight
 * times; false lets it fail. Called without a lock held, on the requesting thread. */
typedef bool (*kvc_pressure_fn)(void *context, size_t bytes);

KVC_BEGIN_DECLS

/** Makes an empty pool, without a memory limit.
 * @param device  borrowed; must outlive the pool and its buffers
 * @errors        KVC_E_INVALID device is NULL or lacks a call; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_pool_new(kvc_pool **out, const kvc_device *device);

/** Gives cached buffers back and ends the pool. Buffers still held stay valid; the last release
 * frees what is left. NULL is allowed. */
KVC_API void kvc_pool_free(kvc_pool *pool);

/** Returns the device of a pool. */
KVC_API const kvc_device *kvc_pool_device(const kvc_pool *pool);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID out->struct_size is not set */
KVC_API kvc_status kvc_pool_stats_get(kvc_pool *pool, kvc_pool_stats *out);

/** Sets both peaks to what is held now. */
KVC_API void kvc_pool_peak_reset(kvc_pool *pool);

/** Gives every cached buffer back to the device. */
KVC_API void kvc_pool_clear(kvc_pool *pool);

/** Sets the most bytes of active + cached (SIZE_MAX: none) and returns the previous limit. Cached
 * buffers are given back until it holds; active bytes beyond it stay, new requests fail. */
KVC_API size_t kvc_pool_memory_limit_set(kvc_pool *pool, size_t bytes);

/** Sets the most cached bytes (SIZE_MAX: none; 0 turns pooling off) and returns the previous. */
KVC_API size_t kvc_pool_cache_limit_set(kvc_pool *pool, size_t bytes);

/** Sets whom to ask under pressure; NULL asks nobody. */
KVC_API void kvc_pool_pressure_set(kvc_pool *pool, kvc_pressure_fn fn, void *context);

/** Takes a buffer of at least `bytes` from the pool, or from the device. Contents undefined.
 * @param bytes  0 gives a buffer with no memory (data NULL)
 * @errors       KVC_E_LIMIT the memory limit; KVC_E_NOMEM the device; KVC_E_RANGE size absurd */
KVC_API KVC_MUST_USE kvc_status kvc_buffer_new(kvc_buffer **out, kvc_pool *pool, size_t bytes);

/** Takes address space of `bytes`; no byte may be touched before kvc_buffer_commit.
 * @errors KVC_E_UNSUPPORTED the device cannot reserve; KVC_E_NOMEM no address space; KVC_E_RANGE */
KVC_API KVC_MUST_USE kvc_status kvc_buffer_reserve(kvc_buffer **out, kvc_pool *pool, size_t bytes);

/** Makes [offset, offset + bytes) of a reserved buffer resident, in steps of
 * kvc_buffer_commit_unit_bytes. What is committed already costs no system call.
 * One thread at a time per buffer.
 * @errors KVC_E_INVALID not a reserved buffer; KVC_E_RANGE; KVC_E_LIMIT; KVC_E_NOMEM. Units before
 *         the failing one stay committed. */
KVC_API KVC_MUST_USE kvc_status kvc_buffer_commit(kvc_buffer *buffer, size_t offset, size_t bytes);

/** Gives back the memory of [offset, offset + bytes) of a reserved buffer: of the steps of
 * kvc_buffer_commit_unit_bytes that lie wholly within it. Their contents are gone. Nothing is given
 * back by a device that cannot. */
KVC_API void kvc_buffer_decommit(kvc_buffer *buffer, size_t offset, size_t bytes);

/** Puts a part of a file in the place of a part of a reserved buffer: private pages, read when they
 * are touched and copied when they are written, so that the file stays as it is. Costs a system
 * call, whatever the size. The file's pages are not counted as held by the pool, also when they
 * have been copied; what the part leaves of its first and last commit unit is, and comes with the
 * first touch. From then on kvc_buffer_decommit does nothing to this buffer, and its last release
 * gives it back to the device instead of keeping it.
 * One thread at a time per buffer, and no part twice.
 * @param offset       in the buffer; of the device's pages
 * @param bytes        more than 0; rounded up to whole pages
 * @param fd           may be closed afterwards
 * @param file_offset  of the device's pages; the file must reach to the last page's begin, and
 *                     whoever touches a page that it does not reach any more gets SIGBUS
 * @errors KVC_E_INVALID not a reserved buffer; KVC_E_RANGE offsets that are not of whole pages, a
 *         part beyond the buffer; KVC_E_UNSUPPORTED the device has no map; KVC_E_IO the system
 *         refused; KVC_E_LIMIT. The part holds anything then. */
KVC_API KVC_MUST_USE kvc_status kvc_buffer_map(kvc_buffer *buffer, size_t offset, size_t bytes,
                                               int fd, uint64_t file_offset);

/** Returns the step of kvc_buffer_commit for this pool's device: some whole pages. */
KVC_API size_t kvc_buffer_commit_unit_bytes(const kvc_pool *pool);

/** Adds a reference and returns the buffer; NULL is allowed. */
KVC_API kvc_buffer *kvc_buffer_retain(kvc_buffer *buffer);

/** Drops a reference; the last gives the memory to the pool. NULL is allowed. */
KVC_API void kvc_buffer_release(kvc_buffer *buffer);

/** Returns the device pointer; NULL for a buffer of 0 bytes. */
KVC_API void *kvc_buffer_data(const kvc_buffer *buffer);

/** Returns the bytes that the memory (or address space) holds: at least those asked for. */
KVC_API size_t kvc_buffer_capacity_bytes(const kvc_buffer *buffer);

/** Returns the bytes that are resident: the capacity, or what a reserved buffer has committed. */
KVC_API size_t kvc_buffer_resident_bytes(const kvc_buffer *buffer);

/** Tells whether the caller holds the only reference, so that writing in place is unseen. */
KVC_API bool kvc_buffer_is_sole(const kvc_buffer *buffer);

/** Returns the pool that the buffer goes back to. */
KVC_API kvc_pool *kvc_buffer_pool(const kvc_buffer *buffer);

KVC_END_DECLS

#endif
