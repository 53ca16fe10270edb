/** @file
 * Snapshots, from inside: snapshot.c (life of an open one, metadata), snapshot_layers.c (what
 * mlx-lm's classes say), snapshot_load.c, snapshot_save.c, snapshot_source.c (rows to be saved). */
#ifndef KVC_STORE_SNAPSHOT_H
#define KVC_STORE_SNAPSHOT_H

#include <stdbool.h>

#include <kvcache/snapshot.h>

/** Planes of a layer, in the order of kvc_cache_file. */
enum { KVC__SNAPSHOT_PLANES = 6 };

/** Numbers of a KvcCache before those of its sequences: window, keep, bits, group, rotated. */
enum { KVC__OWN_FIELDS = 5 };

/** The most sequences that a file may have: an empty tensor's batch can be any number. */
#define KVC__SNAPSHOT_BATCH_MOST 65536

/** Our class, and keys of our metadata. */
#define KVC__SNAPSHOT_KIND   "KvcCache"
#define KVC__SNAPSHOT_FORMAT "1"

/** Fields of the fingerprint: X(name). */
#define KVC__FINGERPRINT_LIST(X) X(model) X(rope) X(layout) X(dtype) X(quantization)

/** Tensors of a layer: keys, values; where packed, words of both, then scales and biases. */
typedef struct kvc__snapshot_tensors {
    int count; /**< 2 or KVC__SNAPSHOT_PLANES */
    const kvc_safetensors_tensor *planes[KVC__SNAPSHOT_PLANES];
} kvc__snapshot_tensors;

struct kvc_snapshot {
    kvc_safetensors *file;
    kvc_snapshot_contents contents;
    kvc_snapshot_layer *layers;     /* [layers] */
    kvc__snapshot_tensors *tensors; /* [layers] */
    kvc_cache_held *held;           /* [layers][batch] */
    int32_t *tokens;
    kvc_snapshot_text *texts; /* [texts_room] */
    size_t texts_room;
};

/** Copies a caller's struct, of struct_size bytes, into a full one, whose other fields stay.
 * @errors KVC_E_INVALID struct_size is not set */
kvc_status kvc__snapshot_struct_in(void *full, size_t full_bytes, const void *given,
                                   size_t struct_size);

/** Describes the planes of a layer's view, words of packed rows as U32. Each owns a reference.
 * @errors those of kvc_cache_view */
kvc_status kvc__snapshot_view(const kvc_cache *cache, int64_t layer, bool packed,
                              kvc_array planes[KVC__SNAPSHOT_PLANES]);

/** Tells where the planes of a layer begin in a block. */
void kvc__snapshot_block_planes(const kvc_blocks_layout *layout, size_t out[KVC__SNAPSHOT_PLANES]);

/** Returns the prefix of the user's metadata: "1." or "0.". */
const char *kvc__snapshot_prefix(kvc_snapshot_form form);

enum { KVC__SNAPSHOT_NAME = 48 };

/** Writes the name of a plane's tensor: "3.0", or "3.0.2" where packed. Returns out. */
const char *kvc__snapshot_tensor_name(char out[KVC__SNAPSHOT_NAME], int64_t layer, int plane,
                                      bool packed);

/** Reads a number: digits alone, at most INT64_MAX. Returns false for another text. */
bool kvc__snapshot_number(int64_t *out, const char *text);

/** Reads and verifies all layers of an open file whose form is known.
 * @errors KVC_E_CORRUPT, KVC_E_UNSUPPORTED, KVC_E_NOMEM. What was made belongs to the snapshot. */
kvc_status kvc__snapshot_read_layers(kvc_snapshot *s);

/** A tensor in the making: rows of a plane, [batch][kv_heads][rows], each of row_bytes. */
typedef struct kvc__source {
    const kvc_cache *cache;
    const kvc_cache_held *held; /* [batch] of the sequences saved */
    int64_t layer, first_sequence, batch, heads, rows, keep;
    bool window, as_it_lies;
    size_t row_bytes;
    kvc_array view;           /* of all sequences; owns a reference. Or, where it is paged: */
    kvc_blocks_layout layout; /* slabs is NULL where it is not */
    size_t offset_bytes;      /* of the plane in a block */
} kvc__source;

/** Fills a source for a plane of a layer. held, batch, first_sequence, rows, as_it_lies are the
 * caller's.
 * @errors KVC_E_UNSUPPORTED another device's */
kvc_status kvc__source_init(kvc__source *s, const kvc_cache *cache, int64_t layer, int plane);
void kvc__source_deinit(kvc__source *s);

/** Gives bytes of it: a kvc_safetensors_fill_fn with the source as its context. */
kvc_status kvc__source_fill(void *context, void *out, size_t offset, size_t bytes);

/** Returns the rows that a sequence has where they are in the order of positions. */
int64_t kvc__source_rows(const kvc_cache_held *held, int64_t keep, bool window);

#endif
