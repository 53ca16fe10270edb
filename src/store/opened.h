/** @file
 * What the rest of the store sees of an open file, beyond <kvcache/safetensors.h>. */
#ifndef KVC_STORE_OPENED_H
#define KVC_STORE_OPENED_H

#include <kvcache/safetensors.h>

/** Returns the open file itself, for a mapping of it. The file's. */
int kvc__safetensors_fd(const kvc_safetensors *s);

/** Returns its name as sentences have it. The file's. */
const char *kvc__safetensors_name(const kvc_safetensors *s);

#endif
