/* Vectors of 16 bytes, which every 64-bit CPU has. */

#if defined(__aarch64__)
enum { VECTOR_BYTES = 16, SUMS = 24 }; /* of 32 registers; up to four begin in a cycle */
#else
enum { VECTOR_BYTES = 16, SUMS = 12 }; /* of 16 registers */
#endif

#include "roofline_loops.h"

const roofline_ops roofline_generic = {ROOFLINE_LOOPS("generic")};
