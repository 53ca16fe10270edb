/** @file
 * Checksums: XXH3 with 128 bits, as 32 hexadecimal digits, the most significant first (what
 * `xxhsum -H2` prints). They find accidents; they are no proof against one who forges. */
#ifndef KVC_STORE_DIGEST_H
#define KVC_STORE_DIGEST_H

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { KVC__DIGEST_DIGITS = 32 };

/** A checksum in the making. */
typedef struct kvc__digest {
    XXH3_state_t state;
} kvc__digest;

static inline void kvc__digest_init(kvc__digest *d) {
    XXH3_INITSTATE(&d->state);
    (void)XXH3_128bits_reset(&d->state);
}

static inline void kvc__digest_add(kvc__digest *d, const void *data, size_t bytes) {
    (void)XXH3_128bits_update(&d->state, data, bytes);
}

/** Writes the digits of what was added so far, and an end. */
static inline void kvc__digest_text(const kvc__digest *d, char out[KVC__DIGEST_DIGITS + 1]) {
    const XXH128_hash_t hash = XXH3_128bits_digest(&d->state);
    (void)snprintf(out, KVC__DIGEST_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, hash.high64,
                   hash.low64);
}

#endif
