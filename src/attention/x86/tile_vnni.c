/* AVX-512 VNNI: servers since 2019. Loops over what is packed, by products of bytes that are added
 * up in 32 bits; on vectors of AVX2, as lanes are 16 bytes of a row, of which heads have 4 to 8.
 * This file is compiled for it, and run where it is. */
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* The loops come after what they are made of. */
/* clang-format off */
#include "attention/x86/vector_avx2.h"
#include "attention/x86/integers_avx2.h"
#include "attention/tile.h"
/* clang-format on */

void kvc__ops_vnni(kvc__ops *ops) {
    *ops = (kvc__ops){.unit = UNIT};
    fill_packed(ops);
}
