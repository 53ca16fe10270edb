/** @file
 * An array's bytes in row-major order, as they go to a file and come from it: where they lie. */
#ifndef KVC_STORE_ROWS_H
#define KVC_STORE_ROWS_H

#include <kvcache/array.h>

/** The most bytes that are read, written or hashed at once: they are still cached then. */
enum { KVC__PIECE_BYTES = 1 << 18 };

/** Runs of so many bytes are not one with those that follow: who maps them wants each by itself. */
enum { KVC__LONG_RUN_BYTES = 1 << 20 };

/** Verifies that an array can be used so.
 * @errors KVC_E_INVALID it is none; KVC_E_UNSUPPORTED it is another device's; KVC_E_RANGE */
kvc_status kvc__rows_check(size_t *bytes, const kvc_array *array, const char *what);

/** An array as runs without gaps, all alike. */
typedef struct kvc__rows {
    const kvc_array *array;
    int outer;        /**< dimensions before those that a run covers */
    size_t run_bytes; /**< 0 where the array has no elements */
} kvc__rows;

/** Finds the runs of an array, which is borrowed. */
void kvc__rows_init(kvc__rows *rows, const kvc_array *array);

/** Returns where a byte lies.
 * @param offset  0 <= offset < all of the array's bytes
 * @param bytes   receives how many from there on lie in the same run, at least 1 */
char *kvc__rows_find(const kvc__rows *rows, size_t offset, size_t *bytes);

#endif
