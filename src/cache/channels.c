/* Keys per channel. Each key goes to KVC__TAIL, a ring of 2 G rows, G = kv_group; whenever a block
 * of G positions is complete, it is packed from there. So what is packed is the same however a
 * sequence was cut into appends. Positions in whole blocks are read packed, even while the tail
 * still holds them: what attention sees depends on the length alone. After a trim into a block its
 * positions are read from the tail, as they were before it was packed, and the block is packed anew
 * when it is complete again. */
#include "array/columns.h"
#include "array/rotate.h"
#include "base/error.h"
#include "cache/cache.h"
#include "memory/convert.h"
#include "memory/device.h"

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

/* The packed block of a position, of head h. */
static kvc__packed block_at(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                            int64_t position, int64_t h) {
    const kvc__place words = kvc__place_of(cache, layer, KVC__KEYS, sequence, position);
    const kvc__place scales = kvc__place_of(cache, layer, KVC__SCALES, sequence, position);
    const kvc__place biases = kvc__place_of(cache, layer, KVC__SCALES + 1, sequence, position);
    return (kvc__packed){(uint8_t *)words.data + h * words.head_bytes,
                         scales.data + h * scales.head_bytes, biases.data + h * biases.head_bytes};
}

static kvc__packing packing_of(const kvc__layer *layer, kvc_dtype dtype) {
    const kvc_layer_spec *spec = &layer->spec;
    return (kvc__packing){spec->kv_bits, spec->kv_group, spec->key_dim, dtype, spec->dtype};
}

/* Packs the block that begins with a position. */
static void pack_block(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                       int64_t position) {
    const kvc__packing packing = packing_of(layer, layer->spec.dtype);
    const kvc__place tail = kvc__place_of(cache, layer, KVC__TAIL, sequence, position);
    for (int64_t h = 0; h < layer->spec.kv_heads; h++) {
        const kvc__packed to = block_at(cache, layer, sequence, position, h);
        kvc__pack_columns(&packing, &to, tail.data + h * tail.head_bytes, layer->spec.key_dim);
    }
}

/* Rows [from, from + n) of an argument, to rows of the tail that follow each other, rotated. */
static void write_rotated(const kvc__layer *layer, const kvc__place *to, const kvc_array *rows) {
    const int64_t dim = layer->spec.key_dim, order = kvc__rotation_order(dim), one = 1;
    const size_t element = kvc_dtype_size_bytes(layer->spec.dtype);
    for (int64_t h = 0; h < layer->spec.kv_heads; h++)
        for (int64_t i = 0; i < rows->shape[2]; i++)
            for (int64_t d = 0; d < dim; d += order) {
                float x[KVC__ROTATION_MOST];
                char *at = to->data + h * to->head_bytes + (size_t)(i * dim + d) * element;
                const kvc_strided dst = {at, layer->spec.dtype, &one}, src = {x, KVC_F32, &one};
                kvc__load_piece(x, layer, rows, h, i, d, order);
                kvc__convert_copy(&dst, &src, 1, &order);
            }
}

/* Positions of one block. */
static kvc_status write_tail(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                             int64_t position, const kvc_array *rows) {
    const kvc_layer_spec *spec = &layer->spec;
    const kvc__place to = kvc__place_of(cache, layer, KVC__TAIL, sequence, position);
    if (spec->rotated) {
        write_rotated(layer, &to, rows);
        return KVC_OK;
    }
    const int64_t head = to.head_bytes / (int64_t)kvc_dtype_size_bytes(spec->dtype);
    const int64_t strides[3] = {head, spec->key_dim, 1};
    const kvc_strided dst = {to.data, spec->dtype, strides};
    const kvc_strided src = {rows->data, rows->dtype, rows->strides + 1};
    return kvc__device_copy(kvc_pool_device(cache->pool), &dst, &src, 3, rows->shape + 1);
}

kvc_status kvc__channels_write(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                               int64_t position, const kvc_array *rows) {
    const int64_t group = layer->spec.kv_group, n = rows->shape[2];
    for (int64_t done = 0; done < n;) {
        const int64_t at = position + done, left = group - at % group;
        const int64_t run = left < n - done ? left : n - done;
        const kvc_array some = kvc__some_positions(rows, 0, done, run);
        KVC_TRY(write_tail(cache, layer, sequence, at, &some));
        if (run == left) pack_block(cache, layer, sequence, at + run - group);
        done += run;
    }
    return KVC_OK;
}

static void read_packed(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                        int64_t position, int64_t n, float *to) {
    const kvc__packing packing = packing_of(layer, KVC_F32);
    const int64_t dim = layer->spec.key_dim, group = layer->spec.kv_group;
    for (int64_t h = 0; h < layer->spec.kv_heads; h++)
        for (int64_t done = 0, run; done < n; done += run) {
            const int64_t at = position + done, left = group - at % group;
            const kvc__packed from = block_at(cache, layer, sequence, at, h);
            run = left < n - done ? left : n - done;
            kvc__unpack_columns(&packing, to + (h * n + done) * dim, dim, &from, at % group, run);
        }
}

void kvc__channels_read(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence,
                        int64_t position, int64_t n, float *to) {
    const int64_t dim = layer->spec.key_dim;
    if (position < kvc__channels_packed(layer, sequence)) {
        read_packed(cache, layer, sequence, position, n, to);
        return;
    }
    const kvc__place tail = kvc__place_of(cache, layer, KVC__TAIL, sequence, position);
    const int64_t head = tail.head_bytes / (int64_t)kvc_dtype_size_bytes(layer->spec.dtype);
    const int64_t shape[3] = {layer->spec.kv_heads, n, dim};
    const int64_t there[3] = {n * dim, dim, 1}, here[3] = {head, dim, 1};
    const kvc_strided dst = {to, KVC_F32, there}, src = {tail.data, layer->spec.dtype, here};
    kvc__convert_copy(&dst, &src, 3, shape);
}

int64_t kvc__channels_trimmable(const kvc__layer *layer, int64_t sequence) {
    return layer->lengths[sequence] - round_up(layer->tails[sequence], layer->spec.kv_group);
}

void kvc__channels_advance(kvc__layer *layer, int64_t sequence, int64_t n) {
    const int64_t oldest = layer->lengths[sequence] + n - layer->planes[KVC__TAIL].row.turn;
    if (oldest > layer->tails[sequence]) layer->tails[sequence] = oldest;
}

bool kvc__channels_can_hold(const kvc__layer *layer, int64_t length, int64_t first) {
    const int64_t group = layer->spec.kv_group, turn = layer->planes[KVC__TAIL].row.turn;
    return first >= 0 && first <= length / group * group && length - first <= turn;
}

kvc_status kvc__channels_check(const kvc_cache *cache, const kvc__layer *layer, int64_t sequence) {
    const int64_t first = layer->tails[sequence], length = layer->lengths[sequence];
    if (kvc__channels_can_hold(layer, length, first)) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT,
                     "layer %lld, sequence %lld: unpacked keys from position %lld on, for a length "
                     "of %lld in blocks of %d",
                     (long long)(layer - cache->layers), (long long)sequence, (long long)first,
                     (long long)length, layer->spec.kv_group);
}
