/** @file
 * How a call of this engine fails: it returns false and leaves one sentence for people. */
#ifndef GENERATE_FAILURE_H
#define GENERATE_FAILURE_H

#include <stdbool.h>

/** Names what was given, what was wanted and, where there is one, the way out. */
typedef struct failure {
    char sentence[512];
} failure;

/** Writes the sentence. Returns false, so that a call fails in one line. */
__attribute__((format(printf, 2, 3))) bool failure_set(failure *out, const char *format, ...);

/** Writes what was being done and the sentence of libkvcache's last failed call. Returns false. */
bool failure_set_library(failure *out, const char *what);

#endif
