/** @file
 * Loops over what is packed by VNNI: products of bytes that are added up in 32 bits; on vectors of
 * AVX2, as lanes are 16 bytes of a row, of which heads have 4 to 8. Included by a file for each
 * form that the instruction has. */
#ifndef KVC_ATTENTION_X86_TILE_VNNI_H
#define KVC_ATTENTION_X86_TILE_VNNI_H

#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* The loops come after what they are made of. */
/* clang-format off */
#include "attention/x86/vector_avx2.h"
#include "attention/x86/integers_avx2.h"
#include "attention/tile.h"
/* clang-format on */

static inline void fill_vnni(kvc__ops *ops) {
    *ops = (kvc__ops){.unit = UNIT};
    fill_packed(ops);
}

#endif
