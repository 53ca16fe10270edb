/** @file
 * The floor under attention: a plain read of the very bytes that a run over one layer reads, where
 * they lie. The pieces are listed once: rows of heads in linear caches and rings, or of blocks; and
 * with packed rows words, scales and biases. */
#ifndef KVCACHE_TOOLS_ATTEND_FLOOR_H
#define KVCACHE_TOOLS_ATTEND_FLOOR_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/executor.h>

/** Bytes that follow each other. */
typedef struct attend_piece {
    const char *memory;
    size_t bytes;
} attend_piece;

/** What is read of one layer. Zeroed, it is nothing. */
typedef struct attend_floor {
    attend_piece *pieces; /**< [count] */
    size_t count, room;
    uint64_t bytes; /**< of all pieces */
    size_t *first;  /**< [parts + 1]: the pieces of each part, which are of about equal bytes */
    size_t parts;
} attend_floor;

/** What queries see of each sequence: positions below `keep` and the last `recent` ones. */
typedef struct attend_sight {
    int64_t keep, recent;
} attend_sight;

/** Lists what queries see in a layer.
 * @param blocks  those of a paged cache, else NULL
 * @param parts   that the reading is cut into, for threads to share
 * @return CLI_DONE, or CLI_FAILED with a line */
int attend_floor_init(attend_floor *out, const kvc_cache *cache, kvc_blocks *blocks, int64_t layer,
                      const attend_sight *sight, int64_t parts);

/** Frees the list. The memory is the cache's. */
void attend_floor_deinit(attend_floor *floor);

/** Reads every byte once, on the threads of an executor or (NULL) on this one.
 * @param read  one of the loops of roofline.h
 * @return      a sum of it all, so that no read can be left out */
uint64_t attend_floor_read(const attend_floor *floor,
                           uint64_t (*read)(const void *memory, size_t bytes),
                           const kvc_executor *executor);

#endif
