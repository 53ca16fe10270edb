/** @file
 * A folder of its own for files that a measurement writes. */
#ifndef KVCACHE_TOOLS_SCRATCH_H
#define KVCACHE_TOOLS_SCRATCH_H

#include <stddef.h>

/** Makes a new folder in another, which is made too where it is not there.
 * @param out     [room] receives its path; "" after a failure
 * @param option  that gave the parent, for the error: "--dir"
 * @return        CLI_DONE, or CLI_FAILED with a line */
int scratch_make(char *out, size_t room, const char *option, const char *parent);

/** Removes the folder and all that is in it. Nothing where the path is "". */
void scratch_remove(const char *path);

#endif
