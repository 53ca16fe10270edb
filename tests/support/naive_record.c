#include "support/naive_record.h"

#include <string.h>

#include "array/rotate.h"
#include "support/naive_cache.h"
#include "support/support.h"

enum { ROW_FLOATS = RECORD_ROW_BYTES / sizeof(float) };

static int64_t dim_of(const kvc_layer_spec *spec, int side) {
    return side == 0 ? spec->key_dim : spec->value_dim;
}

/* Whether rows of a side are. */
static bool is_packed(const kvc_layer_spec *spec, int side) {
    return spec->kv_bits && (side == 1 || !spec->keys_per_channel);
}

int record_pieces(size_t bytes[RECORD_PIECES], const kvc_layer_spec *spec, int side) {
    const size_t dim = (size_t)dim_of(spec, side), size = kvc_dtype_size_bytes(spec->dtype);
    const bool packed = is_packed(spec, side);
    bytes[0] = packed ? dim / 8 * (size_t)spec->kv_bits : dim * size;
    bytes[1] = bytes[2] = packed ? dim / (size_t)spec->kv_group * size : 0;
    return packed ? RECORD_PIECES : 1;
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
    if (is_packed(spec, side)) {
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
        convert_elements(pieces[0], spec->dtype, from.data, from.dtype, dim);
    }
    for (int i = 0; i < count; out += bytes[i], i++) memcpy(out, pieces[i], bytes[i]);
}

void record_block_pieces(size_t bytes[RECORD_PIECES], const kvc_layer_spec *spec) {
    bytes[0] = (size_t)(spec->key_dim * spec->kv_group / 8 * spec->kv_bits);
    bytes[1] = bytes[2] = (size_t)spec->key_dim * kvc_dtype_size_bytes(spec->dtype);
}

/* Element d of position i becomes element i of channel d. */
static void gather_channels(char *channels, const kvc_layer_spec *spec, int64_t head,
                            const uint8_t *records) {
    const size_t size = kvc_dtype_size_bytes(spec->dtype), record = record_bytes(spec);
    for (int64_t i = 0; i < spec->kv_group; i++) {
        const uint8_t *key = records + (size_t)i * record + record_row_offset(spec, 0, head);
        for (int64_t d = 0; d < spec->key_dim; d++)
            memcpy(channels + (size_t)(d * spec->kv_group + i) * size, key + (size_t)d * size,
                   size);
    }
}

void record_pack_block(record_block *block, const kvc_layer_spec *spec, int64_t head,
                       const uint8_t *records) {
    _Alignas(64) char channels[RECORD_BLOCK * sizeof(float)];
    const int64_t dim = spec->key_dim, elements = dim * spec->kv_group;
    size_t bytes[RECORD_PIECES];
    record_block_pieces(bytes, spec);
    assert_true(elements <= RECORD_BLOCK);
    gather_channels(channels, spec, head, records);
    const kvc_array keys = contiguous(spec->dtype, elements, channels);
    const kvc_array unpacked = contiguous(KVC_F32, elements, block->unpacked);
    const kvc_quantized packed = {
        .struct_size = sizeof packed,
        .bits = spec->kv_bits,
        .group = spec->kv_group,
        .words = contiguous(KVC_U8, (int64_t)bytes[0], block->bytes),
        .scales = contiguous(spec->dtype, dim, block->bytes + bytes[0]),
        .biases = contiguous(spec->dtype, dim, block->bytes + bytes[0] + bytes[1]),
    };
    assert_ok(kvc_quantize(&packed, &keys));
    assert_ok(kvc_dequantize(&unpacked, &packed));
}

bool record_is_alike(const kvc_layer_spec *a, const kvc_layer_spec *b) {
    return a->dtype == b->dtype && a->kv_bits == b->kv_bits && a->kv_group == b->kv_group &&
           a->keys_per_channel == b->keys_per_channel && a->rotated == b->rotated;
}

static void unpack_row(float *row, const kvc_layer_spec *spec, int side, const uint8_t *in) {
    _Alignas(64) char pieces[RECORD_PIECES][RECORD_ROW_BYTES];
    size_t bytes[RECORD_PIECES];
    const int64_t dim = dim_of(spec, side), groups = dim / spec->kv_group;
    const int count = record_pieces(bytes, spec, side);
    for (int i = 0; i < count; in += bytes[i], i++) memcpy(pieces[i], in, bytes[i]);
    const kvc_array unpacked = contiguous(KVC_F32, dim, row);
    const kvc_quantized packed = {.struct_size = sizeof packed,
                                  .bits = spec->kv_bits,
                                  .group = spec->kv_group,
                                  .words = contiguous(KVC_U8, (int64_t)bytes[0], pieces[0]),
                                  .scales = contiguous(spec->dtype, groups, pieces[1]),
                                  .biases = contiguous(spec->dtype, groups, pieces[2])};
    assert_ok(kvc_dequantize(&unpacked, &packed));
}

/* A row as another layer keeps it. One that is not packed at all stays in its dtype on the way. */
static void convert_row(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                        const kvc_layer_spec *from, int side, const record_block *block,
                        int64_t position) {
    float row[ROW_FLOATS];
    const int64_t dim = dim_of(from, side);
    const kvc_dtype dtype = from->kv_bits ? KVC_F32 : from->dtype;
    assert_true(dim <= ROW_FLOATS);
    if (is_packed(from, side)) unpack_row(row, from, side, in);
    else convert_elements(row, dtype, in, from->dtype, dim);
    for (int64_t d = 0; block && d < dim; d++)
        row[d] = block->unpacked[d * from->kv_group + position % from->kv_group];
    if (from->rotated) kvc__rotate(row, dim);
    record_store_row(out, to, side, dtype, row);
}

void record_convert(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                    const kvc_layer_spec *from, const record_block *block, int64_t position) {
    if (record_is_alike(to, from)) {
        memcpy(out, in, record_bytes(to));
        return;
    }
    for (int side = 0; side < 2; side++)
        for (int64_t h = 0; h < to->kv_heads; h++)
            convert_row(out + record_row_offset(to, side, h), to,
                        in + record_row_offset(from, side, h), from, side,
                        side == 0 && block ? &block[h] : NULL, position);
}
