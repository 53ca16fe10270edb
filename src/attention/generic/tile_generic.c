/* Portable C: the compilers' own vectors of four floats, whatever the target makes of them. */
#include <string.h>

#include "attention/ops.h"
#include "base/half.h"

enum { W = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

static inline vf v_load(const float *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void v_store(float *to, vf x) {
    memcpy(to, &x, sizeof x);
}
static inline vf v_set(float x) {
    return (vf){x, x, x, x};
}
static inline vf v_keep(vf x) {
    return x;
}
static inline vf v_max(vf a, vf b) {
    const vi greater = a > b;
    return (vf)((greater & (vi)a) | (~greater & (vi)b));
}

static inline vf v_swap(vf x, const int step) {
    return step == 2 ? (vf){x[2], x[3], x[0], x[1]} : (vf){x[1], x[0], x[3], x[2]};
}

static inline vf v_load_f32(const void *from, int64_t half) {
    return v_load((const float *)from + half * W);
}

/* A bf16 is the upper half of its f32: of a pair in one word, one is shifted there, the other
 * masked. Which of the two comes first in memory is found by order_of. */
static inline vf v_load_bf16(const void *from, int64_t half) {
    typedef uint32_t words __attribute__((vector_size(16)));
    words pairs;
    memcpy(&pairs, from, sizeof pairs);
    return (vf)(half == 0 ? pairs << 16 : pairs & 0xffff0000u);
}

static inline vf v_sums(const vf a[W]) {
    vf sums;
    for (int i = 0; i < W; i++) sums[i] = (a[i][0] + a[i][2]) + (a[i][1] + a[i][3]);
    return sums;
}

static inline vf v_bytes(const char *from) {
    const uint8_t *x = (const uint8_t *)from;
    return (vf){x[0], x[1], x[2], x[3]};
}
static inline void v_nibbles(vf *even, vf *odd, const char *from) {
    const uint8_t *x = (const uint8_t *)from;
    *even = (vf){(float)(x[0] & 15), (float)(x[1] & 15), (float)(x[2] & 15), (float)(x[3] & 15)};
    *odd = (vf){(float)(x[0] >> 4), (float)(x[1] >> 4), (float)(x[2] >> 4), (float)(x[3] >> 4)};
}
static inline void v_zip(vf *lower, vf *upper, vf a, vf b) {
    *lower = (vf){a[0], b[0], a[1], b[1]};
    *upper = (vf){a[2], b[2], a[3], b[3]};
}

/* Converting costs more than a product: once a block, not once a tile. */
#define TILES_F16    0
#define TILES_PACKED 0
#include "attention/tile.h"

void kvc__ops_generic(kvc__ops *ops) {
    fill_ops(ops);
}
