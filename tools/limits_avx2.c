/* Compiled with AVX2 and FMA, run where the CPU has both. */

enum { VECTOR_BYTES = 32, SUMS = 12 }; /* of 16 registers */

#include "limits_loops.h"

const limits_ops limits_avx2 = {LIMITS_LOOPS("avx2")};
