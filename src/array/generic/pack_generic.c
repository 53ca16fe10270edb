/* Portable C: the compilers' own vectors of four floats, whatever the target makes of them. */
#include <stdint.h>

enum { W = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf v_min(vf a, vf b) {
    const vi less = a < b;
    return (vf)((less & (vi)a) | (~less & (vi)b));
}
static inline vf v_max(vf a, vf b) {
    const vi more = a > b;
    return (vf)((more & (vi)a) | (~more & (vi)b));
}
static inline vf v_swap(vf x, const int step) {
    return step == 2 ? (vf){x[2], x[3], x[0], x[1]} : (vf){x[1], x[0], x[3], x[2]};
}

/* Eight elements that follow each other, to eight bytes: halves move apart, then their halves, then
 * those of these. */
static inline uint64_t spread(uint64_t x, const int bits) {
    const uint64_t four = (UINT64_C(1) << 4 * bits) - 1;
    const uint64_t two = ((UINT64_C(1) << 2 * bits) - 1) * UINT64_C(0x100000001);
    const uint64_t one = ((UINT64_C(1) << bits) - 1) * UINT64_C(0x1000100010001);
    x = (x & four) | (x >> 4 * bits & four) << 32;
    x = (x & two) | (x >> 2 * bits & two) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

static inline __attribute__((always_inline)) void
split_elements(uint8_t *restrict to, const uint8_t *restrict from, int64_t n, const int bits) {
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t eight = 0;
        for (int byte = 0; byte < bits; byte++) eight |= (uint64_t)*from++ << (8 * byte);
        eight = spread(eight, bits);
        for (int byte = 0; byte < 8; byte++) to[i + byte] = (uint8_t)(eight >> (8 * byte));
    }
}

static void split(uint8_t *to, const uint8_t *from, int64_t n, int bits) {
    switch (bits) { /* a loop for each, with masks that are known */
    case 2: split_elements(to, from, n, 2); return;
    case 3: split_elements(to, from, n, 3); return;
    case 4: split_elements(to, from, n, 4); return;
    case 5: split_elements(to, from, n, 5); return;
    default: split_elements(to, from, n, 6);
    }
}

#include "array/pack_loops.h"

const kvc__pack_ops kvc__pack_generic = {pack, unpack, split};
