/** @file
 * How fast values go to a tier and come back, beside the same bytes moved plainly: by write(2) and
 * read(2), or by hiredis with commands pipelined. */
#ifndef KVCACHE_TOOLS_TIER_MEASURE_H
#define KVCACHE_TOOLS_TIER_MEASURE_H

#include <stdint.h>

#include "stats.h"

/** Bytes a second of one pass over all values each. */
typedef struct tier_speeds {
    stats_summary plain_put, put, plain_get, get;
} tier_speeds;

/** Measures passes over `values` different values of value_bytes: plain and through the tier by
 * turns. What it puts it removes again (Redis: forgets within a minute).
 * @param text  of --tier
 * @return      CLI_DONE, or CLI_FAILED with a line; also where the tier loses a value */
int tier_measure(tier_speeds *out, const char *text, int64_t value_bytes, int64_t values,
                 int64_t passes);

#endif
