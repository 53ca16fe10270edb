#include "support/naive_record.h"

#include <stdbool.h>
#include <string.h>

#include "array/rotate.h"
#include "support/naive_cache.h"
#include "support/support.h"

enum { ROW_FLOATS = RECORD_ROW_BYTES / sizeof(float) };

static int64_t dim_of(const kvc_layer_spec *spec, int side) {
    return side == 0 ? spec->key_dim : spec->value_dim;
}

int record_pieces(size_t bytes[RECORD_PIECES], const kvc_layer_spec *spec, int side) {
    const size_t dim = (size_t)dim_of(spec, side), size = kvc_dtype_size_bytes(spec->dtype);
    bytes[0] = spec->kv_bits ? dim / 8 * (size_t)spec->kv_bits : dim * size;
    bytes[1] = bytes[2] = spec->kv_bits ? dim / (size_t)spec->kv_group * size : 0;
    return spec->kv_bits ? RECORD_PIECES : 1;
}

static size_t row_bytes(const kvc_layer_spec *spec, int side) {
    size_t bytes[RECORD_PIECES];
    (void)record_pieces(bytes, spec, side);
    return bytes[0] + bytes[1] + bytes[2];
}

size_t record_row_offset(const kvc_layer_spec *spec, int side, int64_t head) {
    const size_t before = side == 0 ? 0 : (size_t)spec->kv_heads * row_bytes(spec, 0);
    return before + (size_t)head * row_bytes(spec, side);
}

size_t record_bytes(const kvc_layer_spec *spec) {
    return record_row_offset(spec, 1, spec->kv_heads);
}

static kvc_array contiguous(kvc_dtype dtype, int64_t dim, void *data) {
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, dtype, 1, &dim, NULL, data));
    return a;
}

void record_store_row(uint8_t *out, const kvc_layer_spec *spec, int side, kvc_dtype dtype,
                      void *row) {
    _Alignas(64) char pieces[RECORD_PIECES][RECORD_ROW_BYTES];
    const int64_t dim = dim_of(spec, side);
    size_t bytes[RECORD_PIECES];
    const int count = record_pieces(bytes, spec, side);
    float rotated[ROW_FLOATS];
    kvc_array from = contiguous(dtype, dim, row);
    assert_true(bytes[0] <= RECORD_ROW_BYTES && dim <= ROW_FLOATS);
    if (spec->rotated) {
        convert_elements(rotated, KVC_F32, row, dtype, dim);
        kvc__rotate(rotated, dim);
        from = contiguous(KVC_F32, dim, rotated);
    }
    if (spec->kv_bits) {
        const int64_t groups = dim / spec->kv_group;
        const kvc_quantized to = {
            .struct_size = sizeof to,
            .bits = spec->kv_bits,
            .group = spec->kv_group,
            .words = contiguous(KVC_U8, (int64_t)bytes[0], pieces[0]),
            .scales = contiguous(spec->dtype, groups, pieces[1]),
            .biases = contiguous(spec->dtype, groups, pieces[2]),
        };
        assert_ok(kvc_quantize(&to, &from));
    } else {
        convert_elements(pieces[0], spec->dtype, row, dtype, dim);
    }
    for (int i = 0; i < count; out += bytes[i], i++) memcpy(out, pieces[i], bytes[i]);
}

static bool is_alike(const kvc_layer_spec *a, const kvc_layer_spec *b) {
    return a->dtype == b->dtype && a->kv_bits == b->kv_bits && a->kv_group == b->kv_group &&
           a->rotated == b->rotated;
}

/* A row as another layer keeps it. */
static void convert_row(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                        const kvc_layer_spec *from, int side) {
    _Alignas(64) char pieces[RECORD_PIECES][RECORD_ROW_BYTES];
    float row[ROW_FLOATS];
    size_t bytes[RECORD_PIECES];
    const int64_t dim = dim_of(from, side);
    const int count = record_pieces(bytes, from, side);
    assert_true(dim <= ROW_FLOATS);
    for (int i = 0; i < count; in += bytes[i], i++) memcpy(pieces[i], in, bytes[i]);
    if (!from->kv_bits) {
        record_store_row(out, to, side, from->dtype, pieces[0]);
        return;
    }
    const int64_t groups = dim / from->kv_group;
    const kvc_array unpacked = contiguous(KVC_F32, dim, row);
    const kvc_quantized packed = {.struct_size = sizeof packed,
                                  .bits = from->kv_bits,
                                  .group = from->kv_group,
                                  .words = contiguous(KVC_U8, (int64_t)bytes[0], pieces[0]),
                                  .scales = contiguous(from->dtype, groups, pieces[1]),
                                  .biases = contiguous(from->dtype, groups, pieces[2])};
    assert_ok(kvc_dequantize(&unpacked, &packed));
    if (from->rotated) kvc__rotate(row, dim);
    record_store_row(out, to, side, KVC_F32, row);
}

void record_convert(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                    const kvc_layer_spec *from) {
    if (is_alike(to, from)) {
        memcpy(out, in, record_bytes(to));
        return;
    }
    for (int side = 0; side < 2; side++)
        for (int64_t h = 0; h < to->kv_heads; h++)
            convert_row(out + record_row_offset(to, side, h), to,
                        in + record_row_offset(from, side, h), from, side);
}
