/* The reader: what it refuses and in which words, and files that others wrote. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvcache/safetensors.h>

#include "support/files.h"
#include "support/support.h"

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
} stage;

static int setup(void **state) {
    static stage s;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "given.safetensors", s.path);
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    test_folder_deinit(&s->folder);
    return 0;
}

/* Writes a file of a length, a header and data that counts 0, 1, 2, …. */
static void put(const stage *s, uint64_t length, const char *header, size_t data_bytes) {
    const size_t header_bytes = strlen(header);
    uint8_t *file = malloc(8 + header_bytes + data_bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    for (size_t i = 0; i < header_bytes; i++) file[8 + i] = (uint8_t)header[i];
    for (size_t i = 0; i < data_bytes; i++) file[8 + header_bytes + i] = (uint8_t)i;
    test_file_put(s->path, file, 8 + header_bytes + data_bytes);
    free(file);
}

static void expect_refused(const stage *s, kvc_status status, const char *words) {
    for (unsigned flags = 0; flags < 4; flags += flags ? 2 : 1) { /* 0, MAP, MAP + WRITABLE */
        kvc_safetensors *file = (kvc_safetensors *)&status;
        assert_fails(kvc_safetensors_open(&file, s->path, flags), status);
        assert_null(file);
        if (!strstr(kvc_last_error(), words))
            fail_msg("\"%s\" has not \"%s\"", kvc_last_error(), words);
        assert_non_null(strstr(kvc_last_error(), "given.safetensors"));
    }
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static const struct {
    const char *header;
    size_t data_bytes;
    const char *words;
} refusals[] = {
    {"", 0, "begins with no '{'"},
    {"[]", 0, "begins with no '{'"},
    {" {}", 0, "begins with no '{'"},
    {"{", 0, "header: "},
    {"{}}", 0, "end of file expected"},
    {"{}\xff", 0, "header: "},
    {"{\"\xc3\x28\":1}", 0, "unable to decode byte 0xc3"},
    {"{\"\\ud800\":1}", 0, "header: "},
    {"{\"a\\u0000b\":1}", 0, "header: "},
    {"{\"a\":7}", 0, "tensor a: is no object"},
    {"{\"a\":null}", 0, "tensor a: is no object"},
    {"{\"a\":{}}", 0, "tensor a: dtype: is no string"},
    {"{\"a\":{\"dtype\":7}}", 0, "tensor a: dtype: is no string"},
    {"{" TENSOR("a", "F33", "[1]", 0, 4) "}", 4, "tensor a: dtype: \"F33\" is none"},
    {"{" TENSOR("a", "f32", "[1]", 0, 4) "}", 4, "tensor a: dtype: \"f32\" is none"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, "tensor a: shape: is no array"},
    {"{" TENSOR("a", "F32", "{}", 0, 4) "}", 4, "tensor a: shape: is no array"},
    {"{" TENSOR("a", "F32", "[-1]", 0, 4) "}", 4, "tensor a: shape: -1 found"},
    {"{" TENSOR("a", "F32", "[1.0]", 0, 4) "}", 4, "tensor a: shape: entry 0 is no integer"},
    {"{" TENSOR("a", "F32", "[1,\"1\"]", 0, 4) "}", 4, "tensor a: shape: entry 1 is no integer"},
    {"{" TENSOR("a", "F32", "[9223372036854775808]", 0, 4) "}", 4, "header: "},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, "fills no number of bytes"},
    {"{" TENSOR("a", "F32", "[4294967296,4294967296,0]", 0, 0) "}", 0, "fills no number of bytes"},
    {"{" TENSOR("a", "F4", "[3]", 0, 1) "}", 1, "fills no number of bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor a: data_offsets: is no array"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "1 numbers, 2 wanted"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "3 numbers"},
    {"{" TENSOR("a", "U8", "[1]", -1, 0) "}", 1, "data_offsets: -1 found, 0 or more wanted"},
    {"{" TENSOR("a", "U8", "[1]", 1, 0) "}", 1, "[1, 0] in 1 bytes"},
    {"{" TENSOR("a", "U8", "[2]", 0, 2) "}", 1, "[0, 2] in 1 bytes"},
    {"{" TENSOR("a", "U8", "[2]", 0, 9223372036854775807) "}", 2, "in 2 bytes"},
    {"{" TENSOR("a", "F32", "[2]", 0, 4) "}", 4, "4 bytes, 8 wanted for F32 [2]"},
    {"{" TENSOR("a", "F32", "[]", 0, 8) "}", 8, "8 bytes, 4 wanted for F32 []"},
    {"{" TENSOR("a", "U8", "[0]", 0, 1) "}", 1, "1 bytes, 0 wanted for U8 [0]"},
    {"{" TENSOR("a", "U8", "[2]", 0, 2) "," TENSOR("b", "U8", "[2]", 1, 3) "}", 3,
     "tensor b: data_offsets: begins at byte 1 of the data, which overlaps"},
    {"{" TENSOR("a", "U8", "[2]", 0, 2) "," TENSOR("b", "U8", "[2]", 0, 2) "}", 2, "overlaps"},
    {"{" TENSOR("b", "U8", "[2]", 3, 5) "," TENSOR("a", "U8", "[2]", 0, 2) "}", 5,
     "tensor b: data_offsets: begins at byte 3 of the data, which leaves a gap: 2 wanted"},
    {"{" TENSOR("a", "U8", "[1]", 1, 2) "}", 2, "leaves a gap: 0 wanted"},
    {"{" TENSOR("a", "U8", "[0]", 1, 1) "," TENSOR("b", "U8", "[2]", 0, 2) "}", 2, "overlaps"},
    {"{" TENSOR("a", "U8", "[2]", 0, 2) "}", 3, "3 bytes of data, 2 wanted"},
    {"{}", 1, "1 bytes of data, 0 wanted"},
    {"{" TENSOR("a", "U8", "[1]", 0, 1) "," TENSOR("a", "U8", "[1]", 0, 1) "}", 1, "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "duplicate"},
    {"{\"__metadata__\":[]}", 0, "__metadata__: is no object"},
    {"{\"__metadata__\":\"a\"}", 0, "__metadata__: is no object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a: is no string"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__: a: is no string"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}}", 0, "duplicate"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "duplicate"},
    {"{\"__metadata__\":{\"kvc.xxh3.header\":\"00\"}}", 0, "there without kvc.xxh3.tensors"},
    {"{\"__metadata__\":{\"1.kvc.xxh3.tensors\":\"\"}}", 0, "there without 1.kvc.xxh3.header"},
    {"{\"__metadata__\":{\"kvc.xxh3.header\":\"\",\"kvc.xxh3.tensors\":\"\"}}", 0,
     "differs from its checksum"},
    {"{\"__metadata__\":{\"kvc.xxh3.tensors\":\"\",\"kvc.xxh3.header\":\"\"}}", 0,
     "differs from its checksum"},
    {"{\"\\u0007\\u001b[2J\":1}", 0, "tensor ??[2J: is no object"},
};

static void open__refuses_what_the_format_does_not_allow_and_says_why(void **state) {
    const stage *s = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        put(s, strlen(refusals[i].header), refusals[i].header, refusals[i].data_bytes);
        expect_refused(s, KVC_E_CORRUPT, refusals[i].words);
    }
}

static void open__refuses_lengths_that_no_header_has(void **state) {
    const stage *s = *state;
    test_file_put(s->path, "\2\0\0\0\0\0\0", 7);
    expect_refused(s, KVC_E_CORRUPT, "7 bytes, at least the 8 of a length wanted");
    test_file_put(s->path, "", 0);
    expect_refused(s, KVC_E_CORRUPT, "0 bytes");
    put(s, 0, "{}", 0);
    expect_refused(s, KVC_E_CORRUPT, "begins with no '{'");
    put(s, 3, "{}", 0);
    expect_refused(s, KVC_E_CORRUPT, "a length of 3 in a file of 10 bytes");
    put(s, UINT64_MAX, "{}", 0);
    expect_refused(s, KVC_E_CORRUPT, "a length of 18446744073709551615");
    put(s, 1, "{}", 0);
    expect_refused(s, KVC_E_CORRUPT, "header: ");
}

/* A file with holes: as large as it says, and no block of it on the disk. */
static void open__refuses_a_header_of_more_than_the_format_s_limit(void **state) {
    const stage *s = *state;
    put(s, 100000001, "{}", 0);
    FILE *f = fopen(s->path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 200000000, SEEK_SET), 0);
    assert_int_equal(fputc(0, f), 0);
    assert_int_equal(fclose(f), 0);
    expect_refused(s, KVC_E_CORRUPT, "at most 100000000");
}

static void open__refuses_deep_nesting(void **state) {
    const stage *s = *state;
    enum { DEPTH = 100000 };
    static char header[2 * DEPTH + 8];
    (void)snprintf(header, sizeof header, "{\"a\":");
    memset(header + 5, '[', DEPTH);
    memset(header + 5 + DEPTH, ']', DEPTH);
    header[5 + 2 * DEPTH] = '}';
    put(s, strlen(header), header, 0);
    expect_refused(s, KVC_E_CORRUPT, "header: ");
}

static void open__refuses_more_dimensions_than_an_array_has(void **state) {
    const stage *s = *state;
    const char *header = "{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}";
    put(s, strlen(header), header, 1);
    expect_refused(s, KVC_E_UNSUPPORTED, "tensor a: shape: 9 dimensions, at most 8 wanted");
}

static void open__refuses_what_is_no_file(void **state) {
    const stage *s = *state;
    kvc_safetensors *file;
    assert_fails(kvc_safetensors_open(&file, s->path, 0), KVC_E_IO);
    assert_non_null(strstr(kvc_last_error(), "No such file"));
    assert_fails(kvc_safetensors_open(&file, s->folder.path, 0), KVC_E_INVALID);
    assert_int_equal(mkfifo(s->path, 0600), 0);
    assert_fails(kvc_safetensors_open(&file, s->path, 0), KVC_E_INVALID); /* and does not wait */
    assert_fails(kvc_safetensors_open(&file, NULL, 0), KVC_E_INVALID);
    assert_fails(kvc_safetensors_open(NULL, s->path, 0), KVC_E_INVALID);
    assert_fails(kvc_safetensors_open(&file, s->path, 8), KVC_E_INVALID);
    assert_fails(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_WRITABLE), KVC_E_INVALID);
}

static void open__takes_what_the_format_allows(void **state) {
    const stage *s = *state;
    const char *header = "{" TENSOR("long", "I64", "[1]", 3, 11) "," TENSOR(
        "empty", "F32", "[2,0]", 3,
        3) ","
           "\"__metadata__\": {\"k\" : \"\\u00e9\"}," TENSOR(
               "flags", "BOOL", "[3]", 0,
               3) ","
                  "\"scalar\" : {\"shape\":[ ],\"dtype\":\"BF16\",\"other\":[[7]],"
                  "\"data_offsets\" : [11, 13]} } \n\t ";
    kvc_safetensors *file;
    put(s, strlen(header), header, 13);
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
    assert_int_equal(kvc_safetensors_count(file), 4);
    static const char *const names[] = {"empty", "flags", "long", "scalar"};
    for (size_t i = 0; i < 4; i++) {
        const kvc_safetensors_tensor *t = kvc_safetensors_at(file, i);
        assert_string_equal(t->name, names[i]);
        assert_ptr_equal(kvc_safetensors_find(file, names[i]), t);
        assert_string_equal(t->checksum, "");
    }
    assert_null(kvc_safetensors_at(file, 4));
    assert_null(kvc_safetensors_find(file, "lon"));
    const kvc_safetensors_tensor *scalar = kvc_safetensors_find(file, "scalar");
    assert_int_equal(scalar->dtype, KVC_BF16);
    assert_int_equal(scalar->ndim, 0);
    assert_int_equal(scalar->bytes, 2);
    assert_int_equal(scalar->offset, 8 + strlen(header) + 11);
    assert_memory_equal(kvc_safetensors_data(file, scalar), "\13\14", 2);
    const kvc_safetensors_tensor *whole = kvc_safetensors_find(file, "long");
    assert_int_equal(whole->dtype, 0);
    assert_string_equal(whole->dtype_name, "I64");
    assert_memory_equal(kvc_safetensors_data(file, whole), "\3\4\5\6\7\10\11\12", 8);
    assert_int_equal(kvc_safetensors_metadata_count(file), 1);
    assert_string_equal(kvc_safetensors_metadata(file, "k"), "\xc3\xa9");
    assert_null(kvc_safetensors_metadata(file, "j"));
    const char *key;
    assert_string_equal(kvc_safetensors_metadata_at(file, 0, &key), "\xc3\xa9");
    assert_string_equal(key, "k");
    assert_null(kvc_safetensors_metadata_at(file, 1, &key));
    assert_null(key);
    assert_false(kvc_safetensors_has_checksums(file));
    assert_fails(kvc_safetensors_verify(file, whole), KVC_E_UNSUPPORTED);
    kvc_safetensors_close(file);
    kvc_safetensors_close(NULL);
}

static void open__takes_a_file_of_nothing(void **state) {
    const stage *s = *state;
    static const char *const headers[] = {"{}", "{\"__metadata__\":null}",
                                          "{\"__metadata__\":{}}      "};
    for (size_t i = 0; i < 3; i++) {
        kvc_safetensors *file;
        put(s, strlen(headers[i]), headers[i], 0);
        assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP));
        assert_int_equal(kvc_safetensors_count(file), 0);
        assert_int_equal(kvc_safetensors_metadata_count(file), 0);
        assert_null(kvc_safetensors_find(file, ""));
        kvc_safetensors_close(file);
    }
}

static void read__gives_parts_and_refuses_what_lies_outside(void **state) {
    const stage *s = *state;
    const char *header = "{" TENSOR("a", "U8", "[3]", 0, 3) "," TENSOR("b", "U8", "[4]", 3, 7) "}";
    kvc_safetensors *file;
    char into[4] = {0};
    put(s, strlen(header), header, 7);
    assert_ok(kvc_safetensors_open(&file, s->path, 0));
    const kvc_safetensors_tensor *b = kvc_safetensors_find(file, "b");
    assert_null(kvc_safetensors_data(file, b));
    assert_ok(kvc_safetensors_read(file, b, into, 0, 4));
    assert_memory_equal(into, "\3\4\5\6", 4);
    assert_ok(kvc_safetensors_read(file, b, into, 2, 2));
    assert_memory_equal(into, "\5\6", 2);
    assert_ok(kvc_safetensors_read(file, b, into, 4, 0));
    assert_fails(kvc_safetensors_read(file, b, into, 3, 2), KVC_E_RANGE);
    assert_fails(kvc_safetensors_read(file, b, into, 5, 0), KVC_E_RANGE);
    assert_fails(kvc_safetensors_read(file, b, into, 1, SIZE_MAX), KVC_E_RANGE);
    assert_int_equal(truncate(s->path, (off_t)(8 + strlen(header) + 5)), 0);
    assert_fails(kvc_safetensors_read(file, b, into, 0, 4), KVC_E_CORRUPT);
    assert_non_null(strstr(kvc_last_error(), "ends at byte"));
    kvc_safetensors_close(file);
}

static void map__writes_stay_private(void **state) {
    const stage *s = *state;
    const char *header = "{" TENSOR("a", "U8", "[3]", 0, 3) "}";
    kvc_safetensors *file;
    char into[3];
    put(s, strlen(header), header, 3);
    assert_ok(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP | KVC_SAFETENSORS_WRITABLE));
    const kvc_safetensors_tensor *a = kvc_safetensors_find(file, "a");
    char *data = kvc_safetensors_data(file, a);
    data[1] = 77;
    assert_ok(kvc_safetensors_read(file, a, into, 0, 3));
    assert_memory_equal(into, "\0\1\2", 3);
    assert_int_equal(data[1], 77);
    kvc_safetensors_close(file);
}

static size_t row_major(const kvc_safetensors_tensor *t, int64_t strides[KVC_MAX_DIMS]) {
    int64_t elements = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        strides[i] = elements;
        elements *= t->shape[i];
    }
    return (size_t)elements;
}

/* Loads a tensor, and compares it with its bytes in the file, read by other means. */
static void check_tensor(const kvc_safetensors *file, const kvc_safetensors_tensor *t,
                         const char *whole) {
    kvc_array a = {.dtype = t->dtype, .ndim = t->ndim};
    assert_true(t->dtype);
    memcpy(a.shape, t->shape, sizeof a.shape);
    assert_int_equal(row_major(t, a.strides) * kvc_dtype_size_bytes(t->dtype), t->bytes);
    a.data = malloc(t->bytes);
    assert_non_null(a.data);
    assert_ok(kvc_safetensors_load(file, t, &a));
    assert_memory_equal(a.data, whole + t->offset, t->bytes);
    assert_memory_equal(a.data, kvc_safetensors_data(file, t), t->bytes);
    free(a.data);
}

static size_t check_golden(const char *folder) {
    size_t files = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[TEST_PATH];
        kvc_safetensors *file;
        size_t bytes, data = 0;
        if (!strstr(e->d_name, ".safetensors")) continue;
        assert_true(snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < TEST_PATH);
        char *whole = test_file_get(path, &bytes);
        assert_ok(kvc_safetensors_open(&file, path, KVC_SAFETENSORS_MAP));
        for (size_t i = 0; i < kvc_safetensors_count(file); i++) {
            check_tensor(file, kvc_safetensors_at(file, i), whole);
            data += kvc_safetensors_at(file, i)->bytes;
        }
        assert_true(kvc_safetensors_count(file) > 0 && data < bytes);
        kvc_safetensors_close(file);
        free(whole);
        files++;
    }
    (void)closedir(d);
    return files;
}

static void golden__files_of_mlx_list_and_load(void **state) {
    (void)state;
    assert_int_equal(check_golden(test_shared_path("golden/mlx-lm")), 10);
    assert_int_equal(check_golden(test_shared_path("golden/sdpa")), 13);
}

static void golden__a_prompt_cache_of_mlx_lm_lists_right(void **state) {
    (void)state;
    static const int64_t shape[] = {1, 2, 9, 16};
    kvc_safetensors *file;
    assert_ok(
        kvc_safetensors_open(&file, test_shared_path("golden/mlx-lm/kv_bf16.safetensors"), 0));
    assert_int_equal(kvc_safetensors_count(file), 6);
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, "2.1");
    assert_int_equal(t->dtype, KVC_BF16);
    assert_int_equal(t->ndim, 4);
    assert_memory_equal(t->shape, shape, sizeof shape);
    assert_int_equal(t->offset, 8 + 544);
    assert_int_equal(t->bytes, 576);
    assert_string_equal(kvc_safetensors_metadata(file, "2.1"), "KVCache");
    assert_string_equal(kvc_safetensors_metadata(file, "0.0"), "");
    assert_string_equal(kvc_safetensors_metadata(file, "1.model"), "toy");
    kvc_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(open__refuses_what_the_format_does_not_allow_and_says_why),
        TEST(open__refuses_lengths_that_no_header_has),
        TEST(open__refuses_a_header_of_more_than_the_format_s_limit),
        TEST(open__refuses_deep_nesting),
        TEST(open__refuses_more_dimensions_than_an_array_has),
        TEST(open__refuses_what_is_no_file),
        TEST(open__takes_what_the_format_allows),
        TEST(open__takes_a_file_of_nothing),
        TEST(read__gives_parts_and_refuses_what_lies_outside),
        TEST(map__writes_stay_private),
        TEST(golden__files_of_mlx_list_and_load),
        TEST(golden__a_prompt_cache_of_mlx_lm_lists_right),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
