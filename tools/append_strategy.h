/** @file
 * The ways to append a position to many caches, behind one table of calls: the seed's slow and fast
 * loop, the library's cache under each growth policy, and the floor that none can beat.
 *
 * A run is one strategy with its own pool. It is started at a length (without writing what is
 * below: the bench only measures what follows), stepped, stopped (the memory goes to its pool), and
 * started again. Errors are told in one line; calls then return CLI_FAILED. */
#ifndef KVCACHE_TOOLS_APPEND_STRATEGY_H
#define KVCACHE_TOOLS_APPEND_STRATEGY_H

#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/dtype.h>
#include <kvcache/pool.h>

/** The strategies, in the order of the table. */
typedef enum append_kind {
    APPEND_CONCAT,  /**< a cache that grows EXACT: concatenate on every step */
    APPEND_CHUNK,   /**< a cache that grows by CHUNK: the library's form of the fast loop */
    APPEND_ASSIGN,  /**< the fast loop as the seed writes it, on arrays, by assignment */
    APPEND_RESERVE, /**< a cache that grows by RESERVE */
    APPEND_MEMCPY,  /**< floor: the same bytes to the same places, memory as the pool gives it */
    APPEND_MEMCPY_FRESH /**< floor: the same into memory that nobody has touched */
} append_kind;

/** How many can be chosen, and how many there are. */
#define APPEND_STRATEGIES 5
#define APPEND_KINDS      6

/** "concat", "chunk", "assign", "reserve", "memcpy", "memcpy-fresh". */
extern const char *const append_names[APPEND_KINDS];

/** What is appended to: `caches` arrays [1][heads][positions][dim], keys and values in turn. */
typedef struct append_shape {
    int64_t caches, heads, dim, chunk; /**< caches is even */
    kvc_dtype dtype;
} append_shape;

/** What a run has done since it was opened. */
typedef struct append_figures {
    uint64_t appended_bytes, copied_bytes;
    uint64_t pool_hits, pool_misses, driver_calls, driver_ns;
} append_figures;

/** A run; what all strategies have. */
typedef struct append_run append_run;

/** Bytes of all caches at a length. No product of the program's limits overflows. */
uint64_t append_set_bytes(const append_shape *shape, int64_t positions);

/** Bytes that a run may hold at once, its pool included. */
uint64_t append_need_bytes(append_kind kind, const append_shape *shape, int64_t context);

/** Opens a run whose caches reach `context` positions. */
int append_open(append_run **out, append_kind kind, const append_shape *shape, int64_t context);

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
