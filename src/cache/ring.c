/* Windows: each sequence has a ring of rows (map.h) in each range of its layer.
 *
 * A ring has R = window + slack rows. It fills from row 0 on, and then every position overwrites
 * the one R - keep before it. That is exact for an append of n positions while the first of them
 * still finds its window: while window + n - 1 ≤ R. A longer append, such as a prompt, makes the
 * ring as long as that takes, its positions in order; the next one that R suffices for brings it
 * back. Either moves rows within the range, at most once an append. */
#include <string.h>

#include "base/error.h"
#include "cache/cache.h"

void kvc__ring_clear(const kvc_cache *cache, kvc__layer *layer, int64_t sequence) {
    const int64_t keep = layer->spec.keep;
    layer->rings[sequence] = (kvc__ring){.keep = keep,
                                         .rows = layer->spec.window + cache->desc.slack,
                                         .origin = keep,
                                         .first = keep};
}

/* Rows that a ring uses with so many positions: once it has turned, all. */
static int64_t rows_with(const kvc__ring *ring, int64_t length) {
    const bool in_order = ring->origin == ring->keep && ring->first == ring->keep;
    return in_order && length < ring->rows ? length : ring->rows;
}

int64_t kvc__ring_rows_used(const kvc__layer *layer, int64_t sequence) {
    return rows_with(&layer->rings[sequence], layer->lengths[sequence]);
}

/* What the ring of a sequence is to be before n more positions. */
static kvc__ring wanted_for(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                            int64_t n) {
    kvc__ring ring = layer->rings[sequence];
    const int64_t keep = ring.keep, length = layer->lengths[sequence];
    const int64_t rows = layer->spec.window + cache->desc.slack;
    /* What the first of the new ones sees: it must outlast the last of them. */
    const int64_t sees = length + 1 - (layer->spec.window - keep);
    const int64_t needed = sees > ring.first ? sees : ring.first;
    if (n == 0 || (ring.rows == rows && length + n - (rows - keep) <= needed)) return ring;
    if (length + n - (rows - keep) <= needed) {
        const int64_t oldest = length - (rows - keep);
        ring.rows = rows;
        if (oldest > ring.first) ring.first = oldest;
    } else {
        ring.rows = keep + length + n - needed;
        ring.first = needed;
    }
    ring.origin = ring.first;
    return ring;
}

static void swap_rows(char *a, char *b, size_t bytes) {
    char kept[256];
    for (size_t some; bytes > 0; bytes -= some, a += some, b += some) {
        some = bytes < sizeof kept ? bytes : sizeof kept;
        memcpy(kept, a, some);
        memcpy(a, b, some);
        memcpy(b, kept, some);
    }
}

static void reverse_rows(char *rows, int64_t count, size_t bytes) {
    for (int64_t i = 0; i < count / 2; i++)
        swap_rows(rows + (size_t)i * bytes, rows + (size_t)(count - 1 - i) * bytes, bytes);
}

/* Brings row `from` of `count` rows to the front, and those behind it in order. Of these `used` are
 * to be kept. Allocates nothing. */
static void turn_rows(char *rows, int64_t count, int64_t from, int64_t used, size_t bytes) {
    if (from + used <= count) {
        memmove(rows, rows + (size_t)from * bytes, (size_t)used * bytes);
        return;
    }
    reverse_rows(rows, from, bytes);
    reverse_rows(rows + (size_t)from * bytes, count - from, bytes);
    reverse_rows(rows, count, bytes);
}

/* Moves the rows of a sequence to where another ring has them. Both hold ring->first. */
static void move_rows(kvc_cache *cache, kvc__layer *layer, int64_t sequence,
                      const kvc__ring *ring) {
    const kvc__ring *now = &layer->rings[sequence];
    const int64_t used = layer->lengths[sequence] - ring->first;
    int64_t run;
    const int64_t from = kvc__ring_row(now, ring->first, &run) - now->keep;
    if (used <= 0 || from == 0) return;
    for (int p = 0; p < layer->planes_used; p++) {
        const kvc__plane *plane = &layer->planes[p];
        const size_t range_bytes = (size_t)layer->capacity * plane->row.bytes;
        char *range = (char *)kvc_buffer_data(plane->buffer) +
                      (size_t)(sequence * layer->spec.kv_heads) * range_bytes +
                      (size_t)now->keep * plane->row.bytes;
        for (int64_t h = 0; h < layer->spec.kv_heads; h++)
            turn_rows(range + (size_t)h * range_bytes, now->rows - now->keep, from, used,
                      plane->row.bytes);
    }
    cache->stats.copied_bytes += kvc__positions_bytes(layer, used);
}

kvc_status kvc__ring_make_room(kvc_cache *cache, kvc__layer *layer, kvc__counts counts) {
    const int64_t rows = layer->spec.window + cache->desc.slack;
    int64_t used = 0, needed = 0, kept = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const kvc__ring ring = wanted_for(cache, layer, b, kvc__count(counts, b));
        const int64_t before = kvc__ring_rows_used(layer, b);
        const int64_t most = rows_with(&ring, layer->lengths[b] + kvc__count(counts, b));
        if (before > used) used = before;
        if (before > needed && ring.rows > rows) needed = before;
        if (most > needed) needed = most;
        if (ring.rows > kept) kept = ring.rows;
    }
    if (used > layer->capacity) used = layer->capacity; /* passed over, and not written yet */
    if (needed > used || cache->desc.growth != KVC_GROW_EXACT)
        KVC_TRY(kvc__linear_grow(cache, layer, used, needed > used ? needed : used));
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const kvc__ring ring = wanted_for(cache, layer, b, kvc__count(counts, b));
        if (ring.rows == layer->rings[b].rows && ring.origin == layer->rings[b].origin) continue;
        move_rows(cache, layer, b, &ring);
        layer->rings[b] = ring;
    }
    if (kept == rows) kvc__linear_shrink(cache, layer, rows); /* that of a long append */
    return KVC_OK;
}

void kvc__ring_advance(kvc__layer *layer, int64_t sequence, int64_t n) {
    kvc__ring *ring = &layer->rings[sequence];
    const int64_t oldest = layer->lengths[sequence] + n - (ring->rows - ring->keep);
    if (oldest > ring->first) ring->first = oldest;
}

void kvc__ring_pass(kvc__layer *layer, int64_t sequence, int64_t position) {
    kvc__ring *ring = &layer->rings[sequence];
    ring->origin = ring->first = position;
    layer->lengths[sequence] = position;
}

int64_t kvc__ring_trimmable(const kvc__layer *layer, int64_t sequence) {
    const kvc__ring *ring = &layer->rings[sequence];
    const int64_t length = layer->lengths[sequence];
    if (ring->first == ring->keep) return length;
    /* The last query that is left sees so many behind the kept ones. */
    return length - ring->first - (layer->spec.window - ring->keep);
}

kvc_status kvc__ring_check(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence) {
    const kvc__ring *ring = &layer->rings[sequence];
    const int64_t length = layer->lengths[sequence];
    const bool shaped = ring->keep == layer->spec.keep && ring->rows >= ring->keep + 1 &&
                        ring->origin >= ring->keep && ring->first >= ring->keep &&
                        kvc__ring_rows_used(layer, sequence) <= layer->capacity;
    const bool holds =
        ring->first == ring->keep || (length - ring->first <= ring->rows - ring->keep &&
                                      length - ring->first >= layer->spec.window - ring->keep);
    if (shaped && holds) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT,
                     "layer %lld, sequence %lld: a ring of %lld rows, %lld kept, from position "
                     "%lld on, for a window of %lld and a length of %lld",
                     (long long)(layer - cache->layers), (long long)sequence, (long long)ring->rows,
                     (long long)ring->keep, (long long)ring->first, (long long)layer->spec.window,
                     (long long)length);
}
