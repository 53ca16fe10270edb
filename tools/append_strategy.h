/** @file
 * The ways to append a position to many caches, behind one table of calls: the library's cache of
 * any kind, the seed's fast loop, and the floor that none can beat.
 *
 * A run is one strategy with its own pool. It is started at a length (without writing what is
 * below, where the kind allows: the bench only measures what follows), stepped, stopped (the memory
 * goes to its pool), and started again. Errors are told in one line; calls then return
 * CLI_FAILED. */
#ifndef KVCACHE_TOOLS_APPEND_STRATEGY_H
#define KVCACHE_TOOLS_APPEND_STRATEGY_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/dtype.h>
#include <kvcache/pool.h>

#include "cache_kind.h"

/** How a strategy goes about it. */
typedef enum append_way {
    APPEND_CACHE,  /**< a cache of the library; "concat" is the seed's slow loop */
    APPEND_ASSIGN, /**< the fast loop as the seed writes it, on arrays, by assignment */
    APPEND_MEMCPY, /**< floor: the same bytes to the same places, memory as the pool gives it */
    APPEND_MEMCPY_FRESH /**< floor: the same into memory that nobody has touched */
} append_way;

/** A strategy. */
typedef struct append_strategy {
    append_way way;
    cache_kind cache;           /**< of APPEND_CACHE */
    char name[CACHE_KIND_ROOM]; /**< "reserve", "q8+paged", "assign", "memcpy", "memcpy-fresh" */
} append_strategy;

/** The most strategies of a table. */
enum { APPEND_MOST = 16 };

/** The strategies of the seed's table, and its floor. */
#define APPEND_DEFAULTS "concat,chunk,assign,reserve,memcpy"

/** What is appended to: `caches` arrays [1][heads][positions][dim], keys and values in turn. */
typedef struct append_shape {
    int64_t caches, heads, dim, chunk; /**< caches is even */
    kvc_dtype dtype;                   /**< of what is stored; of scales, where it is packed */
    kvc_dtype from;                    /**< of the position that is given to be appended */
} append_shape;

/** What a run has done since it was opened. */
typedef struct append_figures {
    uint64_t appended_bytes, copied_bytes;
    uint64_t pool_hits, pool_misses, driver_calls, driver_ns;
    uint64_t resident_bytes; /**< memory that the caches hold now */
} append_figures;

/** A run; what all strategies have. */
typedef struct append_run append_run;

/** Reads strategies with commas between: any cache kind by its text, assign, memcpy.
 * @param out  [APPEND_MOST]; unchanged on error, which has been told */
bool append_read(const char *name, const char *text, append_strategy *out, size_t *count);

/** Returns the strategy in a fresh process: memcpy there is memcpy-fresh. */
append_strategy append_fresh(const append_strategy *strategy);

/** Tells whether a strategy concatenates, and so takes a fraction of a second a step. */
bool append_is_slow(const append_strategy *strategy);

/** Bytes of all caches at a length, unpacked. No product of the program's limits overflows. */
uint64_t append_set_bytes(const append_shape *shape, int64_t positions);

/** Bytes that a run may hold at once, its pool included. */
uint64_t append_need_bytes(const append_strategy *strategy, const append_shape *shape,
                           int64_t context);

/** Opens a run whose caches reach `context` positions. */
int append_open(append_run **out, const append_strategy *strategy, const append_shape *shape,
                int64_t context);

/** Makes the caches, holding `length` positions. */
int append_start(append_run *run, int64_t length);

/** Appends one position to every cache: the call that is timed. */
int append_step(append_run *run);

/** Drops the caches; their memory goes to the run's pool. */
void append_stop(append_run *run);

/** Empties the pool. */
void append_forget(append_run *run);

/** Frees the run and its pool. NULL is allowed. */
void append_close(append_run *run);

/** Adds up what was done. */
append_figures append_figures_get(const append_run *run);

/** Returns how often caches of this start have grown (RESERVE: made memory resident). */
uint64_t append_growths(const append_run *run);

#endif
