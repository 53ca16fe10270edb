/** @file
 * A device: where tensor memory lives and what moves it. The cpu is built in; another device is
 * another table of the same calls. Nothing above a device reads or writes through its pointers.
 * @source MLX's Allocator and Stream, cut down to what a KV cache needs; reserve and commit as in
 *         vAttention (Prabhu et al., 2024), there on CUDA's virtual memory calls. */
#ifndef KVCACHE_DEVICE_H
#define KVCACHE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** The most dimensions that an array has. */
#define KVC_MAX_DIMS 8

/** Every device pointer is a multiple of this. */
#define KVC_ALIGNMENT_BYTES 64

/** One side of a copy: a pointer to element [0]…[0] and the way from element to element. */
typedef struct kvc_strided {
    void *data;             /**< device pointer; the source of a copy is not written */
    kvc_dtype dtype;        /**< type of the elements there */
    const int64_t *strides; /**< [ndim] in elements; negative and, in a source, zero are allowed */
} kvc_strided;

/** A table of calls; see struct kvc_device. */
typedef struct kvc_device kvc_device;

/** The calls of a device. Sizes are bytes and never 0. Calls are made from any thread, and take
 * effect in the order in which they are made: memory given back may be reused at once. */
struct kvc_device {
    size_t struct_size;  /**< sizeof(kvc_device) where the table was filled: the ABI's tag */
    const char *name;    /**< "cpu", never NULL; static storage */
    void *context;       /**< handed to every call */
    size_t page_bytes;   /**< the unit of the pool's reuse rule and of commit */
    size_t memory_bytes; /**< what the device has in all; 0: not known */

    /** Gives resident memory, aligned to KVC_ALIGNMENT_BYTES; contents undefined.
     * Returns KVC_OK or KVC_E_NOMEM. */
    kvc_status (*allocate)(void *context, void **out, size_t bytes);
    /** Takes back what allocate gave, with the same size. */
    void (*deallocate)(void *context, void *memory, size_t bytes);

    /** Copies shape[0]×…×shape[ndim-1] elements, converting the dtype on the way: floats round to
     * nearest even; to an integer they truncate and saturate, NaN becomes 0. dst and src do not
     * overlap. Returns KVC_OK or KVC_E_UNSUPPORTED. */
    kvc_status (*copy)(void *context, const kvc_strided *dst, const kvc_strided *src, int ndim,
                       const int64_t *shape);
    /** Sets count elements to a value, converted as by copy. */
    kvc_status (*fill)(void *context, void *dst, kvc_dtype dtype, int64_t count, double value);
    /** Copies bytes between the host and the device, either way, and waits for the end. */
    kvc_status (*transfer)(void *context, void *dst, const void *src, size_t bytes);
    /** Returns when all work given so far is done. */
    kvc_status (*synchronize)(void *context);

    /** Takes address space without memory; NULL where the device cannot. page_bytes aligned. */
    kvc_status (*reserve)(void *context, void **out, size_t bytes);
    /** Makes whole pages of a reserved range resident; keeps what is there. */
    kvc_status (*commit)(void *context, void *memory, size_t bytes);
    /** Gives address space and memory back. */
    void (*release)(void *context, void *memory, size_t bytes);
    /** Gives the memory of whole pages of a reserved range back, not the address space; NULL where
     * the device cannot. */
    void (*decommit)(void *context, void *memory, size_t bytes);
    /** Puts whole pages of a file in the place of those of a reserved range: read when touched, and
     * copied when written, so that the file stays as it is. NULL where the device cannot. */
    kvc_status (*map)(void *context, void *memory, size_t bytes, int fd, uint64_t offset);
    /** Moves whole pages of a mapped file, written ones with what is written, into the place of
     * those of another reserved range. Where they were the file is mapped as before. NULL where the
     * device cannot; KVC_E_UNSUPPORTED where the system cannot. */
    kvc_status (*move)(void *context, void *to, void *from, size_t bytes);
};

KVC_BEGIN_DECLS

/** Returns the host's own device: anonymous memory, huge pages for large buffers where the system
 * grants them. Static storage; thread-safe. */
KVC_API const kvc_device *kvc_device_cpu(void);

/** Waits until all work given to a device is done: the seed's `eval`.
 * @errors KVC_E_INVALID device is NULL; whatever the device's synchronize returns */
KVC_API kvc_status kvc_sync(const kvc_device *device);

KVC_END_DECLS

#endif
