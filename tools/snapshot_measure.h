/** @file
 * How fast a cache goes to a file and comes back, beside the same bytes written and read plainly.
 */
#ifndef KVCACHE_TOOLS_SNAPSHOT_MEASURE_H
#define KVCACHE_TOOLS_SNAPSHOT_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/dtype.h>

#include "cache_kind.h"
#include "stats.h"

/** What is measured, all kinds of cache alike. */
typedef struct snapshot_shape {
    int64_t layers, q_heads, kv_heads, dim, positions;
    int64_t passes, threads;
    kvc_dtype dtype;
    const char *folder; /**< where the files go, in a folder of their own */
    bool fresh;         /**< each restore, and each plain read into memory, takes new memory */
    bool verify;        /**< mapped restores verify checksums */
} snapshot_shape;

/** What is timed in each pass. */
typedef enum snapshot_figure {
    SNAPSHOT_PLAIN_WRITE, /**< write(2), flushed, renamed, the folder flushed */
    SNAPSHOT_SAVE,        /**< kvc_snapshot_save */
    SNAPSHOT_PLAIN_READ,  /**< read(2) into memory that holds all of it */
    SNAPSHOT_BUFFER_READ, /**< read(2) through a buffer */
    SNAPSHOT_LOAD,        /**< kvc_snapshot_load by reading, checksums verified, on `threads` */
    SNAPSHOT_MAP,         /**< kvc_snapshot_load by mapping */
    SNAPSHOT_FIRST_STEP,  /**< a position appended to each layer of what was mapped, attention */
    SNAPSHOT_SECOND_STEP, /**< the same again */
    SNAPSHOT_FIGURES
} snapshot_figure;

/** One kind of cache and its figures. */
typedef struct snapshot_row {
    const cache_kind *cache;
    uint64_t bytes;                     /**< of the file */
    int64_t mapped;                     /**< layers that a mapped restore did not read */
    stats_summary ns[SNAPSHOT_FIGURES]; /**< of a pass */
} snapshot_row;

/** Returns the bytes of the keys and values of a row's cache. */
uint64_t snapshot_cache_bytes(const snapshot_shape *shape, const cache_kind *cache);

/** Measures a row whose cache is set: writes by turns, then reads, one pass before them unmeasured.
 * Attention over each restored cache must give what it gives over the saved one, bit for bit; over
 * a mapped one, what it gives over one that was read.
 * @return  CLI_DONE, or CLI_FAILED with a line */
int snapshot_measure(snapshot_row *row, const snapshot_shape *shape);

#endif
