/* Snapshots: each allocation, each call to a file and each mapping fails once. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/snapshot.h>

#include "fault/file_faults.h"
#include "support/fault.h"
#include "support/files.h"
#include "support/support.h"

enum { LAYERS = 4, HEADS = 2, DIM = 32, POSITIONS = 40, MOST = 64 };

static const kvc_layer_spec specs[LAYERS] = {
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16},
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F16, .window = 8, .keep = 2},
    {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .kv_bits = 4, .kv_group = 32},
    {.kv_heads = HEADS,
     .key_dim = DIM,
     .dtype = KVC_F16,
     .kv_bits = 2,
     .kv_group = 32,
     .keys_per_channel = true}};

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
    kvc_pool *pool;
    kvc_cache *cache;
    char *whole; /* the file as it is saved */
    size_t bytes;
} stage;

static kvc_cache *new_cache(kvc_pool *pool) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = specs,
                                 .spec_count = LAYERS,
                                 .growth = KVC_GROW_CHUNK};
    static float numbers[HEADS * POSITIONS * DIM];
    const int64_t shape[] = {1, HEADS, POSITIONS, DIM};
    kvc_cache *cache;
    kvc_array a;
    for (int i = 0; i < HEADS * POSITIONS * DIM; i++) numbers[i] = (float)(i % 100);
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    assert_ok(kvc_array_borrow(&a, KVC_F32, 4, shape, NULL, numbers));
    for (int64_t i = 0; i < LAYERS; i++) assert_ok(kvc_cache_append(cache, i, &a, &a));
    return cache;
}

static kvc_status save(const stage *s) {
    const int32_t tokens[] = {1, 2, 3};
    const kvc_snapshot_text text = {"model", "toy"};
    const char *const paths[LAYERS] = {"0", "1.0", "1.1.0", "2"};
    const kvc_snapshot_info info = {.struct_size = sizeof info,
                                    .fingerprint = {.model = "m"},
                                    .tokens = tokens,
                                    .token_count = 3,
                                    .texts = &text,
                                    .text_count = 1,
                                    .paths = paths};
    return kvc_snapshot_save(s->path, s->cache, &info);
}

static kvc_status load(const stage *s, unsigned flags);

static int setup(void **state) {
    static stage s;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "saved.safetensors", s.path);
    test_allocator_use(true);
    assert_ok(kvc_pool_new(&s.pool, kvc_device_cpu()));
    s.cache = new_cache(s.pool);
    assert_ok(save(&s));
    s.whole = test_file_get(s.path, &s.bytes);
    for (unsigned flags = 0; flags < 2; flags++) assert_ok(load(&s, flags)); /* the pool's tables */
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    kvc_cache_free(s->cache);
    kvc_pool_free(s->pool);
    test_allocator_use(false);
    test_folder_deinit(&s->folder);
    free(s->whole);
    return 0;
}

/* Loads in some way, and expects the file when that is saved again. */
static kvc_status load(const stage *s, unsigned flags) {
    const kvc_snapshot_options options = {
        .struct_size = sizeof options, .flags = flags, .max_positions = MOST};
    kvc_cache *cache;
    const kvc_status status = kvc_snapshot_load(&cache, s->pool, s->path, &options);
    if (status) assert_null(cache);
    else assert_int_equal(kvc_cache_check(cache), KVC_OK);
    kvc_cache_free(cache);
    return status;
}

static void expect_file(const stage *s) {
    size_t bytes;
    char *now = test_file_get(s->path, &bytes);
    assert_int_equal(bytes, s->bytes);
    assert_memory_equal(now, s->whole, bytes);
    assert_int_equal(test_folder_count(&s->folder), 1);
    free(now);
}

static void files__any_call_that_fails_is_an_error_that_leaves_nothing(void **state) {
    const stage *s = *state;
    kvc_pool_stats before = {.struct_size = sizeof before}, after = before;
    for (unsigned way = 0; way < 4; way++) { /* saved, read, mapped, mapped and verified */
        size_t nth = 1;
        assert_ok(kvc_pool_stats_get(s->pool, &before));
        for (bool failed = true; failed; nth++) {
            test_file_faults_use(TEST_FILE_FAILS, EIO);
            test_fault_arm(nth, TEST_FAULT_ONCE);
            const kvc_status status = way ? load(s, way == 1 ? 0 : way - 1) : save(s);
            failed = test_fault_disarm();
            test_file_faults_end();
            assert_int_equal(test_file_faults_open(), 0);
            if (status && status != KVC_E_NOMEM) assert_int_equal(status, KVC_E_IO);
            expect_file(s);
            assert_ok(kvc_pool_stats_get(s->pool, &after));
            assert_int_equal(after.active_bytes, before.active_bytes);
        }
        assert_true(nth > 4);
    }
}

static void files__that_give_less_than_asked_make_no_difference(void **state) {
    const stage *s = *state;
    test_file_faults_use(TEST_FILE_HAS_LESS, 0);
    assert_ok(save(s));
    assert_ok(load(s, 0));
    test_file_faults_end();
    expect_file(s);
}

static void *failing_malloc(size_t bytes) {
    if (!test_fault_here()) return malloc(bytes);
    errno = ENOMEM; /* as malloc */
    return NULL;
}

static void memory__want_of_it_anywhere_changes_nothing(void **state) {
    const stage *s = *state;
    for (unsigned way = 0; way < 3; way++) {
        size_t nth = 1;
        for (bool failed = true; failed; nth++) {
            kvc_pool_clear(s->pool);
            json_set_alloc_funcs(failing_malloc, free);
            const size_t held = test_allocator_held();
            test_fault_arm(nth, TEST_FAULT_ONCE);
            const kvc_status status = way ? load(s, way - 1) : save(s);
            failed = test_fault_disarm();
            kvc_pool_clear(s->pool);
            assert_int_equal(test_allocator_held(), held);
            json_set_alloc_funcs(malloc, free);
            /* jansson reads on where it has no memory for a character of a number. */
            if (status && status != KVC_E_CORRUPT) assert_int_equal(status, KVC_E_NOMEM);
            expect_file(s);
        }
        assert_true(nth > 40);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(files__any_call_that_fails_is_an_error_that_leaves_nothing),
        TEST(files__that_give_less_than_asked_make_no_difference),
        TEST(memory__want_of_it_anywhere_changes_nothing),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
