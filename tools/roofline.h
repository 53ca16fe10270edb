/** @file
 * The two limits of a machine that attention is measured against: how fast memory can be read (the
 * floor under its time) and how fast multiply-adds can be done (the ceiling over its rate). Written
 * once over vectors (roofline_loops.h), compiled for each instruction set, chosen by CPU. */
#ifndef KVCACHE_TOOLS_ROOFLINE_H
#define KVCACHE_TOOLS_ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

/** The ways to read; which is fastest depends on the machine and its pages. */
enum { ROOFLINE_READS = 8 };

/** The loops of one instruction set. */
typedef struct roofline_ops {
    const char *isa; /**< "avx512", "avx2", "generic" */

    /** Reads every byte once and returns a sum of it all, so that no read can be left out.
     * memory lies anywhere. */
    uint64_t (*read[ROOFLINE_READS])(const void *memory, size_t bytes);

    /** Does nothing but multiply-adds of f32 in registers, flops_a_round for each round. What it
     * returns nobody needs, but the compiler does not know. */
    float (*multiply_add)(int64_t rounds);
    int64_t flops_a_round;

    /** The same with dot products of bf16 pairs (AVX-512 BF16); NULL where the CPU has none. */
    float (*dot_bf16)(int64_t rounds);
    int64_t dot_flops_a_round;
} roofline_ops;

/** Returns the loops with the widest vectors that this CPU has. */
const roofline_ops *roofline_best(void);

/** Returns "four streams", …: what read[variant] does. Static storage. */
const char *roofline_read_name(int variant);

/* What roofline_best chooses from. */
extern const roofline_ops roofline_generic, roofline_avx2, roofline_avx512;

/** AVX-512 BF16's dot_bf16. */
float roofline_dot_bf16(int64_t rounds);
extern const int64_t roofline_dot_flops_a_round;

#endif
