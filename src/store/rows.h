/** @file
 * An array's bytes in row-major order, as pieces for reading and writing: where an array has long
 * runs without gaps they are used where they lie, else short runs are gathered in a buffer. */
#ifndef KVC_STORE_ROWS_H
#define KVC_STORE_ROWS_H

#include <stdbool.h>

#include <kvcache/array.h>

/** The most bytes of a piece: read or written by one call, and still cached when they are hashed.
 * Runs shorter than KVC__DIRECT_BYTES are gathered: a system call for each would cost more. */
enum { KVC__PIECE_BYTES = 1 << 18, KVC__DIRECT_BYTES = 1 << 16 };

/** Verifies that an array can be used so.
 * @errors KVC_E_INVALID it is none; KVC_E_UNSUPPORTED it is another device's; KVC_E_RANGE */
kvc_status kvc__rows_check(size_t *bytes, const kvc_array *array, const char *what);

/** A walk over the pieces of an array of at least one element. */
typedef struct kvc__rows {
    const kvc_array *array;
    int outer;                   /**< dimensions before those that a run covers */
    int64_t at[KVC_MAX_DIMS];    /**< of the next run */
    size_t run_bytes;            /**< of each run, at least an element */
    size_t runs_left;            /**< from the next on */
    size_t done_bytes;           /**< of the next run, which is cut into pieces */
    char *buffer;                /**< where runs are gathered */
    size_t gathered;             /**< runs in the buffer's piece; 0 where it lies in the array */
    int64_t first[KVC_MAX_DIMS]; /**< the position of the first of those */
} kvc__rows;

/** Begins at the first element.
 * @param buffer  [KVC__PIECE_BYTES] or all of the array's; where nothing is gathered it may be NULL
 */
void kvc__rows_init(kvc__rows *rows, const kvc_array *array, char *buffer);

/** Tells whether runs are gathered, where none was taken yet. */
bool kvc__rows_gather_at_all(const kvc__rows *rows);

/** Finds the next piece: memory of the array, or room in the buffer. False at the end. */
bool kvc__rows_next(kvc__rows *rows, char **piece, size_t *bytes);

/** Copies the array's elements to the piece, where that lies in the buffer. */
void kvc__rows_gather(const kvc__rows *rows);

/** Copies the piece to the array's elements, where that lies in the buffer. */
void kvc__rows_scatter(const kvc__rows *rows);

#endif
