#include "store/digest.h"

#include <inttypes.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= KVC__DIGEST_BYTES, "room for xxHash's state");

void kvc__digest_init(kvc__digest *d) {
    XXH3_state_t *state = (XXH3_state_t *)d->state;
    XXH3_INITSTATE(state);
    (void)XXH3_128bits_reset(state);
}

void kvc__digest_add_generic(kvc__digest *d, const void *data, size_t bytes) {
    (void)XXH3_128bits_update((XXH3_state_t *)d->state, data, bytes);
}

void kvc__digest_add(kvc__digest *d, const void *data, size_t bytes) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        kvc__digest_add_avx2(d, data, bytes);
        return;
    }
#endif
    kvc__digest_add_generic(d, data, bytes);
}

void kvc__digest_text(const kvc__digest *d, char out[KVC__DIGEST_DIGITS + 1]) {
    const XXH128_hash_t hash = XXH3_128bits_digest((const XXH3_state_t *)d->state);
    (void)snprintf(out, KVC__DIGEST_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, hash.high64,
                   hash.low64);
}
