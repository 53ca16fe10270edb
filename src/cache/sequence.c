/* What happens to whole sequences: they get shorter, leave, and become what others are. */
#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/device.h"

static int64_t trimmable(const kvc__layer *layer, int64_t sequence) {
    if (layer->tails) return kvc__channels_trimmable(layer, sequence);
    return layer->rings ? kvc__ring_trimmable(layer, sequence) : layer->lengths[sequence];
}

int64_t kvc_cache_trimmable(const kvc_cache *cache) {
    int64_t least = INT64_MAX;
    if (!cache) return -1;
    for (int64_t i = 0; i < cache->desc.layers; i++)
        for (int64_t b = 0; b < cache->desc.batch; b++) {
            const int64_t n = trimmable(&cache->layers[i], b);
            if (n < least) least = n;
        }
    return least;
}

static kvc_status check_trim(const kvc_cache *cache, int64_t sequence, int64_t n) {
    if (n < 0) return kvc__fail(KVC_E_RANGE, "n: %lld given, at least 0 wanted", (long long)n);
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        const kvc__layer *layer = &cache->layers[i];
        if (n <= trimmable(layer, sequence)) continue;
        if (n > layer->lengths[sequence])
            return kvc__fail(KVC_E_RANGE, "n: %lld given, layer %lld holds %lld positions",
                             (long long)n, (long long)i, (long long)layer->lengths[sequence]);
        if (layer->tails)
            return kvc__fail(KVC_E_RANGE,
                             "n: %lld given, layer %lld can go back %lld: its keys are packed per "
                             "channel by %d positions, and unpacked ones held from %lld on",
                             (long long)n, (long long)i, (long long)trimmable(layer, sequence),
                             layer->spec.kv_group, (long long)layer->tails[sequence]);
        return kvc__fail(KVC_E_RANGE,
                         "n: %lld given, layer %lld can go back %lld: its window holds nothing "
                         "before position %lld any more (desc.slack holds more)",
                         (long long)n, (long long)i, (long long)trimmable(layer, sequence),
                         (long long)layer->rings[sequence].first);
    }
    return KVC_OK;
}

/* Trims sequences [first, end). */
static void trim(kvc_cache *cache, int64_t first, int64_t end, int64_t n) {
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        for (int64_t b = first; b < end; b++) cache->layers[i].lengths[b] -= n;
        kvc__layer_settle(cache, &cache->layers[i]);
    }
    for (int64_t b = first; cache->tables && b < end; b++) kvc__pages_settle(cache, b);
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
}

kvc_status kvc_cache_trim(kvc_cache *cache, int64_t n) {
    KVC_TRY(kvc__cache_given(cache));
    for (int64_t b = 0; b < cache->desc.batch; b++) KVC_TRY(check_trim(cache, b, n));
    trim(cache, 0, cache->desc.batch, n);
    return KVC_OK;
}

kvc_status kvc_cache_trim_sequence(kvc_cache *cache, int64_t sequence, int64_t n) {
    KVC_TRY(kvc__cache_sequence(cache, sequence, "sequence"));
    KVC_TRY(check_trim(cache, sequence, n));
    trim(cache, sequence, sequence + 1, n);
    return KVC_OK;
}

static void clear(kvc_cache *cache, int64_t first, int64_t end) {
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        kvc__layer *layer = &cache->layers[i];
        for (int64_t b = first; b < end; b++) {
            layer->lengths[b] = 0;
            if (layer->rings) kvc__ring_clear(cache, layer, b);
            if (layer->tails) layer->tails[b] = 0;
        }
        kvc__layer_settle(cache, layer);
    }
    for (int64_t b = first; cache->tables && b < end; b++) kvc__pages_settle(cache, b);
}

void kvc_cache_clear(kvc_cache *cache) {
    clear(cache, 0, cache->desc.batch);
}

kvc_status kvc_cache_clear_sequence(kvc_cache *cache, int64_t sequence) {
    KVC_TRY(kvc__cache_sequence(cache, sequence, "sequence"));
    clear(cache, sequence, sequence + 1);
    return KVC_OK;
}

/* Reordering is a list of moves between sequences, each of which reads what no move before it has
 * written. A circle of sequences goes through a place aside. */
enum { ASIDE = -1, WRITTEN = -1 };

typedef struct move {
    int64_t to, from;
} move;

typedef struct moves {
    move *list;       /* [2 · batch] room */
    int64_t *readers; /* [batch] moves to come that read a sequence; WRITTEN */
    int64_t count;
    bool circles;
} moves;

static void add_move(moves *m, int64_t to, int64_t from) {
    m->list[m->count++] = (move){to, from};
}

/* Sequences that nobody reads any more are written first, which may free those that they read. */
static void plan_chains(moves *m, const int64_t *from, int64_t batch) {
    for (int64_t start = 0; start < batch; start++)
        for (int64_t b = start; from[b] != b && m->readers[b] == 0; b = from[b]) {
            add_move(m, b, from[b]);
            m->readers[b] = WRITTEN;
            m->readers[from[b]]--;
        }
}

/* What is left are circles: each is read once. */
static void plan_circles(moves *m, const int64_t *from, int64_t batch) {
    for (int64_t start = 0; start < batch; start++) {
        if (from[start] == start || m->readers[start] == WRITTEN) continue;
        int64_t b = start;
        m->circles = true;
        add_move(m, ASIDE, start);
        for (; from[b] != start; b = from[b]) {
            add_move(m, b, from[b]);
            m->readers[b] = WRITTEN;
        }
        add_move(m, b, ASIDE);
        m->readers[b] = WRITTEN;
    }
}

static void plan_moves(moves *m, const int64_t *from, int64_t batch) {
    for (int64_t b = 0; b < batch; b++)
        if (from[b] != b) m->readers[from[b]]++;
    plan_chains(m, from, batch);
    plan_circles(m, from, batch);
}

static char *first_row(const kvc__layer *layer, const kvc__plane *plane, int64_t sequence) {
    const int64_t rows =
        sequence * layer->spec.kv_heads * kvc__rows_of(&plane->row, layer->capacity);
    return (char *)kvc_buffer_data(plane->buffer) + (size_t)rows * plane->row.bytes;
}

/* Moves [kv_heads][rows][dim] of a plane. Aside, heads follow each other without spare room.
 * @param used  positions, or rows of rings */
static kvc_status move_plane(const kvc_cache *cache, const kvc__layer *layer,
                             const kvc__plane *plane, move m, int64_t used, void *aside) {
    const int64_t dim = plane->row.dim, rows = kvc__rows_of(&plane->row, used);
    const int64_t head = kvc__rows_of(&plane->row, layer->capacity) * dim;
    const int64_t shape[3] = {layer->spec.kv_heads, rows, dim};
    const int64_t here[3] = {head, dim, 1}, there[3] = {rows * dim, dim, 1};
    kvc_strided to = {aside, plane->row.dtype, there}, from = to;
    if (rows == 0) return KVC_OK;
    if (m.to != ASIDE) to = (kvc_strided){first_row(layer, plane, m.to), plane->row.dtype, here};
    if (m.from != ASIDE)
        from = (kvc_strided){first_row(layer, plane, m.from), plane->row.dtype, here};
    return kvc__device_copy(kvc_pool_device(cache->pool), &to, &from, 3, shape);
}

static int64_t rows_used(const kvc__layer *layer, int64_t sequence) {
    return layer->rings ? kvc__ring_rows_used(layer, sequence) : layer->lengths[sequence];
}

/* Bytes of a sequence aside, of the plane that has most. */
static size_t aside_bytes(const kvc_cache *cache) {
    size_t most = 0;
    for (int64_t i = 0; i < cache->desc.layers; i++) {
        const kvc__layer *layer = &cache->layers[i];
        int64_t rows = 0;
        for (int64_t b = 0; b < cache->desc.batch; b++)
            if (rows_used(layer, b) > rows) rows = rows_used(layer, b);
        for (int p = 0; p < layer->planes_used; p++) {
            const kvc__row_format *row = &layer->planes[p].row;
            const size_t bytes =
                (size_t)(layer->spec.kv_heads * kvc__rows_of(row, rows)) * row->bytes;
            if (bytes > most) most = bytes;
        }
    }
    return most;
}

/* What a sequence is in a layer, but for its rows. */
typedef struct state {
    int64_t length;
    kvc__ring ring;
    int64_t tail;
} state;

static state state_of(const kvc__layer *layer, int64_t sequence) {
    return (state){layer->lengths[sequence], layer->rings ? layer->rings[sequence] : (kvc__ring){0},
                   layer->tails ? layer->tails[sequence] : 0};
}

static kvc_status move_layer(const kvc_cache *cache, kvc__layer *layer, const moves *m,
                             void *aside) {
    for (int p = 0; !cache->tables && p < layer->planes_used; p++) {
        int64_t rows_aside = 0;
        for (int64_t i = 0; i < m->count; i++) {
            const move one = m->list[i];
            /* Of a sequence that was written meanwhile nobody reads. */
            const int64_t rows = one.from == ASIDE ? rows_aside : rows_used(layer, one.from);
            if (one.to == ASIDE) rows_aside = rows;
            KVC_TRY(move_plane(cache, layer, &layer->planes[p], one, rows, aside));
        }
    }
    state kept = {0};
    for (int64_t i = 0; i < m->count; i++) {
        const move one = m->list[i];
        const state from = one.from == ASIDE ? kept : state_of(layer, one.from);
        if (one.to == ASIDE) {
            kept = from;
            continue;
        }
        layer->lengths[one.to] = from.length;
        if (layer->rings) layer->rings[one.to] = from.ring;
        if (layer->tails) layer->tails[one.to] = from.tail;
    }
    kvc__layer_settle(cache, layer);
    return KVC_OK;
}

static kvc_status move_all(kvc_cache *cache, const moves *m, const int64_t *from) {
    kvc_buffer *aside = NULL;
    if (cache->tables) KVC_TRY(kvc__pages_reorder(cache, from));
    else if (m->circles) KVC_TRY(kvc_buffer_new(&aside, cache->pool, aside_bytes(cache)));
    kvc_status status = KVC_OK;
    for (int64_t i = 0; status == KVC_OK && i < cache->desc.layers; i++)
        status = move_layer(cache, &cache->layers[i], m, aside ? kvc_buffer_data(aside) : NULL);
    kvc_buffer_release(aside);
    for (int64_t b = 0; status != KVC_OK && b < cache->desc.batch; b++)
        if (from[b] != b) clear(cache, b, b + 1); /* some rows are one sequence's, some another's */
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
    return status;
}

kvc_status kvc_cache_reorder(kvc_cache *cache, const int64_t *from) {
    KVC_TRY(kvc__cache_given(cache));
    const int64_t batch = cache->desc.batch;
    void *memory;
    if (!from) return kvc__fail(KVC_E_INVALID, "from: NULL given, a sequence for each wanted");
    for (int64_t b = 0; b < batch; b++) KVC_TRY(kvc__cache_sequence(cache, from[b], "from"));
    const size_t each = 2 * sizeof(move) + sizeof(int64_t);
    KVC_TRY(kvc__calloc(&memory, (size_t)batch, each, "moves"));
    moves m = {.list = memory};
    m.readers = (int64_t *)(void *)(m.list + 2 * batch);
    plan_moves(&m, from, batch);
    const kvc_status status = m.count > 0 ? move_all(cache, &m, from) : KVC_OK;
    kvc__free(memory, (size_t)batch, each);
    return status;
}

kvc_status kvc_cache_fork(kvc_cache *cache, int64_t to, int64_t from) {
    KVC_TRY(kvc__cache_sequence(cache, to, "to"));
    KVC_TRY(kvc__cache_sequence(cache, from, "from"));
    move one = {to, from};
    const moves m = {.list = &one, .count = to != from};
    if (to == from) return KVC_OK;
    if (cache->tables) kvc__pages_fork(cache, to, from);
    kvc_status status = KVC_OK;
    for (int64_t i = 0; status == KVC_OK && i < cache->desc.layers; i++)
        status = move_layer(cache, &cache->layers[i], &m, NULL);
    if (status != KVC_OK) clear(cache, to, to + 1);
    KVC_ASSERT_SLOW(kvc_cache_check(cache) == KVC_OK);
    return status;
}
