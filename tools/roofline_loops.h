/** @file
 * The loops behind roofline.h, for vectors of any width. Included by one .c file an instruction
 * set, which defines VECTOR_BYTES   of the widest vector SUMS           sums of multiply_add that
 * live in registers at once, enough for the latency of one times those begun in a cycle and is
 * compiled with -ffp-contract=fast, so that a product and a sum become one instruction. */
#ifndef KVCACHE_TOOLS_ROOFLINE_LOOPS_H
#define KVCACHE_TOOLS_ROOFLINE_LOOPS_H

#include "roofline.h"

/* May lie anywhere in any memory. */
typedef uint64_t words __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
typedef float floats __attribute__((vector_size(VECTOR_BYTES)));

/* What a stream reads in its turn, and the sums it goes to: no addition waits for the last. */
enum { TURN = 256, READ_SUMS = TURN / VECTOR_BYTES < 8 ? TURN / VECTOR_BYTES : 8 };

static inline __attribute__((always_inline)) void add_turn(words *sums, const unsigned char *at) {
    const words *in = (const words *)(const void *)at;
    for (int i = 0; i < TURN / VECTOR_BYTES; i++) sums[i % READ_SUMS] += in[i];
}

/* Reads at `streams` places at once, each `ahead` bytes after asking for them (0: not asking).
 * Prefetchers of the hardware follow a stream, and stop where its page ends: several streams keep
 * memory at work meanwhile. */
static inline __attribute__((always_inline)) uint64_t
read_streams(const unsigned char *at, size_t bytes, size_t streams, size_t ahead) {
    words sums[READ_SUMS] = {0};
    uint64_t total = 0;
    const size_t part = bytes / streams / TURN * TURN;
    for (size_t i = 0; i < part; i += TURN) {
        const size_t ask = i + TURN + ahead <= part ? ahead : 0; /* not for the next one's bytes */
        for (size_t s = 0; s < streams; s++) {
            const unsigned char *from = at + s * part + i;
            if (ahead)
                for (size_t line = 0; line < TURN; line += 64)
                    __builtin_prefetch(from + ask + line);
            add_turn(sums, from);
        }
    }
    for (size_t i = streams * part; i < bytes; i++) total += at[i];
    for (int i = 1; i < READ_SUMS; i++) sums[0] += sums[i];
    for (size_t i = 0; i < VECTOR_BYTES / sizeof total; i++) total += sums[0][i];
    return total;
}

#define READ(name, streams, ahead)                                                                 \
    static uint64_t name(const void *memory, size_t bytes) {                                       \
        return read_streams(memory, bytes, streams, ahead);                                        \
    }
READ(read_1, 1, 0)
READ(read_1_ahead_1024, 1, 1024)
READ(read_1_ahead_4096, 1, 4096)
READ(read_2_ahead_512, 2, 512)
READ(read_4, 4, 0)
READ(read_4_ahead_512, 4, 512)
READ(read_6, 6, 0)
READ(read_8, 8, 0)

static float multiply_add(int64_t rounds) {
    /* Unknown to the compiler; with these, sums stay near 2. */
    static volatile float factor = 0.5f, term = 1.0f;
    const floats zero = {0}, x = zero + factor, y = zero + term;
    floats sums[SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = zero + (float)i;
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 32 /* registers have no index */
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * x + y;
    }
    for (int i = 1; i < SUMS; i++) sums[0] += sums[i];
    return sums[0][0];
}

/* All fields but those of dot_bf16. */
#define ROOFLINE_LOOPS(name)                                                                       \
    .isa = (name), .read = {read_1,                                                                \
                            read_1_ahead_1024,                                                     \
                            read_1_ahead_4096,                                                     \
                            read_2_ahead_512,                                                      \
                            read_4,                                                                \
                            read_4_ahead_512,                                                      \
                            read_6,                                                                \
                            read_8},                                                               \
    .multiply_add = multiply_add, .flops_a_round = (int64_t)2 * SUMS * (VECTOR_BYTES / 4)

#endif
