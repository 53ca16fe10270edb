/* The steady state asks nothing of the system: no call, no allocation. Warm means that the pool has
 * what an earlier cache gave back. */
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <kvcache/attention.h>

#include "quiet.h"
#include "support/support.h"

enum { LAYERS = 2, HEADS = 4, KEY_DIM = 64, VALUE_DIM = 48, CHUNK = 32, POSITIONS = 400 };

static void assert_quiet(bool (*work)(void *context), void *context) {
    const quiet_counts counts = quiet_run(work, context);
    if (counts.calls || counts.allocations)
        fail_msg("%llu system calls, the first number %lld; %llu allocations",
                 (unsigned long long)counts.calls, (long long)counts.first_call,
                 (unsigned long long)counts.allocations);
    assert_true(counts.ok);
}

/* -- That the counts count -- */

static bool call_the_system(void *context) {
    (void)context;
    return syscall(SYS_getppid) == -1;
}

static bool allocate(void *context) {
    void *(*volatile take)(size_t) = malloc; /* not to be optimised away */
    void *memory = take(*(size_t *)context);
    const bool ok = memory != NULL;
    free(memory);
    return ok;
}

static void quiet__sees_a_system_call(void **state) {
    (void)state;
    const quiet_counts counts = quiet_run(call_the_system, NULL);
    assert_true(counts.ok);
    assert_int_equal(counts.calls, 1);
    assert_int_equal(counts.first_call, SYS_getppid);
    assert_int_equal(counts.allocations, 0);
}

static void quiet__sees_an_allocation(void **state) {
    (void)state;
    size_t small = 40, large = (size_t)64 << 20;
    quiet_counts counts = quiet_run(allocate, &small);
    assert_int_equal(counts.allocations, 1);
    counts = quiet_run(allocate, &large); /* which malloc maps */
    assert_int_equal(counts.allocations, 1);
    assert_true(counts.calls > 0);
}

/* -- The work -- */

typedef struct fixture {
    kvc_pool *pool;
    kvc_cache *cache;
    kvc_array k, v; /* rows for an append */
    int64_t steps;
} fixture;

static float zeros[HEADS * KEY_DIM];

static void new_cache(fixture *f, kvc_growth growth, kvc_dtype dtype) {
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = dtype};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = CHUNK,
                                 .max_positions = POSITIONS};
    assert_ok(kvc_cache_new(&f->cache, f->pool, &desc));
    f->steps = POSITIONS;
}

static void open_pool(fixture *f) {
    assert_ok(kvc_pool_new(&f->pool, kvc_device_cpu()));
    assert_ok(
        kvc_array_borrow(&f->k, KVC_F32, 4, (const int64_t[4]){1, HEADS, 1, KEY_DIM}, NULL, zeros));
    assert_ok(kvc_array_borrow(&f->v, KVC_F32, 4, (const int64_t[4]){1, HEADS, 1, VALUE_DIM}, NULL,
                               zeros));
}

static bool append(void *context) {
    const fixture *f = context;
    for (int64_t i = 0; i < f->steps; i++)
        for (int64_t layer = 0; layer < LAYERS; layer++)
            if (kvc_cache_append(f->cache, layer, &f->k, &f->v) != KVC_OK) return false;
    return true;
}

static void close_all(fixture *f) {
    kvc_cache_free(f->cache);
    kvc_pool_free(f->pool);
}

static const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};

/* Within memory that the cache has: it held as many positions before. */
static void append__that_does_not_grow_is_quiet(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_CHUNK; growth++)
        for (int i = 0; i < 3; i++) {
            fixture f;
            open_pool(&f);
            new_cache(&f, growth, dtypes[i]);
            f.steps = CHUNK;
            assert_true(append(&f));
            assert_ok(kvc_cache_trim(f.cache, CHUNK));
            assert_quiet(append, &f);
            close_all(&f);
        }
}

/* Growth too is quiet where the pool has what it wants: the pages of reserve, the larger buffers of
 * chunk, and each step's of exact. */
static void append__that_grows_in_a_warm_pool_is_quiet(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)
        for (int i = 0; i < 3; i++) {
            fixture f;
            open_pool(&f);
            new_cache(&f, growth, dtypes[i]);
            assert_true(append(&f));
            kvc_cache_free(f.cache);
            new_cache(&f, growth, dtypes[i]);
            assert_quiet(append, &f);
            close_all(&f);
        }
}

/* That was the pool's doing: without it every policy is heard. */
static void append__that_grows_in_a_cold_pool_is_heard(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        open_pool(&f);
        new_cache(&f, growth, KVC_F32);
        const quiet_counts counts = quiet_run(append, &f);
        assert_false(counts.ok); /* its memory was refused */
        assert_true(counts.calls > 0);
        close_all(&f);
    }
}

static bool write_look_and_go_back(void *context) {
    const fixture *f = context;
    for (int64_t i = 0; i < f->steps; i++) {
        kvc_array k, v;
        kvc_cache_stats stats = {.struct_size = sizeof stats};
        if (kvc_cache_prepare(f->cache, 0, 2, &k, &v) != KVC_OK) return false;
        kvc_array_release(&k);
        kvc_array_release(&v);
        if (kvc_cache_commit(f->cache, 0, 2) != KVC_OK) return false;
        if (kvc_cache_append(f->cache, 1, &f->k, &f->v) != KVC_OK) return false;
        if (kvc_cache_view(f->cache, 0, &k, &v) != KVC_OK) return false;
        kvc_array_release(&k);
        kvc_array_release(&v);
        if (kvc_cache_stats_get(f->cache, &stats) != KVC_OK) return false;
        if (kvc_cache_check(f->cache) != KVC_OK) return false;
        if (kvc_cache_trim(f->cache, 1) != KVC_OK) return false;
        if (i % 16 == 15) kvc_cache_clear(f->cache);
    }
    return true;
}

static void cache__in_steady_use_is_quiet_in_every_call(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        fixture f;
        open_pool(&f);
        new_cache(&f, growth, KVC_BF16);
        f.steps = 32;
        assert_true(write_look_and_go_back(&f));
        kvc_cache_clear(f.cache);
        assert_quiet(write_look_and_go_back, &f);
        close_all(&f);
    }
}

/* A decoding step of every layer, then a block of queries. */
typedef struct attending {
    fixture f;
    kvc_attention *plan;
    kvc_array q, out, lse;
    kvc_attention_extras extras;
} attending;

enum { Q_HEADS = 2 * HEADS, BLOCK = 3 };

static bool decode(void *context) {
    attending *a = context;
    for (int64_t i = 0; i < a->f.steps; i++)
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            if (kvc_cache_append(a->f.cache, layer, &a->f.k, &a->f.v) != KVC_OK) return false;
            a->q.shape[2] = a->out.shape[2] = a->lse.shape[2] = i % 8 == 7 ? BLOCK : 1;
            if (kvc_attention_run(a->plan, a->f.cache, layer, &a->q, &a->out,
                                  i % 2 ? &a->extras : NULL) != KVC_OK)
                return false;
        }
    return true;
}

static void attend_quietly(kvc_path path, kvc_growth growth, kvc_dtype dtype) {
    static float q[Q_HEADS * BLOCK * KEY_DIM], out[Q_HEADS * BLOCK * VALUE_DIM];
    static float lse[Q_HEADS * BLOCK], heads[Q_HEADS], nothing;
    kvc_array mask, numbers;
    attending a;
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    open_pool(&a.f);
    new_cache(&a.f, growth, dtype);
    a.f.steps = 60;
    assert_true(append(&a.f)); /* the pool is warm after this */
    kvc_cache_free(a.f.cache);
    new_cache(&a.f, growth, dtype);
    a.f.steps = 60;
    assert_ok(kvc_attention_desc_for(&desc, a.f.cache, 0));
    desc.q_heads = Q_HEADS;
    desc.max_q_len = BLOCK;
    desc.path = path;
    desc.window = 40;
    desc.softcap = 30;
    assert_ok(kvc_attention_plan(&a.plan, &desc));
    assert_ok(kvc_array_borrow(&a.q, KVC_F32, 4, (const int64_t[4]){1, Q_HEADS, BLOCK, KEY_DIM},
                               NULL, q));
    assert_ok(kvc_array_borrow(&a.out, KVC_F32, 4, (const int64_t[4]){1, Q_HEADS, BLOCK, VALUE_DIM},
                               NULL, out));
    assert_ok(
        kvc_array_borrow(&a.lse, KVC_F32, 3, (const int64_t[3]){1, Q_HEADS, BLOCK}, NULL, lse));
    assert_ok(kvc_array_borrow(&mask, KVC_F32, 1, (const int64_t[1]){1}, NULL, &nothing));
    assert_ok(kvc_array_borrow(&numbers, KVC_F32, 1, (const int64_t[1]){Q_HEADS}, NULL, heads));
    a.extras = (kvc_attention_extras){.struct_size = sizeof a.extras,
                                      .mask = &mask,
                                      .sinks = &numbers,
                                      .slopes = &numbers,
                                      .lse = &a.lse};
    assert_quiet(decode, &a);
    kvc_attention_free(a.plan);
    close_all(&a.f);
}

static void attention__of_every_run_is_quiet(void **state) {
    (void)state;
    for (kvc_path path = KVC_PATH_REFERENCE; path <= KVC_PATH_FUSED; path++)
        for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)
            for (int i = 0; i < 3; i++) attend_quietly(path, growth, dtypes[i]);
}

/* A batch whose sequences differ in length, from step to step; each step in two parts that are
 * merged. */
typedef struct ragged {
    kvc_attention *plan;
    kvc_array k, v, q, outs[2], lses[2];
} ragged;

enum { BATCH = 4, STEPS = 10, TURNS = 16 };

static bool attend_ragged(void *context) {
    ragged *r = context;
    int64_t lengths[BATCH];
    for (int64_t step = 0; step < STEPS; step++) {
        for (int part = 0; part < 2; part++) {
            for (int64_t b = 0; b < BATCH; b++)
                lengths[b] = (step * (b + 1 + part) * 37) % (POSITIONS + 1);
            const kvc_attention_extras extras = {
                .struct_size = sizeof extras, .lse = &r->lses[part], .lengths = lengths};
            if (kvc_attention_run_kv(r->plan, &r->k, &r->v, &r->q, &r->outs[part], &extras) !=
                KVC_OK)
                return false;
        }
        if (kvc_attention_merge(&r->outs[0], &r->lses[0], r->outs, r->lses, 2) != KVC_OK)
            return false;
    }
    return true;
}

/* Many threads in name, one in fact: what is cut for them is merged. */
static void take_turns(void *context, int64_t count, kvc_task_fn task, void *argument) {
    (void)context;
    for (int64_t i = 0; i < count; i++) task(argument, i, (int)(i % TURNS));
}

static kvc_array borrow(const void *data, kvc_dtype dtype, int64_t heads, int64_t n, int64_t dim) {
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, dtype, 4, (const int64_t[4]){BATCH, heads, n, dim}, NULL, data));
    return a;
}

static void attend_ragged_quietly(kvc_path path, kvc_dtype dtype, const kvc_executor *executor) {
    static float k[BATCH * HEADS * POSITIONS * KEY_DIM], v[BATCH * HEADS * POSITIONS * VALUE_DIM];
    static float q[BATCH * Q_HEADS * KEY_DIM], out[2][BATCH * Q_HEADS * VALUE_DIM];
    static float lse[2][BATCH * Q_HEADS];
    ragged r = {.k = borrow(k, dtype, HEADS, POSITIONS, KEY_DIM),
                .v = borrow(v, dtype, HEADS, POSITIONS, VALUE_DIM),
                .q = borrow(q, KVC_F32, Q_HEADS, 1, KEY_DIM)};
    for (int part = 0; part < 2; part++) {
        r.outs[part] = borrow(out[part], KVC_F32, Q_HEADS, 1, VALUE_DIM);
        r.lses[part] = borrow(lse[part], KVC_F32, Q_HEADS, 1, 1);
        r.lses[part].ndim = 3;
    }
    const kvc_attention_desc desc = {.struct_size = sizeof desc,
                                     .batch = BATCH,
                                     .q_heads = Q_HEADS,
                                     .kv_heads = HEADS,
                                     .key_dim = KEY_DIM,
                                     .value_dim = VALUE_DIM,
                                     .kv_dtype = dtype,
                                     .path = path,
                                     .executor = executor};
    assert_ok(kvc_attention_plan(&r.plan, &desc));
    assert_quiet(attend_ragged, &r);
    kvc_attention_free(r.plan);
}

static void attention__of_ragged_batches_is_quiet(void **state) {
    (void)state;
    const kvc_executor turns = {sizeof turns, NULL, TURNS, take_turns};
    for (kvc_path path = KVC_PATH_REFERENCE; path <= KVC_PATH_FUSED; path++)
        for (int i = 0; i < 3; i++) {
            attend_ragged_quietly(path, dtypes[i], NULL);
            attend_ragged_quietly(path, dtypes[i], &turns);
        }
}

/* Small enough for malloc, mapped, and on huge pages. */
static const size_t buffer_bytes[3] = {100, (size_t)1 << 20, (size_t)8 << 20};

static bool take_and_give_back(void *context) {
    for (int i = 0; i < 1000; i++) {
        kvc_buffer *buffer;
        if (kvc_buffer_new(&buffer, context, buffer_bytes[i % 3]) != KVC_OK) return false;
        kvc_buffer_release(buffer);
    }
    return true;
}

static void pool__a_hit_is_quiet(void **state) {
    (void)state;
    kvc_pool *pool;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_true(take_and_give_back(pool));
    assert_quiet(take_and_give_back, pool);
    kvc_pool_free(pool);
}

int main(void) {
    if (!quiet_can_count()) return 77; /* skipped, to CTest */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet__sees_a_system_call),
        cmocka_unit_test(quiet__sees_an_allocation),
        cmocka_unit_test(append__that_does_not_grow_is_quiet),
        cmocka_unit_test(append__that_grows_in_a_warm_pool_is_quiet),
        cmocka_unit_test(append__that_grows_in_a_cold_pool_is_heard),
        cmocka_unit_test(cache__in_steady_use_is_quiet_in_every_call),
        cmocka_unit_test(attention__of_every_run_is_quiet),
        cmocka_unit_test(attention__of_ragged_batches_is_quiet),
        cmocka_unit_test(pool__a_hit_is_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
