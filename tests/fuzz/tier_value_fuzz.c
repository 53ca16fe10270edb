/* The reader of values in a tier, on any bytes: what it takes is whole, what it was asked for, and
 * what a writer would write. The input is a header and a payload, once as they are and once with
 * checksums made right, so that the checks behind these are reached too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "store/tier_value.h"

static const uint8_t fingerprint[KVC_BLOCK_KEY_BYTES] = {0x5f}, key[KVC_BLOCK_KEY_BYTES] = {0x6b};

static void check(const uint8_t *header, const uint8_t *payload, size_t bytes) {
    uint8_t right[KVC_TIER_HEADER_BYTES];
    if (kvc__tier_value_check(header, fingerprint, key, payload, bytes) != KVC_TIER_FINE) return;
    kvc__tier_value_seal(right, fingerprint, key, payload, bytes);
    FUZZ_WANT(memcmp(header, right, sizeof right) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint8_t header[KVC_TIER_HEADER_BYTES], sealed[KVC_TIER_HEADER_BYTES];
    if (bytes < sizeof header) return 0;
    const size_t payload_bytes = bytes - sizeof header;
    uint8_t *payload = malloc(payload_bytes ? payload_bytes : 1); /* to see reads past its end */
    if (!payload) return 0;
    memcpy(header, data, sizeof header);
    if (payload_bytes) memcpy(payload, data + sizeof header, payload_bytes);
    check(header, payload, payload_bytes);

    kvc__tier_value_seal(sealed, header + 24, header + 56, payload, payload_bytes);
    check(sealed, payload, payload_bytes);
    if (memcmp(header, sealed, 88) == 0 && memcmp(header + 24, fingerprint, 32) == 0 &&
        memcmp(header + 56, key, 32) == 0)
        FUZZ_WANT(kvc__tier_value_check(sealed, fingerprint, key, payload, payload_bytes) ==
                  KVC_TIER_FINE);
    free(payload);
    return 0;
}
