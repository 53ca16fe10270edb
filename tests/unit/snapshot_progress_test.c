/* Snapshots: how far a save or a load has come, and how it is ended. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/snapshot.h>

#include "support/files.h"
#include "support/naive_cache.h"
#include "support/support.h"

enum { LAYERS = 3, HEADS = 2, DIM = 32, POSITIONS = 50 };

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
    kvc_pool *pool;
    kvc_cache *cache;
    int calls, end_at; /* end_at: the call that ends the work, from 1 on; 0: none */
    uint64_t done, total;
    bool there; /* the file, at the last call */
} stage;

/* A plain layer, packed ones and a window: each with tensors of its own sizes. */
static const kvc_layer_spec specs[LAYERS] = {
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16},
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .kv_bits = 4, .kv_group = 32},
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F16, .window = 8, .keep = 2},
};

static int setup(void **state) {
    static stage s;
    s = (stage){.calls = 0};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = specs,
                                 .spec_count = LAYERS,
                                 .growth = KVC_GROW_CHUNK};
    const int64_t shape[] = {1, HEADS, POSITIONS, DIM};
    uint64_t random = 3;
    rows numbers;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "a.safetensors", s.path);
    assert_ok(kvc_pool_new(&s.pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&s.cache, s.pool, &desc));
    rows_init(&numbers, KVC_F32, ROWS_HEAD_MAJOR, shape, &random);
    for (int64_t i = 0; i < LAYERS; i++)
        assert_ok(kvc_cache_append(s.cache, i, &numbers.array, &numbers.array));
    rows_deinit(&numbers);
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    kvc_cache_free(s->cache);
    assert_ok(kvc_pool_stats_get(s->pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    kvc_pool_free(s->pool);
    test_folder_deinit(&s->folder);
    return 0;
}

static kvc_status told(void *context, uint64_t done, uint64_t total) {
    stage *s = context;
    if (s->calls == 0) assert_int_equal(done, 0);
    else assert_int_equal(total, s->total);
    assert_true(done >= s->done && done <= total);
    s->done = done;
    s->total = total;
    s->there = access(s->path, F_OK) == 0;
    if (++s->calls != s->end_at) return KVC_OK;
    kvc_last_error_set("enough");
    return KVC_E_LIMIT;
}

static void begin(stage *s, int end_at) {
    s->calls = 0;
    s->done = 0;
    s->end_at = end_at;
}

static kvc_status save(stage *s, int end_at) {
    const kvc_snapshot_info info = {
        .struct_size = sizeof info, .progress = told, .progress_context = s};
    begin(s, end_at);
    return kvc_snapshot_save(s->path, s->cache, &info);
}

static kvc_status load(stage *s, kvc_cache **out, unsigned flags, int end_at) {
    const kvc_snapshot_options options = {
        .struct_size = sizeof options, .flags = flags, .progress = told, .progress_context = s};
    begin(s, end_at);
    return kvc_snapshot_load(out, s->pool, s->path, &options);
}

static uint64_t bytes_of_tensors(const char *path) {
    kvc_safetensors *file;
    uint64_t bytes = 0;
    assert_ok(kvc_safetensors_open(&file, path, 0));
    for (size_t i = 0; i < kvc_safetensors_count(file); i++)
        bytes += kvc_safetensors_at(file, i)->bytes;
    kvc_safetensors_close(file);
    return bytes;
}

static void progress__goes_from_nothing_to_all(void **state) {
    stage *s = *state;
    assert_ok(save(s, 0));
    assert_false(s->there); /* it is told before the file has its name */
    assert_int_equal(s->calls, 2 + 6 + 2 + 1);
    assert_int_equal(s->done, s->total);
    assert_int_equal(s->total, bytes_of_tensors(s->path));
    for (unsigned flags = 0; flags <= KVC_LOAD_MAP; flags++) {
        kvc_cache *back;
        assert_ok(load(s, &back, flags, 0));
        assert_int_equal(s->calls, LAYERS + 1);
        assert_int_equal(s->done, s->total);
        assert_int_equal(s->total, bytes_of_tensors(s->path));
        kvc_cache_free(back);
    }
}

static void progress__ends_a_save_with_the_old_file(void **state) {
    stage *s = *state;
    size_t before, after;
    assert_ok(save(s, 0));
    char *old = test_file_get(s->path, &before);
    kvc_cache_clear(s->cache);
    for (int call = 1; call <= 11; call++) {
        assert_fails(save(s, call), KVC_E_LIMIT);
        assert_int_equal(s->calls, call);
        char *now = test_file_get(s->path, &after);
        assert_int_equal(before, after);
        assert_memory_equal(old, now, before);
        free(now);
        assert_int_equal(test_folder_count(&s->folder), 1);
    }
    free(old);
}

static void progress__ends_a_load_with_nothing(void **state) {
    stage *s = *state;
    assert_ok(save(s, 0));
    for (unsigned flags = 0; flags <= KVC_LOAD_MAP; flags++)
        for (int call = 1; call <= LAYERS + 1; call++) {
            kvc_cache *back = s->cache;
            assert_fails(load(s, &back, flags, call), KVC_E_LIMIT);
            assert_int_equal(s->calls, call);
            assert_null(back);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(progress__goes_from_nothing_to_all),
        TEST(progress__ends_a_save_with_the_old_file),
        TEST(progress__ends_a_load_with_nothing),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
