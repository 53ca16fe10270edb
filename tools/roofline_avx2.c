/* Compiled with AVX2 and FMA, run where the CPU has both. */

enum { VECTOR_BYTES = 32, SUMS = 12 }; /* of 16 registers */

#include "roofline_loops.h"

const roofline_ops roofline_avx2 = {ROOFLINE_LOOPS("avx2")};
