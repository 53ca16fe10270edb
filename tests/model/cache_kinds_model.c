#include "cache_kinds_model.h"

#include <stdlib.h>
#include <string.h>

#include "support/fault.h"

/* -- What is made -- */

kvc_dtype random_dtype(model *m) {
    static const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};
    return dtypes[between(m, 0, 2)];
}

/* Dims that can be packed, or any. */
static void random_geometry(model *m) {
    m->plain = one_in(m, 3);
    m->layers = between(m, 1, MAX_LAYERS);
    m->batch = between(m, 1, MAX_BATCH);
    m->positions = between(m, 16, 40);
    for (int i = 0; i < MAX_LAYERS; i++) {
        const bool packable = !m->plain && one_in(m, 2);
        const int64_t widest = one_in(m, 12) ? 1000 : 20; /* a few rows fill a page, or many do */
        m->geometry[i] = (kvc_layer_spec){.kv_heads = between(m, 1, 2)};
        m->geometry[i].key_dim = packable ? 32 * between(m, 1, 3) : between(m, 1, widest);
        m->geometry[i].value_dim = packable ? 32 * between(m, 1, 2) : between(m, 1, widest);
    }
}

static kvc_layer_spec random_spec(model *m, int64_t layer, bool paged) {
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    kvc_layer_spec spec = m->geometry[layer];
    spec.dtype = random_dtype(m);
    if (m->plain) return spec;
    if (spec.key_dim % 32 == 0 && spec.value_dim % 32 == 0 && !one_in(m, 3)) {
        spec.kv_bits = widths[between(m, 0, 5)];
        const bool halves = spec.key_dim % 64 == 0 && spec.value_dim % 64 == 0;
        spec.kv_group = halves && one_in(m, 2) ? 64 : 32;
        spec.rotated = one_in(m, 3);
        spec.keys_per_channel = !paged && one_in(m, 2);
    }
    if (!paged && !spec.keys_per_channel && one_in(m, 2)) {
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
        specs[i] = growth == KVC_GROW_PAGED ? m->paged[i]
                   : one_in(m, 2)           ? m->usual[i]
                                            : random_spec(m, i, false);
    if (growth == KVC_GROW_RESERVE && desc.max_positions == 0) desc.max_positions = LONGEST;
    if (growth == KVC_GROW_PAGED) desc.blocks = m->blocks;
    return desc;
}

/* Leaves the pool of blocks a few. */
static void hoard(model *m) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    const int64_t left = (int64_t)(stats.most_blocks - stats.used_blocks), n = between(m, 0, 4);
    if (stats.most_blocks * stats.block_bytes > (uint64_t)32 << 20) return; /* in no time */
    m->hoarded = left > n ? left - n : 0;
    assert_ok(kvc_blocks_take(m->blocks, m->hoarded, m->hoard));
}

void fail_somewhere(model *m) {
    if (one_in(m, 30)) hoard(m);
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

bool struck(model *m, kvc_status status) {
    const bool failed = test_fault_disarm();
    const bool limited = kvc_pool_memory_limit_set(m->pool, SIZE_MAX) != SIZE_MAX || m->hoarded > 0;
    assert_ok(kvc_blocks_release(m->blocks, m->hoard, m->hoarded));
    m->hoarded = 0;
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
    kvc_blocks_desc desc = {.struct_size = sizeof desc,
                            .layers = m->layers,
                            .specs = m->paged,
                            .spec_count = m->layers,
                            .positions = m->positions,
                            .limit_bytes = (uint64_t)1 << 27,
                            .slab_bytes = (uint64_t)between(m, 1, 200000)};
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_blocks_new(&m->blocks, m->pool, &desc));
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    kvc_blocks_free(m->blocks);
    desc.limit_bytes = MOST_BLOCKS * stats.block_bytes;
    assert_ok(kvc_blocks_new(&m->blocks, m->pool, &desc));
}

/* -- Blocks and views that the test keeps -- */

static void drop_block(model *m, held_block *held) {
    if (held->id == KVC_BLOCK_NONE) return;
    assert_ok(kvc_blocks_release(m->blocks, &held->id, 1));
    for (int i = 0; i < MAX_LAYERS; i++) free(held->records[i]);
    *held = (held_block){.id = KVC_BLOCK_NONE};
}

void hold_block(model *m, int c) {
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
    int64_t references[MOST_BLOCKS] = {0};
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    uint64_t used = 0;
    FOR_EACH_CACHE for (int64_t b = 0; b < m->batch; b++) {
        const int32_t *ids;
        int64_t count;
        if (m->descs[c].growth != KVC_GROW_PAGED) continue;
        assert_ok(kvc_cache_block_table(m->caches[c], b, &ids, &count));
        for (int64_t i = 0; i < count; i++) references[ids[i]]++;
    }
    for (int i = 0; i < HELD_BLOCKS; i++)
        if (m->held[i].id != KVC_BLOCK_NONE) references[m->held[i].id]++;
    for (int32_t id = 0; id < MOST_BLOCKS; id++) {
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

void keep_view(model *m, int c, int64_t layer) {
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

void unsettle_views(model *m, int c, int64_t sequence, bool rewritten) {
    for (int i = 0; i < VIEWS; i++) {
        kept_view *view = &m->views[i];
        if (view->cache != c) continue;
        const int64_t length = naive_batch_list(&m->naives[c], view->layer, sequence)->length;
        if (rewritten) view->stable[sequence] = 0;
        else if (view->stable[sequence] > length) view->stable[sequence] = length;
    }
}

void assert_model(model *m) {
    FOR_EACH_CACHE assert_batch_equal(&m->naives[c], m->caches[c]);
    assert_held_blocks(m);
    assert_references(m);
    for (int i = 0; i < VIEWS; i++) assert_view(&m->views[i]);
}

/* -- Life -- */

void renew_cache(model *m, int c) {
    free_cache(m, c);
    new_cache(m, c);
}

void model_init(model *m, uint64_t seed) {
    m->allocated = test_allocator_held();
    test_allocator_use(true);
    m->random = seed;
    random_geometry(m);
    test_device_init(&m->device);
    assert_ok(kvc_pool_new(&m->pool, m->plain ? &m->device.table : kvc_device_cpu()));
    new_blocks(m);
    for (int i = 0; i < HELD_BLOCKS; i++) m->held[i] = (held_block){.id = KVC_BLOCK_NONE};
    for (int i = 0; i < VIEWS; i++) m->views[i] = (kept_view){.cache = -1};
    for (int64_t i = 0; i < m->layers; i++) m->usual[i] = random_spec(m, i, false);
    FOR_EACH_CACHE new_cache(m, c);
}

void model_deinit(model *m) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    FOR_EACH_CACHE free_cache(m, c);
    for (int i = 0; i < VIEWS; i++) drop_view(&m->views[i]);
    for (int i = 0; i < HELD_BLOCKS; i++) drop_block(m, &m->held[i]);
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    assert_int_equal(stats.used_blocks, 0);
    kvc_blocks_free(m->blocks);
    kvc_pool_free(m->pool);
    test_device_deinit(&m->device);
    test_allocator_use(false);
    assert_int_equal(test_allocator_held(), m->allocated);
}
