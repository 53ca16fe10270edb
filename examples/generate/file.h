/** @file
 * A whole file as read-only memory. */
#ifndef GENERATE_FILE_H
#define GENERATE_FILE_H

#include <stddef.h>

#include "failure.h"

/** Pages of the file, read when they are touched, never written. Zeroed, it is no file. */
typedef struct mapped_file {
    void *data; /**< page-aligned */
    size_t bytes;
} mapped_file;

/** Maps a regular file that is not empty. Nothing is read yet; the file must not shrink while it
 * is mapped.
 * @param wanted  what the file should be, for the sentence: "a checkpoint" */
bool file_map(mapped_file *out, const char *path, const char *wanted, failure *error);

/** Unmaps and zeroes it. No file is allowed. */
void file_unmap(mapped_file *file);

#endif
