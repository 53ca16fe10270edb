/* What a layer holds, told so that another can hold the same: rows that come from elsewhere, such
 * as a file, need their places before they are there. */
#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"
#include "cache/cache.h"

kvc_status kvc_cache_held_get(const kvc_cache *cache, int64_t index, int64_t sequence,
                              kvc_cache_held *out) {
    kvc__layer *layer;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = (kvc_cache_held){0};
    KVC_TRY(kvc__cache_layer(&layer, cache, index));
    KVC_TRY(kvc__cache_sequence(cache, sequence, "sequence"));
    out->length = out->rows = layer->lengths[sequence];
    if (layer->tails) out->first = layer->tails[sequence];
    if (!layer->rings) return KVC_OK;
    const kvc__ring *ring = &layer->rings[sequence];
    int64_t run;
    out->rows = kvc__ring_rows_used(layer, sequence);
    out->first = ring->first;
    out->row = kvc__ring_row(ring, ring->first, &run);
    return KVC_OK;
}

/* The ring of a window that holds so much. Returns false where there is none. */
static bool ring_for(kvc__ring *ring, const kvc_cache *cache, const kvc__layer *layer,
                     const kvc_cache_held *held) {
    const int64_t keep = layer->spec.keep, usual = layer->spec.window + cache->desc.slack;
    *ring = (kvc__ring){.keep = keep, .rows = usual, .origin = keep, .first = keep};
    if (held->first == keep) { /* nothing was overwritten */
        if (held->length > ring->rows) ring->rows = held->length;
        return held->row == keep && held->rows == held->length;
    }
    if (held->first < keep || held->first > held->length || held->rows > held->length ||
        held->row < keep || held->row >= held->rows)
        return false;
    const int64_t turning = held->rows - keep, behind = held->length - held->first;
    ring->rows = held->rows;
    ring->first = held->first;
    ring->origin = held->first - (held->row - keep);
    if (ring->origin < keep) ring->origin += turning;
    return behind <= turning && behind >= layer->spec.window - keep;
}

static kvc_status check_held(const kvc_cache *cache, const kvc__layer *layer,
                             const kvc_cache_held *held) {
    const int64_t most = cache->desc.max_positions;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        kvc__ring ring;
        if (held[b].length < 0)
            return kvc__fail(KVC_E_RANGE, "held[%lld].length: %lld given, at least 0 wanted",
                             (long long)b, (long long)held[b].length);
        if (most && held[b].length > most)
            return kvc__fail(KVC_E_RANGE,
                             "held[%lld].length: %lld given, desc.max_positions is %lld",
                             (long long)b, (long long)held[b].length, (long long)most);
        if (layer->rings && !ring_for(&ring, cache, layer, &held[b]))
            return kvc__fail(
                KVC_E_RANGE,
                "held[%lld]: length %lld, first %lld, row %lld of %lld given, in which "
                "no window of %lld that keeps %lld can be",
                (long long)b, (long long)held[b].length, (long long)held[b].first,
                (long long)held[b].row, (long long)held[b].rows, (long long)layer->spec.window,
                (long long)layer->spec.keep);
        if (layer->tails && !kvc__channels_can_hold(layer, held[b].length, held[b].first))
            return kvc__fail(KVC_E_RANGE,
                             "held[%lld].first: %lld given; of length %lld in blocks of %d keys "
                             "that are not packed begin at most two blocks before the end, and "
                             "with the last one at the latest",
                             (long long)b, (long long)held[b].first, (long long)held[b].length,
                             layer->spec.kv_group);
    }
    return KVC_OK;
}

static kvc_status check_restore(kvc__layer **layer, const kvc_cache *cache, int64_t index,
                                const kvc_cache_held *held) {
    KVC_TRY(kvc__cache_layer(layer, cache, index));
    if (!held) return kvc__fail(KVC_E_INVALID, "held: NULL given, one a sequence wanted");
    if ((*layer)->length > 0)
        return kvc__fail(KVC_E_INVALID, "layer %lld: has %lld positions, an empty one wanted",
                         (long long)index, (long long)(*layer)->length);
    return check_held(cache, *layer, held);
}

/* Rows of a range that the longest sequence uses. */
static int64_t rows_of(const kvc_cache *cache, const kvc__layer *layer,
                       const kvc_cache_held *held) {
    int64_t rows = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const int64_t used = layer->rings ? held[b].rows : held[b].length;
        if (used > rows) rows = used;
    }
    return rows;
}

static kvc_status make_room(kvc_cache *cache, kvc__layer *layer, const kvc_cache_held *held) {
    const int64_t rows = rows_of(cache, layer, held);
    if (rows == 0) return KVC_OK; /* EXACT would take a buffer of nothing */
    if (!cache->tables) return kvc__linear_grow(cache, layer, 0, rows);
    kvc_status status = KVC_OK;
    for (int64_t b = 0; status == KVC_OK && b < cache->desc.batch; b++)
        status = kvc__pages_make_room_of(cache, b, 0, held[b].length);
    for (int64_t b = 0; status != KVC_OK && b < cache->desc.batch; b++) kvc__pages_settle(cache, b);
    return status;
}

static void make_live(const kvc_cache *cache, kvc__layer *layer, const kvc_cache_held *held) {
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        layer->lengths[b] = held[b].length;
        if (layer->rings) (void)ring_for(&layer->rings[b], cache, layer, &held[b]);
        if (layer->tails) layer->tails[b] = held[b].first;
    }
    kvc__layer_settle(cache, layer);
}

kvc_status kvc_cache_restore(kvc_cache *cache, int64_t index, const kvc_cache_held *held) {
    kvc__layer *layer;
    KVC_TRY(check_restore(&layer, cache, index, held));
    KVC_TRY(make_room(cache, layer, held));
    make_live(cache, layer, held);
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
    return KVC_OK;
}

/* Whether so many positions of every plane are whole parts of so many bytes. What turns is as long
 * in memory as in a file. */
static bool is_whole(const kvc__layer *layer, int64_t positions, size_t part_bytes) {
    for (int p = 0; p < layer->planes_used; p++) {
        const kvc__row_format *row = &layer->planes[p].row;
        if (positions < row->positions) return false;
        if (!row->turn && (size_t)(positions / row->positions) * row->bytes % part_bytes != 0)
            return false;
    }
    return true;
}

/* The least capacity of a mapped layer: from head to head memory and file differ by whole pages, in
 * each plane, so that both agree within the page; within a block, too, where heads are that long.
 * All are powers of two. */
static kvc_status find_capacity(int64_t *out, const kvc_cache *cache, const kvc__layer *layer,
                                int64_t rows) {
    const int64_t least = layer->capacity > rows ? layer->capacity : rows;
    int64_t step = 1, padded;
    while (!is_whole(layer, step, kvc_pool_device(cache->pool)->page_bytes)) step *= 2;
    while (step <= rows / 2 && !is_whole(layer, step, KVC__FILE_BLOCK_BYTES)) step *= 2;
    if (!kvc__add_i64(&padded, least - rows, step - 1))
        return kvc__fail(KVC_E_RANGE, "%lld positions in steps of %lld overflow", (long long)least,
                         (long long)step);
    *out = rows + padded / step * step;
    return KVC_OK;
}

static kvc_status check_file(const kvc_cache *cache, const kvc__layer *layer,
                             const kvc_cache_held *held, const kvc_cache_file *file) {
    const long long index = layer - cache->layers;
    const kvc_device *device = kvc_pool_device(cache->pool);
    if (!file) return kvc__fail(KVC_E_INVALID, "file: NULL given");
    if (cache->desc.growth != KVC_GROW_RESERVE || !device->map || layer->mapped)
        return kvc__fail(KVC_E_UNSUPPORTED,
                         "layer %lld: %s on device '%s' given; to map files wants KVC_GROW_RESERVE "
                         "on a device with map, and a layer that has mapped none",
                         index, kvc_growth_name(cache->desc.growth), device->name);
    if (file->rows < 1 || file->rows < rows_of(cache, layer, held))
        return kvc__fail(KVC_E_RANGE,
                         "file.rows: %lld given, at least the %lld of the cache wanted",
                         (long long)file->rows, (long long)rows_of(cache, layer, held));
    for (int p = 0; p < layer->planes_used; p++) {
        const size_t element = kvc_dtype_size_bytes(layer->planes[p].row.dtype);
        size_t bytes;
        if (file->rows % layer->planes[p].row.positions != 0)
            return kvc__fail(KVC_E_RANGE, "file.rows: %lld given, whole groups of %lld wanted",
                             (long long)file->rows, (long long)layer->planes[p].row.positions);
        KVC_TRY(kvc__plane_bytes(&bytes, &layer->planes[p], file->rows));
        if (file->offsets[p] > (uint64_t)(PTRDIFF_MAX - (ptrdiff_t)bytes))
            return kvc__fail(KVC_E_RANGE, "file.offsets[%d]: %llu given, which is absurd", p,
                             (unsigned long long)file->offsets[p]);
        if (file->offsets[p] % element != 0)
            return kvc__fail(KVC_E_UNSUPPORTED,
                             "file.offsets[%d]: %llu given, a multiple of the element's %zu bytes "
                             "wanted",
                             p, (unsigned long long)file->offsets[p], element);
    }
    return KVC_OK;
}

kvc_status kvc__plane_reserve_shifted(kvc_buffer **out, const kvc__plane *plane,
                                      const kvc_cache *cache, int64_t positions) {
    size_t bytes, whole;
    KVC_TRY(kvc__plane_bytes(&bytes, plane, positions));
    if (!kvc__add(&whole, bytes, plane->shift_bytes) ||
        !kvc__round_up(&whole, whole, KVC__FILE_BLOCK_BYTES))
        return kvc__fail(KVC_E_RANGE, "a plane of %zu bytes in whole blocks overflows", bytes);
    return kvc_buffer_reserve(out, cache->pool, whole);
}

/* Takes address space for the rows of a plane and has the file lie in it, from the begin of the
 * block on in which they begin. Memory that an earlier use left behind them is given back. */
static kvc_status map_plane(kvc__plane *plane, const kvc_cache *cache, int fd, int64_t rows,
                            uint64_t offset) {
    size_t bytes;
    plane->buffer = NULL;
    plane->units_done = 0;
    plane->shift_bytes = (size_t)(offset % KVC__FILE_BLOCK_BYTES);
    KVC_TRY(kvc__plane_reserve_shifted(&plane->buffer, plane, cache, rows));
    kvc_buffer_decommit(plane->buffer, 0, kvc_buffer_capacity_bytes(plane->buffer));
    KVC_TRY(kvc__plane_bytes(&bytes, plane, rows));
    return kvc_buffer_map(plane->buffer, 0, plane->shift_bytes + bytes, fd,
                          offset - plane->shift_bytes);
}

kvc_status kvc_cache_restore_mapped(kvc_cache *cache, int64_t index, const kvc_cache_held *held,
                                    const kvc_cache_file *file) {
    kvc__layer *layer;
    int64_t capacity;
    KVC_TRY(check_restore(&layer, cache, index, held));
    KVC_TRY(check_file(cache, layer, held, file));
    KVC_TRY(find_capacity(&capacity, cache, layer, file->rows));
    const kvc__layer before = *layer;
    kvc_status status = KVC_OK;
    layer->later = capacity;
    layer->capacity = file->rows;
    layer->mapped = true;
    for (int p = 0; p < layer->planes_used; p++) layer->planes[p].buffer = NULL;
    for (int p = 0; status == KVC_OK && p < layer->planes_used; p++)
        status = map_plane(&layer->planes[p], cache, file->fd, file->rows, file->offsets[p]);
    /* Room for more, and what a RESERVE cache has ready ahead of its rows, come with the next
     * append: they cost more than all of the rest, and who only attends has no use for them. */
    const kvc__layer *spare = status == KVC_OK ? &before : layer;
    for (int p = 0; p < layer->planes_used; p++) kvc_buffer_release(spare->planes[p].buffer);
    if (status != KVC_OK) {
        *layer = before;
        return status;
    }
    make_live(cache, layer, held);
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
    return KVC_OK;
}
