#include <endian.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>

#include <kvcache/block_key.h>

#include "base/client.h"

/* Which field it is: docs/FORMAT.md. */
enum {
    FORMAT = 1,
    TENANT = 2,
    ADAPTER = 3,
    MODEL = 4,
    FINGERPRINT = 5,
    POSITIONS = 6,
    PARENT = 7,
    TOKENS = 8,
    ROPE = 9,
    LAYER = 10,
    PACKING = 11,
};

/* A SHA-256 in the making; once a step fails, so do all that follow. */
typedef struct hash {
    EVP_MD_CTX *context;
    EVP_MD *sha256;
    bool good;
} hash;

static kvc_status hash_init(hash *h) {
    h->context = EVP_MD_CTX_new();
    h->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    h->good = h->context && h->sha256;
    if (h->good) return KVC_OK;
    EVP_MD_CTX_free(h->context);
    EVP_MD_free(h->sha256);
    return kvc__fail(KVC_E_NOMEM, "SHA-256: libcrypto has none to give");
}

static void hash_deinit(hash *h) {
    EVP_MD_CTX_free(h->context);
    EVP_MD_free(h->sha256);
}

static void add(hash *h, const void *data, size_t bytes) {
    if (bytes) h->good = h->good && EVP_DigestUpdate(h->context, data, bytes) == 1;
}

/* Tag and length come first, so that no two lists of fields are the same bytes. */
static void add_field(hash *h, uint8_t tag, const void *data, size_t bytes) {
    const uint64_t length = htole64(bytes);
    add(h, &tag, 1);
    add(h, &length, sizeof length);
    add(h, data, bytes);
}

static void add_numbers(hash *h, uint8_t tag, const int64_t *numbers, size_t count) {
    uint64_t little[8];
    for (size_t i = 0; i < count; i++) little[i] = htole64((uint64_t)numbers[i]);
    add_field(h, tag, little, count * sizeof *little);
}

static void begin(hash *h, const char *format) {
    h->good = h->good && EVP_DigestInit_ex2(h->context, h->sha256, NULL) == 1;
    add_field(h, FORMAT, format, strlen(format));
}

static kvc_status end(hash *h, uint8_t *out) {
    h->good = h->good && EVP_DigestFinal_ex(h->context, out, NULL) == 1;
    if (h->good) return KVC_OK;
    return kvc__fail(KVC_E_NOMEM, "SHA-256: libcrypto failed");
}

static kvc_status check_bytes(const char *name, kvc_bytes field) {
    if (!field.size_bytes || field.data) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "%s: %zu bytes given without data", name, field.size_bytes);
}

/* A layer whose rows are packed has a field more. */
static void add_layer(hash *h, const kvc_layer_spec *spec) {
    const int64_t numbers[] = {spec->kv_heads, spec->key_dim,
                               spec->value_dim ? spec->value_dim : spec->key_dim, spec->dtype};
    const int64_t packing[] = {spec->kv_bits, spec->kv_group, spec->rotated};
    add_numbers(h, LAYER, numbers, 4);
    if (spec->kv_bits) add_numbers(h, PACKING, packing, 3);
}

kvc_status kvc_block_fingerprint(uint8_t *out, kvc_bytes model, kvc_bytes rope,
                                 const kvc_blocks_desc *desc) {
    kvc_blocks_desc full;
    hash h;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    KVC_TRY(check_bytes("model", model));
    KVC_TRY(check_bytes("rope", rope));
    KVC_TRY(kvc__client_struct_in(&full, sizeof full, desc, "kvc_blocks_desc"));
    if (!full.specs || full.layers < 1 || (full.spec_count != 1 && full.spec_count != full.layers))
        return kvc__fail(KVC_E_INVALID,
                         "desc: %lld specs of %lld layers given, 1 or one each wanted",
                         (long long)full.spec_count, (long long)full.layers);
    KVC_TRY(hash_init(&h));
    const int64_t positions = full.positions ? full.positions : KVC_BLOCK_POSITIONS_DEFAULT;
    begin(&h, "kvcache/fingerprint/1");
    add_field(&h, MODEL, model.data, model.size_bytes);
    add_field(&h, ROPE, rope.data, rope.size_bytes);
    add_numbers(&h, POSITIONS, &positions, 1);
    for (int64_t i = 0; i < full.layers; i++)
        add_layer(&h, &full.specs[full.spec_count == 1 ? 0 : i]);
    const kvc_status status = end(&h, out);
    hash_deinit(&h);
    return status;
}

/* What stands where the first block's parent would: all that is not tokens. */
static kvc_status root_key(hash *h, uint8_t *out, const kvc_prefix_namespace *space,
                           const uint8_t *fingerprint, int64_t positions) {
    begin(h, "kvcache/namespace/1");
    add_field(h, TENANT, space->tenant.data, space->tenant.size_bytes);
    add_field(h, ADAPTER, space->adapter.data, space->adapter.size_bytes);
    add_field(h, MODEL, space->model.data, space->model.size_bytes);
    add_field(h, FINGERPRINT, fingerprint, KVC_BLOCK_KEY_BYTES);
    add_numbers(h, POSITIONS, &positions, 1);
    return end(h, out);
}

static kvc_status block_key(hash *h, uint8_t *out, const uint8_t *parent, const int32_t *tokens,
                            int64_t positions) {
    const uint64_t length = htole64((uint64_t)positions * sizeof *tokens);
    const uint8_t tag = TOKENS;
    begin(h, "kvcache/block/1");
    add_field(h, PARENT, parent, KVC_BLOCK_KEY_BYTES);
    add(h, &tag, 1);
    add(h, &length, sizeof length);
    for (int64_t i = 0; i < positions; i += 64) {
        uint32_t little[64];
        const int64_t count = positions - i < 64 ? positions - i : 64;
        for (int64_t j = 0; j < count; j++) little[j] = htole32((uint32_t)tokens[i + j]);
        add(h, little, (size_t)count * sizeof *little);
    }
    return end(h, out);
}

kvc_status kvc_block_keys(uint8_t (*out)[KVC_BLOCK_KEY_BYTES], const kvc_prefix_namespace *space,
                          const uint8_t *fingerprint, int64_t positions, const int32_t *tokens,
                          int64_t n) {
    kvc_prefix_namespace full = {.struct_size = sizeof full};
    uint8_t root[KVC_BLOCK_KEY_BYTES];
    hash h;
    if (space) KVC_TRY(kvc__client_struct_in(&full, sizeof full, space, "kvc_prefix_namespace"));
    KVC_TRY(check_bytes("space->tenant", full.tenant));
    KVC_TRY(check_bytes("space->adapter", full.adapter));
    KVC_TRY(check_bytes("space->model", full.model));
    if (!fingerprint) return kvc__fail(KVC_E_INVALID, "fingerprint: NULL given");
    if (positions < 1 || n < 0)
        return kvc__fail(KVC_E_INVALID, "%s: %lld given, at least %d wanted",
                         n < 0 ? "n" : "positions", (long long)(n < 0 ? n : positions), n >= 0);
    const int64_t blocks = n / positions;
    if (blocks == 0) return KVC_OK;
    if (!out || !tokens) return kvc__fail(KVC_E_INVALID, "%s: NULL given", out ? "tokens" : "out");
    KVC_TRY(hash_init(&h));
    kvc_status status = root_key(&h, root, &full, fingerprint, positions);
    for (int64_t i = 0; i < blocks && status == KVC_OK; i++)
        status = block_key(&h, out[i], i ? out[i - 1] : root, tokens + i * positions, positions);
    hash_deinit(&h);
    return status;
}
