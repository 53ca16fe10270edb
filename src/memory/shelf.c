#include "memory/shelf.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "memory/pool.h"

static kvc__shelf_kind *kind_of(kvc__shelf *shelf, const kvc_buffer *buffer) {
    return &shelf->kinds[buffer->committed != NULL];
}

/* Index of the first bin of at least `bytes`; count when there is none. */
static size_t lower_bound(const kvc__shelf_kind *kind, size_t bytes) {
    size_t low = 0, high = kind->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (kind->bins[middle].bytes < bytes) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool grow(kvc__shelf_kind *kind) {
    const size_t room = kind->room ? 2 * kind->room : 16;
    void *bins = kvc__calloc_or_null(room, sizeof *kind->bins);
    if (!bins) return false;
    if (kind->count) memcpy(bins, kind->bins, kind->count * sizeof *kind->bins);
    kvc__free(kind->bins, kind->room, sizeof *kind->bins);
    kind->bins = bins;
    kind->room = room;
    return true;
}

static void remove_bin(kvc__shelf_kind *kind, size_t index) {
    kind->count--;
    memmove(kind->bins + index, kind->bins + index + 1, (kind->count - index) * sizeof *kind->bins);
}

static void unlink_age(kvc__shelf *shelf, kvc_buffer *b) {
    if (b->links.newer) b->links.newer->links.older = b->links.older;
    else shelf->newest = b->links.older;
    if (b->links.older) b->links.older->links.newer = b->links.newer;
    else shelf->oldest = b->links.newer;
}

static void unlink_size(kvc__shelf_kind *kind, size_t index, kvc_buffer *b) {
    if (b->links.size_next) b->links.size_next->links.size_prev = b->links.size_prev;
    if (b->links.size_prev) {
        b->links.size_prev->links.size_next = b->links.size_next;
        return;
    }
    kind->bins[index].first = b->links.size_next;
    if (!kind->bins[index].first) remove_bin(kind, index);
}

kvc_buffer *kvc__shelf_take(kvc__shelf *shelf, bool reserved, size_t bytes, size_t below) {
    kvc__shelf_kind *kind = &shelf->kinds[reserved];
    const size_t index = lower_bound(kind, bytes);
    if (index == kind->count || kind->bins[index].bytes >= below) return NULL;
    kvc_buffer *b = kind->bins[index].first;
    unlink_size(kind, index, b);
    unlink_age(shelf, b);
    return b;
}

bool kvc__shelf_put(kvc__shelf *shelf, kvc_buffer *b) {
    kvc__shelf_kind *kind = kind_of(shelf, b);
    const size_t index = lower_bound(kind, b->capacity_bytes);
    if (index == kind->count || kind->bins[index].bytes != b->capacity_bytes) {
        if (kind->count == kind->room && !grow(kind)) return false;
        memmove(kind->bins + index + 1, kind->bins + index,
                (kind->count - index) * sizeof *kind->bins);
        kind->bins[index] = (kvc__shelf_bin){b->capacity_bytes, NULL};
        kind->count++;
    }
    kvc_buffer *next = kind->bins[index].first;
    b->links = (kvc__shelf_links){.older = shelf->newest, .size_next = next};
    if (next) next->links.size_prev = b;
    kind->bins[index].first = b;
    if (shelf->newest) shelf->newest->links.newer = b;
    else shelf->oldest = b;
    shelf->newest = b;
    return true;
}

kvc_buffer *kvc__shelf_take_oldest(kvc__shelf *shelf) {
    kvc_buffer *b = shelf->oldest;
    if (!b) return NULL;
    kvc__shelf_kind *kind = kind_of(shelf, b);
    unlink_size(kind, lower_bound(kind, b->capacity_bytes), b);
    unlink_age(shelf, b);
    return b;
}

/* Counts the buffers of a kind; SIZE_MAX when its order is broken. */
static size_t count_by_size(const kvc__shelf_kind *kind) {
    size_t count = 0;
    for (size_t i = 0; i < kind->count; i++) {
        const kvc__shelf_bin *bin = &kind->bins[i];
        const kvc_buffer *previous = NULL;
        if (!bin->first || (i && kind->bins[i - 1].bytes >= bin->bytes)) return SIZE_MAX;
        for (const kvc_buffer *b = bin->first; b; b = b->links.size_next, count++) {
            if (b->capacity_bytes != bin->bytes || b->links.size_prev != previous) return SIZE_MAX;
            previous = b;
        }
    }
    return count;
}

bool kvc__shelf_is_valid(const kvc__shelf *shelf, uint64_t resident_bytes) {
    size_t by_age[2] = {0, 0}; /* plain, reserved */
    const kvc_buffer *newer = NULL;
    for (const kvc_buffer *b = shelf->newest; b; b = b->links.older) {
        if (b->links.newer != newer || b->resident_bytes > resident_bytes) return false;
        resident_bytes -= b->resident_bytes;
        by_age[b->committed != NULL]++;
        newer = b;
    }
    return shelf->oldest == newer && resident_bytes == 0 &&
           by_age[0] == count_by_size(&shelf->kinds[0]) &&
           by_age[1] == count_by_size(&shelf->kinds[1]);
}

void kvc__shelf_deinit(kvc__shelf *shelf) {
    for (int i = 0; i < 2; i++) {
        KVC_ASSERT(shelf->kinds[i].count == 0);
        kvc__free(shelf->kinds[i].bins, shelf->kinds[i].room, sizeof *shelf->kinds[i].bins);
        shelf->kinds[i] = (kvc__shelf_kind){0};
    }
}
