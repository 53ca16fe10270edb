/* Rows in ranges, one a sequence and head, one after another. EXACT and CHUNK take a larger buffer
 * and copy; RESERVE commits pages.
 *
 * RESERVE commits a little ahead of the rows in use, evenly. Each plane has `ranges` ranges that
 * all advance together; cut into commit units, they are asked for in the order unit 0 of every
 * range, unit 1 of every range, … With x = ranges · length · row / unit the live positions need
 * fewer than x + ranges units, so floor(x + phase) + ranges are always enough, 0 ≤ phase < 1, and
 * grow by the same share with every position. The phase differs from plane to plane: layers that
 * append in lockstep do not all commit on the same step. So at most one unit a range and one a
 * plane are resident ahead of use (and one more a range where ranges do not start with a unit), and
 * no step after the first pays for many. */
#include "base/checked.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/device.h"

kvc_status kvc__plane_bytes(size_t *out, const kvc__plane *plane, int64_t positions) {
    const int64_t rows = kvc__rows_of(&plane->row, positions);
    if (kvc__mul(out, plane->ranges, (size_t)rows) && kvc__mul(out, *out, plane->row.bytes) &&
        *out <= PTRDIFF_MAX)
        return KVC_OK;
    return kvc__fail(KVC_E_RANGE,
                     "%zu ranges (batch × kv_heads) × %lld positions × %zu bytes is more than a "
                     "size can hold",
                     plane->ranges, (long long)positions, plane->row.bytes);
}

/* rows rounded up to whole chunks. */
static kvc_status whole_chunks(int64_t *out, int64_t rows, int64_t chunk) {
    int64_t padded;
    if (!kvc__add_i64(&padded, rows, chunk - 1))
        return kvc__fail(KVC_E_RANGE, "%lld positions in chunks of %lld overflow", (long long)rows,
                         (long long)chunk);
    *out = padded / chunk * chunk;
    return KVC_OK;
}

kvc_status kvc__linear_reserve(kvc_cache *cache, kvc__layer *layer) {
    int64_t capacity;
    KVC_TRY(whole_chunks(&capacity, cache->desc.max_positions, layer->chunk));
    for (int p = 0; p < layer->planes_used; p++) {
        kvc__plane *plane = &layer->planes[p];
        size_t bytes;
        KVC_TRY(kvc__plane_bytes(&bytes, plane, capacity));
        KVC_TRY(kvc_buffer_reserve(&plane->buffer, cache->pool, bytes));
    }
    layer->capacity = capacity;
    return KVC_OK;
}

static size_t range_bytes_of(const kvc__plane *plane, int64_t positions) {
    return (size_t)kvc__rows_of(&plane->row, positions) * plane->row.bytes;
}

/* Commits `units` units of one range, from unit `first` of that range on. */
static kvc_status commit_units(kvc__plane *plane, int64_t capacity, size_t range, size_t first,
                               size_t units, size_t unit_bytes) {
    const size_t range_bytes = range_bytes_of(plane, capacity);
    const size_t from = first * unit_bytes;
    if (from >= range_bytes) return KVC_OK;
    const size_t left = range_bytes - from;
    const size_t bytes = units > left / unit_bytes ? left : units * unit_bytes;
    return kvc_buffer_commit(plane->buffer, plane->shift_bytes + range * range_bytes + from, bytes);
}

static size_t units_for(const kvc__plane *plane, int64_t positions, size_t unit_bytes) {
    const size_t live_bytes = plane->ranges * range_bytes_of(plane, positions);
    return (live_bytes + plane->phase_bytes) / unit_bytes + plane->ranges;
}

static kvc_status commit_ahead(kvc__plane *plane, int64_t capacity, int64_t rows,
                               size_t unit_bytes) {
    const size_t target = units_for(plane, rows, unit_bytes);
    while (plane->units_done < target) {
        const size_t unit = plane->units_done / plane->ranges;
        const size_t range = plane->units_done % plane->ranges;
        const size_t rounds = range == 0 ? (target - plane->units_done) / plane->ranges : 0;
        if (rounds == 0) {
            KVC_TRY(commit_units(plane, capacity, range, unit, 1, unit_bytes));
            plane->units_done++;
        } else { /* many positions at once: one call a range */
            for (size_t r = 0; r < plane->ranges; r++)
                KVC_TRY(commit_units(plane, capacity, r, unit, rounds, unit_bytes));
            plane->units_done += rounds * plane->ranges;
        }
    }
    return KVC_OK;
}

static size_t resident_bytes(const kvc__layer *layer) {
    size_t bytes = 0;
    for (int p = 0; p < layer->planes_used; p++)
        bytes += kvc_buffer_resident_bytes(layer->planes[p].buffer);
    return bytes;
}

static kvc_status grow_in_place(kvc_cache *cache, kvc__layer *layer, int64_t rows) {
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(cache->pool);
    const size_t before = resident_bytes(layer);
    for (int p = 0; p < layer->planes_used; p++)
        KVC_TRY(commit_ahead(&layer->planes[p], layer->capacity, rows, unit_bytes));
    if (resident_bytes(layer) != before) cache->stats.growths++;
    return KVC_OK;
}

kvc_array kvc__plane_array(const kvc_cache *cache, const kvc__layer *layer, const kvc__plane *plane,
                           int64_t first, int64_t count) {
    const int64_t head = kvc__rows_of(&plane->row, layer->capacity) * plane->row.dim;
    kvc_array a = {.dtype = plane->row.dtype,
                   .ndim = 4,
                   .shape = {cache->desc.batch, layer->spec.kv_heads, count, plane->row.dim},
                   .strides = {layer->spec.kv_heads * head, head, plane->row.dim, 1}};
    if (plane->buffer) a.data = kvc__plane_data(plane) + (size_t)first * plane->row.bytes;
    return a;
}

/* Copies the first `kept` positions of every range into a buffer with another capacity. */
static kvc_status move_rows(const kvc_cache *cache, const kvc__layer *layer,
                            const kvc__plane *plane, int64_t kept, kvc_buffer *to,
                            int64_t capacity) {
    const int64_t count = kvc__rows_of(&plane->row, kept);
    if (count == 0) return KVC_OK;
    const kvc_array from = kvc__plane_array(cache, layer, plane, 0, count);
    const int64_t head = kvc__rows_of(&plane->row, capacity) * plane->row.dim;
    const int64_t strides[4] = {layer->spec.kv_heads * head, head, plane->row.dim, 1};
    const kvc_strided dst = {kvc_buffer_data(to), from.dtype, strides};
    const kvc_strided src = {from.data, from.dtype, from.strides};
    return kvc__device_copy(kvc_pool_device(cache->pool), &dst, &src, 4, from.shape);
}

static kvc_status new_buffers(kvc_buffer *buffers[KVC__PLANES], const kvc_cache *cache,
                              const kvc__layer *layer, int64_t kept, int64_t capacity) {
    for (int p = 0; p < layer->planes_used; p++) {
        size_t bytes;
        KVC_TRY(kvc__plane_bytes(&bytes, &layer->planes[p], capacity));
        KVC_TRY(kvc_buffer_new(&buffers[p], cache->pool, bytes));
    }
    for (int p = 0; p < layer->planes_used; p++)
        KVC_TRY(move_rows(cache, layer, &layer->planes[p], kept, buffers[p], capacity));
    return KVC_OK;
}

/* @param kept  positions in use */
static kvc_status grow_by_copy(kvc_cache *cache, kvc__layer *layer, int64_t kept,
                               int64_t capacity) {
    kvc_buffer *buffers[KVC__PLANES] = {0};
    const kvc_status status = new_buffers(buffers, cache, layer, kept, capacity);
    for (int p = 0; p < layer->planes_used; p++) {
        kvc_buffer **own = &layer->planes[p].buffer;
        kvc_buffer_release(status == KVC_OK ? *own : buffers[p]);
        if (status == KVC_OK) *own = buffers[p];
    }
    if (status != KVC_OK) return status;
    layer->capacity = capacity;
    const size_t kept_bytes = kvc__positions_bytes(layer, kept) * (size_t)cache->desc.batch;
    cache->stats.growths++;
    cache->stats.grown_bytes += kept_bytes;
    cache->stats.copied_bytes += kept_bytes;
    return KVC_OK;
}

kvc_status kvc__linear_grow(kvc_cache *cache, kvc__layer *layer, int64_t used, int64_t rows) {
    const kvc_growth growth = cache->desc.growth;
    int64_t capacity;
    if (growth == KVC_GROW_RESERVE) {
        if (layer->later > 0) {
            if (rows <= layer->capacity) return KVC_OK;
            KVC_TRY(kvc__layer_spread(cache, layer));
        }
        return grow_in_place(cache, layer, rows);
    }
    if (growth == KVC_GROW_CHUNK && rows <= layer->capacity) return KVC_OK;
    KVC_TRY(whole_chunks(&capacity, rows, layer->chunk));
    if (capacity == layer->capacity) return KVC_OK;
    return grow_by_copy(cache, layer, used < capacity ? used : capacity, capacity);
}

/* RESERVE: gives back the units that more rows had asked for. */
static void decommit(kvc_cache *cache, kvc__layer *layer, kvc__plane *plane, int64_t rows) {
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(cache->pool);
    const size_t target = units_for(plane, rows, unit_bytes);
    const size_t range_bytes = range_bytes_of(plane, layer->capacity);
    if (plane->units_done <= target) return;
    for (size_t r = 0; r < plane->ranges; r++) {
        /* Units r, r + ranges, … below the target stay. */
        const size_t from = (target - r + plane->ranges - 1) / plane->ranges * unit_bytes;
        if (from < range_bytes)
            kvc_buffer_decommit(plane->buffer, plane->shift_bytes + r * range_bytes + from,
                                range_bytes - from);
    }
    plane->units_done = target;
}

void kvc__linear_shrink(kvc_cache *cache, kvc__layer *layer, int64_t rows) {
    int64_t capacity;
    if (rows >= layer->capacity) return;
    if (cache->desc.growth == KVC_GROW_RESERVE) {
        for (int p = 0; p < layer->planes_used; p++)
            decommit(cache, layer, &layer->planes[p], rows);
        return;
    }
    if (whole_chunks(&capacity, rows, layer->chunk) != KVC_OK) return;
    if (capacity < layer->capacity) (void)grow_by_copy(cache, layer, rows, capacity);
}
