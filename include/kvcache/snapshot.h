/** @file
 * Snapshots: a cache in a file, and back. In libkvcache-store; <kvcache/kvcache.h> does not include
 * it.
 *
 * The file is a prompt cache of mlx-lm, which reads ours and whose files are read here, wherever it
 * has the kind: layers that keep all (KVCache), windows (RotatingKVCache), packed rows
 * (QuantizedKVCache), and mixtures of them. What it lacks (packed windows, rotated rows, sequences
 * whose lengths differ) has a class of its own, KvcCache, that mlx-lm refuses by name. A paged
 * cache is gathered and is, in a file, as any other. Keys packed per channel have no form in files
 * yet: copy such a cache to another kind first (kvc_cache_copy).
 *
 * Beside that a file tells which model and what else its rows are for (the fingerprint), which
 * tokens they are of, and has a checksum of every tensor: user metadata that mlx-lm ignores.
 * docs/FORMAT.md has every byte.
 * @source mlx-lm's save_prompt_cache and load_prompt_cache */
#ifndef KVCACHE_SNAPSHOT_H
#define KVCACHE_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/safetensors.h>
#include <kvcache/status.h>

/** A snapshot file that is open and verified. Its calls may be made from several threads at once.
 */
typedef struct kvc_snapshot kvc_snapshot;

/** How mlx-lm lays a file out, which changed with its version 0.32. */
typedef enum kvc_snapshot_form {
    KVC_SNAPSHOT_MLX_LM_0_31 = 0, /**< as mlx-lm up to 0.31 reads and writes it; holds all kinds */
    KVC_SNAPSHOT_MLX_LM_0_32 = 1  /**< as mlx-lm from 0.32 on; KvcCache is not for it */
} kvc_snapshot_form;

/** What rows are for: texts of the caller that must be equal for them to be used again. NULL: not
 * told. */
typedef struct kvc_fingerprint {
    const char *model;        /**< which weights, such as a name and a hash */
    const char *rope;         /**< how positions are encoded in keys */
    const char *layout;       /**< how heads and dims are ordered */
    const char *dtype;        /**< what the model computed them in */
    const char *quantization; /**< of the model or the cache */
} kvc_fingerprint;

/** A text of the user's. */
typedef struct kvc_snapshot_text {
    const char *key;  /**< UTF-8, without dots, not of digits alone: mlx-lm makes trees of those */
    const char *text; /**< UTF-8 */
} kvc_snapshot_text;

/** Is told how far a save or a load has come: before the first byte, and after each layer that was
 * read or tensor that was written. By the thread that saves or loads.
 * @param done_bytes   never less than the last time; total_bytes at the end, which of a save comes
 *                     before the file is flushed and renamed
 * @param total_bytes  of all tensors
 * @errors             any, which ends the call; it returns that error, as if it were its own */
typedef kvc_status (*kvc_snapshot_progress_fn)(void *context, uint64_t done_bytes,
                                               uint64_t total_bytes);

/** What goes into a file beside the rows. Zero it, then fill it. */
typedef struct kvc_snapshot_info {
    size_t struct_size;                /**< sizeof(kvc_snapshot_info) */
    kvc_snapshot_form form;            /**< which mlx-lm is to read it */
    kvc_fingerprint fingerprint;       /**< as far as it is told */
    const int64_t *sequence;           /**< the one to save; NULL: all */
    const int32_t *tokens;             /**< [token_count], of the one sequence that is saved */
    int64_t token_count;               /**< 0: not told */
    const kvc_snapshot_text *texts;    /**< [text_count], such as mlx-lm's "model" */
    int64_t text_count;                /**< 0: none */
    kvc_snapshot_progress_fn progress; /**< or NULL */
    void *progress_context;            /**< for progress */
} kvc_snapshot_info;

/** One layer of a file. The library makes these and may add fields at the end. */
typedef struct kvc_snapshot_layer {
    const char *kind;           /**< mlx-lm's class, or KvcCache */
    kvc_layer_spec spec;        /**< as a cache for it has */
    int64_t rows;               /**< of each head in the file, used or not */
    const kvc_cache_held *held; /**< [batch] */
} kvc_snapshot_layer;

/** What is in a file. The library makes these and may add fields at the end. */
typedef struct kvc_snapshot_contents {
    kvc_snapshot_form form;           /**< how it is laid out */
    int64_t batch;                    /**< sequences */
    int64_t layers;                   /**< > 0 */
    const kvc_snapshot_layer *layer;  /**< [layers] */
    kvc_fingerprint fingerprint;      /**< as far as the file tells */
    const int32_t *tokens;            /**< [token_count] */
    int64_t token_count;              /**< 0: the file does not tell */
    const kvc_snapshot_text *texts;   /**< [text_count] the user's, ours not among them */
    int64_t text_count;               /**< see texts */
    const kvc_safetensors *container; /**< its tensors and checksums */
} kvc_snapshot_contents;

/** How a file is loaded; a sum of these. */
typedef enum kvc_load_flag {
    KVC_LOAD_MAP = 1,   /**< maps what can be mapped: see kvc_cache_restore_mapped. Wants RESERVE */
    KVC_LOAD_VERIFY = 2 /**< verifies checksums also of what is mapped, which reads all of it */
} kvc_load_flag;

/** What a file is loaded to. Zeroed: a RESERVE cache, every byte read and verified. */
typedef struct kvc_snapshot_options {
    size_t struct_size;                /**< sizeof(kvc_snapshot_options) */
    unsigned flags;                    /**< of kvc_load_flag */
    kvc_growth growth;                 /**< as in kvc_cache_desc */
    int64_t chunk;                     /**< as there */
    int64_t max_positions;             /**< as there; 0 with RESERVE: the longest sequence and 4096
                                            more */
    kvc_blocks *blocks;                /**< as there, of the same layers as the file */
    int64_t slack;                     /**< as there */
    const kvc_fingerprint *expected;   /**< what is told here the file must tell too; or NULL */
    int64_t *mapped_layers;            /**< receives how many were mapped; of one that was not,
                                            kvc_last_error tells why. May be NULL */
    kvc_snapshot_progress_fn progress; /**< or NULL */
    void *progress_context;            /**< for progress */
} kvc_snapshot_options;

KVC_BEGIN_DECLS

/** Saves a cache, or a sequence of it: gathers nothing that lies as it is to be written, takes no
 * memory but buffers. The file is replaced as by kvc_safetensors_writer_save.
 * @param cache  on the cpu device, unchanged meanwhile
 * @param info   may be NULL: all sequences, nothing told
 * @errors KVC_E_INVALID path, cache, a field of info; KVC_E_UNSUPPORTED a kind that files or
 *         the form have not, another device; those of kvc_safetensors_writer_save and of
 *         info.progress. The file is as it was. */
KVC_API KVC_MUST_USE kvc_status kvc_snapshot_save(const char *path, const kvc_cache *cache,
                                                  const kvc_snapshot_info *info);

/** Opens a file and verifies all that it says of itself; reads no rows.
 * @errors KVC_E_CORRUPT a sentence says which field or tensor, what was found and wanted;
 *         KVC_E_UNSUPPORTED a class that no cache here is; those of kvc_safetensors_open */
KVC_API KVC_MUST_USE kvc_status kvc_snapshot_open(kvc_snapshot **out, const char *path);

/** Closes a file. Caches that map it keep it. NULL is allowed. */
KVC_API void kvc_snapshot_close(kvc_snapshot *snapshot);

/** Returns what is in a file.
 * @lifetime until it is closed */
KVC_API const kvc_snapshot_contents *kvc_snapshot_contents_of(const kvc_snapshot *snapshot);

/** Verifies the checksum of every tensor: reads the whole file. For a thread of the caller's, say.
 * @errors those of kvc_safetensors_verify; KVC_E_UNSUPPORTED a file without checksums */
KVC_API KVC_MUST_USE kvc_status kvc_snapshot_verify(const kvc_snapshot *snapshot);

/** Makes a cache of what is in a file. Rows are read, and their checksums verified where the file
 * has some; or mapped.
 * @param pool     where the cache gets memory, on the cpu device
 * @param options  may be NULL
 * @errors KVC_E_INVALID a field of options, a fingerprint that differs: which field, what was
 *         expected, what found; KVC_E_CORRUPT a checksum; those of kvc_cache_new,
 *         kvc_cache_restore, kvc_safetensors_load and options.progress. *out is NULL, nothing is
 *         held. */
KVC_API KVC_MUST_USE kvc_status kvc_snapshot_restore(kvc_cache **out, kvc_pool *pool,
                                                     const kvc_snapshot *snapshot,
                                                     const kvc_snapshot_options *options);

/** Opens a file, makes a cache of it and closes it.
 * @errors those of kvc_snapshot_open and kvc_snapshot_restore */
KVC_API KVC_MUST_USE kvc_status kvc_snapshot_load(kvc_cache **out, kvc_pool *pool, const char *path,
                                                  const kvc_snapshot_options *options);

KVC_END_DECLS

#endif
