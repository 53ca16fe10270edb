/* AVX2, FMA and F16C: x86-64 since 2013. This file is compiled for them, and run where they are. */
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

/* The loops come after what they are made of. */
/* clang-format off */
#include "attention/x86/vector_avx2.h"
#include "attention/x86/integers_avx2.h"
#include "attention/tile.h"
/* clang-format on */

void kvc__ops_avx2(kvc__ops *ops) {
    fill_ops(ops);
}
