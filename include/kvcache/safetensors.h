/** @file
 * Files of named tensors in the safetensors format: what snapshots lie in. A library of its own,
 * libkvcache-store, so that the core needs no JSON; <kvcache/kvcache.h> does not include it.
 *
 * A reader gives nothing of a file before it has verified all of its header. A writer replaces a
 * file whole or not at all, and puts a checksum of each tensor and one of the header into the
 * metadata; docs/FORMAT.md has every byte.
 * @source the safetensors format, https://github.com/huggingface/safetensors (README, "Format"):
 *         the checksums and the alignment of data are additions that its readers ignore. */
#ifndef KVCACHE_SAFETENSORS_H
#define KVCACHE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/device.h>
#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** An open file. Its calls may be made from several threads at once. */
typedef struct kvc_safetensors kvc_safetensors;

/** What is to be written to a file; see kvc_safetensors_writer_new. */
typedef struct kvc_safetensors_writer kvc_safetensors_writer;

/** The hexadecimal digits of a checksum (XXH3, 128 bits). */
#define KVC_CHECKSUM_DIGITS 32

/** One tensor of an open file. The library makes these and may add fields at the end. */
typedef struct kvc_safetensors_tensor {
    const char *name;                       /**< UTF-8, not __metadata__ */
    const char *dtype_name;                 /**< as the format has it: "BF16", "I64", … */
    kvc_dtype dtype;                        /**< 0 where the library has none for it */
    int ndim;                               /**< 0 to KVC_MAX_DIMS */
    int64_t shape[KVC_MAX_DIMS];            /**< row-major; extents of 0 are allowed */
    uint64_t offset;                        /**< of the first byte in the file; any alignment */
    size_t bytes;                           /**< in the file */
    char checksum[KVC_CHECKSUM_DIGITS + 1]; /**< that the file has for it; "" where none */
} kvc_safetensors_tensor;

/** How a file is opened; a sum of these. */
typedef enum kvc_safetensors_open_flag {
    KVC_SAFETENSORS_MAP = 1,         /**< maps the file: kvc_safetensors_data gives pointers */
    KVC_SAFETENSORS_WRITABLE = 2,    /**< with MAP: writes go to private copies of its pages */
    KVC_SAFETENSORS_NO_CHECKSUMS = 4 /**< takes no notice of checksums in the file */
} kvc_safetensors_open_flag;

/** Gives the next bytes of a tensor, row-major.
 * @param out     [bytes], to be filled
 * @param offset  of out's first byte in the tensor; each call goes on where the last one ended
 * @errors        any, which ends the save */
typedef kvc_status (*kvc_safetensors_fill_fn)(void *context, void *out, size_t offset,
                                              size_t bytes);

KVC_BEGIN_DECLS

/** Opens a file and verifies its header: sizes, UTF-8, JSON, names, dtypes, shapes, that tensors
 * fill the data without gap or overlap, and the header's checksum where it has one. Reads no data:
 * O(header), and O(n log n) in its tensors.
 * @param flags  of kvc_safetensors_open_flag
 * @errors KVC_E_CORRUPT a sentence says which tensor or field, what was found, what was wanted;
 *         KVC_E_IO the file cannot be opened, read or mapped; KVC_E_UNSUPPORTED a tensor of more
 *         than KVC_MAX_DIMS dimensions; KVC_E_INVALID flags, or what is no regular file;
 *         KVC_E_NOMEM
 * @lifetime of what the other calls return, but for bytes read: until kvc_safetensors_close.
 *         Replacing the file (as a writer does) is no harm to one that has it open; cutting it
 *         short raises SIGBUS in those who have it mapped */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_open(kvc_safetensors **out, const char *path,
                                                     unsigned flags);

/** Closes a file and unmaps it. NULL is allowed. */
KVC_API void kvc_safetensors_close(kvc_safetensors *file);

/** Returns the number of tensors. */
KVC_API size_t kvc_safetensors_count(const kvc_safetensors *file);

/** Returns the tensor of an index below the count, in the order of their names' bytes; NULL for
 * another index. */
KVC_API const kvc_safetensors_tensor *kvc_safetensors_at(const kvc_safetensors *file, size_t index);

/** Finds a tensor by name, or returns NULL: O(log n). */
KVC_API const kvc_safetensors_tensor *kvc_safetensors_find(const kvc_safetensors *file,
                                                           const char *name);

/** Returns the number of texts in the metadata. */
KVC_API size_t kvc_safetensors_metadata_count(const kvc_safetensors *file);

/** Returns the text of an index below that count, and its key, in the order of the keys' bytes;
 * NULL for another index.
 * @param key  may be NULL */
KVC_API const char *kvc_safetensors_metadata_at(const kvc_safetensors *file, size_t index,
                                                const char **key);

/** Finds a text of the metadata by key, or returns NULL: O(log n). */
KVC_API const char *kvc_safetensors_metadata(const kvc_safetensors *file, const char *key);

/** Tells whether the file has checksums that are verified. */
KVC_API bool kvc_safetensors_has_checksums(const kvc_safetensors *file);

/** Returns a tensor's bytes in the mapped file, of any alignment; NULL when it is not mapped.
 * Without KVC_SAFETENSORS_WRITABLE they must not be written. */
KVC_API void *kvc_safetensors_data(const kvc_safetensors *file,
                                   const kvc_safetensors_tensor *tensor);

/** Reads a part of a tensor, from the file also when that is mapped. Verifies no checksum.
 * @param into    [bytes]
 * @param offset  of the first byte wanted in the tensor
 * @errors KVC_E_RANGE the part does not lie in the tensor; KVC_E_IO, KVC_E_CORRUPT the file has
 *         become unreadable or shorter. The contents of into are undefined then */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_read(const kvc_safetensors *file,
                                                     const kvc_safetensors_tensor *tensor,
                                                     void *into, size_t offset, size_t bytes);

/** Reads a whole tensor into an array, and verifies its checksum on the way where there is one:
 * one pass, in pieces that stay in a cache.
 * @param into  of the tensor's dtype and shape, any strides, on the cpu device or borrowed
 * @errors KVC_E_SHAPE another dtype or shape; KVC_E_CORRUPT the checksum differs, the file has
 *         become shorter; KVC_E_IO; KVC_E_NOMEM; KVC_E_UNSUPPORTED an array of another device.
 *         The elements are undefined after the last four */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_load(const kvc_safetensors *file,
                                                     const kvc_safetensors_tensor *tensor,
                                                     const kvc_array *into);

/** Reads a whole tensor from the file and compares it with its checksum.
 * @errors KVC_E_CORRUPT it differs, the file has become shorter; KVC_E_UNSUPPORTED the file has no
 *         checksums; KVC_E_IO; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_verify(const kvc_safetensors *file,
                                                       const kvc_safetensors_tensor *tensor);

/** Makes a writer without tensors or metadata.
 * @param prefix  of the metadata keys that hold checksums: "" for kvc.xxh3.…; "1." makes them user
 *                metadata of mlx-lm's prompt caches, "0." of those of its 0.32; NULL writes none
 * @errors KVC_E_INVALID another prefix; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_writer_new(kvc_safetensors_writer **out,
                                                           const char *prefix);

/** Frees a writer and releases its arrays. NULL is allowed. */
KVC_API void kvc_safetensors_writer_free(kvc_safetensors_writer *writer);

/** Adds a text to the metadata; both are copied.
 * @errors KVC_E_INVALID the key is there already, is one of the checksums', or either is not UTF-8;
 *         KVC_E_NOMEM. Nothing changed */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_writer_metadata(kvc_safetensors_writer *writer,
                                                                const char *key, const char *text);

/** Adds an array, whose elements are written row-major. The writer holds a reference to it until it
 * is freed; elements are read when it saves.
 * @param name   copied
 * @param array  any strides, on the cpu device or borrowed
 * @errors KVC_E_INVALID the name is there already, is __metadata__ or not UTF-8, or the array is
 *         none; KVC_E_UNSUPPORTED an array of another device; KVC_E_RANGE; KVC_E_NOMEM. Nothing
 *         changed */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_writer_array(kvc_safetensors_writer *writer,
                                                             const char *name,
                                                             const kvc_array *array);

/** Adds a tensor that a callback gives piece by piece, at most 256 KiB at a time.
 * @param dtype_name  as the format has it: "BF16", "I64", …
 * @param shape       [ndim], each >= 0
 * @param fill        called while it saves, with context
 * @errors as kvc_safetensors_writer_array */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_writer_fill(
    kvc_safetensors_writer *writer, const char *name, const char *dtype_name, int ndim,
    const int64_t *shape, kvc_safetensors_fill_fn fill, void *context);

/** Writes the file: to a temporary one beside it (.kvc-….tmp), flushed and then renamed, so that
 * whatever happens the old file or the new one is there, whole. Data is aligned as docs/FORMAT.md
 * says. One pass, and no more memory than a buffer of 256 KiB beside the header. May be called
 * again. A link is replaced, not followed; the permissions of a file that is replaced are kept.
 * @errors KVC_E_IO, with what the system said; KVC_E_RANGE sizes; KVC_E_INVALID what is there is
 *         no regular file; KVC_E_NOMEM; what a callback returned. The file is as it was, but when
 *         only the flush of the folder failed: the new file is there then, and may not survive a
 *         loss of power */
KVC_API KVC_MUST_USE kvc_status kvc_safetensors_writer_save(kvc_safetensors_writer *writer,
                                                            const char *path);

KVC_END_DECLS

#endif
