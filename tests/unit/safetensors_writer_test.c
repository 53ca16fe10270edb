/* The writer: what it writes byte for byte, and that it comes back whatever it was written from. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvcache/safetensors.h>

#include "support/files.h"
#include "support/support.h"
#include "support/test_device.h"

enum { MOST = 6, PIECE = 1 << 18 };

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
    kvc_safetensors_writer *writer;
} stage;

static int setup(void **state) {
    static stage s;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "saved.safetensors", s.path);
    assert_ok(kvc_safetensors_writer_new(&s.writer, ""));
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    kvc_safetensors_writer_free(s->writer);
    test_folder_deinit(&s->folder);
    return 0;
}

/* An array of random bytes, whose dimensions lie in a random order with spare room between. */
typedef struct sample {
    kvc_array array;
    char *memory, *wanted; /* elements where they lie; in row-major order */
    size_t bytes;          /* of wanted */
} sample;

static int64_t element_of(const kvc_array *a, size_t index) {
    int64_t element = 0;
    for (int i = a->ndim - 1; i >= 0; i--) {
        element += (int64_t)(index % (size_t)a->shape[i]) * a->strides[i];
        index /= (size_t)a->shape[i];
    }
    return element;
}

/* Gives a shape strides in a random order of dimensions, with room; returns the elements spanned.
 */
static int64_t lay_out(kvc_array *a, bool packed, uint64_t *seed) {
    int order[KVC_MAX_DIMS];
    int64_t span = 1;
    for (int i = 0; i < a->ndim; i++) order[i] = i;
    for (int i = a->ndim - 1; i > 0 && !packed; i--) {
        const int j = (int)test_below(seed, i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    for (int i = a->ndim - 1; i >= 0; i--) {
        a->strides[order[i]] = span;
        span *= a->shape[order[i]] + (packed ? 0 : test_below(seed, 3));
    }
    return span ? span : 1;
}

static void sample_fill(sample *s, uint64_t *seed) {
    const size_t size = kvc_dtype_size_bytes(s->array.dtype);
    const size_t count = (size_t)kvc_array_size(&s->array);
    s->bytes = count * size;
    s->wanted = malloc(s->bytes + 1);
    assert_non_null(s->wanted);
    for (size_t i = 0; i < s->bytes; i++) s->wanted[i] = (char)test_random(seed);
    for (size_t i = 0; i < count; i++)
        memcpy(s->memory + element_of(&s->array, i) * (int64_t)size, s->wanted + i * size, size);
}

static void sample_init(sample *s, uint64_t *seed) {
    static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16, KVC_I8, KVC_U8, KVC_U32};
    kvc_array a = {.dtype = dtypes[test_below(seed, 6)], .ndim = (int)test_below(seed, 5)};
    for (int i = 0; i < a.ndim; i++) a.shape[i] = test_below(seed, 12);
    const int64_t kind = test_below(seed, 16);
    if (kind < 3) { /* long rows: written where they lie; many: gathered in more than one piece */
        a.ndim = 2;
        a.shape[0] = kind < 2 ? 1 + test_below(seed, 3) : 6000 + test_below(seed, 3000);
        a.shape[1] = kind < 2 ? 400000 + test_below(seed, 3) : 40 + test_below(seed, 30);
    }
    const int64_t span = lay_out(&a, test_below(seed, 3) == 0, seed);
    s->memory = calloc((size_t)span, kvc_dtype_size_bytes(a.dtype));
    assert_non_null(s->memory);
    s->array = a;
    s->array.data = s->memory;
    sample_fill(s, seed);
}

static void sample_deinit(sample *s) {
    free(s->memory);
    free(s->wanted);
}

/* Loads a tensor into an array of another layout, whose every other byte must stay. */
static void check_loaded(const kvc_safetensors *file, const kvc_safetensors_tensor *t,
                         const sample *s, uint64_t *seed) {
    kvc_array a = s->array;
    const size_t size = kvc_dtype_size_bytes(a.dtype);
    const size_t span = (size_t)lay_out(&a, test_below(seed, 2), seed) * size;
    char *memory = malloc(span), *wanted = malloc(span);
    assert_true(memory && wanted);
    memset(memory, 0x5a, span);
    memset(wanted, 0x5a, span);
    for (size_t i = 0; i < s->bytes / size; i++)
        memcpy(wanted + element_of(&a, i) * (int64_t)size, s->wanted + i * size, size);
    a.data = memory;
    assert_ok(kvc_safetensors_load(file, t, &a));
    assert_memory_equal(memory, wanted, span);
    free(memory);
    free(wanted);
}

static void check_file(const stage *s, const sample *samples, size_t count, uint64_t *seed) {
    kvc_safetensors *file;
    size_t all = 0;
    for (size_t i = 0; i < count; i++) all += samples[i].bytes;
    const size_t most = all < 4 << 20 ? 64 : 65536; /* of alignment */
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    assert_int_equal(kvc_safetensors_count(file), count);
    assert_true(kvc_safetensors_has_checksums(file));
    for (size_t i = 0; i < count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "tensor.%zu", i);
        const kvc_safetensors_tensor *t = kvc_safetensors_find(file, name);
        assert_non_null(t);
        assert_int_equal(t->bytes, samples[i].bytes);
        assert_int_equal(t->ndim, samples[i].array.ndim);
        assert_memory_equal(t->shape, samples[i].array.shape, (size_t)t->ndim * sizeof *t->shape);
        assert_memory_equal(kvc_safetensors_data(file, t), samples[i].wanted, t->bytes);
        /* At a multiple of the largest power of two in its size, as far as is wanted. */
        const size_t power = t->bytes & (~t->bytes + 1);
        assert_int_equal(t->offset % (power && power < most ? power : most), 0);
        assert_ok(kvc_safetensors_verify(file, t));
        check_loaded(file, t, &samples[i], seed);
    }
    kvc_safetensors_close(file);
}

static void writer__random_arrays_come_back_from_and_into_any_layout(void **state) {
    stage *s = *state;
    uint64_t seed = test_seed(20261130);
    const double end = test_now() + test_seconds(2);
    for (int round = 0; round < 5 || test_now() < end; round++) {
        sample samples[MOST] = {0};
        const size_t count = (size_t)test_below(&seed, MOST + 1);
        kvc_safetensors_writer *w;
        assert_ok(kvc_safetensors_writer_new(&w, test_below(&seed, 2) ? "" : "1."));
        for (size_t i = 0; i < count; i++) {
            char name[32];
            sample_init(&samples[i], &seed);
            (void)snprintf(name, sizeof name, "tensor.%zu", i);
            assert_ok(kvc_safetensors_writer_array(w, name, &samples[i].array));
        }
        assert_ok(kvc_safetensors_writer_save(w, s->path));
        check_file(s, samples, count, &seed);
        kvc_safetensors_writer_free(w);
        for (size_t i = 0; i < count; i++) sample_deinit(&samples[i]);
        assert_int_equal(test_folder_count(&s->folder), 1);
    }
}

/* The example of docs/FORMAT.md: what is written is what is written there. */
static void writer__writes_the_bytes_that_the_document_shows(void **state) {
    stage *s = *state;
    static const uint16_t ab[] = {0x3f80, 0x4000, 0x4040};
    static const uint8_t c[] = {1, 2, 3, 4};
    static const char header[] =
        "{\"__metadata__\":{"
        "\"kvc.xxh3.header\":\"16f0fec7290b83cce8792bf64a6d506e\","
        "\"kvc.xxh3.tensors\":\"49a04899597a3567537653a0d9955b86"
        "bbf01262d3ba2a4b5b65fa69210d0f3d\","
        "\"note\":\"two tensors\"},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
        "\"ab\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[4,10]}}";
    kvc_array array;
    size_t bytes;
    assert_ok(kvc_safetensors_writer_metadata(s->writer, "note", "two tensors"));
    assert_ok(kvc_array_borrow(&array, KVC_BF16, 1, (int64_t[]){3}, NULL, ab));
    assert_ok(kvc_safetensors_writer_array(s->writer, "ab", &array));
    assert_ok(kvc_array_borrow(&array, KVC_U8, 2, (int64_t[]){2, 2}, NULL, c));
    assert_ok(kvc_safetensors_writer_array(s->writer, "c", &array));
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    char *file = test_file_get(s->path, &bytes);
    assert_int_equal(bytes, 320 + 10);
    assert_memory_equal(file, "\x38\1\0\0\0\0\0", 8);
    assert_memory_equal(file + 8, header, strlen(header));
    for (size_t i = 8 + strlen(header); i < 320; i++) assert_int_equal(file[i], ' ');
    assert_memory_equal(file + 320, "\1\2\3\4\x80\x3f\0\x40\x40\x40", 10);
    free(file);
}

static kvc_status give_counts(void *context, void *out, size_t offset, size_t bytes) {
    size_t *expected = context;
    uint8_t *to = out;
    if (offset != *expected || bytes > PIECE)
        return (kvc_last_error_set("piece at %zu", offset), KVC_E_INVALID);
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)((offset + i) * 7 >> 3);
    *expected += bytes;
    return KVC_OK;
}

static void writer__a_callback_gives_piece_by_piece_in_order(void **state) {
    stage *s = *state;
    const int64_t shape[] = {3, PIECE / 8, 1};
    kvc_safetensors *file;
    for (int round = 0; round < 2; round++) { /* a writer saves as often as it is asked */
        size_t expected = 0;
        kvc_safetensors_writer *w;
        assert_ok(kvc_safetensors_writer_new(&w, NULL));
        assert_ok(kvc_safetensors_writer_fill(w, "a", "I64", 3, shape, give_counts, &expected));
        assert_ok(kvc_safetensors_writer_save(w, s->path));
        assert_int_equal(expected, 3 * PIECE);
        kvc_safetensors_writer_free(w);
    }
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    assert_false(kvc_safetensors_has_checksums(file));
    assert_int_equal(kvc_safetensors_metadata_count(file), 0);
    const kvc_safetensors_tensor *a = kvc_safetensors_find(file, "a");
    assert_string_equal(a->dtype_name, "I64");
    const uint8_t *data = kvc_safetensors_data(file, a);
    for (size_t i = 0; i < a->bytes; i += 1 + i % 7)
        assert_int_equal(data[i], (uint8_t)(i * 7 >> 3));
    kvc_safetensors_close(file);
}

static kvc_status refuse(void *context, void *out, size_t offset, size_t bytes) {
    (void)context;
    (void)out;
    (void)offset;
    (void)bytes;
    kvc_last_error_set("the caller's own");
    return KVC_E_LIMIT;
}

static void writer__a_callback_that_fails_ends_the_save_with_its_own_words(void **state) {
    stage *s = *state;
    size_t bytes;
    test_file_put(s->path, "old", 3);
    assert_ok(kvc_safetensors_writer_fill(s->writer, "a", "U8", 1, (int64_t[]){9}, refuse, NULL));
    assert_fails(kvc_safetensors_writer_save(s->writer, s->path), KVC_E_LIMIT);
    assert_string_equal(kvc_last_error(), "the caller's own");
    char *file = test_file_get(s->path, &bytes);
    assert_int_equal(bytes, 3);
    assert_memory_equal(file, "old", 3);
    free(file);
    assert_int_equal(test_folder_count(&s->folder), 1);
}

static void writer__texts_of_any_kind_come_back(void **state) {
    stage *s = *state;
    static const char *const texts[] = {
        "", "\"\\/\b\f\n\r\t\x01\x7f", "\xc3\xa9\xe6\xbc\xa2",
        "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
        "kvc.xxh3.header\":\""};
    const uint8_t value = 9;
    kvc_array array;
    kvc_safetensors *file;
    assert_ok(kvc_array_borrow(&array, KVC_U8, 0, NULL, NULL, &value));
    for (size_t i = 0; i < 5; i++) {
        assert_ok(kvc_safetensors_writer_metadata(s->writer, texts[i], texts[4 - i]));
        assert_ok(kvc_safetensors_writer_array(s->writer, texts[i], &array));
    }
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    assert_int_equal(kvc_safetensors_count(file), 5);
    assert_int_equal(kvc_safetensors_metadata_count(file), 5 + 2);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(kvc_safetensors_metadata(file, texts[i]), texts[4 - i]);
        const kvc_safetensors_tensor *t = kvc_safetensors_find(file, texts[i]);
        assert_int_equal(*(uint8_t *)kvc_safetensors_data(file, t), 9);
        assert_ok(kvc_safetensors_verify(file, t));
    }
    kvc_safetensors_close(file);
}

static void writer__refuses_what_a_file_cannot_hold(void **state) {
    stage *s = *state;
    kvc_safetensors_writer *w = s->writer, *none = w;
    const int64_t one = 1, negative = -1, huge[] = {INT64_MAX, 4};
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, KVC_U8, 1, &one, NULL, "x"));
    assert_ok(kvc_safetensors_writer_array(w, "a", &a));
    assert_ok(kvc_safetensors_writer_metadata(w, "k", "v"));
    assert_fails(kvc_safetensors_writer_array(w, "a", &a), KVC_E_INVALID);
    assert_string_equal(kvc_last_error(), "name: a given a second time");
    assert_fails(kvc_safetensors_writer_array(w, "__metadata__", &a), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_array(w, "\xff", &a), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_array(w, NULL, &a), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_array(w, "b", NULL), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_array(w, "b", &(kvc_array){0}), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_metadata(w, "k", "w"), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_metadata(w, "j", "\xc3"), KVC_E_INVALID);
    static const char *const wrong[] = {
        "\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
        "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
        "a\xe6\xbc"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(kvc_safetensors_writer_metadata(w, wrong[i], ""), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_metadata(w, "kvc.xxh3.header", ""), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_metadata(w, "1.kvc.xxh3.tensors", ""), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "F33", 1, &one, refuse, w), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_fill(w, "b", NULL, 1, &one, refuse, w), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "U8", 1, &one, NULL, w), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "U8", 9, huge, refuse, w), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "U8", 1, &negative, refuse, w), KVC_E_RANGE);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "I64", 2, huge, refuse, w), KVC_E_RANGE);
    assert_fails(kvc_safetensors_writer_fill(w, "b", "F4", 1, &one, refuse, w), KVC_E_RANGE);
    assert_fails(kvc_safetensors_writer_new(&none, "2."), KVC_E_INVALID);
    assert_null(none);
    assert_ok(kvc_safetensors_writer_save(w, s->path)); /* none of it is in the file */
    kvc_safetensors *file;
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    assert_int_equal(kvc_safetensors_count(file), 1);
    assert_string_equal(kvc_safetensors_metadata(file, "k"), "v");
    kvc_safetensors_close(file);
}

static void save__refuses_more_than_a_file_can_hold_before_it_writes(void **state) {
    stage *s = *state;
    const int64_t huge[] = {(int64_t)1 << 60};
    for (int i = 0; i < 8; i++) {
        const char name[] = {(char)('a' + i), 0};
        assert_ok(kvc_safetensors_writer_fill(s->writer, name, "U8", 1, huge, refuse, NULL));
    }
    assert_fails(kvc_safetensors_writer_save(s->writer, s->path), KVC_E_RANGE);
    assert_int_equal(test_folder_count(&s->folder), 0);
}

static void writer__arrays_of_another_device_are_refused(void **state) {
    stage *s = *state;
    test_device device;
    kvc_pool *pool;
    kvc_array a;
    test_device_init(&device);
    assert_ok(kvc_pool_new(&pool, &device.table));
    assert_ok(kvc_array_zeros(&a, pool, KVC_F32, 1, (int64_t[]){5}));
    assert_fails(kvc_safetensors_writer_array(s->writer, "a", &a), KVC_E_UNSUPPORTED);
    kvc_array_release(&a);
    kvc_pool_free(pool);
}

static void writer__holds_its_arrays_until_it_is_freed(void **state) {
    stage *s = *state;
    kvc_pool *pool;
    kvc_array a;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_array_full(&a, pool, KVC_F32, 1, (int64_t[]){5}, 1.5));
    assert_ok(kvc_safetensors_writer_array(s->writer, "a", &a));
    kvc_array_release(&a);
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    kvc_safetensors *file;
    float values[5];
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    assert_ok(kvc_safetensors_read(file, kvc_safetensors_find(file, "a"), values, 0, 20));
    assert_true(values[4] == 1.5f);
    kvc_safetensors_close(file);
    kvc_safetensors_writer_free(s->writer);
    s->writer = NULL;
    kvc_pool_free(pool);
}

static void load__refuses_another_shape_or_dtype(void **state) {
    stage *s = *state;
    static float memory[6];
    kvc_array a;
    kvc_safetensors *file;
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, (int64_t[]){2, 3}, NULL, memory));
    assert_ok(kvc_safetensors_writer_array(s->writer, "a", &a));
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, "a");
    assert_ok(kvc_array_borrow(&a, KVC_F32, 2, (int64_t[]){3, 2}, NULL, memory));
    assert_fails(kvc_safetensors_load(file, t, &a), KVC_E_SHAPE);
    assert_string_equal(kvc_last_error(), "into: f32 [3, 2] given, tensor a is F32 [2, 3]");
    assert_ok(kvc_array_borrow(&a, KVC_U32, 2, (int64_t[]){2, 3}, NULL, memory));
    assert_fails(kvc_safetensors_load(file, t, &a), KVC_E_SHAPE);
    assert_ok(kvc_array_borrow(&a, KVC_F32, 1, (int64_t[]){6}, NULL, memory));
    assert_fails(kvc_safetensors_load(file, t, &a), KVC_E_SHAPE);
    kvc_safetensors_close(file);
}

static mode_t mode_of(const char *path) {
    struct stat found;
    assert_int_equal(lstat(path, &found), 0);
    return found.st_mode;
}

static void save__keeps_the_permissions_of_what_it_replaces(void **state) {
    stage *s = *state;
    const mode_t mask = umask(022);
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_int_equal(mode_of(s->path) & 0777, 0644);
    assert_int_equal(chmod(s->path, 0600), 0);
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_int_equal(mode_of(s->path) & 0777, 0600);
    (void)umask(mask);
}

static void save__replaces_a_link_and_refuses_what_is_no_file(void **state) {
    stage *s = *state;
    char other[TEST_PATH], below[TEST_PATH];
    size_t bytes;
    test_file_put(test_folder_path(&s->folder, "other", other), "kept", 4);
    assert_int_equal(symlink(other, s->path), 0);
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_true(S_ISREG(mode_of(s->path)));
    char *kept = test_file_get(other, &bytes);
    assert_memory_equal(kept, "kept", 4);
    free(kept);
    assert_fails(kvc_safetensors_writer_save(s->writer, "/dev/null"), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_save(s->writer, s->folder.path), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_save(s->writer, ""), KVC_E_INVALID);
    assert_fails(kvc_safetensors_writer_save(s->writer, NULL), KVC_E_INVALID);
    assert_fails(
        kvc_safetensors_writer_save(s->writer, test_folder_path(&s->folder, "none/a", below)),
        KVC_E_IO);
    assert_fails(
        kvc_safetensors_writer_save(s->writer, test_folder_path(&s->folder, "none/", below)),
        KVC_E_INVALID);
    assert_int_equal(test_folder_count(&s->folder), 2);
}

static void save__takes_a_name_without_a_folder(void **state) {
    stage *s = *state;
    char *before = getcwd(NULL, 0);
    assert_non_null(before);
    assert_int_equal(chdir(s->folder.path), 0);
    assert_ok(kvc_safetensors_writer_save(s->writer, "saved.safetensors"));
    assert_int_equal(chdir(before), 0);
    free(before);
    kvc_safetensors *file;
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    kvc_safetensors_close(file);
}

static void replaced__a_file_that_is_open_stays_as_it_was(void **state) {
    stage *s = *state;
    static char value[] = "x";
    kvc_array a;
    kvc_safetensors *file;
    assert_ok(kvc_array_borrow(&a, KVC_U8, 1, (int64_t[]){1}, NULL, value));
    assert_ok(kvc_safetensors_writer_array(s->writer, "a", &a));
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    value[0] = 'y';
    assert_ok(kvc_safetensors_writer_save(s->writer, s->path));
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, "a");
    assert_memory_equal(kvc_safetensors_data(file, t), "x", 1);
    assert_ok(kvc_safetensors_verify(file, t));
    kvc_safetensors_close(file);
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    assert_memory_equal(kvc_safetensors_data(file, kvc_safetensors_find(file, "a")), "y", 1);
    kvc_safetensors_close(file);
}

/* Saves the same name again and again, whatever others do. */
static void *save_often(void *path) {
    static const char value[] = "z";
    intptr_t failed = 0;
    for (int i = 0; i < 100; i++) {
        kvc_safetensors_writer *w;
        kvc_array a;
        if (kvc_safetensors_writer_new(&w, "") != KVC_OK) return path;
        failed += kvc_array_borrow(&a, KVC_U8, 1, (int64_t[]){1}, NULL, value) != KVC_OK ||
                  kvc_safetensors_writer_array(w, "a", &a) != KVC_OK ||
                  kvc_safetensors_writer_save(w, path) != KVC_OK;
        kvc_safetensors_writer_free(w);
    }
    return failed ? path : NULL;
}

static void replaced__by_several_at_a_time_is_whole_and_alone(void **state) {
    stage *s = *state;
    pthread_t threads[3];
    kvc_safetensors *file;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, save_often, s->path), 0);
    for (int i = 0; i < 3; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(test_folder_count(&s->folder), 1);
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    assert_ok(kvc_safetensors_verify(file, kvc_safetensors_find(file, "a")));
    kvc_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(writer__random_arrays_come_back_from_and_into_any_layout),
        TEST(writer__writes_the_bytes_that_the_document_shows),
        TEST(writer__a_callback_gives_piece_by_piece_in_order),
        TEST(writer__a_callback_that_fails_ends_the_save_with_its_own_words),
        TEST(writer__texts_of_any_kind_come_back),
        TEST(writer__refuses_what_a_file_cannot_hold),
        TEST(save__refuses_more_than_a_file_can_hold_before_it_writes),
        TEST(writer__arrays_of_another_device_are_refused),
        TEST(writer__holds_its_arrays_until_it_is_freed),
        TEST(load__refuses_another_shape_or_dtype),
        TEST(save__keeps_the_permissions_of_what_it_replaces),
        TEST(save__replaces_a_link_and_refuses_what_is_no_file),
        TEST(save__takes_a_name_without_a_folder),
        TEST(replaced__a_file_that_is_open_stays_as_it_was),
        TEST(replaced__by_several_at_a_time_is_whole_and_alone),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
