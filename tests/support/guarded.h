/** @file
 * Memory between two pages that trap: what reads or writes before its first byte or after its last
 * ends the program. */
#ifndef KVC_TEST_GUARDED_H
#define KVC_TEST_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

/** Memory of whole pages. */
typedef struct guarded {
    char *data;   /**< the byte before traps */
    size_t bytes; /**< the byte at data + bytes traps; at least those asked for */
} guarded;

/** Maps memory. */
guarded guarded_new(size_t bytes);

/** Unmaps it. */
void guarded_free(guarded *memory);

/** Returns where `bytes` lie that touch the first or the last page that traps. */
char *guarded_place(const guarded *memory, size_t bytes, bool at_end);

#endif
