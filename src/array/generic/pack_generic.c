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

#include "array/pack_loops.h"

const kvc__pack_ops kvc__pack_generic = {pack, unpack};
