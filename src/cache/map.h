/** @file
 * Where the positions of a sequence lie: one row after another, in a ring, or in blocks of a pool.
 * What a cache keeps and attention reads through. */
#ifndef KVC_CACHE_MAP_H
#define KVC_CACHE_MAP_H

#include <stddef.h>
#include <stdint.h>

/** A sequence's ring of rows. Positions [0, keep) lie in rows [0, keep) and stay there; position p
 * behind them lies in row keep + (p - origin) mod (rows - keep). Held are [0, keep) and
 * [first, length): what lies between was overwritten. */
typedef struct kvc__ring {
    int64_t keep;   /**< positions at the beginning that stay */
    int64_t rows;   /**< of the ring, those that stay among them; > keep */
    int64_t origin; /**< the position that lies, lay or will lie in row `keep`; >= keep */
    int64_t first;  /**< the first position behind the kept ones that is still held; keep where
                         nothing was overwritten */
} kvc__ring;

/** Returns the row of a position that a ring holds.
 * @param run  receives how many positions from it on lie in the rows that follow: at least 1 */
static inline int64_t kvc__ring_row(const kvc__ring *ring, int64_t position, int64_t *run) {
    if (position < ring->keep) {
        *run = ring->keep - position;
        return position;
    }
    const int64_t turning = ring->rows - ring->keep;
    int64_t turn = (position - ring->origin) % turning;
    if (turn < 0) turn += turning;
    *run = turning - turn;
    return ring->keep + turn;
}

/** Where the rows of a layer lie, of each sequence. Zeroed: one row after another. */
typedef struct kvc__map {
    const kvc__ring *rings; /**< [batch]; NULL: no rings */
    /* In blocks (blocks.h): */
    const int32_t *tables;   /**< [batch][table_stride] ids; NULL: no blocks */
    int64_t table_stride;    /**< blocks that a row of tables has room for */
    void *const *slabs;      /**< a slab has 2^slab_shift blocks */
    int64_t slab_shift;      /**< see slabs */
    int64_t block_positions; /**< rows of a head in a block */
    size_t block_bytes;      /**< from block to block of a slab */
} kvc__map;

/** Returns the block that holds a position of a sequence. */
static inline char *kvc__map_block(const kvc__map *map, int64_t sequence, int64_t position) {
    const int32_t id = map->tables[sequence * map->table_stride + position / map->block_positions];
    const int32_t place = id & (int32_t)(((int64_t)1 << map->slab_shift) - 1);
    return (char *)map->slabs[id >> map->slab_shift] + (size_t)place * map->block_bytes;
}

#endif
