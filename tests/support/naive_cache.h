/** @file
 * A cache as simple as one can be, to compare the real one with: per layer a list of positions,
 * each position one list of the words of its elements. And the rows that go into both. */
#ifndef KVC_TEST_NAIVE_CACHE_H
#define KVC_TEST_NAIVE_CACHE_H

#include <stdint.h>

#include <kvcache/cache.h>

/** How the elements of an append lie in memory. */
typedef enum rows_layout {
    ROWS_HEAD_MAJOR,     /* [batch][heads][n][dim]: as the cache has it */
    ROWS_POSITION_MAJOR, /* [batch][n][heads][dim]: as engines produce it */
    ROWS_POSITION_FIRST, /* [n][batch][heads][dim + 3]: with gaps */
    ROWS_BACKWARDS,      /* ROWS_HEAD_MAJOR, last position first: a negative stride */
    ROWS_LAYOUTS         /* how many there are */
} rows_layout;

/** The keys or the values of an append, in memory of their own. */
typedef struct rows {
    kvc_array array; /* [batch][heads][n][dim], borrowed from memory */
    void *memory;
} rows;

/** Makes n rows of random elements: any value, subnormals, infinities and NaNs too. */
void rows_init(rows *r, kvc_dtype dtype, rows_layout layout, const int64_t shape[4],
               uint64_t *random);
void rows_deinit(rows *r);

/** Converts elements that follow each other, one by one. */
void convert_elements(void *out, kvc_dtype to, const void *in, kvc_dtype from, int64_t count);

/** One layer's positions. Words are the elements' bits, in the layer's dtype. */
typedef struct naive_layer {
    kvc_layer_spec spec;
    int64_t batch, length;
    uint32_t *k, *v; /* [length][batch][kv_heads][key_dim], and with value_dim */
} naive_layer;

/** All layers. */
typedef struct naive_cache {
    int64_t layers;
    naive_layer *layer; /* [layers] */
} naive_cache;

/** Makes an empty cache of the real one's geometry. */
void naive_cache_init(naive_cache *naive, const kvc_cache *cache);
void naive_cache_deinit(naive_cache *naive);

void naive_cache_append(naive_cache *naive, int64_t layer, const kvc_array *k, const kvc_array *v);
void naive_cache_trim(naive_cache *naive, int64_t n);
void naive_cache_clear(naive_cache *naive);

/** Makes a copy that stays as it is: what a view must go on to show. */
void naive_layer_copy(naive_layer *to, const naive_layer *from);
void naive_layer_deinit(naive_layer *layer);

/** Fails the test unless the first `count` positions of a view are those of the layer, to the bit.
 */
void assert_view_equal(const naive_layer *layer, const kvc_array *k, const kvc_array *v,
                       int64_t count);

/** Fails the test unless every layer of a cache holds what the naive one does, to the bit, and
 * kvc_cache_check has nothing to say. */
void assert_cache_equal(const naive_cache *naive, const kvc_cache *cache);

/** Appends n random f32 positions, position-major, to a layer of both. */
void append_both(kvc_cache *cache, naive_cache *naive, int64_t layer, int64_t n, uint64_t *random);

/** Copies rows over prepared room: what an engine does that writes in place. */
void write_rows(const kvc_array *room, const kvc_array *from);

#endif
