/* NEON with dot products of bytes (Arm's FEAT_DotProd): all as in tile_neon.c but the products of
 * packed rows. This file is compiled for it, and run where it is. */
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* The loops come after what they are made of. */
/* clang-format off */
#include "attention/arm/vector_neon.h"
#include "attention/arm/integers_neon.h"
#include "attention/tile.h"
/* clang-format on */

void kvc__ops_neon_dot(kvc__ops *ops) {
    fill_ops(ops);
}
