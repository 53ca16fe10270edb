/** @file
 * What the files of append_strategy.h share: a run, and the calls of its strategy. */
#ifndef KVCACHE_TOOLS_APPEND_RUN_H
#define KVCACHE_TOOLS_APPEND_RUN_H

#include <kvcache/cache.h>

#include "append_strategy.h"

/** The calls of a way, as append_start, append_step and append_stop. */
typedef struct append_calls {
    int (*start)(append_run *run, int64_t length);
    int (*step)(append_run *run);
    void (*stop)(append_run *run);
} append_calls;

struct append_run {
    const append_calls *calls;
    append_strategy strategy;
    append_shape shape;
    int64_t context, length;
    kvc_pool *pool;
    unsigned char *row; /* [heads][dim]: the position that every step appends, in the CPU's cache */
    kvc_array row_array;                            /* [1][heads][1][dim] over it */
    uint64_t appended_bytes, copied_bytes, growths; /* of strategies that count for themselves */

    kvc_cache *cache;   /* of APPEND_CACHE */
    kvc_blocks *blocks; /* its blocks, where it is paged: they outlive it, as a server's do */
    kvc_cache *filled;  /* a window that went the way to the length that starts want */

    kvc_array *arrays;      /* assign: [caches] */
    kvc_buffer **buffers;   /* memcpy: [caches], of [heads][context][dim] */
    unsigned char **places; /* memcpy: [caches], their memory */
};

/** Those of APPEND_CACHE. */
extern const append_calls append_cache_calls;

/** Bytes that a run of APPEND_CACHE may hold at once. */
uint64_t append_cache_need_bytes(const append_strategy *strategy, const append_shape *shape,
                                 int64_t context);

/** Returns the statistics of the run's cache; zeros where it has none. */
kvc_cache_stats append_cache_stats(const append_run *run);

/** Returns the bytes that the run's cache holds; 0 where it has none. */
uint64_t append_cache_resident_bytes(const append_run *run);

/** Frees what starts leave behind for the next ones. */
void append_cache_close(append_run *run);

#endif
