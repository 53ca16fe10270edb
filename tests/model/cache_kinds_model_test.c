/* Random operations on caches of random kinds and on naive ones: what they hold is the same to the
 * bit after every step, also after calls that failed. The caches of a model are of one geometry, so
 * that each can be copied to each; the paged ones share a pool of blocks. */
#include <stdlib.h>
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/naive_batch.h"
#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { CACHES = 3, MAX_LAYERS = 3, MAX_BATCH = 4, HELD_BLOCKS = 6, VIEWS = 4, LONGEST = 130 };

/* A block that the test holds a reference to, and what it must go on to hold. */
typedef struct held_block {
    int32_t id;                   /* KVC_BLOCK_NONE: none */
    int64_t count[MAX_LAYERS];    /* positions of it that were live */
    uint8_t *records[MAX_LAYERS]; /* [count] */
} held_block;

/* A view of a layer without a window, and how much of it must still be there. */
typedef struct kept_view {
    int cache; /* -1: none, or nothing is written there any more */
    int64_t layer, stable[MAX_BATCH];
    kvc_array k, v;
    naive_batch seen;
} kept_view;

typedef struct model {
    uint64_t random;
    test_device device;
    kvc_pool *pool;
    bool plain;                       /* on the test device: neither windows nor packed rows */
    int64_t layers, batch, positions; /* positions: of a block */
    kvc_layer_spec geometry[MAX_LAYERS], paged[MAX_LAYERS];
    kvc_blocks *blocks;
    kvc_cache *caches[CACHES];
    kvc_cache_desc descs[CACHES];
    naive_batch naives[CACHES];
    held_block held[HELD_BLOCKS];
    kept_view views[VIEWS];
    uint64_t steps, failures, refusals, copies, forks, trims; /* that happened */
} model;

#define FOR_EACH_CACHE for (int c = 0; c < CACHES; c++)

static int64_t between(model *m, int64_t low, int64_t high) {
    return low + test_below(&m->random, high - low + 1);
}

static bool one_in(model *m, int64_t n) {
    return between(m, 1, n) == 1;
}

static const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};

/* -- What is made -- */

/* Dims that can be packed, or any. */
static void random_geometry(model *m) {
    m->plain = one_in(m, 3);
    m->layers = between(m, 1, MAX_LAYERS);
    m->batch = between(m, 1, MAX_BATCH);
    m->positions = between(m, 16, 40);
    for (int i = 0; i < MAX_LAYERS; i++) {
        const bool packable = !m->plain && one_in(m, 2);
        m->geometry[i] = (kvc_layer_spec){.kv_heads = between(m, 1, 2)};
        m->geometry[i].key_dim = packable ? 32 * between(m, 1, 3) : between(m, 1, 20);
        m->geometry[i].value_dim = packable ? 32 * between(m, 1, 2) : between(m, 1, 20);
    }
}

static kvc_layer_spec random_spec(model *m, int64_t layer, bool paged) {
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    kvc_layer_spec spec = m->geometry[layer];
    spec.dtype = dtypes[between(m, 0, 2)];
    if (m->plain) return spec;
    if (spec.key_dim % 32 == 0 && spec.value_dim % 32 == 0 && !one_in(m, 3)) {
        spec.kv_bits = widths[between(m, 0, 5)];
        const bool halves = spec.key_dim % 64 == 0 && spec.value_dim % 64 == 0;
        spec.kv_group = halves && one_in(m, 2) ? 64 : 32;
    }
    if (!paged && one_in(m, 2)) {
        spec.window = one_in(m, 4) ? between(m, 1, 2) : between(m, 1, 40);
        spec.keep = one_in(m, 2) ? between(m, 0, spec.window - 1) : 0;
    }
    return spec;
}

static kvc_cache_desc random_desc(model *m, kvc_layer_spec specs[MAX_LAYERS]) {
    const kvc_growth growth = (kvc_growth)between(m, KVC_GROW_RESERVE, KVC_GROW_PAGED);
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = m->batch,
                           .layers = m->layers,
                           .specs = specs,
                           .spec_count = m->layers,
                           .growth = growth,
                           .chunk = between(m, 1, 40),
                           .max_positions = one_in(m, 2) ? between(m, 1, LONGEST) : 0,
                           .slack = between(m, 0, 5)};
    for (int64_t i = 0; i < m->layers; i++)
        specs[i] = growth == KVC_GROW_PAGED ? m->paged[i] : random_spec(m, i, false);
    if (growth == KVC_GROW_RESERVE && desc.max_positions == 0) desc.max_positions = LONGEST;
    if (growth == KVC_GROW_PAGED) desc.blocks = m->blocks;
    return desc;
}

/* Lets the next call fail at a random point, of the allocator or the test device, or run into the
 * pool's limit; or not at all. */
static void fail_somewhere(model *m) {
    if (one_in(m, 12)) {
        kvc_pool_stats stats = {.struct_size = sizeof stats};
        assert_ok(kvc_pool_stats_get(m->pool, &stats));
        const size_t room = (size_t)between(m, 0, 40000);
        (void)kvc_pool_memory_limit_set(m->pool, (size_t)stats.active_bytes + room);
    }
    if (one_in(m, 6))
        test_fault_arm((size_t)between(m, 1, 8),
                       one_in(m, 4) ? TEST_FAULT_ONCE : TEST_FAULT_FOREVER);
}

/* Ends the fault; tells whether the call failed of it. */
static bool struck(model *m, kvc_status status) {
    const bool failed = test_fault_disarm();
    const bool limited = kvc_pool_memory_limit_set(m->pool, SIZE_MAX) != SIZE_MAX;
    if (status == KVC_OK) return false;
    assert_string_not_equal(kvc_last_error(), "");
    assert_true((failed && (status == KVC_E_NOMEM || status == KVC_E_UNSUPPORTED)) ||
                (limited && status == KVC_E_LIMIT));
    m->failures++;
    return true;
}

static void new_cache(model *m, int c) {
    kvc_layer_spec specs[MAX_LAYERS];
    kvc_status status;
    m->descs[c] = random_desc(m, specs);
    do {
        fail_somewhere(m);
        status = kvc_cache_new(&m->caches[c], m->pool, &m->descs[c]);
        if (status != KVC_OK) assert_null(m->caches[c]);
    } while (struck(m, status));
    naive_batch_init(&m->naives[c], m->caches[c]);
}

static void free_cache(model *m, int c) {
    kvc_cache_free(m->caches[c]);
    naive_batch_deinit(&m->naives[c]);
    for (int i = 0; i < VIEWS; i++)
        if (m->views[i].cache == c) m->views[i].cache = -1;
}

static void new_blocks(model *m) {
    for (int64_t i = 0; i < m->layers; i++) m->paged[i] = random_spec(m, i, true);
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = m->layers,
                                  .specs = m->paged,
                                  .spec_count = m->layers,
                                  .positions = m->positions,
                                  .limit_bytes = (uint64_t)1 << 27,
                                  .slab_bytes = (uint64_t)between(m, 1, 200000)};
    assert_ok(kvc_blocks_new(&m->blocks, m->pool, &desc));
}

/* -- Blocks and views that the test keeps -- */

static void drop_block(model *m, held_block *held) {
    if (held->id == KVC_BLOCK_NONE) return;
    assert_ok(kvc_blocks_release(m->blocks, &held->id, 1));
    for (int i = 0; i < MAX_LAYERS; i++) free(held->records[i]);
    *held = (held_block){.id = KVC_BLOCK_NONE};
}

/* Any block of any sequence, the last, half full one among them. */
static void hold_block(model *m, int c) {
    held_block *held = &m->held[between(m, 0, HELD_BLOCKS - 1)];
    const int64_t sequence = between(m, 0, m->batch - 1);
    const int32_t *ids;
    int64_t count;
    drop_block(m, held);
    if (m->descs[c].growth != KVC_GROW_PAGED) return;
    assert_ok(kvc_cache_block_table(m->caches[c], sequence, &ids, &count));
    if (count == 0) return;
    const int64_t index = between(m, 0, count - 1), from = index * m->positions;
    held->id = ids[index];
    assert_ok(kvc_blocks_retain(m->blocks, &held->id, 1));
    for (int64_t i = 0; i < m->layers; i++) {
        const naive_list *list = naive_batch_list(&m->naives[c], i, sequence);
        int64_t n = list->length - from;
        n = n < 0 ? 0 : n > m->positions ? m->positions : n;
        held->count[i] = n;
        held->records[i] = malloc((size_t)n * list->record_bytes + 1);
        assert_non_null(held->records[i]);
        if (n > 0)
            memcpy(held->records[i], list->bytes + (size_t)from * list->record_bytes,
                   (size_t)n * list->record_bytes);
    }
}

/* Pitfall 5: whoever shares a block never writes to it. */
static void assert_held_blocks(model *m) {
    for (int i = 0; i < HELD_BLOCKS; i++)
        for (int64_t l = 0; m->held[i].id != KVC_BLOCK_NONE && l < m->layers; l++)
            assert_int_equal(block_differs(m->blocks, m->held[i].id, l, &m->paged[l],
                                           m->held[i].records[l], m->held[i].count[l]),
                             -1);
}

/* Pitfall 16: every reference has one owner, and every block that is used someone. */
static void assert_references(model *m) {
    enum { MOST = 4096 };
    static int64_t references[MOST];
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    uint64_t used = 0;
    memset(references, 0, sizeof references);
    FOR_EACH_CACHE for (int64_t b = 0; b < m->batch; b++) {
        const int32_t *ids;
        int64_t count;
        if (m->descs[c].growth != KVC_GROW_PAGED) continue;
        assert_ok(kvc_cache_block_table(m->caches[c], b, &ids, &count));
        for (int64_t i = 0; i < count; i++) references[ids[i] % MOST]++;
    }
    for (int i = 0; i < HELD_BLOCKS; i++)
        if (m->held[i].id != KVC_BLOCK_NONE) references[m->held[i].id % MOST]++;
    for (int32_t id = 0; id < MOST; id++) {
        assert_int_equal(kvc_blocks_references(m->blocks, id), references[id]);
        used += references[id] > 0;
    }
    assert_ok(kvc_blocks_check(m->blocks));
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    assert_int_equal(stats.used_blocks, used);
}

static void assert_view(const kept_view *view) {
    for (int64_t b = 0; b < view->seen.batch; b++)
        assert_rows_equal(&view->seen, view->layer, b, &view->k, &view->v, view->stable[b]);
}

static void drop_view(kept_view *view) {
    assert_view(view);
    kvc_array_release(&view->k);
    kvc_array_release(&view->v);
    naive_batch_deinit(&view->seen);
    *view = (kept_view){.cache = -1};
}

static void keep_view(model *m, int c, int64_t layer) {
    kept_view *view = &m->views[between(m, 0, VIEWS - 1)];
    const naive_batch *naive = &m->naives[c];
    drop_view(view);
    if (kvc_cache_view(m->caches[c], layer, &view->k, &view->v) != KVC_OK) return;
    if (naive->specs[layer].window) { /* appends write into it: it is only to be there */
        kvc_array_release(&view->k);
        kvc_array_release(&view->v);
        return;
    }
    *view = (kept_view){.cache = c, .layer = layer, .k = view->k, .v = view->v};
    naive_batch_init(&view->seen, m->caches[c]);
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t b = 0; b < m->batch; b++) {
            const naive_list *list = naive_batch_list(naive, i, b);
            naive_list_append(naive_batch_list(&view->seen, i, b), list->bytes, list->length);
            if (i == layer) view->stable[b] = list->length;
        }
}

/* Positions of a sequence from its length on, or from `from` on, may now be written again. */
static void unsettle_views(model *m, int c, int64_t sequence, bool rewritten) {
    for (int i = 0; i < VIEWS; i++) {
        kept_view *view = &m->views[i];
        if (view->cache != c) continue;
        const int64_t length = naive_batch_list(&m->naives[c], view->layer, sequence)->length;
        if (rewritten) view->stable[sequence] = 0;
        else if (view->stable[sequence] > length) view->stable[sequence] = length;
    }
}

/* -- Operations -- */

static bool within(const model *m, int c, int64_t length) {
    return m->descs[c].max_positions == 0 || length <= m->descs[c].max_positions;
}

static int64_t random_count(model *m) {
    return one_in(m, 5) ? between(m, 0, 60) : between(m, 0, 3);
}

/* After a call that the description allows or not, nothing has changed where it failed. Returns
 * whether to try again: where a failure that was injected came first. */
static bool again(model *m, int c, kvc_status status, bool allowed) {
    if (status != KVC_OK) assert_batch_equal(&m->naives[c], m->caches[c]);
    else assert_true(allowed);
    if (allowed || status != KVC_E_RANGE) return struck(m, status);
    m->refusals++;
    return struck(m, KVC_OK);
}

/* Rows for a layer's append, keys and values. */
typedef struct sources {
    rows k, v;
} sources;

static sources random_sources(model *m, int64_t layer, int64_t n) {
    const kvc_layer_spec *spec = &m->geometry[layer];
    const int64_t k[4] = {m->batch, spec->kv_heads, n, spec->key_dim};
    const int64_t v[4] = {m->batch, spec->kv_heads, n, spec->value_dim};
    sources s;
    rows_init(&s.k, dtypes[between(m, 0, 2)], (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), k,
              &m->random);
    rows_init(&s.v, dtypes[between(m, 0, 2)], (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), v,
              &m->random);
    return s;
}

static void free_sources(sources *s) {
    rows_deinit(&s->k);
    rows_deinit(&s->v);
}

/* All sequences, or each as many as it likes. */
static void append(model *m, int c, int64_t layer) {
    int64_t counts[MAX_BATCH], n = random_count(m);
    const bool ragged = one_in(m, 2);
    bool allowed = true;
    sources s = random_sources(m, layer, n);
    for (int64_t b = 0; b < m->batch; b++) {
        counts[b] = !ragged ? n : one_in(m, 3) ? 0 : between(m, 0, n);
        const int64_t length = naive_batch_list(&m->naives[c], layer, b)->length;
        allowed = allowed && within(m, c, length + counts[b]);
    }
    kvc_status status;
    do {
        fail_somewhere(m);
        status = ragged
                     ? kvc_cache_append_ragged(m->caches[c], layer, &s.k.array, &s.v.array, counts)
                     : kvc_cache_append(m->caches[c], layer, &s.k.array, &s.v.array);
    } while (again(m, c, status, allowed));
    if (allowed) naive_batch_append(&m->naives[c], layer, &s.k.array, &s.v.array, counts);
    free_sources(&s);
}

static bool is_lendable(const model *m, int c, int64_t layer) {
    const naive_batch *naive = &m->naives[c];
    bool even = true;
    for (int64_t b = 1; b < m->batch; b++)
        even = even && naive_batch_list(naive, layer, b)->length ==
                           naive_batch_list(naive, layer, 0)->length;
    return even && !naive->blocks && !naive->specs[layer].window && !naive->specs[layer].kv_bits;
}

static void write_in_place(model *m, int c, int64_t layer) {
    const int64_t n = between(m, 1, 20), kept = between(m, 0, n);
    const int64_t length = naive_batch_list(&m->naives[c], layer, 0)->length;
    kvc_array k, v;
    kvc_status status;
    if (!is_lendable(m, c, layer)) {
        assert_fails(kvc_cache_prepare(m->caches[c], layer, n, &k, &v), KVC_E_UNSUPPORTED);
        return;
    }
    do {
        fail_somewhere(m);
        status = kvc_cache_prepare(m->caches[c], layer, n, &k, &v);
    } while (again(m, c, status, within(m, c, length + n)));
    if (status != KVC_OK) return;
    sources s = random_sources(m, layer, n);
    write_rows(&k, &s.k.array);
    write_rows(&v, &s.v.array);
    kvc_array_release(&k);
    kvc_array_release(&v);
    assert_ok(kvc_cache_commit(m->caches[c], layer, kept));
    assert_fails(kvc_cache_commit(m->caches[c], layer, 1), KVC_E_RANGE);
    s.k.array.shape[2] = s.v.array.shape[2] = kept;
    naive_batch_append(&m->naives[c], layer, &s.k.array, &s.v.array, NULL);
    free_sources(&s);
}

/* All sequences, or one. Pitfall 9: what a ring does not hold any more is refused. */
static void trim(model *m, int c) {
    const int64_t first = one_in(m, 2) ? 0 : between(m, 0, m->batch - 1);
    const int64_t end = first == 0 && one_in(m, 2) ? m->batch : first + 1;
    const bool all = first == 0 && end == m->batch;
    int64_t most = INT64_MAX;
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t b = first; b < end; b++) {
            const int64_t n = naive_trimmable(&m->naives[c], m->caches[c], i, b);
            if (n < most) most = n;
        }
    const int64_t n = one_in(m, 4) ? most + between(m, 1, 3) : between(m, 0, most);
    const kvc_status status =
        all ? kvc_cache_trim(m->caches[c], n) : kvc_cache_trim_sequence(m->caches[c], first, n);
    assert_int_equal(status, n <= most ? KVC_OK : KVC_E_RANGE);
    m->trims += status == KVC_OK && n > 0;
    m->refusals += status != KVC_OK;
    for (int64_t b = first; b < end; b++) {
        if (status == KVC_OK) naive_batch_trim(&m->naives[c], b, n);
        unsettle_views(m, c, b, false);
    }
}

static void clear(model *m, int c) {
    const bool all = one_in(m, 4);
    const int64_t sequence = between(m, 0, m->batch - 1);
    if (all) kvc_cache_clear(m->caches[c]);
    else assert_ok(kvc_cache_clear_sequence(m->caches[c], sequence));
    for (int64_t b = 0; b < m->batch; b++) {
        if (all || b == sequence) naive_batch_clear(&m->naives[c], b);
        unsettle_views(m, c, b, false);
    }
}

/* A fork, or any reordering. Where the device did not copy, what was to change is empty. */
static void reorder(model *m, int c) {
    const bool fork = one_in(m, 2);
    const int64_t to = between(m, 0, m->batch - 1);
    int64_t from[MAX_BATCH];
    kvc_status status;
    for (int64_t b = 0; b < m->batch; b++)
        from[b] = fork && b != to ? b : between(m, 0, m->batch - 1);
    do {
        fail_somewhere(m);
        status = fork ? kvc_cache_fork(m->caches[c], to, from[to])
                      : kvc_cache_reorder(m->caches[c], from);
        if (status != KVC_E_UNSUPPORTED) continue;
        for (int64_t b = 0; b < m->batch; b++)
            if (from[b] != b) naive_batch_clear(&m->naives[c], b);
    } while (again(m, c, status, true));
    naive_batch_reorder(&m->naives[c], from);
    m->forks++;
    for (int64_t b = 0; b < m->batch; b++)
        if (from[b] != b) unsettle_views(m, c, b, true);
}

/* A block that the test holds, whole in every layer, begins a sequence, once or twice. */
static void adopt(model *m, int c) {
    const held_block *held = &m->held[between(m, 0, HELD_BLOCKS - 1)];
    const int64_t sequence = between(m, 0, m->batch - 1), n = between(m, 0, 2);
    const int32_t ids[2] = {held->id, held->id};
    bool whole = held->id != KVC_BLOCK_NONE, empty = true;
    kvc_status status;
    for (int64_t i = 0; i < m->layers; i++) {
        whole = whole && held->count[i] == m->positions;
        empty = empty && naive_batch_list(&m->naives[c], i, sequence)->length == 0;
    }
    if (!whole || m->descs[c].growth != KVC_GROW_PAGED) return;
    const bool allowed = empty && within(m, c, n * m->positions);
    do {
        fail_somewhere(m);
        status = kvc_cache_adopt(m->caches[c], sequence, ids, n);
    } while (again(m, c, status, allowed));
    for (int64_t i = 0; allowed && i < m->layers; i++)
        for (int64_t twice = 0; twice < n; twice++)
            naive_list_append(naive_batch_list(&m->naives[c], i, sequence), held->records[i],
                              m->positions);
}

static bool can_copy(const model *m, int to, int from) {
    bool can = true;
    for (int64_t i = 0; i < m->layers; i++)
        for (int64_t b = 0; b < m->batch; b++) {
            const int64_t length = naive_batch_list(&m->naives[from], i, b)->length;
            can = can && within(m, to, length) &&
                  cache_holds_window(m->caches[from], i, b, &m->naives[to].specs[i]);
        }
    return can;
}

static void copy(model *m, int to, int from) {
    kvc_status status;
    bool empty = true;
    for (int64_t i = 0; i < m->layers; i++)
        empty = empty && kvc_cache_length(m->caches[to], i) == 0;
    if (to == from || !empty) {
        status = kvc_cache_copy(m->caches[to], m->caches[from]);
        assert_true(status == KVC_E_INVALID || (to != from && status == KVC_E_RANGE));
        return;
    }
    const bool can = can_copy(m, to, from);
    do {
        fail_somewhere(m);
        status = kvc_cache_copy(m->caches[to], m->caches[from]);
    } while (again(m, to, status, can));
    if (can) naive_batch_copy(&m->naives[to], &m->naives[from]);
    m->copies += can;
}

static void renew(model *m, int c) {
    free_cache(m, c);
    new_cache(m, c);
}

/* An empty one, often a new one, to copy to. */
static void copy_somewhere(model *m) {
    const int from = (int)between(m, 0, CACHES - 1), to = (int)between(m, 0, CACHES - 1);
    if (to != from && one_in(m, 2)) renew(m, to);
    else if (to != from && one_in(m, 2)) {
        kvc_cache_clear(m->caches[to]);
        for (int64_t b = 0; b < m->batch; b++) {
            naive_batch_clear(&m->naives[to], b);
            unsettle_views(m, to, b, true);
        }
    }
    copy(m, to, from);
}

static void step(model *m) {
    const int one = (int)between(m, 0, CACHES - 1);
    const int64_t layer = between(m, 0, m->layers - 1), what = between(m, 1, 100);
    if (what <= 50) append(m, one, layer);
    else if (what <= 55) write_in_place(m, one, layer);
    else if (what <= 65) trim(m, one);
    else if (what <= 69) clear(m, one);
    else if (what <= 79) reorder(m, one);
    else if (what <= 84) hold_block(m, one);
    else if (what <= 88) adopt(m, one);
    else if (what <= 92) copy_somewhere(m);
    else if (what <= 98) keep_view(m, one, layer);
    else renew(m, one);
    m->steps++;
    FOR_EACH_CACHE assert_batch_equal(&m->naives[c], m->caches[c]);
    assert_held_blocks(m);
    assert_references(m);
    for (int i = 0; i < VIEWS; i++) assert_view(&m->views[i]);
}

/* After 100 steps nothing may be left: a model is opened and closed often. */
static void run(model *m, uint64_t seed) {
    const size_t held = test_allocator_held();
    test_allocator_use(true);
    m->random = seed;
    random_geometry(m);
    test_device_init(&m->device);
    assert_ok(kvc_pool_new(&m->pool, m->plain ? &m->device.table : kvc_device_cpu()));
    new_blocks(m);
    for (int i = 0; i < HELD_BLOCKS; i++) m->held[i] = (held_block){.id = KVC_BLOCK_NONE};
    for (int i = 0; i < VIEWS; i++) m->views[i] = (kept_view){.cache = -1};
    FOR_EACH_CACHE new_cache(m, c);
    for (int i = 0; i < 100; i++) step(m);
    FOR_EACH_CACHE free_cache(m, c);
    for (int i = 0; i < VIEWS; i++) drop_view(&m->views[i]);
    for (int i = 0; i < HELD_BLOCKS; i++) drop_block(m, &m->held[i]);
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    assert_int_equal(stats.used_blocks, 0);
    kvc_blocks_free(m->blocks);
    kvc_pool_free(m->pool);
    test_device_deinit(&m->device);
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), held);
}

static void cache__of_every_kind_holds_what_a_naive_one_does(void **state) {
    (void)state;
    static model m; /* too large for a stack that a failed assertion unwinds */
    uint64_t random = test_seed(20261130);
    const double end = test_now() + test_seconds(3);
    do run(&m, test_random(&random));
    while (test_now() < end);
    print_message("%llu steps: %llu copies, %llu forks and reorderings, %llu trims; %llu refusals, "
                  "%llu injected failures\n",
                  (unsigned long long)m.steps, (unsigned long long)m.copies,
                  (unsigned long long)m.forks, (unsigned long long)m.trims,
                  (unsigned long long)m.refusals, (unsigned long long)m.failures);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache__of_every_kind_holds_what_a_naive_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
