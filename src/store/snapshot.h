/** @file
 * Snapshots, from inside: snapshot.c (life of an open one, metadata), snapshot_path.c (places in a
 * file's tree), snapshot_layers.c (what mlx-lm's classes say), snapshot_load.c, snapshot_save.c,
 * snapshot_source.c (rows to be saved). */
#ifndef KVC_STORE_SNAPSHOT_H
#define KVC_STORE_SNAPSHOT_H

#include <stdbool.h>

#include <kvcache/snapshot.h>

/** Planes of a layer, in the order of kvc_cache_file; of keys per channel, the last one holds the
 * unpacked ones. */
enum { KVC__SNAPSHOT_PLANES = 7, KVC__SNAPSHOT_TAIL = 6 };

/** Numbers of a KvcCache before those of its sequences: window, keep, bits, group, and how rows are
 * packed: a sum of these. */
enum { KVC__OWN_FIELDS = 5, KVC__OWN_ROTATED = 1, KVC__OWN_PER_CHANNEL = 2 };

/** The most sequences that a file may have: an empty tensor's batch can be any number. */
#define KVC__SNAPSHOT_BATCH_MOST 65536

/** Our class, mlx-lm's of several caches, and our version. */
#define KVC__SNAPSHOT_KIND   "KvcCache"
#define KVC__SNAPSHOT_LIST   "CacheList"
#define KVC__SNAPSHOT_FORMAT "1"

/** How deep caches may be in lists, that of the layers among these. Room for a name in a file, for
 * that of a class, and for a path as it is shown: a header has less than 10^7 keys. */
enum {
    KVC__SNAPSHOT_DEPTH = 8,
    KVC__SNAPSHOT_NAME = 224,
    KVC__SNAPSHOT_CLASS = 64,
    KVC__SNAPSHOT_PATH = 8 * KVC__SNAPSHOT_DEPTH
};

/** Fields of the fingerprint: X(name). */
#define KVC__FINGERPRINT_LIST(X) X(model) X(rope) X(layout) X(dtype) X(quantization)

/** Tensors of a layer: keys, values; where packed, words of both, then scales and biases; with keys
 * per channel, then the unpacked ones. */
typedef struct kvc__snapshot_tensors {
    int count; /**< those of kvc__snapshot_planes */
    const kvc_safetensors_tensor *planes[KVC__SNAPSHOT_PLANES];
} kvc__snapshot_tensors;

struct kvc_snapshot {
    kvc_safetensors *file;
    kvc_snapshot_contents contents;
    kvc_snapshot_layer *layers;        /* [layers] */
    char (*paths)[KVC__SNAPSHOT_PATH]; /* [layers] */
    kvc__snapshot_tensors *tensors;    /* [layers] */
    kvc_cache_held *held;              /* [layers][batch] */
    int32_t *tokens;
    kvc_snapshot_text *texts; /* [texts_room] */
    size_t texts_room;
};

/** Copies a caller's struct, of struct_size bytes, into a full one, whose other fields stay.
 * @errors KVC_E_INVALID struct_size is not set */
kvc_status kvc__snapshot_struct_in(void *full, size_t full_bytes, const void *given,
                                   size_t struct_size);

/** Returns how many planes a layer has. */
int kvc__snapshot_planes(const kvc_layer_spec *spec);

/** Returns the positions that a row of a plane holds: a group of keys per channel, else 1. */
int64_t kvc__snapshot_row_positions(const kvc_layer_spec *spec, int plane);

/** Returns the rows of a head that a plane has in a file for some positions. */
int64_t kvc__snapshot_rows(const kvc_layer_spec *spec, int plane, int64_t positions);

/** Describes the planes of a layer's view, each of four dimensions, words of packed rows as U32.
 * Each owns a reference.
 * @errors those of kvc_cache_view */
kvc_status kvc__snapshot_view(const kvc_cache *cache, int64_t layer, const kvc_layer_spec *spec,
                              kvc_array planes[KVC__SNAPSHOT_PLANES]);

/** Tells where the planes of a layer begin in a block. */
void kvc__snapshot_block_planes(const kvc_blocks_layout *layout, size_t out[KVC__SNAPSHOT_PLANES]);

/** Returns the prefix of the user's metadata: "1." or "0.". */
const char *kvc__snapshot_prefix(kvc_snapshot_form form);

/** Where a cache is in a file: its index in the list of layers, then those in CacheLists. */
typedef struct kvc__snapshot_path {
    int depth; /**< 1 to KVC__SNAPSHOT_DEPTH */
    int64_t at[KVC__SNAPSHOT_DEPTH];
} kvc__snapshot_path;

/** Writes a path as it is shown: "3", "3.0.1". Returns out, as all of these do. */
const char *kvc__path_text(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path);

/** Writes what the names of a cache's tensors begin with. */
const char *kvc__path_tensors(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path,
                              kvc_snapshot_form form);

/** Writes what the keys of a cache's numbers begin with, up to 0.31. */
const char *kvc__path_numbers(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path);

/** Writes where the class of a cache is: a key of the metadata, but in a CacheList from 0.32 on the
 * name of a tensor. */
const char *kvc__path_class(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path,
                            kvc_snapshot_form form);

/** Reads a path as it is shown.
 * @param before  the one before it; NULL for the first
 * @param fresh   receives the first index that differs from those of `before`
 * @errors KVC_E_INVALID it is none, or cannot come behind `before` */
kvc_status kvc__path_read(kvc__snapshot_path *out, int *fresh, const kvc__snapshot_path *before,
                          const char *text, int64_t layer);

/** Finds the cache of a file that comes behind the one at a path (zeroed: the first), and its
 * class. depth is 0 where there is none. What class names are tensors is added to a count.
 * @errors KVC_E_CORRUPT, KVC_E_UNSUPPORTED */
kvc_status kvc__path_next(kvc__snapshot_path *path, char kind[KVC__SNAPSHOT_CLASS], size_t *tensors,
                          const kvc_snapshot *s);

/** Writes the name of a plane's tensor: "3.0", or "3.0.2" where packed. Returns out.
 * @param base  as kvc__path_tensors wrote it, another than out */
const char *kvc__snapshot_tensor_name(char out[KVC__SNAPSHOT_NAME], const char *base, int plane,
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
    int64_t positions; /* of a row */
    int64_t turn;      /* of unpacked keys: position p in row p mod turn; else 0 */
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
