#include "store/tier_value.h"

#include <endian.h>
#include <string.h>

#include "store/digest.h"

static const char magic[8] = {'K', 'V', 'C', 'B', 'L', 'O', 'C', 'K'};

enum { VERSION = 1, SEALED_BYTES = 112, SUM_BYTES = 16 };

/* The header as it is kept: every field lies at a multiple of its size, so nothing pads it. */
typedef struct layout {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint8_t fingerprint[KVC_BLOCK_KEY_BYTES];
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    uint8_t payload_sum[SUM_BYTES];
    uint64_t zero;
    uint8_t header_sum[SUM_BYTES];
} layout;

_Static_assert(sizeof(layout) == KVC_TIER_HEADER_BYTES, "the format's header");
_Static_assert(offsetof(layout, payload_sum) == 88, "the format's payload checksum");
_Static_assert(offsetof(layout, header_sum) == SEALED_BYTES, "the format's header checksum");

static void sum_up(uint8_t *sum, const void *data, size_t bytes) {
    kvc__digest digest;
    kvc__digest_init(&digest);
    if (bytes) kvc__digest_add(&digest, data, bytes);
    kvc__digest_bytes(&digest, sum);
}

static bool is_sum(const uint8_t *sum, const void *data, size_t bytes) {
    uint8_t right[SUM_BYTES];
    sum_up(right, data, bytes);
    return memcmp(sum, right, sizeof right) == 0;
}

void kvc__tier_value_seal(void *header, const uint8_t *fingerprint, const uint8_t *key,
                          const void *payload, size_t payload_bytes) {
    layout h = {.version = htole32(VERSION),
                .header_bytes = htole32(KVC_TIER_HEADER_BYTES),
                .payload_bytes = htole64(payload_bytes)};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.fingerprint, fingerprint, sizeof h.fingerprint);
    memcpy(h.key, key, sizeof h.key);
    sum_up(h.payload_sum, payload, payload_bytes);
    sum_up(h.header_sum, &h, SEALED_BYTES);
    memcpy(header, &h, sizeof h);
}

kvc_tier_fault kvc__tier_value_check(const void *header, const uint8_t *fingerprint,
                                     const uint8_t *key, const void *payload,
                                     size_t payload_bytes) {
    layout h;
    memcpy(&h, header, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return KVC_TIER_BAD_MAGIC;
    /* First of all, as in every version: then a version is another's, and not a flipped bit. */
    if (!is_sum(h.header_sum, &h, SEALED_BYTES)) return KVC_TIER_BAD_CHECKSUM;
    if (h.version != htole32(VERSION) || h.header_bytes != htole32(KVC_TIER_HEADER_BYTES))
        return KVC_TIER_BAD_VERSION;
    if (h.zero) return KVC_TIER_BAD_VERSION;
    if (h.payload_bytes != htole64(payload_bytes)) return KVC_TIER_BAD_LENGTH;
    if (memcmp(h.fingerprint, fingerprint, sizeof h.fingerprint) != 0)
        return KVC_TIER_BAD_FINGERPRINT;
    if (memcmp(h.key, key, sizeof h.key) != 0) return KVC_TIER_BAD_KEY;
    if (!is_sum(h.payload_sum, payload, payload_bytes)) return KVC_TIER_BAD_CHECKSUM;
    return KVC_TIER_FINE;
}
