#include "floor.h"

/* Two words that are added at once: a vector instruction on every 64-bit machine, two plain ones
 * elsewhere. May lie on any word of any memory. */
typedef uint64_t lane __attribute__((vector_size(16), aligned(8), may_alias));

enum { BLOCK = 128 };

/* Eight sums, so that no addition waits for the one before it. */
typedef struct sums {
    lane s0, s1, s2, s3, s4, s5, s6, s7;
} sums;

static inline void add_block(sums *s, const unsigned char *at) {
    const lane *in = (const lane *)(const void *)at;
    s->s0 += in[0];
    s->s1 += in[1];
    s->s2 += in[2];
    s->s3 += in[3];
    s->s4 += in[4];
    s->s5 += in[5];
    s->s6 += in[6];
    s->s7 += in[7];
}

static uint64_t fold(const sums *s) {
    const lane all = s->s0 + s->s1 + s->s2 + s->s3 + s->s4 + s->s5 + s->s6 + s->s7;
    return all[0] + all[1];
}

static uint64_t read_plain(const unsigned char *at, size_t bytes) {
    sums s = {0};
    uint64_t tail = 0;
    size_t i = 0;
    for (; i + BLOCK <= bytes; i += BLOCK) add_block(&s, at + i);
    for (; i < bytes; i++) tail += at[i];
    return fold(&s) + tail;
}

/* Asking ahead within the range only: a prefetch past it would read for the next. */
static inline uint64_t read_ahead(const unsigned char *at, size_t bytes, size_t ahead) {
    sums s = {0};
    size_t i = 0;
    for (; i + BLOCK + ahead <= bytes; i += BLOCK) {
        __builtin_prefetch(at + i + ahead);
        __builtin_prefetch(at + i + ahead + 64);
        add_block(&s, at + i);
    }
    return fold(&s) + read_plain(at + i, bytes - i);
}

/* Four places at once, so that four hardware prefetchers run. */
static uint64_t read_streams(const unsigned char *at, size_t bytes) {
    sums s = {0};
    const size_t part = bytes / 4 / BLOCK * BLOCK;
    for (size_t i = 0; i < part; i += BLOCK)
        for (size_t stream = 0; stream < 4; stream++) add_block(&s, at + stream * part + i);
    return fold(&s) + read_plain(at + 4 * part, bytes - 4 * part);
}

uint64_t floor_read(int variant, const void *memory, size_t bytes) {
    switch (variant) {
    case 1: return read_ahead(memory, bytes, 1024);
    case 2: return read_ahead(memory, bytes, 4096);
    case 3: return read_streams(memory, bytes);
    default: return read_plain(memory, bytes);
    }
}

const char *floor_name(int variant) {
    static const char *const names[FLOOR_VARIANTS] = {
        "one stream", "one stream, asking 1 KiB ahead", "one stream, asking 4 KiB ahead",
        "four streams"};
    return variant >= 0 && variant < FLOOR_VARIANTS ? names[variant] : "?";
}
