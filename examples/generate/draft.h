/** @file
 * Guesses how a text goes on, without a model: as it went on the last time.
 * @source "prompt lookup decoding" (Saxena, 2023) */
#ifndef GENERATE_DRAFT_H
#define GENERATE_DRAFT_H

#include <stdint.h>

/** The tokens that have to occur again for a guess, and the most that are compared: of longer
 * matches the latest is as good as the longest. */
enum { DRAFT_LEAST = 2, DRAFT_LONGEST = 8 };

/** Writes a guess behind a text: what followed the latest of the longest earlier matches of its
 * last tokens. A match may overlap the end, as in "ha ha ha"; then the guess goes round.
 * O(count) times DRAFT_LONGEST at most, allocates nothing.
 * @param text   [count + most] of which the first count are read
 * @param most   tokens wanted, >= 0
 * @return       most, or 0 where the last DRAFT_LEAST tokens are new */
int64_t draft_propose(int32_t *text, int64_t count, int64_t most);

#endif
