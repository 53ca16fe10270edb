#include "store/tier_value.h"

#include <endian.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const char magic[8] = {'K', 'V', 'C', 'B', 'L', 'O', 'C', 'K'};

enum { VERSION = 1, SEALED_BYTES = 112 };

/* The header as it is kept: every field lies at a multiple of its size, so nothing pads it. */
typedef struct header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint8_t fingerprint[KVC_BLOCK_KEY_BYTES];
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    XXH128_canonical_t payload_sum;
    uint64_t zero;
    XXH128_canonical_t header_sum;
} header;

_Static_assert(sizeof(header) == KVC_TIER_HEADER_BYTES, "the format's header");
_Static_assert(offsetof(header, payload_sum) == 88, "the format's payload checksum");
_Static_assert(offsetof(header, header_sum) == SEALED_BYTES, "the format's header checksum");

static XXH128_canonical_t checksum(const void *data, size_t bytes) {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, bytes));
    return sum;
}

static bool is_checksum(const XXH128_canonical_t *sum, const void *data, size_t bytes) {
    const XXH128_canonical_t right = checksum(data, bytes);
    return memcmp(sum, &right, sizeof right) == 0;
}

void kvc__tier_value_seal(void *out, const uint8_t *fingerprint, const uint8_t *key,
                          const void *payload, size_t payload_bytes) {
    header h = {.version = htole32(VERSION),
                .header_bytes = htole32(KVC_TIER_HEADER_BYTES),
                .payload_bytes = htole64(payload_bytes),
                .payload_sum = checksum(payload, payload_bytes)};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.fingerprint, fingerprint, sizeof h.fingerprint);
    memcpy(h.key, key, sizeof h.key);
    h.header_sum = checksum(&h, SEALED_BYTES);
    memcpy(out, &h, sizeof h);
}

kvc_tier_fault kvc__tier_value_check(const void *in, const uint8_t *fingerprint, const uint8_t *key,
                                     const void *payload, size_t payload_bytes) {
    header h;
    memcpy(&h, in, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return KVC_TIER_BAD_MAGIC;
    if (h.version != htole32(VERSION) || h.header_bytes != htole32(KVC_TIER_HEADER_BYTES))
        return KVC_TIER_BAD_VERSION;
    if (h.zero) return KVC_TIER_BAD_VERSION;
    if (!is_checksum(&h.header_sum, &h, SEALED_BYTES)) return KVC_TIER_BAD_CHECKSUM;
    if (h.payload_bytes != htole64(payload_bytes)) return KVC_TIER_BAD_LENGTH;
    if (memcmp(h.fingerprint, fingerprint, sizeof h.fingerprint) != 0)
        return KVC_TIER_BAD_FINGERPRINT;
    if (memcmp(h.key, key, sizeof h.key) != 0) return KVC_TIER_BAD_KEY;
    if (!is_checksum(&h.payload_sum, payload, payload_bytes)) return KVC_TIER_BAD_CHECKSUM;
    return KVC_TIER_FINE;
}
