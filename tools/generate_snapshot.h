/** @file
 * `kvcache generate` with a cache that comes from a file, and goes to one. */
#ifndef KVCACHE_TOOLS_GENERATE_SNAPSHOT_H
#define KVCACHE_TOOLS_GENERATE_SNAPSHOT_H

#include "generate_session.h"

/** Puts a file's cache in the place of the transformer's empty one, cut to what its tokens have in
 * common with the prompt: s->ready positions, fewer than the prompt has.
 * @return CLI_DONE, or CLI_FAILED with a line */
int snapshot_load(session *s);

/** Writes the cache and s->ids, the tokens of its positions.
 * @return CLI_DONE, or CLI_FAILED with a line */
int snapshot_save(const session *s);

#endif
