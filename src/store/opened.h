/** @file
 * What the rest of the store sees of an open file, beyond <kvcache/safetensors.h>. */
#ifndef KVC_STORE_OPENED_H
#define KVC_STORE_OPENED_H

#include <kvcache/safetensors.h>

/** Returns the open file itself, for a mapping of it. The file's. */
int kvc__safetensors_fd(const kvc_safetensors *s);

/** Returns its name as sentences have it. The file's. */
const char *kvc__safetensors_name(const kvc_safetensors *s);

/** Is given a tensor piece by piece. @param offset  of the piece in the tensor */
typedef void (*kvc__piece_fn)(void *context, const char *piece, size_t offset, size_t bytes);

/** Reads a whole tensor through a buffer, and verifies its checksum on the way where there is one.
 * @param take  may be NULL
 * @errors those of kvc_safetensors_load that are not the array's; pieces were given before */
kvc_status kvc__safetensors_stream(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                                   kvc__piece_fn take, void *context);

#endif
