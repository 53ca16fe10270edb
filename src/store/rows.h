/** @file
 * An array's bytes in row-major order, as pieces for reading and writing: where an array has long
 * runs without gaps they are used where they lie, else short runs are gathered in a buffer. */
#ifndef KVC_STORE_ROWS_H
#define KVC_STORE_ROWS_H

#include <stdbool.h>

#include <kvcache/array.h>

/** The most bytes of a piece: they are still cached when they are hashed. Runs shorter than
 * KVC__DIRECT_BYTES are gathered: to read or write each by itself would cost more. Those of
 * KVC__LONG_BYTES are not one with those that follow: who maps them wants each by itself. */
enum { KVC__PIECE_BYTES = 1 << 18, KVC__DIRECT_BYTES = 1 << 16, KVC__LONG_BYTES = 1 << 20 };

/** Verifies that an array can be used so.
 * @errors KVC_E_INVALID it is none; KVC_E_UNSUPPORTED it is another device's; KVC_E_RANGE */
kvc_status kvc__rows_check(size_t *bytes, const kvc_array *array, const char *what);

/** A place in an array's bytes. */
typedef struct kvc__rows_place {
    int64_t at[KVC_MAX_DIMS]; /**< of a run */
    size_t past;              /**< bytes of that run before the place */
} kvc__rows_place;

/** A walk over the pieces of an array of at least one element. */
typedef struct kvc__rows {
    const kvc_array *array;
    int outer;                   /**< dimensions before those that a run covers */
    size_t run_bytes;            /**< of each run, at least an element */
    bool gathers;                /**< runs, in memory of the caller's */
    size_t left;                 /**< bytes from the next piece on */
    kvc__rows_place first, next; /**< of the piece; behind it */
    char *piece;                 /**< where the piece lies; NULL before the first */
    size_t bytes;                /**< of it */
} kvc__rows;

/** Begins before the first element. */
void kvc__rows_init(kvc__rows *rows, const kvc_array *array);

/** Finds the next piece, of `most` > 0 bytes at most: memory of the array, or where runs are
 * gathered `room`, which may be NULL elsewhere. False at the end. */
bool kvc__rows_next(kvc__rows *rows, char *room, size_t most);

/** Whether a long run ends with the piece. */
bool kvc__rows_ends_long(const kvc__rows *rows);

/** Copies the array's elements to the piece, where that lies in the caller's memory. */
void kvc__rows_gather(const kvc__rows *rows);

/** Copies the piece to the array's elements, where that lies in the caller's memory. */
void kvc__rows_scatter(const kvc__rows *rows);

#endif
