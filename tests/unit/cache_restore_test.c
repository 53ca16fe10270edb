/* kvc_cache_held_get, kvc_cache_restore, kvc_cache_restore_mapped. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/cache.h>

#include "support/arrays.h"
#include "support/files.h"
#include "support/support.h"

enum { HEADS = 2, DIM = 32, MOST = 4096 };

static kvc_pool *pool;

static int setup(void **state) {
    (void)state;
    return kvc_pool_new(&pool, kvc_device_cpu()) == KVC_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    kvc_pool_stats s = {.struct_size = sizeof s};
    assert_ok(kvc_pool_stats_get(pool, &s));
    assert_int_equal(s.active_bytes, 0);
    kvc_pool_free(pool);
    return 0;
}

static kvc_cache *new_cache(kvc_growth growth, const kvc_layer_spec *spec, int64_t batch) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .layers = 1,
                                 .specs = spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .chunk = 64,
                                 .max_positions = MOST};
    kvc_cache *cache;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    return cache;
}

/* Appends n positions whose elements all are their number, from the length on. */
static void append_numbers(kvc_cache *cache, int64_t batch, int64_t n) {
    const int64_t first = kvc_cache_length(cache, 0);
    const int64_t shape[] = {batch, HEADS, n, DIM}, strides[] = {0, 0, 1, 0};
    float *numbers = malloc((size_t)n * sizeof *numbers);
    kvc_array rows;
    assert_non_null(numbers);
    for (int64_t i = 0; i < n; i++) numbers[i] = (float)(first + i);
    assert_ok(kvc_array_borrow(&rows, KVC_F32, 4, shape, strides, numbers));
    assert_ok(kvc_cache_append(cache, 0, &rows, &rows));
    free(numbers);
}

static const float *row_at(const kvc_array *a, int64_t b, int64_t h, int64_t i) {
    return (const float *)a->data + b * a->strides[0] + h * a->strides[1] + i * a->strides[2];
}

static void assert_numbers(const kvc_cache *cache, int64_t batch, int64_t rows) {
    kvc_array k, v;
    assert_ok(kvc_cache_check(cache));
    assert_ok(kvc_cache_view(cache, 0, &k, &v));
    assert_int_equal(k.shape[2], rows);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t d = 0; d < DIM; d++) {
                    assert_true(row_at(&k, b, h, i)[d] == (float)i);
                    assert_true(row_at(&v, b, h, i)[d] == (float)i);
                }
    kvc_array_release(&k);
    kvc_array_release(&v);
}

static void restore__gives_a_window_the_rows_that_it_had(void **state) {
    (void)state;
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .window = 8, .keep = 2};
    for (int64_t length = 0; length < 40; length++) {
        kvc_cache *from = new_cache(KVC_GROW_CHUNK, &spec, 1);
        kvc_cache *to = new_cache(KVC_GROW_CHUNK, &spec, 1);
        kvc_cache_held held;
        int64_t wanted[64], found[64];
        if (length > 20) append_numbers(from, 1, 15); /* a ring that is longer, then turns */
        while (kvc_cache_length(from, 0) < length) append_numbers(from, 1, 1);
        assert_ok(kvc_cache_held_get(from, 0, 0, &held));
        assert_int_equal(held.length, length);
        assert_ok(kvc_cache_restore(to, 0, &held));
        memset(wanted, 1, sizeof wanted);
        memset(found, 1, sizeof found);
        assert_ok(kvc_cache_row_positions(from, 0, 0, wanted, 64));
        assert_ok(kvc_cache_row_positions(to, 0, 0, found, 64));
        assert_memory_equal(wanted, found, sizeof found);
        assert_int_equal(kvc_cache_trimmable(to), kvc_cache_trimmable(from));
        assert_ok(kvc_cache_check(to));
        kvc_cache_free(from);
        kvc_cache_free(to);
    }
}

static void restore__refuses_what_no_window_can_hold(void **state) {
    (void)state;
    const kvc_layer_spec spec = {
        .kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .window = 8, .keep = 2};
    const kvc_cache_held wrong[] = {{-1, -1, 2, 2},
                                    {9, 8, 2, 2},
                                    {9, 9, 2, 3},
                                    {20, 8, 14, 1},
                                    {20, 8, 14, 8},
                                    {20, 8, 13, 2},
                                    {20, 8, 15, 2},
                                    {20, 2, 14, 2},
                                    {20, 30, 14, 2},
                                    {20, 8, INT64_MAX, 2},
                                    {20, 8, INT64_MIN, 2},
                                    {20, 8, 1, 2},
                                    {MOST + 1, 8, MOST - 5, 2}};
    kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_fails(kvc_cache_restore(cache, 0, &wrong[i]), KVC_E_RANGE);
        assert_int_equal(kvc_cache_length(cache, 0), 0);
        assert_ok(kvc_cache_check(cache));
    }
    assert_fails(kvc_cache_restore(cache, 0, NULL), KVC_E_INVALID);
    assert_ok(kvc_cache_restore(cache, 0, &(kvc_cache_held){20, 8, 14, 5}));
    assert_fails(kvc_cache_restore(cache, 0, &(kvc_cache_held){20, 8, 14, 5}), KVC_E_INVALID);
    kvc_cache_free(cache);
}

static void restore__holds_keys_per_channel_unpacked_from_where_it_is_told(void **state) {
    (void)state;
    enum { G = 32 };
    const kvc_layer_spec spec = {.kv_heads = HEADS,
                                 .key_dim = DIM,
                                 .dtype = KVC_F32,
                                 .kv_bits = 4,
                                 .kv_group = G,
                                 .keys_per_channel = true};
    for (int64_t length = 0; length < 5 * G; length += 7)
        for (int64_t first = -1; first <= length + 1; first++) {
            const bool fits = first >= 0 && first <= length / G * G && first >= length - 2 * G;
            const kvc_cache_held held = {.length = length, .rows = length, .first = first};
            kvc_cache *cache = new_cache(KVC_GROW_CHUNK, &spec, 1);
            kvc_cache_held found;
            if (fits) assert_ok(kvc_cache_restore(cache, 0, &held));
            else assert_fails(kvc_cache_restore(cache, 0, &held), KVC_E_RANGE);
            assert_ok(kvc_cache_check(cache));
            assert_ok(kvc_cache_held_get(cache, 0, 0, &found));
            assert_int_equal(found.length, fits ? length : 0);
            assert_int_equal(found.first, fits ? first : 0);
            assert_int_equal(kvc_cache_trimmable(cache),
                             fits ? length - (first + G - 1) / G * G : 0);
            kvc_cache_free(cache);
        }
    kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    const kvc_cache_held wrong[] = {{INT64_MAX, 0, INT64_MAX, 0},
                                    {INT64_MAX, 0, INT64_MAX - G, 0},
                                    {64, 64, INT64_MIN, 0},
                                    {MOST + G, 0, MOST, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(kvc_cache_restore(cache, 0, &wrong[i]), KVC_E_RANGE);
    const kvc_cache_file file = {.fd = -1, .rows = 65};
    const kvc_cache_held held = {65, 65, 64, 0};
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_RANGE);
    assert_non_null(strstr(kvc_last_error(), "whole groups of 32"));
    assert_ok(kvc_cache_check(cache));
    kvc_cache_free(cache);
}

/* Writes keys, then values, [batch][HEADS][rows][DIM] of the rows' numbers, from `offset` on. */
static int file_of_rows(test_folder *folder, size_t offset, int64_t batch, int64_t rows) {
    char path[TEST_PATH];
    const size_t floats = (size_t)(2 * batch * HEADS * rows * DIM);
    char *bytes = calloc(1, offset + floats * sizeof(float));
    assert_non_null(bytes);
    for (size_t i = 0; i < floats; i++) {
        const float number = (float)(i / DIM % (size_t)rows);
        memcpy(bytes + offset + i * sizeof number, &number, sizeof number);
    }
    test_folder_init(folder);
    test_file_put(test_folder_path(folder, "rows", path), bytes, offset + floats * sizeof(float));
    free(bytes);
    const int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    return fd;
}

static void mapped__rows_are_those_of_the_file_and_append_in_place(void **state) {
    (void)state;
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    const int64_t lengths[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000, MOST - 1, MOST};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t n = lengths[i], batch = 1 + (int64_t)(i % 2);
        const size_t offset = (size_t)(i * 1236) / 4 * 4;
        test_folder folder;
        const int fd = file_of_rows(&folder, offset, batch, n);
        const size_t side = (size_t)(batch * HEADS * n * DIM) * sizeof(float);
        const kvc_cache_file file = {.fd = fd, .rows = n, .offsets = {offset, offset + side}};
        const kvc_cache_held held[2] = {{.length = n, .rows = n}, {.length = n, .rows = n}};
        kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, batch);
        kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
        assert_ok(kvc_cache_restore_mapped(cache, 0, held, &file));
        assert_int_equal(close(fd), 0);
        assert_ok(kvc_cache_nbytes_get(cache, &nbytes));
        /* Nothing but what is left of each range's first and last commit unit. */
        assert_true(nbytes.resident < (size_t)batch * HEADS * 2 * 2 * (16 << 10));
        assert_numbers(cache, batch, n);
        while (kvc_cache_length(cache, 0) < MOST && kvc_cache_length(cache, 0) < n + 300)
            append_numbers(cache, batch, 1);
        assert_numbers(cache, batch, kvc_cache_length(cache, 0));
        assert_ok(kvc_cache_trim(cache, kvc_cache_length(cache, 0) / 2));
        append_numbers(cache, batch, MOST - kvc_cache_length(cache, 0));
        assert_numbers(cache, batch, MOST);
        kvc_cache_free(cache);
        char path[TEST_PATH];
        size_t bytes;
        char *after = test_file_get(test_folder_path(&folder, "rows", path), &bytes);
        for (size_t j = 0; offset + (j + 1) * sizeof(float) <= bytes; j++) {
            float number;
            memcpy(&number, after + offset + j * sizeof number, sizeof number);
            assert_true(number == (float)(j / DIM % (size_t)n));
        }
        free(after);
        test_folder_deinit(&folder);
    }
}

/* Ranges that are moved apart stay as far from the begin of a block of addresses, of whatever size
 * they fill, as they lie from that of a block of the file. */
static void mapped__ranges_keep_their_place_in_a_block(void **state) {
    (void)state;
    enum { ROWS = 1000, BLOCK = 512 * DIM * sizeof(float) };
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    const size_t head = ROWS * DIM * sizeof(float);
    test_folder folder;
    const int fd = file_of_rows(&folder, 4096, 1, ROWS);
    const kvc_cache_file file = {.fd = fd, .rows = ROWS, .offsets = {4096, 4096 + HEADS * head}};
    kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    kvc_array kv[2];
    assert_ok(kvc_cache_restore_mapped(cache, 0, &(kvc_cache_held){ROWS, ROWS, 0, 0}, &file));
    append_numbers(cache, 1, 1);
    assert_numbers(cache, 1, ROWS + 1);
    assert_ok(kvc_cache_view(cache, 0, &kv[0], &kv[1]));
    for (size_t p = 0; p < 2; p++) {
        const uintptr_t first = (uintptr_t)kv[p].data - file.offsets[p];
        assert_true((size_t)kv[p].strides[1] * sizeof(float) > head);
        for (size_t h = 0; h < HEADS; h++) {
            const uintptr_t at = (uintptr_t)row_at(&kv[p], 0, (int64_t)h, 0);
            assert_int_equal((at - file.offsets[p] - h * head - first) % BLOCK, 0);
        }
        kvc_array_release(&kv[p]);
    }
    kvc_cache_free(cache);
    assert_int_equal(close(fd), 0);
    test_folder_deinit(&folder);
}

static void mapped__memory_serves_no_other_cache(void **state) {
    (void)state;
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    test_folder folder;
    const int fd = file_of_rows(&folder, 0, 1, 64);
    const kvc_cache_file file = {
        .fd = fd, .rows = 64, .offsets = {0, HEADS * 64 * DIM * sizeof(float)}};
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    /* What a cache before it had made resident is given back where the file comes to lie. */
    kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    append_numbers(cache, 1, MOST);
    kvc_cache_free(cache);
    cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    assert_ok(kvc_cache_restore_mapped(cache, 0, &(kvc_cache_held){64, 64, 0, 0}, &file));
    assert_numbers(cache, 1, 64);
    kvc_cache_free(cache);
    kvc_pool_clear(pool);
    assert_ok(kvc_pool_stats_get(pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    assert_int_equal(stats.reserved_bytes, 0);
    cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    assert_ok(kvc_cache_restore_mapped(cache, 0, &(kvc_cache_held){64, 64, 0, 0}, &file));
    kvc_cache_free(cache);
    assert_ok(kvc_pool_stats_get(pool, &stats));
    assert_int_equal(stats.cached_bytes, 0);
    assert_int_equal(close(fd), 0);
    test_folder_deinit(&folder);
}

static void mapped__refuses_what_does_not_fit_and_changes_nothing(void **state) {
    (void)state;
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32};
    test_folder folder;
    const int fd = file_of_rows(&folder, 0, 1, 64);
    const size_t side = HEADS * 64 * DIM * sizeof(float);
    const kvc_cache_held held = {64, 64, 0, 0};
    kvc_cache *cache = new_cache(KVC_GROW_RESERVE, &spec, 1);
    kvc_cache_file file = {.fd = fd, .rows = 63, .offsets = {0, side}};
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_RANGE);
    file.rows = INT64_MAX;
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_RANGE);
    file.rows = 64;
    file.offsets[1] = side + 2;
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_UNSUPPORTED);
    file.offsets[1] = UINT64_MAX - 3;
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_RANGE);
    file.offsets[1] = side;
    file.fd = -1;
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_IO);
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, NULL), KVC_E_INVALID);
    assert_int_equal(kvc_cache_length(cache, 0), 0);
    append_numbers(cache, 1, 100);
    assert_numbers(cache, 1, 100);
    kvc_cache_free(cache);
    file.fd = fd;
    cache = new_cache(KVC_GROW_CHUNK, &spec, 1);
    assert_fails(kvc_cache_restore_mapped(cache, 0, &held, &file), KVC_E_UNSUPPORTED);
    assert_ok(kvc_cache_restore(cache, 0, &held));
    kvc_cache_free(cache);
    assert_int_equal(close(fd), 0);
    test_folder_deinit(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(restore__gives_a_window_the_rows_that_it_had),
        TEST(restore__refuses_what_no_window_can_hold),
        TEST(restore__holds_keys_per_channel_unpacked_from_where_it_is_told),
        TEST(mapped__rows_are_those_of_the_file_and_append_in_place),
        TEST(mapped__ranges_keep_their_place_in_a_block),
        TEST(mapped__memory_serves_no_other_cache),
        TEST(mapped__refuses_what_does_not_fit_and_changes_nothing),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
