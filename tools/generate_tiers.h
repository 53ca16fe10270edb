/** @file
 * The tiers of `kvcache generate`: blocks of the prompt are looked for before it is computed, and
 * those of the text are kept. All of it does nothing where no tier is wanted. */
#ifndef KVCACHE_TOOLS_GENERATE_TIERS_H
#define KVCACHE_TOOLS_GENERATE_TIERS_H

#include <stdint.h>

#include <kvcache/spill.h>

#include "generate/generate.h"

/** Tiers, and the tree above them. */
typedef struct generate_tiers generate_tiers;
struct session;

/** Opens the tiers wanted, once there is a transformer: O(bytes of the checkpoint), whose checksum
 * is the model's name in keys.
 * @return CLI_DONE, or CLI_FAILED with a line */
int generate_tiers_open(struct session *s);

/** Has the first sequence, an empty one, begin with the blocks that a tree and its tiers have of
 * some tokens.
 * @param ready   receives how many positions they are
 * @param tokens  [n]
 * @return CLI_DONE, or CLI_FAILED with a line; a fault of a tier is none */
int generate_tiers_adopt(int64_t *ready, kvc_spill *spill, transformer *t, const int32_t *tokens,
                         int64_t n);

/** Has the first sequence begin with the blocks of the prompt that are found; its last token is
 * always computed, as the next is drawn from that. Sets s->ready.
 * @return CLI_DONE, or CLI_FAILED with a line; a fault of a tier is none */
int generate_tiers_restore(struct session *s);

/** Starts to keep the full blocks of the first sequence.
 * @param ids  [n] the tokens of its first positions; fewer than it has will do */
void generate_tiers_publish(struct session *s, const int32_t *ids, int64_t n);

/** Waits until all is kept, and prints what was found and kept where. */
void generate_tiers_print(const struct session *s);

/** Waits likewise, and closes them. */
void generate_tiers_close(struct session *s);

#endif
