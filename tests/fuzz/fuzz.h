/** @file
 * What every fuzz target shares. */
#ifndef KVC_FUZZ_H
#define KVC_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/** Stops at what must hold, in every build. */
#define FUZZ_WANT(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) abort();                                                                 \
    } while (0)

/** What libFuzzer calls with each input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
