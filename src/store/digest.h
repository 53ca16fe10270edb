/** @file
 * Checksums: XXH3 with 128 bits, as 32 hexadecimal digits, the most significant first (what
 * `xxhsum -H2` prints). They find accidents; they are no proof against one who forges. */
#ifndef KVC_STORE_DIGEST_H
#define KVC_STORE_DIGEST_H

#include <stddef.h>

enum { KVC__DIGEST_DIGITS = 32, KVC__DIGEST_BYTES = 576 };

/** A checksum in the making: xxHash's state, which only the files that compute know. */
typedef struct kvc__digest {
    _Alignas(64) unsigned char state[KVC__DIGEST_BYTES];
} kvc__digest;

void kvc__digest_init(kvc__digest *d);

/** Adds bytes, with the best instructions that the CPU has. */
void kvc__digest_add(kvc__digest *d, const void *data, size_t bytes);

/** Writes the digits of what was added so far, and an end. */
void kvc__digest_text(const kvc__digest *d, char out[KVC__DIGEST_DIGITS + 1]);

/** The ways to add: the same result of each. */
void kvc__digest_add_generic(kvc__digest *d, const void *data, size_t bytes);
void kvc__digest_add_avx2(kvc__digest *d, const void *data, size_t bytes);

#endif
