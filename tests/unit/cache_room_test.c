/* Room that is written in place (prepare, commit), and room given up (trim, clear). */
#include <string.h>

#include <kvcache/cache.h>

#include "support/naive_cache.h"
#include "support/support.h"
#include "support/test_device.h"

enum { LAYERS = 3, HEADS = 2, KEY_DIM = 8, VALUE_DIM = 6, CHUNK = 4, MAX = 50 };

typedef struct fixture {
    test_device device;
    kvc_pool *pool;
    kvc_cache *cache;
    naive_cache naive;
    uint64_t random;
} fixture;

static void open_all(fixture *f, kvc_growth growth) {
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM, .dtype = KVC_F16};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = CHUNK,
                                 .max_positions = MAX};
    *f = (fixture){.random = 6};
    test_device_init(&f->device);
    assert_ok(kvc_pool_new(&f->pool, &f->device.table));
    assert_ok(kvc_cache_new(&f->cache, f->pool, &desc));
    naive_cache_init(&f->naive, f->cache);
}

static void close_all(fixture *f) {
    assert_cache_equal(&f->naive, f->cache);
    naive_cache_deinit(&f->naive);
    kvc_cache_free(f->cache);
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
}

#define FOR_EACH_GROWTH                                                                            \
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)

static void append(fixture *f, int64_t layer, int64_t n) {
    append_both(f->cache, &f->naive, layer, n, &f->random);
}

/* Keys and values of n positions, and the room for them. */
typedef struct room {
    rows k_rows, v_rows;
    kvc_array k, v;
} room;

static void prepare(fixture *f, room *r, int64_t n) {
    rows_init(&r->k_rows, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, KEY_DIM},
              &f->random);
    rows_init(&r->v_rows, KVC_F32, ROWS_POSITION_MAJOR, (const int64_t[4]){1, HEADS, n, VALUE_DIM},
              &f->random);
    assert_ok(kvc_cache_prepare(f->cache, 0, n, &r->k, &r->v));
    assert_int_equal(r->k.shape[2], n);
    assert_int_equal(r->v.shape[2], n);
    assert_int_equal(r->k.dtype, KVC_F16);
    assert_ok(kvc_cache_check(f->cache));
}

/* The first `count` of an array's positions. */
static kvc_array first(const kvc_array *a, int64_t count) {
    kvc_array some = *a;
    some.shape[2] = count;
    return some;
}

static void fill(const room *r) {
    write_rows(&r->k, &r->k_rows.array);
    write_rows(&r->v, &r->v_rows.array);
}

/* Commits the first n prepared positions in both. */
static void commit(fixture *f, const room *r, int64_t n) {
    const kvc_array k = first(&r->k_rows.array, n), v = first(&r->v_rows.array, n);
    assert_ok(kvc_cache_commit(f->cache, 0, n));
    naive_cache_append(&f->naive, 0, &k, &v);
}

static void done(room *r) {
    kvc_array_release(&r->k);
    kvc_array_release(&r->v);
    rows_deinit(&r->k_rows);
    rows_deinit(&r->v_rows);
}

static void prepare__lends_room_that_commit_makes_live(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        open_all(&f, growth);
        append(&f, 0, 3);
        for (int64_t n = 1; n <= 9; n++) {
            prepare(&f, &r, n);
            fill(&r);
            assert_cache_equal(&f.naive, f.cache); /* not live yet */
            commit(&f, &r, n);
            assert_cache_equal(&f.naive, f.cache);
            done(&r);
        }
        close_all(&f);
    }
}

static void prepare__counts_as_written_by_the_caller_and_not_as_copied(void **state) {
    (void)state;
    fixture f;
    room r;
    open_all(&f, KVC_GROW_RESERVE);
    prepare(&f, &r, 7);
    fill(&r);
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_cache_stats_get(f.cache, &stats));
    assert_int_equal(stats.appends, 0);
    assert_int_equal(stats.appended_bytes, 0);
    commit(&f, &r, 7);
    done(&r);
    assert_ok(kvc_cache_stats_get(f.cache, &stats));
    assert_int_equal(stats.appends, 1);
    assert_int_equal(stats.appended_bytes, 7 * HEADS * (KEY_DIM + VALUE_DIM) * 2);
    assert_int_equal(stats.copied_bytes, 0);
    assert_int_equal(f.device.copied_bytes, 0);
    close_all(&f);
}

static void commit__of_fewer_drops_the_rest(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        open_all(&f, growth);
        append(&f, 0, 2);
        prepare(&f, &r, 8);
        fill(&r);
        commit(&f, &r, 3);
        assert_fails(kvc_cache_commit(f.cache, 0, 1), KVC_E_RANGE);
        done(&r);
        append(&f, 0, 1);
        prepare(&f, &r, 2);
        assert_ok(kvc_cache_commit(f.cache, 0, 0)); /* a step that came to nothing */
        assert_fails(kvc_cache_commit(f.cache, 0, 1), KVC_E_RANGE);
        done(&r);
        close_all(&f);
    }
}

static void commit__of_more_than_prepared_is_refused_with_both_counts(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        open_all(&f, growth);
        append(&f, 0, 1);
        assert_fails(kvc_cache_commit(f.cache, 0, 1), KVC_E_RANGE);
        prepare(&f, &r, 5);
        assert_fails(kvc_cache_commit(f.cache, 1, 1), KVC_E_RANGE); /* of another layer */
        assert_fails(kvc_cache_commit(f.cache, 0, -1), KVC_E_RANGE);
        assert_fails(kvc_cache_commit(f.cache, 0, INT64_MAX), KVC_E_RANGE);
        assert_fails(kvc_cache_commit(f.cache, 0, 6), KVC_E_RANGE);
        assert_non_null(strstr(kvc_last_error(), "6 given"));
        assert_non_null(strstr(kvc_last_error(), "5 prepared"));
        assert_int_equal(kvc_cache_length(f.cache, 0), 1);
        fill(&r);
        commit(&f, &r, 5); /* a refusal takes nothing away */
        done(&r);
        close_all(&f);
    }
}

static void prepare__that_cannot_be_is_refused_and_keeps_what_was_prepared(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        kvc_array k, v;
        open_all(&f, growth);
        append(&f, 0, 10);
        prepare(&f, &r, MAX - 10);
        fill(&r);
        const int64_t refused[] = {-1, INT64_MIN, MAX - 9, INT64_MAX};
        for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
            k.ndim = v.ndim = 1;
            assert_fails(kvc_cache_prepare(f.cache, 0, refused[i], &k, &v), KVC_E_RANGE);
            assert_null(k.buffer);
            assert_int_equal(k.ndim + v.ndim, 0);
        }
        assert_fails(kvc_cache_prepare(f.cache, 0, 1, NULL, &v), KVC_E_INVALID);
        assert_fails(kvc_cache_prepare(f.cache, 0, 1, &k, NULL), KVC_E_INVALID);
        commit(&f, &r, MAX - 10);
        done(&r);
        close_all(&f);
    }
}

/* Whatever growth that takes: by CHUNK and EXACT the room lies in another buffer each time. */
static void prepare__again_lends_the_same_positions_with_what_they_hold(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        kvc_array k, v;
        open_all(&f, growth);
        append(&f, 0, 2);
        prepare(&f, &r, 7);
        fill(&r);
        assert_ok(kvc_cache_prepare(f.cache, 0, 30, &k, &v));
        kvc_array_release(&k);
        kvc_array_release(&v);
        assert_ok(kvc_cache_prepare(f.cache, 0, 7, &k, &v));
        kvc_array_release(&k);
        kvc_array_release(&v);
        commit(&f, &r, 7);
        done(&r);
        close_all(&f);
    }
}

static void prepare__of_nothing_lends_nothing_and_takes_no_memory(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        kvc_array k, v;
        open_all(&f, growth);
        for (int i = 0; i < 2; i++) {
            const uint64_t calls = test_device_driver_calls(&f.device);
            const int64_t capacity = kvc_cache_capacity(f.cache, 0);
            assert_ok(kvc_cache_prepare(f.cache, 0, 0, &k, &v));
            assert_int_equal(kvc_array_size(&k) + kvc_array_size(&v), 0);
            kvc_array_release(&k);
            kvc_array_release(&v);
            assert_int_equal(test_device_driver_calls(&f.device), calls);
            assert_int_equal(kvc_cache_capacity(f.cache, 0), capacity);
            assert_ok(kvc_cache_commit(f.cache, 0, 0));
            assert_cache_equal(&f.naive, f.cache);
            append(&f, 0, 5); /* and again when there is memory, but no position */
            kvc_cache_clear(f.cache);
            naive_cache_clear(&f.naive);
        }
        close_all(&f);
    }
}

/* What is prepared is gone with any change of the layer: it would not be where it was. */
static void prepare__is_void_after_an_append_a_trim_and_a_clear(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        room r;
        open_all(&f, growth);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 5);
        for (int way = 0; way < 3; way++) {
            prepare(&f, &r, 3);
            fill(&r);
            if (way == 0) append(&f, 0, 2);
            if (way == 1) {
                assert_ok(kvc_cache_trim(f.cache, 1));
                naive_cache_trim(&f.naive, 1);
            }
            if (way == 2) {
                kvc_cache_clear(f.cache);
                naive_cache_clear(&f.naive);
            }
            assert_fails(kvc_cache_commit(f.cache, 0, 1), KVC_E_RANGE);
            assert_cache_equal(&f.naive, f.cache);
            done(&r);
        }
        close_all(&f);
    }
}

/* Pitfall 9. */
static void trim__is_of_all_layers_or_of_none(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        open_all(&f, growth);
        append(&f, 0, 9);
        append(&f, 1, 4);
        append(&f, 2, 7);
        assert_fails(kvc_cache_trim(f.cache, 5), KVC_E_RANGE);
        assert_non_null(strstr(kvc_last_error(), "5 given"));
        assert_non_null(strstr(kvc_last_error(), "layer 1 holds 4"));
        assert_cache_equal(&f.naive, f.cache);
        assert_fails(kvc_cache_trim(f.cache, -1), KVC_E_RANGE);
        assert_fails(kvc_cache_trim(f.cache, INT64_MIN), KVC_E_RANGE);
        assert_cache_equal(&f.naive, f.cache);
        assert_ok(kvc_cache_trim(f.cache, 0));
        assert_cache_equal(&f.naive, f.cache);
        assert_ok(kvc_cache_trim(f.cache, 4));
        naive_cache_trim(&f.naive, 4);
        assert_int_equal(kvc_cache_length(f.cache, 1), 0);
        assert_fails(kvc_cache_trim(f.cache, 1), KVC_E_RANGE);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 3);
        close_all(&f);
    }
}

static void trim__and_clear_keep_the_memory_for_what_comes_next(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_CHUNK; growth++) {
        fixture f;
        open_all(&f, growth);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 40);
        const int64_t capacity = kvc_cache_capacity(f.cache, 0);
        const uint64_t calls = test_device_driver_calls(&f.device);
        kvc_cache_nbytes before = {.struct_size = sizeof before}, after = before;
        assert_ok(kvc_cache_nbytes_get(f.cache, &before));
        assert_ok(kvc_cache_trim(f.cache, 30));
        naive_cache_trim(&f.naive, 30);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 30);
        kvc_cache_clear(f.cache);
        naive_cache_clear(&f.naive);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 40);
        assert_ok(kvc_cache_nbytes_get(f.cache, &after));
        assert_memory_equal(&after, &before, sizeof before);
        assert_int_equal(kvc_cache_capacity(f.cache, 0), capacity);
        assert_int_equal(test_device_driver_calls(&f.device), calls);
        close_all(&f);
    }
}

/* What the header warns of: a view shows what is written into its positions after a trim, and keeps
 * those before. */
static void trim__leaves_the_kept_positions_of_a_view(void **state) {
    (void)state;
    FOR_EACH_GROWTH {
        fixture f;
        kvc_array k, v;
        naive_layer seen;
        open_all(&f, growth);
        for (int64_t i = 0; i < LAYERS; i++) append(&f, i, 10);
        assert_ok(kvc_cache_view(f.cache, 0, &k, &v));
        naive_layer_copy(&seen, &f.naive.layer[0]);
        assert_ok(kvc_cache_trim(f.cache, 4));
        naive_cache_trim(&f.naive, 4);
        assert_view_equal(&seen, &k, &v, 10);
        append(&f, 0, 3);
        append(&f, 0, 20);
        assert_view_equal(&seen, &k, &v, 6);
        kvc_array_release(&k);
        kvc_array_release(&v);
        naive_layer_deinit(&seen);
        close_all(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prepare__lends_room_that_commit_makes_live),
        cmocka_unit_test(prepare__counts_as_written_by_the_caller_and_not_as_copied),
        cmocka_unit_test(commit__of_fewer_drops_the_rest),
        cmocka_unit_test(commit__of_more_than_prepared_is_refused_with_both_counts),
        cmocka_unit_test(prepare__that_cannot_be_is_refused_and_keeps_what_was_prepared),
        cmocka_unit_test(prepare__again_lends_the_same_positions_with_what_they_hold),
        cmocka_unit_test(prepare__of_nothing_lends_nothing_and_takes_no_memory),
        cmocka_unit_test(prepare__is_void_after_an_append_a_trim_and_a_clear),
        cmocka_unit_test(trim__is_of_all_layers_or_of_none),
        cmocka_unit_test(trim__and_clear_keep_the_memory_for_what_comes_next),
        cmocka_unit_test(trim__leaves_the_kept_positions_of_a_view),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
