#include "support/safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static char *read_all(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long end = ftell(f);
    assert_true(end >= 8);
    rewind(f);
    char *all = malloc((size_t)end);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, (size_t)end, f), end);
    (void)fclose(f);
    *bytes = (size_t)end;
    return all;
}

test_safetensors test_safetensors_open(const char *path) {
    test_safetensors file;
    size_t bytes;
    uint64_t header_bytes = 0;
    file.bytes = read_all(path, &bytes);
    for (int i = 0; i < 8; i++) header_bytes |= (uint64_t)(uint8_t)file.bytes[i] << 8 * i;
    assert_true(header_bytes <= bytes - 8);
    json_error_t error;
    file.header = json_loadb(file.bytes + 8, header_bytes, 0, &error);
    if (!file.header) fail_msg("%s: %s", path, error.text);
    file.data = file.bytes + 8 + header_bytes;
    file.data_bytes = bytes - 8 - header_bytes;
    return file;
}

void test_safetensors_close(test_safetensors *file) {
    json_decref(file->header);
    free(file->bytes);
}

const char *test_safetensors_metadata(const test_safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

bool test_safetensors_has(const test_safetensors *file, const char *name) {
    return json_object_get(file->header, name) != NULL;
}

static kvc_dtype dtype_of(const char *name) {
    static const struct {
        const char *name;
        kvc_dtype dtype;
    } names[] = {
        {"F32", KVC_F32}, {"F16", KVC_F16}, {"BF16", KVC_BF16}, {"U8", KVC_U8}, {"U32", KVC_U32}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) return names[i].dtype;
    fail_msg("dtype %s", name);
    return KVC_U8;
}

kvc_array test_safetensors_tensor(const test_safetensors *file, const char *name) {
    const json_t *entry = json_object_get(file->header, name);
    const json_t *shape_json = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!entry) fail_msg("no tensor %s", name);
    kvc_array a = {
        .dtype = dtype_of(json_string_value(json_object_get(entry, "dtype"))),
        .ndim = (int)json_array_size(shape_json),
    };
    assert_in_range(a.ndim, 0, KVC_MAX_DIMS);
    for (int i = a.ndim - 1; i >= 0; i--) {
        a.shape[i] = json_integer_value(json_array_get(shape_json, (size_t)i));
        a.strides[i] = i + 1 < a.ndim ? a.strides[i + 1] * a.shape[i + 1] : 1;
    }
    const json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    const json_int_t end = json_integer_value(json_array_get(offsets, 1));
    assert_true(0 <= begin && begin <= end && (size_t)end <= file->data_bytes);
    const size_t bytes = (size_t)(end - begin);
    assert_int_equal(kvc_array_nbytes(&a), bytes);
    a.data = malloc(bytes ? bytes : 1);
    assert_non_null(a.data);
    memcpy(a.data, file->data + begin, bytes);
    return a;
}
