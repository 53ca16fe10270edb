/** @file
 * The header of a safetensors file: from text to verified tables. */
#ifndef KVC_STORE_HEADER_H
#define KVC_STORE_HEADER_H

#include <jansson.h>
#include <stdbool.h>

#include <kvcache/safetensors.h>

/** A text of the metadata. */
typedef struct kvc__text {
    const char *key, *text;
} kvc__text;

/** A verified header. */
typedef struct kvc__header {
    json_t *json;                    /**< owns all names and texts */
    kvc_safetensors_tensor *tensors; /**< [count], by name */
    size_t count;
    kvc__text *texts; /**< [text_count], by key */
    size_t text_count;
    bool has_checksums;
} kvc__header;

/** Reads and verifies a header.
 * @param name        the file's, for sentences
 * @param text        [bytes], UTF-8; not kept
 * @param data_bytes  what follows it in the file
 * @param checksums   whether those in the file are verified and kept
 * @errors KVC_E_CORRUPT, KVC_E_UNSUPPORTED, KVC_E_NOMEM; *h is empty then */
kvc_status kvc__header_init(kvc__header *h, const char *name, const char *text, size_t bytes,
                            uint64_t data_bytes, bool checksums);

/** Frees it. An empty header is allowed. */
void kvc__header_deinit(kvc__header *h);

/** Finds a tensor or a text, or returns NULL. */
const kvc_safetensors_tensor *kvc__header_tensor(const kvc__header *h, const char *name);
const char *kvc__header_text(const kvc__header *h, const char *key);

#endif
