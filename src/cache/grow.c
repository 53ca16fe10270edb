/* How a layer gets room. EXACT and CHUNK take a larger buffer and copy; RESERVE commits pages.
 *
 * RESERVE commits a little ahead of the length, evenly. Each side (keys or values of a layer) has
 * `ranges` ranges that all advance together; cut into commit units, they are asked for in the
 * order unit 0 of every range, unit 1 of every range, … With x = ranges · length · row / unit the
 * live positions need fewer than x + ranges units, so floor(x + phase) + ranges are always enough,
 * 0 ≤ phase < 1, and grow by the same share with every position. The phase differs from side to
 * side: layers that append in lockstep do not all commit on the same step. So at most one unit a
 * range and one a side are resident ahead of use (and one more a range where ranges do not start
 * with a unit), and no step after the first pays for many. */
#include "base/checked.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/device.h"

kvc_status kvc__side_bytes(size_t *out, const kvc__side *side, int64_t positions) {
    if (kvc__mul(out, side->ranges, (size_t)positions) && kvc__mul(out, *out, side->row_bytes) &&
        *out <= PTRDIFF_MAX)
        return KVC_OK;
    return kvc__fail(KVC_E_RANGE,
                     "%zu ranges (batch × kv_heads) × %lld positions × %zu bytes is more than a "
                     "size can hold",
                     side->ranges, (long long)positions, side->row_bytes);
}

/* positions rounded up to whole chunks. */
static kvc_status whole_chunks(int64_t *out, int64_t positions, int64_t chunk) {
    int64_t padded;
    if (!kvc__add_i64(&padded, positions, chunk - 1))
        return kvc__fail(KVC_E_RANGE, "%lld positions in chunks of %lld overflow",
                         (long long)positions, (long long)chunk);
    *out = padded / chunk * chunk;
    return KVC_OK;
}

kvc_status kvc__cache_reserve(kvc_cache *cache, kvc__layer *layer) {
    size_t k_bytes, v_bytes;
    int64_t capacity;
    KVC_TRY(whole_chunks(&capacity, cache->desc.max_positions, cache->desc.chunk));
    KVC_TRY(kvc__side_bytes(&k_bytes, &layer->k, capacity));
    KVC_TRY(kvc__side_bytes(&v_bytes, &layer->v, capacity));
    KVC_TRY(kvc_buffer_reserve(&layer->k.buffer, cache->pool, k_bytes));
    KVC_TRY(kvc_buffer_reserve(&layer->v.buffer, cache->pool, v_bytes));
    layer->capacity = capacity;
    return KVC_OK;
}

/* Commits `units` units of one range, from unit `first` of that range on. */
static kvc_status commit_units(kvc__side *side, int64_t capacity, size_t range, size_t first,
                               size_t units, size_t unit_bytes) {
    const size_t range_bytes = (size_t)capacity * side->row_bytes;
    const size_t from = first * unit_bytes;
    if (from >= range_bytes) return KVC_OK;
    const size_t left = range_bytes - from;
    const size_t bytes = units > left / unit_bytes ? left : units * unit_bytes;
    return kvc_buffer_commit(side->buffer, range * range_bytes + from, bytes);
}

static kvc_status commit_ahead(kvc__side *side, int64_t capacity, int64_t length,
                               size_t unit_bytes) {
    const size_t live_bytes = side->ranges * (size_t)length * side->row_bytes;
    const size_t target = (live_bytes + side->phase_bytes) / unit_bytes + side->ranges;
    while (side->units_done < target) {
        const size_t unit = side->units_done / side->ranges;
        const size_t range = side->units_done % side->ranges;
        const size_t rounds = range == 0 ? (target - side->units_done) / side->ranges : 0;
        if (rounds == 0) {
            KVC_TRY(commit_units(side, capacity, range, unit, 1, unit_bytes));
            side->units_done++;
        } else { /* many positions at once: one call a range */
            for (size_t r = 0; r < side->ranges; r++)
                KVC_TRY(commit_units(side, capacity, r, unit, rounds, unit_bytes));
            side->units_done += rounds * side->ranges;
        }
    }
    return KVC_OK;
}

static kvc_status grow_in_place(kvc_cache *cache, kvc__layer *layer, int64_t need) {
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(cache->pool);
    const size_t before =
        kvc_buffer_resident_bytes(layer->k.buffer) + kvc_buffer_resident_bytes(layer->v.buffer);
    KVC_TRY(commit_ahead(&layer->k, layer->capacity, need, unit_bytes));
    KVC_TRY(commit_ahead(&layer->v, layer->capacity, need, unit_bytes));
    const size_t after =
        kvc_buffer_resident_bytes(layer->k.buffer) + kvc_buffer_resident_bytes(layer->v.buffer);
    if (after != before) cache->stats.growths++;
    return KVC_OK;
}

/* Copies the first `count` positions of a side into a buffer with another capacity. */
static kvc_status move_rows(const kvc_cache *cache, const kvc__layer *layer, const kvc__side *side,
                            int64_t count, kvc_buffer *to, int64_t capacity) {
    if (count == 0) return KVC_OK;
    const kvc_array from = kvc__side_array(cache, layer, side, 0, count);
    return kvc__side_write(cache, layer, side, to, capacity, 0, &from);
}

static kvc_status grow_by_copy(kvc_cache *cache, kvc__layer *layer, int64_t capacity) {
    /* Prepared positions come along: their caller may have written them. */
    const int64_t filled = layer->length + layer->prepared;
    const int64_t kept = filled < capacity ? filled : capacity;
    kvc_buffer *k = NULL, *v = NULL;
    size_t k_bytes, v_bytes;
    KVC_TRY(kvc__side_bytes(&k_bytes, &layer->k, capacity));
    KVC_TRY(kvc__side_bytes(&v_bytes, &layer->v, capacity));
    kvc_status status = kvc_buffer_new(&k, cache->pool, k_bytes);
    if (status == KVC_OK) status = kvc_buffer_new(&v, cache->pool, v_bytes);
    if (status == KVC_OK) status = move_rows(cache, layer, &layer->k, kept, k, capacity);
    if (status == KVC_OK) status = move_rows(cache, layer, &layer->v, kept, v, capacity);
    if (status != KVC_OK) {
        kvc_buffer_release(k);
        kvc_buffer_release(v);
        return status;
    }
    kvc_buffer_release(layer->k.buffer);
    kvc_buffer_release(layer->v.buffer);
    layer->k.buffer = k;
    layer->v.buffer = v;
    layer->capacity = capacity;
    const size_t kept_bytes = (size_t)kept * (layer->k.ranges * layer->k.row_bytes +
                                              layer->v.ranges * layer->v.row_bytes);
    cache->stats.growths++;
    cache->stats.grown_bytes += kept_bytes;
    cache->stats.copied_bytes += kept_bytes;
    return KVC_OK;
}

kvc_status kvc__cache_grow(kvc_cache *cache, kvc__layer *layer, int64_t need) {
    const kvc_cache_desc *desc = &cache->desc;
    if (desc->max_positions && need > desc->max_positions)
        return kvc__fail(
            KVC_E_RANGE, "layer %lld: %lld positions asked for, desc.max_positions is %lld",
            (long long)(layer - cache->layers), (long long)need, (long long)desc->max_positions);
    int64_t capacity = need;
    switch (desc->growth) {
    case KVC_GROW_RESERVE: return grow_in_place(cache, layer, need);
    case KVC_GROW_CHUNK:
        if (need <= layer->capacity) return KVC_OK;
        KVC_TRY(whole_chunks(&capacity, need, desc->chunk));
        break;
    case KVC_GROW_EXACT:
        if (need == layer->capacity) return KVC_OK;
        break;
    }
    return grow_by_copy(cache, layer, capacity);
}
