/** @file
 * Tiers below memory: stores of values by key, such as blocks that were evicted, where another
 * process or machine finds them again.
 *
 * A tier takes batches of items: is it there, get it into this buffer, put this buffer. A batch is
 * its own token: the caller fills it, submits it, and waits for it or looks in. Until it has ended,
 * batch, items, keys and buffers belong to the tier; none of them may be changed or freed.
 *
 * Every fault is a miss. What is refused, late, cut off, garbled or full gives items the result
 * KVC_TIER_FAULT, which a caller treats as KVC_TIER_MISS: it computes the block again. Faults are
 * counted by kind, and the first of each kind is told to the log. No call fails for them.
 *
 * What is kept describes itself: magic, version, length, fingerprint and key lie before the bytes,
 * and checksums over both (docs/FORMAT.md). All of that is verified before an item is a hit.
 *
 * Where values are kept is up to a backend, a table of three calls: a folder (tier_disk.h),
 * Redis or Valkey (tier_redis.h), or one of the caller's own. Backends block; the tier calls them
 * from threads of its own. Of libkvcache-store.
 *
 * All calls are thread-safe, but for kvc_tier_free. */
#ifndef KVCACHE_TIER_H
#define KVCACHE_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/block_key.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** Bytes that lie before each value. */
#define KVC_TIER_HEADER_BYTES 128

/** Name, number and text of every kind of fault, once. */
#define KVC_TIER_FAULT_LIST(X)                                                                     \
    X(KVC_TIER_FINE, 0, "nothing is wrong")                                                        \
    X(KVC_TIER_REFUSED, 1, "no connection, no login or no permission")                             \
    X(KVC_TIER_SLOW, 2, "no answer in time")                                                       \
    X(KVC_TIER_CUT, 3, "the answer ended in its middle")                                           \
    X(KVC_TIER_REPLY, 4, "the answer is none to what was asked")                                   \
    X(KVC_TIER_FULL, 5, "no room for the value")                                                   \
    X(KVC_TIER_IO, 6, "the system failed a read or write")                                         \
    X(KVC_TIER_NOMEM, 7, "no memory for the call")                                                 \
    X(KVC_TIER_PAUSED, 8, "not asked, so soon after a fault")                                      \
    X(KVC_TIER_BAD_MAGIC, 9, "the value does not begin as one")                                    \
    X(KVC_TIER_BAD_VERSION, 10, "the value has a format of another version")                       \
    X(KVC_TIER_BAD_LENGTH, 11, "the value is longer or shorter than the buffer")                   \
    X(KVC_TIER_BAD_FINGERPRINT, 12, "the value is of another model or layout")                     \
    X(KVC_TIER_BAD_KEY, 13, "the value belongs to another key")                                    \
    X(KVC_TIER_BAD_CHECKSUM, 14, "the value's bytes are not those that were put")

/** What went wrong with an item. */
typedef enum kvc_tier_fault {
#define KVC_TIER_FAULT_ENUM(name, value, text) name = (value),
    KVC_TIER_FAULT_LIST(KVC_TIER_FAULT_ENUM)
#undef KVC_TIER_FAULT_ENUM
} kvc_tier_fault;

/** Room for kinds of faults in the figures; more than there are. */
#define KVC_TIER_FAULTS_MAX 32

/** What a batch asks. */
typedef enum kvc_tier_op {
    KVC_TIER_EXISTS = 0, /**< is it there; its bytes are not verified */
    KVC_TIER_GET = 1,    /**< read it into the buffer */
    KVC_TIER_PUT = 2     /**< keep the buffer's bytes under the key, in place of others */
} kvc_tier_op;

/** What became of an item. */
typedef enum kvc_tier_result {
    KVC_TIER_MISS = 0, /**< it is not there */
    KVC_TIER_HIT = 1,  /**< it is there, was read and verified, or was kept */
    KVC_TIER_FAULT = 2 /**< as a miss; the item's fault says why */
} kvc_tier_result;

/** One key of a batch, with its buffer. */
typedef struct kvc_tier_item {
    const uint8_t *key;     /**< [32] */
    void *data;             /**< [size_bytes]: PUT reads it, GET writes it, EXISTS ignores it. After
                               a GET that is no hit its bytes are anything */
    size_t size_bytes;      /**< exactly those of the value: one of another size counts as damaged,
                               and a GET removes what is damaged */
    kvc_tier_result result; /**< set by the tier */
    kvc_tier_fault fault;   /**< set by the tier */
} kvc_tier_item;

/** Items that are asked together. Zero it, then fill it. It costs no memory of the tier's. */
typedef struct kvc_tier_batch {
    size_t struct_size;            /**< sizeof(kvc_tier_batch) */
    kvc_tier_op op;                /**< what is asked of every item */
    kvc_tier_item *items;          /**< [count] */
    int64_t count;                 /**< >= 0 */
    int64_t taken;                 /**< the tier's own: items that a thread has taken */
    int64_t ended;                 /**< the tier's own: items that have their result */
    struct kvc_tier_batch *behind; /**< the tier's own: the next batch that waits */
} kvc_tier_batch;

/** Figures of a tier, always on. */
typedef struct kvc_tier_stats {
    size_t struct_size;                   /**< sizeof(kvc_tier_stats), set by the caller */
    uint64_t asked;                       /**< items of EXISTS */
    uint64_t found;                       /**< of these: hits */
    uint64_t gets;                        /**< items of GET */
    uint64_t hits;                        /**< of these: hits */
    uint64_t misses;                      /**< of these: not there, or a fault */
    uint64_t puts;                        /**< items of PUT */
    uint64_t kept;                        /**< of these: hits */
    uint64_t bytes_read;                  /**< of hits, without headers */
    uint64_t bytes_written;               /**< of what was kept, without headers */
    uint64_t faults[KVC_TIER_FAULTS_MAX]; /**< items by kind of fault */
} kvc_tier_stats;

/** Receives the first fault of each kind, on a thread of the tier's.
 * @param sentence  where and what; good for the call only */
typedef void (*kvc_tier_log_fn)(void *context, kvc_tier_fault fault, const char *sentence);

/** What every tier is made with. Zero it, then fill it. */
typedef struct kvc_tier_desc {
    size_t struct_size;                       /**< sizeof(kvc_tier_desc) */
    uint8_t fingerprint[KVC_BLOCK_KEY_BYTES]; /**< of what is kept: kvc_block_fingerprint */
    kvc_tier_log_fn log;                      /**< NULL: nothing is told */
    void *log_context;                        /**< handed to log */
} kvc_tier_desc;

/** One value on its way between the tier and a backend. */
typedef struct kvc_tier_value {
    const uint8_t *key;     /**< [32] */
    void *header;           /**< [KVC_TIER_HEADER_BYTES]: kept before the payload */
    void *payload;          /**< [payload_bytes] */
    size_t payload_bytes;   /**< a value of another size is KVC_TIER_BAD_LENGTH */
    kvc_tier_result result; /**< KVC_TIER_MISS at first, set by the backend */
    kvc_tier_fault fault;   /**< set by the backend with KVC_TIER_FAULT */
} kvc_tier_value;

/** Where values are kept. Each call gives every value its result, and ends within a time of the
 * backend's choosing. Calls of different workers overlap, those of one do not. */
typedef struct kvc_tier_backend {
    size_t struct_size;  /**< sizeof(kvc_tier_backend) */
    const char *name;    /**< for sentences; static, or the context's */
    void *context;       /**< handed to all */
    int workers;         /**< threads that call, numbered from 0 on; 1 to 64 */
    int64_t most_values; /**< most in one call; 1 to 64 */

    /** Is it there? header and payload are NULL. */
    void (*exists_many)(void *context, int worker, kvc_tier_value *values, int64_t count);
    /** Reads header and payload to where they belong; the tier verifies them. */
    void (*get_into_many)(void *context, int worker, kvc_tier_value *values, int64_t count);
    /** Keeps header and payload, in place of what was there. */
    void (*put_many)(void *context, int worker, kvc_tier_value *values, int64_t count);
    /** Removes a value that turned out to be damaged, so that it can be put again. */
    void (*remove)(void *context, int worker, const uint8_t *key);
    /** Ends it, after the last call. */
    void (*free)(void *context);
} kvc_tier_backend;

/** A tier. */
typedef struct kvc_tier kvc_tier;

KVC_BEGIN_DECLS

/** Starts a tier over a backend, with a thread for each worker; they block signals, so a peer that
 * hangs up raises no SIGPIPE.
 * @param backend  copied; its context is the tier's from success on
 * @errors KVC_E_INVALID a pointer, size or number; KVC_E_NOMEM no memory or no thread. The context
 *         stays the caller's. */
KVC_API KVC_MUST_USE kvc_status kvc_tier_new(kvc_tier **out, const kvc_tier_backend *backend,
                                             const kvc_tier_desc *desc);

/** Waits for the batches submitted, ends the threads, frees the backend. No other thread may be
 * inside a call. NULL is allowed. */
KVC_API void kvc_tier_free(kvc_tier *tier);

/** Starts a batch, and returns at once. Batches start in order, and end in any.
 * @param batch  the tier's until it has ended, with all that it points to
 * @errors KVC_E_INVALID a NULL pointer, a count < 0, an unknown op, a struct_size. The batch is
 *         not started. */
KVC_API KVC_MUST_USE kvc_status kvc_tier_submit(kvc_tier *tier, kvc_tier_batch *batch);

/** Waits for a batch that was submitted, for at most so long; 0 looks in, UINT64_MAX waits for the
 * end. True when it has ended: results and buffers are there, and all is the caller's again. */
KVC_API bool kvc_tier_wait(kvc_tier *tier, const kvc_tier_batch *batch, uint64_t timeout_ns);

/** Submits and waits: says of each item whether it is there.
 * @errors as kvc_tier_submit; a miss is none */
KVC_API KVC_MUST_USE kvc_status kvc_tier_exists_many(kvc_tier *tier, kvc_tier_item *items,
                                                     int64_t count);

/** Submits and waits: reads each item into its buffer.
 * @errors as kvc_tier_submit; a miss is none */
KVC_API KVC_MUST_USE kvc_status kvc_tier_get_into_many(kvc_tier *tier, kvc_tier_item *items,
                                                       int64_t count);

/** Submits and waits: keeps each item.
 * @errors as kvc_tier_submit; a fault is none */
KVC_API KVC_MUST_USE kvc_status kvc_tier_put_many(kvc_tier *tier, kvc_tier_item *items,
                                                  int64_t count);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID tier is NULL, out->struct_size is not set */
KVC_API kvc_status kvc_tier_stats_get(kvc_tier *tier, kvc_tier_stats *out);

/** Returns the name of a fault, such as "KVC_TIER_SLOW"; "KVC_TIER_?" for an unknown one. Static.
 */
KVC_API const char *kvc_tier_fault_name(kvc_tier_fault fault);

/** Returns one phrase that says what a fault means. Static storage. */
KVC_API const char *kvc_tier_fault_text(kvc_tier_fault fault);

KVC_END_DECLS

#endif
