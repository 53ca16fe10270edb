#include "attention/ops.h"

#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#ifdef KVC_EMULATE_VNNI
enum { EMULATES_VNNI = 1 };
#else
enum { EMULATES_VNNI = 0 };
#endif

/* Takes the loops for what is packed of another table, whose units may be shorter. */
static void take_packed(kvc__ops *out, void (*fill)(kvc__ops *ops)) {
    kvc__ops other;
    fill(&other);
    out->scaling = other.scaling;
    for (int slot = KVC__OPS_Q8; slot < KVC__OPS_SLOTS; slot++) {
        out->prepare[slot] = other.prepare[slot];
        memcpy(out->score[slot], other.score[slot], sizeof out->score[slot]);
        memcpy(out->weigh[slot], other.weigh[slot], sizeof out->weigh[slot]);
        for (int i = 0; i < out->unit; i++)
            out->place[slot][i] =
                (uint8_t)(i / other.unit * other.unit + other.place[slot][i % other.unit]);
    }
}
#endif

void kvc__ops_fill(kvc__ops *out, kvc__isa isa) {
    switch (isa) {
#if defined(__x86_64__)
    case KVC__ISA_AVX2:
        kvc__ops_avx2(out);
        if (EMULATES_VNNI) take_packed(out, kvc__ops_vnni);
        return;
    case KVC__ISA_AVX_VNNI:
        kvc__ops_avx2(out);
        take_packed(out, kvc__ops_avxvnni);
        return;
    case KVC__ISA_AVX512:
    case KVC__ISA_AVX512_BF16:
        if (isa == KVC__ISA_AVX512) kvc__ops_avx512(out);
        else kvc__ops_avx512bf16(out);
        take_packed(out, EMULATES_VNNI || kvc__isa_has_vnni() ? kvc__ops_vnni : kvc__ops_avx2);
        return;
#elif defined(__aarch64__)
    case KVC__ISA_NEON: kvc__ops_neon(out); return;
    case KVC__ISA_NEON_DOT: kvc__ops_neon_dot(out); return;
    case KVC__ISA_NEON_BF16: kvc__ops_neon_bf16(out); return;
#endif
    default: kvc__ops_generic(out);
    }
}

static kvc__ops best;

static void choose(void) {
    kvc__ops_fill(&best, kvc__isa_best()->isa);
}

const kvc__ops *kvc__ops_best(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose);
    return &best;
}
