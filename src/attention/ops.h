/** @file
 * The table of inner loops, one an instruction set, filled at start; and what they work on. */
#ifndef KVC_ATTENTION_OPS_H
#define KVC_ATTENTION_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/dtype.h>

#include "attention/exp.h"

/** Positions of a block: of 128 dims in a half type 16 KiB of keys, then as much of values. */
#define KVC__BLOCK 64

/** The most elements that a loader takes at a time. */
#define KVC__UNIT_MOST 32

/** Room for the scores of a block and four rows, and a vector more. */
#define KVC__SCORES (4 * KVC__BLOCK + KVC__UNIT_MOST)

/** R rows at work, R in {1, 2, 4}. Widths are dims rounded up to whole units, the rest zeros;
 * elements of a unit lie in the order of the loader. */
typedef struct kvc__tile {
    const float *q; /**< [R][key_width], scaled */
    float *sums;    /**< [R][value_width], Σ p v */
    float *max;     /**< [R], largest score so far */
    float *total;   /**< [R], Σ p */
    int64_t key_width, value_width;
} kvc__tile;

/** Positions of keys or values, a unit's multiple of elements each. */
typedef struct kvc__block {
    const char *data;
    int64_t step_bytes; /**< from position to position */
    int64_t count;      /**< 0 to KVC__BLOCK; nothing behind them is read */
} kvc__block;

/** Takes one block into a tile: scores, online softmax, weighted sums.
 * @param seen  [R], positions of the block that each row sees, 0 to count, never decreasing
 * @param s     [KVC__SCORES], scratch, 64-byte aligned */
typedef void (*kvc__tile_fn)(kvc__tile *tile, const kvc__block *k, const kvc__block *v,
                             const int64_t *seen, float *s);

/** The place of a dtype in a table. */
#define KVC__OPS_SLOT(dtype) ((int)(dtype) - (int)KVC_F32)

/** The inner loops of one instruction set. */
typedef struct kvc__ops {
    const char *name;
    int unit;                 /**< elements that a loader takes at a time */
    kvc__tile_fn tiles[3][3]; /**< [f32, f16, bf16][1, 2, 4 rows]; NULL: copy to f32 first */
    uint8_t place[3][KVC__UNIT_MOST]; /**< where a loader puts element i of a unit */
} kvc__ops;

/** Returns the fastest table that this CPU runs; portable C's where the environment has
 * KVC_ISA=generic. Chosen once; thread-safe. */
const kvc__ops *kvc__ops_best(void);

/** Fill the table of one instruction set. */
void kvc__ops_generic(kvc__ops *ops);
void kvc__ops_avx2(kvc__ops *ops);
void kvc__ops_neon(kvc__ops *ops);

#endif
