/* Prints what block_keys_test.py compares with its own sums: `fingerprint LAYERS…` or `keys …`.
 * Each argument is hexadecimal bytes, or a number where a number is due. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/block_key.h>

/* In place: bytes are half as many as digits. */
static kvc_bytes unhex(char *text) {
    const size_t bytes = strlen(text) / 2;
    for (size_t i = 0; i < bytes; i++) {
        const char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        text[i] = (char)strtoul(pair, NULL, 16);
    }
    return (kvc_bytes){text, bytes};
}

static void print(const uint8_t *key) {
    for (int i = 0; i < KVC_BLOCK_KEY_BYTES; i++) printf("%02x", key[i]);
    printf("\n");
}

/* keys TENANT ADAPTER MODEL FINGERPRINT POSITIONS TOKEN… */
static int keys(int count, char **words) {
    const kvc_prefix_namespace space = {.struct_size = sizeof space,
                                        .tenant = unhex(words[0]),
                                        .adapter = unhex(words[1]),
                                        .model = unhex(words[2])};
    const int64_t positions = strtoll(words[4], NULL, 10), n = count - 5;
    int32_t *tokens = calloc((size_t)n + 1, sizeof *tokens);
    uint8_t(*out)[KVC_BLOCK_KEY_BYTES] = calloc((size_t)(n / positions) + 1, sizeof *out);
    for (int64_t i = 0; tokens && i < n; i++) tokens[i] = (int32_t)strtol(words[5 + i], NULL, 10);
    const bool done =
        tokens && out &&
        kvc_block_keys(out, &space, unhex(words[3]).data, positions, tokens, n) == KVC_OK;
    for (int64_t i = 0; done && i < n / positions; i++) print(out[i]);
    free(out);
    free(tokens);
    return !done;
}

/* fingerprint MODEL ROPE POSITIONS (KV_HEADS KEY_DIM VALUE_DIM DTYPE BITS GROUP ROTATED)… */
static int fingerprint(int count, char **words) {
    uint8_t out[KVC_BLOCK_KEY_BYTES];
    kvc_layer_spec specs[16] = {{0}};
    kvc_blocks_desc desc = {.struct_size = sizeof desc, .specs = specs};
    desc.positions = strtoll(words[2], NULL, 10);
    desc.layers = desc.spec_count = (count - 3) / 7;
    for (int64_t i = 0; i < desc.layers; i++) {
        char **word = words + 3 + 7 * i;
        specs[i] = (kvc_layer_spec){.kv_heads = strtoll(word[0], NULL, 10),
                                    .key_dim = strtoll(word[1], NULL, 10),
                                    .value_dim = strtoll(word[2], NULL, 10),
                                    .dtype = (kvc_dtype)strtol(word[3], NULL, 10),
                                    .kv_bits = (int)strtol(word[4], NULL, 10),
                                    .kv_group = (int)strtol(word[5], NULL, 10),
                                    .rotated = word[6][0] == '1'};
    }
    if (kvc_block_fingerprint(out, unhex(words[0]), unhex(words[1]), &desc)) return 1;
    print(out);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 7 && strcmp(argv[1], "keys") == 0) return keys(argc - 2, argv + 2);
    if (argc > 8 && strcmp(argv[1], "fingerprint") == 0) return fingerprint(argc - 2, argv + 2);
    return 2;
}
