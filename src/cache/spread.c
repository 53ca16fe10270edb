/* A mapped layer lies in memory as in its file, range after range, in one mapping a plane. Before
 * it gets more rows than the file has its ranges are moved apart, page by page: what was written
 * stays written, what was not touched stays untouched. Where the system cannot move pages all rows
 * are copied. */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/pool.h"

/* One range, where it is and where it is to be; both begin at the same place of a page. A page in
 * which ranges touch goes with the one behind, and its bytes of the one before are copied: they
 * land where rows are to come. */
typedef struct range {
    kvc_buffer *from, *to;
    size_t from_offset, to_offset; /* of the page in which it begins */
    size_t begin, end;             /* of its rows, from there on */
    size_t room;                   /* of those that growth wants next */
    size_t pages;                  /* bytes that move */
} range;

typedef struct spread {
    const kvc_cache *cache;
    const kvc__layer *layer;
    kvc_buffer *buffers[KVC__PLANES]; /* those to come */
} spread;

static size_t count_ranges(const spread *s) {
    return (size_t)s->layer->planes_used * s->layer->planes[0].ranges; /* all have as many */
}

static range range_at(const spread *s, size_t index) {
    const size_t ranges = s->layer->planes[0].ranges, p = index / ranges, r = index % ranges;
    const kvc__plane *plane = &s->layer->planes[p];
    const size_t page = kvc_pool_device(s->cache->pool)->page_bytes;
    const size_t now = (size_t)kvc__rows_of(&plane->row, s->layer->capacity) * plane->row.bytes;
    const size_t later = (size_t)kvc__rows_of(&plane->row, s->layer->later) * plane->row.bytes;
    const size_t begin = (plane->shift_bytes + r * now) % page;
    const size_t unit_bytes = kvc_buffer_commit_unit_bytes(s->cache->pool);
    return (range){.from = plane->buffer,
                   .to = s->buffers[p],
                   .from_offset = plane->shift_bytes + r * now - begin,
                   .to_offset = plane->shift_bytes + r * later - begin,
                   .begin = begin,
                   .end = begin + now,
                   .room = later - now < unit_bytes ? begin + later : begin + now + unit_bytes,
                   .pages = (begin + now) / page * page};
}

/* Copies what of a range lies from a place on. */
static kvc_status copy_from(const range *x, size_t first) {
    if (first < x->begin) first = x->begin;
    KVC_TRY(kvc_buffer_commit(x->to, x->to_offset + first, x->room - first));
    memcpy((char *)kvc_buffer_data(x->to) + x->to_offset + first,
           (const char *)kvc_buffer_data(x->from) + x->from_offset + first, x->end - first);
    return KVC_OK;
}

static kvc_status copy_rest(const range *x) {
    return copy_from(x, x->pages);
}

static kvc_status copy_all(const range *x) {
    return copy_from(x, 0);
}

static kvc_status move_pages(const range *x) {
    if (x->pages == 0) return KVC_OK;
    return kvc__buffer_move(x->to, x->to_offset, x->from, x->from_offset, x->pages);
}

/* Moves pages back, whose place was kept. */
static void move_back(const range *x) {
    if (x->pages == 0) return;
    const kvc_status status =
        kvc__buffer_move(x->from, x->from_offset, x->to, x->to_offset, x->pages);
    KVC_ASSERT(status == KVC_OK); /* it takes no more mappings than there were */
    (void)status;
}

static kvc_status move_ranges(const spread *s) {
    kvc_status status = KVC_OK;
    size_t done = 0;
    for (; done < count_ranges(s); done++) {
        const range x = range_at(s, done);
        status = move_pages(&x);
        if (status != KVC_OK) break;
    }
    while (status != KVC_OK && done-- > 0) {
        const range x = range_at(s, done);
        move_back(&x);
    }
    return status;
}

static kvc_status for_ranges(const spread *s, kvc_status (*each)(const range *)) {
    for (size_t i = 0; i < count_ranges(s); i++) {
        const range x = range_at(s, i);
        KVC_TRY(each(&x));
    }
    return KVC_OK;
}

static kvc_status take_room(spread *s) {
    for (int p = 0; p < s->layer->planes_used; p++)
        KVC_TRY(kvc__plane_reserve_shifted(&s->buffers[p], &s->layer->planes[p], s->cache,
                                           s->layer->later));
    return KVC_OK;
}

kvc_status kvc__layer_spread(kvc_cache *cache, kvc__layer *layer) {
    spread s = {.cache = cache, .layer = layer};
    kvc_status status = take_room(&s);
    if (status == KVC_OK) status = for_ranges(&s, copy_rest);
    if (status == KVC_OK) status = move_ranges(&s);
    if (status == KVC_E_UNSUPPORTED) status = for_ranges(&s, copy_all);
    for (int p = 0; p < layer->planes_used; p++) {
        kvc_buffer **own = &layer->planes[p].buffer;
        kvc_buffer_release(status == KVC_OK ? *own : s.buffers[p]);
        if (status == KVC_OK) *own = s.buffers[p];
    }
    if (status != KVC_OK) return status;
    layer->capacity = layer->later;
    layer->later = 0;
    cache->stats.growths++;
    return KVC_OK;
}
