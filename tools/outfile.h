/** @file
 * A file that appears whole or not at all: written under another name beside its place, then
 * renamed. What exists and is no regular file (/dev/stdout, a pipe) is written as it is. */
#ifndef KVCACHE_TOOLS_OUTFILE_H
#define KVCACHE_TOOLS_OUTFILE_H

#include <limits.h>
#include <stdio.h>

/** A file being written. */
typedef struct outfile {
    const char *path;          /**< borrowed */
    char writing_at[PATH_MAX]; /**< where the bytes go until outfile_end */
    FILE *stream;
} outfile;

/** Tells, before any work is done, whether a file can be made at path; leaves nothing there.
 * @param option  for the error: "--trace"
 * @return CLI_DONE, or CLI_FAILED with a line */
int outfile_check(const char *option, const char *path);

/** Opens out->stream for writing. Returns CLI_DONE, or CLI_FAILED with a line. */
int outfile_begin(outfile *out, const char *path);

/** Closes, and moves the file to its place; with status other than CLI_DONE, or when not everything
 * was written, removes it instead. Returns status, or CLI_FAILED with a line. */
int outfile_end(outfile *out, int status);

#endif
