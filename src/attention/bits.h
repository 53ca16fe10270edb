/** @file
 * Positions of a block, KVC__SHORT_BLOCK at most, as bits, the first position the lowest. */
#ifndef KVC_ATTENTION_BITS_H
#define KVC_ATTENTION_BITS_H

#include <stdint.h>

#include "attention/ops.h"

/** Returns the bits of a range within [0, 64). */
static inline uint64_t kvc__bits(kvc__range range) {
    if (range.begin >= range.end) return 0;
    return ~UINT64_C(0) >> (64 - (range.end - range.begin)) << range.begin;
}

/** Returns the first run of bits that are set, and clears them; an empty range where there is none.
 */
static inline kvc__range kvc__next_run(uint64_t *bits) {
    if (*bits == 0) return (kvc__range){0, 0};
    const int begin = __builtin_ctzll(*bits);
    const uint64_t behind = ~(*bits >> begin);
    const kvc__range run = {begin, behind == 0 ? 64 : begin + __builtin_ctzll(behind)};
    *bits &= ~kvc__bits(run);
    return run;
}

/** Returns from the first bit that is set to the last. */
static inline kvc__range kvc__hull(uint64_t bits) {
    if (bits == 0) return (kvc__range){0, 0};
    return (kvc__range){__builtin_ctzll(bits), 64 - __builtin_clzll(bits)};
}

#endif
