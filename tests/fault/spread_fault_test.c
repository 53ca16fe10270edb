/* The first rows that a mapped layer gets beyond its file's: each allocation and each move of pages
 * fails once, or the system cannot move any. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvcache/cache.h>

#include "support/fault.h"
#include "support/files.h"
#include "support/support.h"

/* Ranges of a file begin and end within pages. Some rows are written before there are more. */
enum { HEADS = 3, DIM = 48, ROWS = 301, WRITTEN = 40, MORE = 50, MOST = 1000 };

/* The linker has every mremap come here. */
/* NOLINTBEGIN(bugprone-reserved-identifier): the linker makes the names */
void *__real_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...);
void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...);
/* NOLINTEND(bugprone-reserved-identifier) */

static bool cannot; /* the system */
static int moves;   /* so far */

void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...) {
    va_list more;
    va_start(more, flags);
    void *to = va_arg(more, void *);
    va_end(more);
    moves++;
    if (cannot || test_fault_here()) {
        errno = cannot ? EINVAL : ENOMEM;
        return MAP_FAILED;
    }
    return __real_mremap(old, old_bytes, bytes, flags, to);
}

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
    kvc_pool *pool;
} stage;

/* What row i of a head has in all elements; `times` it was written. */
static float number_of(int64_t head, int64_t i, int times) {
    return (float)(head * 1000 + i + 10000 * times);
}

static int setup(void **state) {
    static stage s;
    static float file[2][HEADS][ROWS][DIM];
    for (int side = 0; side < 2; side++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < ROWS; i++)
                for (int d = 0; d < DIM; d++) file[side][h][i][d] = number_of(h, i, 0);
    test_folder_init(&s.folder);
    test_file_put(test_folder_path(&s.folder, "rows", s.path), (const char *)file, sizeof file);
    test_allocator_use(true);
    cannot = false;
    assert_ok(kvc_pool_new(&s.pool, kvc_device_cpu()));
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(s->pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    kvc_pool_free(s->pool);
    assert_int_equal(test_allocator_held(), 0);
    test_allocator_use(false);
    test_folder_deinit(&s->folder);
    return 0;
}

/* Appends n positions as if written for the first or second time. */
static kvc_status append(kvc_cache *cache, int64_t n, int times) {
    static float rows[HEADS][ROWS][DIM];
    const int64_t shape[] = {1, HEADS, n, DIM};
    const int64_t strides[] = {(int64_t)ROWS * DIM * HEADS, (int64_t)ROWS * DIM, DIM, 1};
    kvc_array a;
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < n; i++)
            for (int d = 0; d < DIM; d++)
                rows[h][i][d] = number_of(h, kvc_cache_length(cache, 0) + i, times);
    assert_ok(kvc_array_borrow(&a, KVC_F32, 4, shape, strides, rows));
    return kvc_cache_append(cache, 0, &a, &a);
}

/* Maps the file, and writes its last rows anew. */
static kvc_cache *mapped(const stage *s) {
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = 1,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .max_positions = MOST};
    const kvc_cache_held held = {.length = ROWS, .rows = ROWS};
    const int fd = open(s->path, O_RDONLY);
    const kvc_cache_file file = {
        .fd = fd, .rows = ROWS, .offsets = {0, sizeof(float[HEADS][ROWS][DIM])}};
    kvc_cache *cache;
    assert_true(fd >= 0);
    assert_ok(kvc_cache_new(&cache, s->pool, &desc));
    assert_ok(kvc_cache_restore_mapped(cache, 0, &held, &file));
    assert_int_equal(close(fd), 0);
    assert_ok(kvc_cache_trim(cache, WRITTEN));
    assert_ok(append(cache, WRITTEN, 1));
    return cache;
}

static void expect_rows(const kvc_cache *cache, int64_t rows) {
    kvc_array k[2];
    assert_ok(kvc_cache_check(cache));
    assert_ok(kvc_cache_view(cache, 0, &k[0], &k[1]));
    for (int side = 0; side < 2; side++) {
        assert_int_equal(k[side].shape[2], rows);
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < rows; i++) {
                const float *row =
                    (const float *)k[side].data + h * k[side].strides[1] + i * k[side].strides[2];
                for (int d = 0; d < DIM; d++)
                    assert_true(row[d] == number_of(h, i, i >= ROWS - WRITTEN));
            }
        kvc_array_release(&k[side]);
    }
}

static void append__beyond_the_file_moves_pages_and_what_was_written(void **state) {
    const stage *s = *state;
    kvc_cache *cache = mapped(s);
    moves = 0;
    expect_rows(cache, ROWS);
    assert_int_equal(moves, 0);
    assert_ok(append(cache, MORE, 1));
    assert_int_equal(moves, 2 * HEADS);
    expect_rows(cache, ROWS + MORE);
    assert_ok(append(cache, 1, 1));
    assert_int_equal(moves, 2 * HEADS);
    expect_rows(cache, ROWS + MORE + 1);
    kvc_cache_free(cache);
}

static void append__of_which_anything_fails_changes_nothing(void **state) {
    const stage *s = *state;
    size_t nth = 1, refused = 0;
    for (bool failed = true; failed; nth++) {
        kvc_cache *cache = mapped(s);
        kvc_pool_clear(s->pool);
        test_fault_arm(nth, TEST_FAULT_ONCE);
        const kvc_status status = append(cache, MORE, 1);
        failed = test_fault_disarm();
        if (failed) assert_int_equal(status, KVC_E_NOMEM);
        refused += status != KVC_OK;
        if (status != KVC_OK) {
            expect_rows(cache, ROWS);
            assert_ok(append(cache, MORE, 1));
        }
        expect_rows(cache, ROWS + MORE);
        kvc_cache_free(cache);
    }
    assert_true(refused > 2 * HEADS); /* moves, and buffers */
}

static void append__copies_where_the_system_moves_nothing(void **state) {
    const stage *s = *state;
    kvc_cache *cache = mapped(s);
    cannot = true;
    assert_ok(append(cache, MORE, 1));
    expect_rows(cache, ROWS + MORE);
    kvc_cache_free(cache);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(append__beyond_the_file_moves_pages_and_what_was_written),
        TEST(append__of_which_anything_fails_changes_nothing),
        TEST(append__copies_where_the_system_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
