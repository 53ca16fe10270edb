/** @file
 * Measures the runs of `bench attend` over caches of several kinds and, in turn with them, the two
 * limits of the machine that they could reach: its reading of the same bytes and its
 * multiply-adds. */
#ifndef KVCACHE_TOOLS_ATTEND_MEASURE_H
#define KVCACHE_TOOLS_ATTEND_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/attention.h>
#include <kvcache/dtype.h>

#include "cache_kind.h"
#include "stats.h"

/** The most caches that take turns. */
enum { ATTEND_CACHES_MOST = 8 };

/** What all rows of a table have in common. */
typedef struct attend_shape {
    int64_t batch, q_heads, kv_heads, dim;
    int64_t q_len;    /**< query positions of a run, the last of each sequence */
    int64_t window;   /**< keys that a query sees at most; 0: all that the cache keeps */
    int64_t shortest; /**< lengths are spread from here to the context; 0: all have the context */
    int64_t threads;
    kvc_dtype dtype;       /**< of keys and values, or of scales; queries and outputs are f32 */
    uint64_t rotate_bytes; /**< of keys and values that the runs go over, at least */
    cache_kind caches[ATTEND_CACHES_MOST];
    size_t cache_count;
} attend_shape;

/** One row of the table: a context in one of the caches. */
typedef struct attend_row {
    const cache_kind *cache;
    int64_t context;             /**< positions of the longest sequence */
    int64_t layers;              /**< that the runs go over */
    uint64_t bytes;              /**< of keys and values that a run attends over */
    double flops;                /**< of a run */
    stats_summary run_us;        /**< of one layer */
    stats_summary floor_us;      /**< of reading the bytes of one run */
    double ceiling_gflops;       /**< multiply-adds of f32, all threads; the best seen */
    double dot_gflops;           /**< dot products of bf16; NAN where the CPU has none */
    const char *read_name, *isa; /**< which loops measured the limits */
    kvc_path path;               /**< the code that ran */
    double huge_share;           /**< of the layers' memory that huge pages hold */
} attend_row;

/** The most layers: each takes two ranges of address space, of which Linux gives 65530. */
enum { ATTEND_LAYERS_MOST = 4096 };

/** Sets cache, context, layers, bytes and flops. Counts that no memory holds end at some 2^58.
 * @param shape  q_len and shortest are no more than the context, or the shortest sequence
 * @param cache  one of the shape's */
void attend_row_init(attend_row *row, const attend_shape *shape, const cache_kind *cache,
                     int64_t context);

/** Returns the length of the rank-th shortest sequence. */
int64_t attend_length(const attend_shape *shape, int64_t context, int64_t rank);

/** Returns the keys that a query sees at most, in this cache; 0: all before it. */
int64_t attend_window(const attend_shape *shape, const cache_kind *cache);

/** Bytes that measuring a row takes, all layers, queries and outputs. */
uint64_t attend_need_bytes(const attend_row *row, const attend_shape *shape);

/** Measures the rows of one context.
 * @param rows   [shape->cache_count], in the order of the shape's caches
 * @param trace  record one more run of each layer in the trace that is open
 * @return the exit status; a failure has been told */
int attend_measure(attend_row *rows, const attend_shape *shape, bool trace);

/** Microseconds of a run at the limit that binds: reading its bytes, or multiplying. */
double attend_limit_us(const attend_row *row);

/** Tells whether that is multiplying. */
bool attend_is_bound_by_fma(const attend_row *row);

#endif
