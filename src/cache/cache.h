/** @file
 * The cache's insides: cache.c (life, figures), check.c (invariants); where positions lie: linear.c
 * (growth), ring.c (windows), pages.c (blocks); what happens to them: append.c, write.c, channels.c
 * (keys per channel), sequence.c (trim, fork, …), copy.c (between caches), restore.c and
 * spread.c (from elsewhere), lend.c and view.c. */
#ifndef KVC_CACHE_CACHE_H
#define KVC_CACHE_CACHE_H

#include <stdbool.h>

#include <kvcache/cache.h>

#include "cache/map.h"
#include "cache/spec.h"

/** Rows of one kind: `ranges` = batch × kv_heads ranges of rows for the layer's capacity. */
typedef struct kvc__plane {
    kvc_buffer *buffer; /* [batch][kv_heads][rows][dim]; NULL while capacity is 0, or paged */
    kvc__row_format row;
    size_t ranges;
    size_t units_done;   /* RESERVE: commit units asked for, in the order of linear.c */
    size_t phase_bytes;  /* RESERVE: shifts this plane's commits against those of the others */
    size_t shift_bytes;  /* where the first range begins in the buffer: 0 but in a mapped layer */
    size_t offset_bytes; /* PAGED: from the start of a block */
} kvc__plane;

/** One layer. */
typedef struct kvc__layer {
    kvc_layer_spec spec;
    int planes_used; /* from the first on */
    kvc__plane planes[KVC__PLANES];
    int64_t *lengths; /* [batch] positions of each sequence */
    int64_t length;   /* the largest of them */
    bool even;        /* all are that */
    int64_t capacity; /* positions of a range, in whole chunks; PAGED: of a block */
    int64_t chunk; /* of the capacity: desc.chunk (EXACT: 1), in whole groups where those count */
    int64_t prepared; /* positions lent behind length by kvc_cache_prepare */
    bool mapped;      /* RESERVE: over a file, by kvc_cache_restore_mapped */
    int64_t later;    /* mapped, as long as ranges lie as in the file: the capacity to come; or 0 */
    kvc__ring *rings; /* [batch], of a window; else NULL */
    int64_t *tails;   /* [batch], of keys per channel: the first position that KVC__TAIL holds; else
                         NULL */
} kvc__layer;

struct kvc_cache {
    kvc_pool *pool; /* held */
    kvc_cache_desc desc;
    kvc_layer_spec *specs; /* [layers], behind desc.specs */
    kvc__layer *layers;    /* [layers] */
    int64_t *lengths;      /* [layers][batch], behind those of layers */
    kvc__ring *rings;      /* [layers][batch], behind those of layers; NULL without a window */
    int64_t *tails;        /* [layers][batch], likewise; NULL without keys per channel */
    /* PAGED: all layers of a block lie together, so that a table serves them all. */
    int32_t *tables;      /* [batch][table_stride] */
    int64_t table_stride; /* blocks that there is room for */
    int64_t *table_used;  /* [batch] blocks held */
    kvc_cache_stats stats;
};

/** Verifies that a call was given a cache.
 * @errors KVC_E_INVALID it is NULL */
kvc_status kvc__cache_given(const kvc_cache *cache);

/** Finds a layer.
 * @errors KVC_E_INVALID cache is NULL, no such layer */
kvc_status kvc__cache_layer(kvc__layer **out, const kvc_cache *cache, int64_t layer);

/** Verifies that there is such a sequence.
 * @errors KVC_E_INVALID cache is NULL; begins with name */
kvc_status kvc__cache_sequence(const kvc_cache *cache, int64_t sequence, const char *name);

/** Finds out which length is the largest, after one changed. What was prepared is void. */
void kvc__layer_settle(const kvc_cache *cache, kvc__layer *layer);

/** Returns how many positions a layer holds of a sequence. */
int64_t kvc__layer_held(const kvc__layer *layer, int64_t sequence);

/** Returns the bytes of positions of one sequence, all planes but KVC__TAIL. */
size_t kvc__positions_bytes(const kvc__layer *layer, int64_t n);

/** How many positions each sequence is to get. */
typedef struct kvc__counts {
    const int64_t *each; /* [batch]; NULL: as many for all */
    int64_t all;
} kvc__counts;

/** Returns that of one sequence. */
static inline int64_t kvc__count(kvc__counts counts, int64_t sequence) {
    return counts.each ? counts.each[sequence] : counts.all;
}

/* Rows, in ranges (linear.c). */

/** Returns where the rows of a plane begin that has a buffer. */
static inline char *kvc__plane_data(const kvc__plane *plane) {
    return (char *)kvc_buffer_data(plane->buffer) + plane->shift_bytes;
}

/** Tells the bytes of a plane with room for some positions a range.
 * @errors KVC_E_RANGE names the factors */
kvc_status kvc__plane_bytes(size_t *out, const kvc__plane *plane, int64_t positions);

/** Describes rows [first, first + count) of every range, without a reference. */
kvc_array kvc__plane_array(const kvc_cache *cache, const kvc__layer *layer, const kvc__plane *plane,
                           int64_t first, int64_t count);

/** What is mapped keeps its place in such a block: its addresses and its file's bytes differ by
 * whole ones. The system keeps files in pieces of up to a block (store/sink.h writes such) and
 * gives all pages of a piece with the first that is touched, if addresses have it within one block,
 * which a page of the lowest page table describes. */
enum { KVC__FILE_BLOCK_BYTES = 2 << 20 };

/** Takes address space for some positions a range of a mapped layer's plane, the first of which
 * begins at the plane's shift. In whole blocks, which Linux from 6.7 on has begin with a block's
 * address. @errors KVC_E_RANGE, KVC_E_LIMIT, KVC_E_NOMEM */
kvc_status kvc__plane_reserve_shifted(kvc_buffer **out, const kvc__plane *plane,
                                      const kvc_cache *cache, int64_t positions);

/** Has the ranges of a mapped layer lie as far apart as its capacity to come (spread.c).
 * @errors KVC_E_LIMIT, KVC_E_NOMEM. The layer is unchanged. */
kvc_status kvc__layer_spread(kvc_cache *cache, kvc__layer *layer);

/** RESERVE: takes the address space of a layer.
 * @errors KVC_E_RANGE, KVC_E_UNSUPPORTED, KVC_E_NOMEM. What was taken belongs to the layer. */
kvc_status kvc__linear_reserve(kvc_cache *cache, kvc__layer *layer);

/** Gives every range of a layer room for `rows` rows, by the cache's policy.
 * @param used  rows in use, which stay
 * @errors KVC_E_RANGE, KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed. */
kvc_status kvc__linear_grow(kvc_cache *cache, kvc__layer *layer, int64_t used, int64_t rows);

/** Gives back what a layer has beyond `rows` rows a range, all that are in use; where that fails,
 * nothing is given back. */
void kvc__linear_shrink(kvc_cache *cache, kvc__layer *layer, int64_t rows);

/* Rings of windows (ring.c), one a sequence; map.h has the arithmetic. */

/** Makes the ring of a sequence empty. */
void kvc__ring_clear(const kvc_cache *cache, kvc__layer *layer, int64_t sequence);

/** Makes room behind the positions that are there, so that each new one can be attended exactly.
 * @errors KVC_E_RANGE, KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed. */
kvc_status kvc__ring_make_room(kvc_cache *cache, kvc__layer *layer, kvc__counts counts);

/** Notes what n positions overwrote that were written behind those that are there. */
void kvc__ring_advance(kvc__layer *layer, int64_t sequence, int64_t n);

/** Passes over the positions of a sequence up to one behind those that are there, as if all of them
 * had been overwritten but the kept ones, which must be there. */
void kvc__ring_pass(kvc__layer *layer, int64_t sequence, int64_t position);

/** Returns how many positions can be trimmed. */
int64_t kvc__ring_trimmable(const kvc__layer *layer, int64_t sequence);

/** Returns how many rows of a range hold or held something. */
int64_t kvc__ring_rows_used(const kvc__layer *layer, int64_t sequence);

/** Verifies a ring.
 * @errors KVC_E_CORRUPT */
kvc_status kvc__ring_check(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence);

/* Block tables (pages.c), one a sequence for all layers. */

/** Makes empty tables.
 * @errors KVC_E_NOMEM. What was made belongs to the cache. */
kvc_status kvc__pages_init(kvc_cache *cache);

/** Drops all blocks, and frees the tables. */
void kvc__pages_deinit(kvc_cache *cache);

/** Tells a layer where its planes lie in a block. */
void kvc__pages_place(const kvc_cache *cache, kvc__layer *layer);

/** Gives every sequence blocks for new positions of a layer, its own where they are written to.
 * @errors KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed. */
kvc_status kvc__pages_make_room(kvc_cache *cache, const kvc__layer *layer, kvc__counts counts);

/** As kvc__pages_make_room, for n positions of one sequence behind its first `length`. What was got
 * before a failure stays until kvc__pages_settle. */
kvc_status kvc__pages_make_room_of(kvc_cache *cache, int64_t sequence, int64_t length, int64_t n);

/** Drops the blocks of a sequence that no layer needs. */
void kvc__pages_settle(kvc_cache *cache, int64_t sequence);

/** kvc_cache_fork of the tables. The sequences are two. */
void kvc__pages_fork(kvc_cache *cache, int64_t to, int64_t from);

/** kvc_cache_reorder of the tables. from is valid.
 * @errors KVC_E_NOMEM. Nothing changed. */
kvc_status kvc__pages_reorder(kvc_cache *cache, const int64_t *from);

/** Verifies the table of a sequence.
 * @errors KVC_E_CORRUPT */
kvc_status kvc__pages_check(const kvc_cache *cache, int64_t sequence);

/* Keys per channel (channels.c): whole blocks of positions are packed, the last keys kept unpacked
 * beside them. */

/** Writes keys of one sequence to KVC__TAIL, in the dtype of the layer, and packs each block of
 * which the last position comes.
 * @param rows  [1][kv_heads][n][key_dim], any n: positions `position` and on
 * @errors KVC_E_UNSUPPORTED the device cannot convert */
kvc_status kvc__channels_write(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                               int64_t position, const kvc_array *rows);

/** Reads keys into f32, [kv_heads][n][key_dim], none of them on both sides of where packed ones
 * end. */
void kvc__channels_read(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                        int64_t position, int64_t n, float *to);

/** Returns how many positions of a sequence are in packed blocks. */
static inline int64_t kvc__channels_packed(const kvc__layer *layer, int64_t sequence) {
    return layer->lengths[sequence] / layer->spec.kv_group * layer->spec.kv_group;
}

/** Returns how many positions can be trimmed: then all that is not in whole blocks is still held
 * unpacked. */
int64_t kvc__channels_trimmable(const kvc__layer *layer, int64_t sequence);

/** Notes what n positions overwrote that were written behind those that are there. */
void kvc__channels_advance(kvc__layer *layer, int64_t sequence, int64_t n);

/** Tells whether a sequence of a length, which is not negative, can hold its keys unpacked from a
 * position on. */
bool kvc__channels_can_hold(const kvc__layer *layer, int64_t length, int64_t first);

/** Verifies what a sequence holds unpacked.
 * @errors KVC_E_CORRUPT */
kvc_status kvc__channels_check(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence);

/* Positions, wherever they lie (write.c). */

/** Rows of one plane and sequence that follow each other, of every head. */
typedef struct kvc__place {
    char *data;         /* the first row of head 0 */
    int64_t head_bytes; /* from head to head */
    int64_t count;      /* rows that follow each other, the first among them */
} kvc__place;

/** Finds the row of a position that is held, or for which there is room. */
kvc__place kvc__place_of(const kvc_cache *cache, const kvc__layer *layer, int index,
                         int64_t sequence, int64_t position);

/** Makes room for new positions of a layer, behind those that are there.
 * @errors KVC_E_RANGE, KVC_E_LIMIT, KVC_E_NOMEM. Nothing changed, but RESERVE keeps the pages that
 *         it had got before. */
kvc_status kvc__make_room(kvc_cache *cache, kvc__layer *layer, kvc__counts counts);

/** Writes positions where there is room for them, converting or packing.
 * @param side  KVC__KEYS or KVC__VALUES
 * @param rows  [batch][kv_heads][n][dim], at least as many positions as are counted
 * @errors KVC_E_UNSUPPORTED the device cannot convert */
kvc_status kvc__write_side(const kvc_cache *cache, const kvc__layer *layer, int side,
                           kvc__counts counts, const kvc_array *rows);

/** Returns positions [from, from + n) of sequence b of an argument, without a reference. */
kvc_array kvc__some_positions(const kvc_array *rows, int64_t b, int64_t from, int64_t n);

/** Reads elements [d, d + n) of a row of [1][kv_heads][…][dim] into f32, and rotates them where the
 * layer's rows are.
 * @param n  the order of the rotation (array/rotate.h) */
void kvc__load_piece(float *x, const kvc__layer *layer, const kvc_array *rows, int64_t h, int64_t i,
                     int64_t d, int64_t n);

/** Writes positions of one sequence that follow each other where they go.
 * @param rows  [1][kv_heads][n][dim], n at most what kvc__place_of counts
 * @errors as kvc__write_side */
kvc_status kvc__write_run(const kvc_cache *cache, const kvc__layer *layer, int side,
                          int64_t sequence, int64_t position, const kvc_array *rows);

/** Makes positions that were written live. */
void kvc__advance(kvc_cache *cache, kvc__layer *layer, kvc__counts counts);

/* Lending (lend.c). */

/** Clears what is to be lent.
 * @errors KVC_E_INVALID one is NULL */
kvc_status kvc__lend_begin(kvc_array *k, kvc_array *v);

/** Lends rows of every range of a plane, with a reference of their own. */
kvc_array kvc__lend(const kvc_cache *cache, const kvc__layer *layer, int plane, int64_t first,
                    int64_t count);

/** Tells where the positions of a layer lie. */
kvc__map kvc__layer_map(const kvc_cache *cache, const kvc__layer *layer);

#endif
