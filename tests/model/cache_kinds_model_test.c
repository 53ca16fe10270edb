/* Random operations on caches of random kinds and on naive ones: what they hold is the same to the
 * bit after every step, also after calls that failed. */
#include "cache_kinds_model.h"
#include "support/naive_cache.h"

static bool within(const model *m, int c, int64_t length) {
    return m->descs[c].max_positions == 0 || length <= m->descs[c].max_positions;
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
    rows_init(&s.k, random_dtype(m), (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), k, &m->random);
    rows_init(&s.v, random_dtype(m), (rows_layout)between(m, 0, ROWS_LAYOUTS - 1), v, &m->random);
    return s;
}

static void free_sources(sources *s) {
    rows_deinit(&s->k);
    rows_deinit(&s->v);
}

/* The first counts[b] of n positions; ragged or not, by the call for that. */
static void append(model *m, int c, int64_t layer, int64_t n, const int64_t *counts, bool ragged) {
    bool allowed = true;
    sources s = random_sources(m, layer, n);
    for (int64_t b = 0; b < m->batch; b++) {
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

/* Most are short; long ones complete blocks of keys, and turn their tail round. */
static int64_t random_count(model *m, const kvc_layer_spec *spec) {
    if (spec->keys_per_channel && one_in(m, 2)) return between(m, 0, (int64_t)2 * spec->kv_group);
    return one_in(m, 5) ? between(m, 0, 60) : between(m, 0, 3);
}

/* To one layer, or to all, as only what all have can be trimmed; all sequences, or each as many as
 * it likes. */
static void append_some(model *m, int c) {
    int64_t counts[MAX_BATCH], layer = between(m, 0, m->layers - 1);
    const int64_t n = random_count(m, &m->naives[c].specs[layer]);
    const bool ragged = one_in(m, 2), all = one_in(m, 2);
    for (int64_t b = 0; b < m->batch; b++)
        counts[b] = !ragged ? n : one_in(m, 3) ? 0 : between(m, 0, n);
    if (!all) append(m, c, layer, n, counts, ragged);
    for (layer = 0; all && layer < m->layers; layer++) append(m, c, layer, n, counts, ragged);
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

/* An empty one, often a new one, to copy to. */
static void copy_somewhere(model *m) {
    const int from = (int)between(m, 0, CACHES - 1), to = (int)between(m, 0, CACHES - 1);
    if (to != from && one_in(m, 2)) renew_cache(m, to);
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
    if (what <= 50) append_some(m, one);
    else if (what <= 55) write_in_place(m, one, layer);
    else if (what <= 65) trim(m, one);
    else if (what <= 69) clear(m, one);
    else if (what <= 79) reorder(m, one);
    else if (what <= 84) hold_block(m, one);
    else if (what <= 88) adopt(m, one);
    else if (what <= 92) copy_somewhere(m);
    else if (what <= 98) keep_view(m, one, layer);
    else renew_cache(m, one);
    m->steps++;
    assert_model(m);
}

/* After 100 steps nothing may be left: a model is opened and closed often. */
static void run(model *m, uint64_t seed) {
    model_init(m, seed);
    for (int i = 0; i < 100; i++) step(m);
    model_deinit(m);
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
