/** @file
 * The floor under a tier: the same bytes moved plainly, a file a value by write(2) and read(2), or
 * a key a value by hiredis, pipelined. No checks, no limit, one thread. */
#ifndef KVCACHE_TOOLS_TIER_PLAIN_H
#define KVCACHE_TOOLS_TIER_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tier_plain tier_plain;

/** Begins.
 * @param text    of --tier
 * @param folder  for files; NULL for Redis
 * @return        CLI_DONE, or CLI_FAILED with a line */
int tier_plain_open(tier_plain **out, const char *text, const char *folder);

/** NULL is allowed. */
void tier_plain_close(tier_plain *plain);

/** Moves all values, [count][bytes]; false when one could not be. */
bool tier_plain_put(tier_plain *plain, const char *data, int64_t count, int64_t bytes);
bool tier_plain_get(tier_plain *plain, char *data, int64_t count, int64_t bytes);

#endif
