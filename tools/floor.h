/** @file
 * The floor under attention: the fastest plain read of memory that portable C gives here. */
#ifndef KVCACHE_TOOLS_FLOOR_H
#define KVCACHE_TOOLS_FLOOR_H

#include <stddef.h>
#include <stdint.h>

/** The ways to read; which is fastest depends on the machine. */
enum { FLOOR_VARIANTS = 4 };

/** Reads every byte once and returns a sum of it all, so that no read can be left out.
 * @param memory   [bytes], 8-byte aligned
 * @param variant  0 ≤ variant < FLOOR_VARIANTS */
uint64_t floor_read(int variant, const void *memory, size_t bytes);

/** Returns "one stream", …. Static storage. */
const char *floor_name(int variant);

#endif
