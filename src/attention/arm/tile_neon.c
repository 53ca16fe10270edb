/* NEON: every AArch64 CPU. */
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* The loops come after what they are made of. */
/* clang-format off */
#include "attention/arm/vector_neon.h"
#include "attention/arm/integers_neon.h"
#include "attention/tile.h"
/* clang-format on */

void kvc__ops_neon(kvc__ops *ops) {
    fill_ops(ops);
}
