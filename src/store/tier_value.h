/** @file
 * What lies before a value in every tier, so that it describes itself: docs/FORMAT.md.
 *
 *       0   8  magic "KVCBLOCK"
 *       8   4  version, 1
 *      12   4  bytes of the header, 128
 *      16   8  bytes of the payload
 *      24  32  fingerprint
 *      56  32  key
 *      88  16  XXH3-128 of the payload
 *     104   8  zero
 *     112  16  XXH3-128 of the 112 bytes before
 *
 * Numbers are little-endian, checksums in XXH128_canonical_t's order of bytes. */
#ifndef KVC_STORE_TIER_VALUE_H
#define KVC_STORE_TIER_VALUE_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/tier.h>

/** Writes the header of a payload; O(payload_bytes).
 * @param header       [KVC_TIER_HEADER_BYTES]
 * @param fingerprint  [32]
 * @param key          [32] */
void kvc__tier_value_seal(void *header, const uint8_t *fingerprint, const uint8_t *key,
                          const void *payload, size_t payload_bytes);

/** Returns KVC_TIER_FINE when header and payload are whole, and what was asked for; else what is
 * wrong first. */
kvc_tier_fault kvc__tier_value_check(const void *header, const uint8_t *fingerprint,
                                     const uint8_t *key, const void *payload, size_t payload_bytes);

#endif
