/* Compiled with AVX-512F, run where the CPU has it. */

enum { VECTOR_BYTES = 64, SUMS = 24 }; /* of 32 registers */

#include "roofline_loops.h"

const roofline_ops roofline_avx512 = {ROOFLINE_LOOPS("avx512")};
