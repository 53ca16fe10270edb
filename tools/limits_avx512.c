/* Compiled with AVX-512F, run where the CPU has it. */

enum { VECTOR_BYTES = 64, SUMS = 24 }; /* of 32 registers */

#include "limits_loops.h"

const limits_ops limits_avx512 = {LIMITS_LOOPS("avx512")};
