/** @file
 * Blocks of rows, packed by their columns: a group is an element of `group` rows, and groups follow
 * each other as elements do. With pack.h's loops, so in its bits. */
#ifndef KVC_ARRAY_COLUMNS_H
#define KVC_ARRAY_COLUMNS_H

#include "array/pack.h"

/** Packs the columns of a block.
 * @param p     groups: elements of a row, a multiple of 8
 * @param from  [group][groups] of p->dtype
 * @param step  elements from row to row */
void kvc__pack_columns(const kvc__packing *p, const kvc__packed *to, const void *from,
                       int64_t step);

/** Unpacks rows [first, first + count) of a block to f32.
 * @param p     as kvc__pack_columns; its dtype is f32
 * @param to    [count][groups]
 * @param step  floats from row to row */
void kvc__unpack_columns(const kvc__packing *p, float *to, int64_t step, const kvc__packed *from,
                         int64_t first, int64_t count);

#endif
