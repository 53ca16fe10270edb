/** @file
 * What the sequences of a cache should hold, whatever its kind: a list of tags a sequence, one a
 * position. The elements of a position follow from its tag, so that no two appends are alike, and
 * are exact in every dtype. Each call below is made of the cache and of the lists. */
#ifndef KVC_TEST_STORIES_H
#define KVC_TEST_STORIES_H

#include <stdint.h>

#include <kvcache/cache.h>

/** One sequence. */
typedef struct story {
    int64_t length, room;
    uint32_t *tags; /* [length] */
} story;

/** All sequences of a cache. */
typedef struct stories {
    kvc_cache *cache;
    kvc_cache_desc desc; /* of the cache */
    story *each;         /* [batch] */
    uint32_t last_tag;
} stories;

/** Begins with an empty cache, which stays the caller's. */
void stories_init(stories *s, kvc_cache *cache);
void stories_deinit(stories *s);

/** Returns an element of a row: the `d`th of a head. side is 0 for keys, 1 for values. */
double story_element(uint32_t tag, int64_t layer, int side, int64_t head, int64_t d);

/** Appends n positions to every sequence, in all layers. */
void stories_append(stories *s, int64_t n);

/** Appends counts[b] positions to sequence b, layer after layer.
 * @param order  [layers]; NULL: 0, 1, 2, … */
void stories_append_ragged(stories *s, const int64_t *counts, const int64_t *order);

/** Appends to one layer of the cache alone, with the next tag, and returns what it said. */
kvc_status stories_append_layer(const stories *s, int64_t layer, const int64_t *counts);

/** Notes positions that every layer has got by the call above. */
void stories_note(stories *s, const int64_t *counts);

void stories_trim(stories *s, int64_t n);
void stories_trim_sequence(stories *s, int64_t sequence, int64_t n);
void stories_clear_sequence(stories *s, int64_t sequence);
void stories_fork(stories *s, int64_t to, int64_t from);
void stories_reorder(stories *s, const int64_t *from);

/** Makes the stories of a cache those of another: what kvc_cache_copy does. */
void stories_copy(stories *to, const stories *from);

/** Fails the test unless kvc_cache_check has nothing to say, lengths are right, every row that
 * claims to hold a position holds it to the bit (packed ones as kvc_quantize packs them), and of
 * each sequence all positions are there: those that the next query sees, in a window. */
void stories_check(const stories *s);

#endif
