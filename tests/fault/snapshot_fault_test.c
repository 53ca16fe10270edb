/* Snapshots: each allocation, each call to a file and each mapping fails once. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvcache/snapshot.h>

#include "fault/file_faults.h"
#include "support/fault.h"
#include "support/files.h"
#include "support/support.h"

enum { LAYERS = 4, HEADS = 2, DIM = 32, POSITIONS = 40, PAGES_OF_POSITIONS = 300, MOST = 320 };

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

/* The linker has every mmap come here: a part of a file that is mapped over a cache's memory, by
 * the core below the store's own calls, is a point that fails too. */
/* NOLINTBEGIN(bugprone-reserved-identifier): the linker makes the names */
void *__real_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t at);
void *__wrap_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t at);
/* NOLINTEND(bugprone-reserved-identifier) */

static size_t mapped; /* so far */

void *__wrap_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t at) {
    if (fd >= 0 && flags & MAP_FIXED) {
        mapped++;
        if (test_fault_here()) {
            errno = EIO;
            return MAP_FAILED;
        }
    }
    return __real_mmap(where, bytes, protection, flags, fd, at);
}

static kvc_cache *new_cache(kvc_pool *pool, int64_t positions) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = specs,
                                 .spec_count = LAYERS,
                                 .growth = KVC_GROW_CHUNK};
    static float numbers[HEADS * PAGES_OF_POSITIONS * DIM];
    const int64_t shape[] = {1, HEADS, positions, DIM};
    kvc_cache *cache;
    kvc_array a;
    for (int i = 0; i < HEADS * PAGES_OF_POSITIONS * DIM; i++) numbers[i] = (float)(i % 100);
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    assert_ok(kvc_array_borrow(&a, KVC_F32, 4, shape, NULL, numbers));
    for (int64_t i = 0; i < LAYERS; i++) assert_ok(kvc_cache_append(cache, i, &a, &a));
    return cache;
}

static kvc_status save_as(const char *path, const kvc_cache *cache) {
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
    return kvc_snapshot_save(path, cache, &info);
}

static kvc_status save(const stage *s) {
    return save_as(s->path, s->cache);
}

static kvc_status load(const stage *s, unsigned flags);

static int setup(void **state) {
    static stage s;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "saved.safetensors", s.path);
    test_allocator_use(true);
    assert_ok(kvc_pool_new(&s.pool, kvc_device_cpu()));
    s.cache = new_cache(s.pool, POSITIONS);
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

/* Of a file whose rows fill pages; without them nothing is mapped. */
static void mappings__any_that_fails_is_an_error_that_leaves_nothing(void **state) {
    const stage *s = *state;
    kvc_pool_stats before = {.struct_size = sizeof before}, after = before;
    kvc_cache *large = new_cache(s->pool, PAGES_OF_POSITIONS);
    size_t nth = 1, refused = 0;
    assert_ok(save_as(s->path, large));
    kvc_cache_free(large);
    mapped = 0;
    assert_ok(load(s, KVC_LOAD_MAP));
    assert_true(mapped >= 4);
    assert_ok(kvc_pool_stats_get(s->pool, &before));
    for (bool failed = true; failed; nth++) {
        test_fault_arm(nth, TEST_FAULT_ONCE);
        const kvc_status status = load(s, KVC_LOAD_MAP);
        failed = test_fault_disarm();
        if (status && status != KVC_E_NOMEM) assert_int_equal(status, KVC_E_IO);
        refused += status != KVC_OK;
        assert_ok(kvc_pool_stats_get(s->pool, &after));
        assert_int_equal(after.active_bytes, before.active_bytes);
    }
    assert_true(refused >= 4);
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
            if (status) assert_int_equal(status, KVC_E_NOMEM);
            expect_file(s);
        }
        assert_true(nth > 40);
    }
}

/* Saves a cache again, and expects the same file. */
static void expect_saved(const stage *s, const kvc_cache *cache, const char *wanted,
                         size_t wanted_bytes) {
    char path[TEST_PATH];
    size_t bytes;
    assert_ok(kvc_cache_check(cache));
    assert_ok(save_as(test_folder_path(&s->folder, "again.safetensors", path), cache));
    char *again = test_file_get(path, &bytes);
    assert_int_equal(bytes, wanted_bytes);
    assert_memory_equal(again, wanted, bytes);
    free(again);
}

/* Reads the file, or maps it and verifies it later. True where nothing was found to be wrong: then
 * the cache, saved again, must give the file. */
static bool passes(const stage *s, bool maps, const char *wanted, size_t bytes) {
    const kvc_snapshot_options options = {
        .struct_size = sizeof options, .flags = maps ? KVC_LOAD_MAP : 0, .max_positions = MOST};
    kvc_snapshot *snapshot;
    kvc_cache *cache;
    if (kvc_snapshot_open(&snapshot, s->path) != KVC_OK) return false;
    kvc_status status = kvc_snapshot_restore(&cache, s->pool, snapshot, &options);
    if (!status && maps) status = kvc_snapshot_verify(snapshot);
    if (!status) expect_saved(s, cache, wanted, bytes);
    kvc_cache_free(cache);
    kvc_snapshot_close(snapshot);
    return status == KVC_OK;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEP = 37 }; /* a call to a file is slow there; a few of all kinds of bytes do */
#else
enum { STEP = 1 };
#endif

/* Checksums cover every byte but the first eight, and those of the checksums; a flip in any of
 * these is found as well. Layers are of several kinds. */
static void flip__of_any_byte_is_refused(void **state) {
    const stage *s = *state;
    kvc_cache *cache = new_cache(s->pool, 1);
    size_t bytes;
    assert_ok(save_as(s->path, cache));
    char *whole = test_file_get(s->path, &bytes);
    for (int maps = 0; maps < 2; maps++) assert_true(passes(s, maps, whole, bytes));
    for (size_t i = 0; i < bytes; i += STEP) {
        whole[i] = (char)(whole[i] ^ 1 << i % 8);
        test_file_put(s->path, whole, bytes);
        for (int maps = 0; maps < 2; maps++) assert_false(passes(s, maps, whole, bytes));
        whole[i] = (char)(whole[i] ^ 1 << i % 8);
    }
    free(whole);
    kvc_cache_free(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(files__any_call_that_fails_is_an_error_that_leaves_nothing),
        TEST(mappings__any_that_fails_is_an_error_that_leaves_nothing),
        TEST(files__that_give_less_than_asked_make_no_difference),
        TEST(memory__want_of_it_anywhere_changes_nothing),
        TEST(flip__of_any_byte_is_refused),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
