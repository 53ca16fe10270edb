/** @file
 * Measures for `bench fork` what it costs to share a sequence in blocks, beside copying it, and
 * what memory blocks waste. */
#ifndef KVCACHE_TOOLS_FORK_MEASURE_H
#define KVCACHE_TOOLS_FORK_MEASURE_H

#include <stdint.h>

#include "cache_kind.h"
#include "stats.h"

/** What all rows have in common. */
typedef struct fork_shape {
    int64_t layers, heads, dim; /**< heads of keys and values */
    int64_t beams;              /**< sequences of a cache, ≥ 2 */
    kvc_dtype dtype;
} fork_shape;

/** One row: a context in one kind of paged cache. Microseconds. */
typedef struct fork_row {
    const cache_kind *cache;
    int64_t context;
    int64_t length;                /**< of the sequence: the context, with a last block not full */
    uint64_t bytes;                /**< keys and values of the sequence, all layers */
    uint64_t block_bytes;          /**< of a block, all layers */
    stats_summary fork_us;         /**< a fork in blocks */
    stats_summary copy_us;         /**< a fork of the same in a linear cache */
    stats_summary memcpy_us;       /**< memcpy of the sequence's bytes */
    stats_summary release_us;      /**< the forked sequence given up */
    stats_summary first_us;        /**< the append after a fork, which copies a block; all layers */
    stats_summary append_us;       /**< the append after that */
    stats_summary block_us;        /**< memcpy of a block's bytes */
    stats_summary reorder_us;      /**< half of the beams go on, twice each: in blocks */
    stats_summary reorder_copy_us; /**< the same in a linear cache */
} fork_row;

/** Memory of sequences of mixed lengths in one kind of cache. */
typedef struct fork_waste {
    cache_kind cache;
    uint64_t used_bytes;     /**< keys and values */
    uint64_t resident_bytes; /**< memory held for them */
} fork_waste;

/** Those of fork_waste: so many sequences, of lengths spread from the shortest to the longest. */
enum { FORK_MIXED = 16, FORK_SHORTEST = 100, FORK_LONGEST = 8000 };

/** Sets cache, context, length and bytes. */
void fork_row_init(fork_row *row, const fork_shape *shape, const cache_kind *cache,
                   int64_t context);

/** Bytes that measuring a row takes. */
uint64_t fork_need_bytes(const fork_row *row, const fork_shape *shape);

/** Measures a row. Returns the exit status; a failure has been told. */
int fork_measure(fork_row *row, const fork_shape *shape);

/** Bytes that the waste of a kind takes to measure. */
uint64_t fork_waste_need_bytes(const fork_waste *waste, const fork_shape *shape);

/** Fills one layer of a cache of waste->cache with FORK_MIXED sequences and tells its memory. */
int fork_waste_measure(fork_waste *waste, const fork_shape *shape);

#endif
