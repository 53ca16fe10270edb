/** @file
 * Freed buffers, found by size and by age. Two orders over the same buffers: per kind a sorted
 * table of the distinct sizes, each with a list (newest first), and one list of all by age. */
#ifndef KVC_MEMORY_SHELF_H
#define KVC_MEMORY_SHELF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/pool.h>

/** A buffer's places in the two orders. */
typedef struct kvc__shelf_links {
    kvc_buffer *newer, *older;         /* of all */
    kvc_buffer *size_prev, *size_next; /* of its kind and size */
} kvc__shelf_links;

/** The buffers of one size. */
typedef struct kvc__shelf_bin {
    size_t bytes;
    kvc_buffer *first; /* never NULL */
} kvc__shelf_bin;

/** The sizes of one kind, ascending. */
typedef struct kvc__shelf_kind {
    kvc__shelf_bin *bins; /* [room] */
    size_t count, room;
} kvc__shelf_kind;

/** All freed buffers of a pool. Zeroed, it is empty. */
typedef struct kvc__shelf {
    kvc__shelf_kind kinds[2]; /* plain, reserved */
    kvc_buffer *newest, *oldest;
} kvc__shelf;

/** Takes the smallest buffer that holds bytes and is smaller than `below`; the newest of its size.
 * O(log sizes), plus a move of the table's tail when its size is gone. NULL when there is none. */
kvc_buffer *kvc__shelf_take(kvc__shelf *shelf, bool reserved, size_t bytes, size_t below);

/** Puts a buffer up as the newest. Returns false, and changes nothing, when the table cannot grow.
 */
bool kvc__shelf_put(kvc__shelf *shelf, kvc_buffer *buffer);

/** Takes the oldest buffer down; NULL when empty. */
kvc_buffer *kvc__shelf_take_oldest(kvc__shelf *shelf);

/** Tells whether both orders are whole and hold the same buffers, which have resident_bytes in all.
 * O(buffers), for KVC_ASSERT_SLOW. */
bool kvc__shelf_is_valid(const kvc__shelf *shelf, uint64_t resident_bytes);

/** Frees the tables of an empty shelf. */
void kvc__shelf_deinit(kvc__shelf *shelf);

#endif
