/** @file
 * What a checkpoint is called outside of this process: in snapshots, and in the keys of tiers. */
#ifndef KVCACHE_TOOLS_GENERATE_MODEL_H
#define KVCACHE_TOOLS_GENERATE_MODEL_H

#include "generate/generate.h"

enum { MODEL_NAME_ROOM = 128 };

/** Rotary positions as llama2.c has them. */
#define MODEL_ROPE "base 10000, pairs of neighbours"

/** Names a checkpoint by its size and the SHA-256 of its bytes: O(bytes).
 * @return  CLI_DONE, or CLI_FAILED with a line */
int model_name(char out[MODEL_NAME_ROOM], const checkpoint *model);

#endif
