/** @file
 * What the rest of the store sees of an open file, beyond <kvcache/safetensors.h>. */
#ifndef KVC_STORE_OPENED_H
#define KVC_STORE_OPENED_H

#include <kvcache/safetensors.h>

/** Returns the open file itself, for a mapping of it. The file's. */
int kvc__safetensors_fd(const kvc_safetensors *s);

/** Returns its name as sentences have it. The file's. */
const char *kvc__safetensors_name(const kvc_safetensors *s);

/** Tells where bytes of a tensor go, or NULL for nowhere.
 * @param bytes  receives how many from offset on go there, at least 1 */
typedef char *(*kvc__place_fn)(void *context, size_t offset, size_t *bytes);

/** Reads a whole tensor to where its bytes go, and verifies its checksum where there is one.
 * @param place  NULL: nowhere
 * @errors those of kvc_safetensors_load that are not the array's; bytes were placed before */
kvc_status kvc__safetensors_scatter(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                                    kvc__place_fn place, void *context);

#endif
