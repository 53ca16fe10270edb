/** @file
 * What the format calls its dtypes, and how many bytes a tensor has. */
#ifndef KVC_STORE_FORMAT_H
#define KVC_STORE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/dtype.h>

/** The most bytes of JSON that a header may have, in the format's own readers too. */
#define KVC__HEADER_LIMIT_BYTES 100000000

/** The key of the metadata, which no tensor may have for a name. */
#define KVC__METADATA_KEY "__metadata__"

/** Keys of the checksums in the metadata, after the prefix "" or "1.". */
#define KVC__HEADER_KEY  "kvc.xxh3.header"
#define KVC__TENSORS_KEY "kvc.xxh3.tensors"

/** A dtype of the format. */
typedef struct kvc__format_dtype {
    const char *name;
    unsigned bits;   /**< of an element */
    kvc_dtype dtype; /**< 0 where the library has none */
} kvc__format_dtype;

/** Finds a dtype by the format's name, or returns NULL. Static storage. */
const kvc__format_dtype *kvc__format_dtype_named(const char *name);

/** Finds the format's dtype for one of the library's, or returns NULL. Static storage. */
const kvc__format_dtype *kvc__format_dtype_of(kvc_dtype dtype);

/** Multiplies. Returns false when a size cannot hold the product, an extent is negative, or the
 * bits do not fill bytes. */
bool kvc__format_bytes(size_t *out, const kvc__format_dtype *dtype, int ndim, const int64_t *shape);

enum { KVC__SHAPE_SHOWN = 192 };

/** Writes a shape as [1, 2, 3]. Returns out. */
const char *kvc__shape_shown(char out[KVC__SHAPE_SHOWN], int ndim, const int64_t *shape);

#endif
