#include "attend_floor.h"

#include <inttypes.h>
#include <stdlib.h>

#include "cli.h"

enum { PLANES = 6, LINE_BYTES = 64 };

/* The arrays of a layer, or of a block's layer: [..., kv_heads, rows, elements]. */
typedef struct planes {
    kvc_array array[PLANES];
    size_t count;
} planes;

static void release(planes *p) {
    for (size_t i = 0; i < p->count; i++) kvc_array_release(&p->array[i]);
}

static void take_quantized(planes *p, const kvc_quantized *k, const kvc_quantized *v) {
    *p = (planes){{k->words, k->scales, k->biases, v->words, v->scales, v->biases}, PLANES};
}

/* Pieces. */

static int add_piece(attend_floor *f, const char *memory, size_t bytes) {
    if (bytes == 0) return CLI_DONE;
    if (f->count == f->room) {
        const size_t room = f->room ? 2 * f->room : 64;
        attend_piece *more = realloc(f->pieces, room * sizeof *more);
        if (!more) return cli_fail("no memory for %zu pieces of a layer", room);
        f->pieces = more;
        f->room = room;
    }
    f->pieces[f->count++] = (attend_piece){memory, bytes};
    f->bytes += bytes;
    return CLI_DONE;
}

/* Rows [begin, end) of every head. */
static int add_rows(attend_floor *f, const kvc_array *a, int64_t sequence, int64_t begin,
                    int64_t end) {
    const int heads = a->ndim - 3;
    const size_t element = kvc_dtype_size_bytes(a->dtype);
    const size_t row = (size_t)a->shape[heads + 2] * element;
    const char *data = (const char *)a->data;
    if (a->ndim == 3 && end - begin == a->shape[1]) /* a whole block: heads follow each other */
        return add_piece(f, data, (size_t)(a->shape[0] * a->shape[1]) * row);
    if (a->ndim == 4) data += (size_t)(sequence * a->strides[0]) * element;
    for (int64_t h = 0; h < a->shape[heads]; h++) {
        const int64_t first = h * a->strides[heads] + begin * a->strides[heads + 1];
        if (add_piece(f, data + (size_t)first * element, (size_t)(end - begin) * row) != CLI_DONE)
            return CLI_FAILED;
    }
    return CLI_DONE;
}

static int add_planes(attend_floor *f, const planes *p, int64_t sequence, int64_t begin,
                      int64_t end) {
    for (size_t i = 0; i < p->count; i++)
        if (add_rows(f, &p->array[i], sequence, begin, end) != CLI_DONE) return CLI_FAILED;
    return CLI_DONE;
}

/* Which rows are seen. */

static bool is_seen(const attend_sight *s, int64_t length, int64_t position) {
    return position >= 0 && position < length &&
           (position < s->keep || position >= length - s->recent);
}

/* Runs of rows of a sequence that hold what is seen. Row i holds positions[i]. */
static int add_seen(attend_floor *f, const planes *p, const attend_sight *s, int64_t sequence,
                    int64_t length, const int64_t *positions, int64_t rows) {
    int64_t begin = 0;
    for (int64_t row = 0; row <= rows; row++) {
        if (row < rows && is_seen(s, length, positions[row])) continue;
        if (add_planes(f, p, sequence, begin, row) != CLI_DONE) return CLI_FAILED;
        begin = row + 1;
    }
    return CLI_DONE;
}

/* Linear caches and rings: rows as the cache tells. */
static int list_rows(attend_floor *f, const kvc_cache *cache, int64_t layer, const planes *p,
                     const attend_sight *s) {
    const int64_t batch = p->array[0].shape[0], rows = p->array[0].shape[2];
    int64_t *positions = malloc((size_t)(rows + 1) * sizeof *positions);
    int status = CLI_DONE;
    if (!positions) return cli_fail("no memory for %" PRId64 " positions", rows);
    for (int64_t b = 0; b < batch && status == CLI_DONE; b++) {
        if (kvc_cache_row_positions(cache, layer, b, positions, rows) != KVC_OK)
            status = cli_fail_library("cache");
        else
            status =
                add_seen(f, p, s, b, kvc_cache_sequence_length(cache, layer, b), positions, rows);
    }
    free(positions);
    return status;
}

/* Keys per channel: whole blocks of positions, of which some are seen. The few keys that are not
 * packed yet are left out. */
static int list_channels(attend_floor *f, const kvc_cache *cache, int64_t layer,
                         const kvc_quantized *k, const attend_sight *s) {
    planes p = {{k->words, k->scales, k->biases}, 3};
    for (size_t i = 0; i < p.count; i++) { /* a block becomes a row */
        p.array[i].ndim = 4;
        p.array[i].shape[3] *= p.array[i].shape[4];
    }
    for (int64_t b = 0; b < k->words.shape[0]; b++) {
        const int64_t length = kvc_cache_sequence_length(cache, layer, b);
        const int64_t first = length > s->recent ? (length - s->recent) / k->group : 0;
        if (add_planes(f, &p, b, first, length / k->group) != CLI_DONE) return CLI_FAILED;
    }
    return CLI_DONE;
}

static int list_linear(attend_floor *f, const kvc_cache *cache, int64_t layer, bool is_packed,
                       const attend_sight *s) {
    planes p = {.count = 2};
    kvc_quantized k = {0}, v = {0};
    const kvc_status got = is_packed ? kvc_cache_view_quantized(cache, layer, &k, &v)
                                     : kvc_cache_view(cache, layer, &p.array[0], &p.array[1]);
    if (got != KVC_OK) return cli_fail_library("cache");
    if (is_packed) take_quantized(&p, &k, &v);
    const bool per_channel = p.array[0].ndim == 5;
    const planes rows = per_channel ? (planes){{v.words, v.scales, v.biases}, 3} : p;
    int status = list_rows(f, cache, layer, &rows, s);
    if (status == CLI_DONE && per_channel) status = list_channels(f, cache, layer, &k, s);
    release(&p);
    return status;
}

/* Blocks: row r of a sequence's i-th holds position i · B + r. */
static int list_block(attend_floor *f, kvc_blocks *blocks, int32_t id, int64_t layer,
                      bool is_packed, const attend_sight *s, int64_t length, int64_t first) {
    planes p = {.count = 2};
    kvc_quantized k = {0}, v = {0};
    int64_t positions[KVC_BLOCK_POSITIONS_MAX];
    const kvc_status got = is_packed ? kvc_blocks_view_quantized(blocks, id, layer, &k, &v)
                                     : kvc_blocks_view(blocks, id, layer, &p.array[0], &p.array[1]);
    if (got != KVC_OK) return cli_fail_library("blocks");
    if (is_packed) take_quantized(&p, &k, &v);
    const int64_t rows = p.array[0].shape[1];
    for (int64_t i = 0; i < rows; i++) positions[i] = first + i;
    const int status = add_seen(f, &p, s, 0, length, positions, rows);
    release(&p);
    return status;
}

static int list_blocks(attend_floor *f, const kvc_cache *cache, kvc_blocks *blocks, int64_t layer,
                       int64_t batch, bool is_packed, const attend_sight *s) {
    const int64_t positions = kvc_cache_capacity(cache, layer);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = kvc_cache_sequence_length(cache, layer, b);
        const int32_t *ids;
        int64_t count;
        if (kvc_cache_block_table(cache, b, &ids, &count) != KVC_OK)
            return cli_fail_library("cache");
        for (int64_t i = 0; i < count; i++)
            if (list_block(f, blocks, ids[i], layer, is_packed, s, length, i * positions) !=
                CLI_DONE)
                return CLI_FAILED;
    }
    return CLI_DONE;
}

/* Parts. */

/* Cuts pieces that are more than a part, at lines. */
static int cut_pieces(attend_floor *f, int64_t parts) {
    const size_t most = (size_t)(f->bytes / (uint64_t)parts + LINE_BYTES) / LINE_BYTES * LINE_BYTES;
    attend_floor cut = {.count = 0};
    for (size_t i = 0; i < f->count; i++) {
        const attend_piece *piece = &f->pieces[i];
        for (size_t at = 0; at < piece->bytes; at += most) {
            const size_t left = piece->bytes - at;
            if (add_piece(&cut, piece->memory + at, left < most ? left : most) != CLI_DONE) {
                free(cut.pieces);
                return CLI_FAILED;
            }
        }
    }
    free(f->pieces);
    *f = cut;
    return CLI_DONE;
}

/* A piece goes to the part in which it begins. */
static int divide(attend_floor *f, int64_t parts) {
    if (parts > 1 && cut_pieces(f, parts) != CLI_DONE) return CLI_FAILED;
    f->parts = (size_t)parts;
    f->first = malloc((f->parts + 1) * sizeof *f->first);
    if (!f->first) return cli_fail("no memory for %" PRId64 " parts", parts);
    uint64_t before = 0;
    size_t part = 0;
    for (size_t i = 0; i < f->count; i++) {
        while (part < f->parts && before * f->parts >= part * f->bytes) f->first[part++] = i;
        before += f->pieces[i].bytes;
    }
    while (part <= f->parts) f->first[part++] = f->count;
    return CLI_DONE;
}

int attend_floor_init(attend_floor *out, const kvc_cache *cache, kvc_blocks *blocks, int64_t layer,
                      const attend_sight *sight, int64_t parts) {
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    *out = (attend_floor){.count = 0};
    if (kvc_cache_desc_get(cache, &desc) != KVC_OK) return cli_fail_library("cache");
    const bool is_packed = desc.specs[layer].kv_bits > 0;
    int status = blocks ? list_blocks(out, cache, blocks, layer, desc.batch, is_packed, sight)
                        : list_linear(out, cache, layer, is_packed, sight);
    if (status == CLI_DONE) status = divide(out, parts);
    if (status != CLI_DONE) attend_floor_deinit(out);
    return status;
}

void attend_floor_deinit(attend_floor *floor) {
    free(floor->pieces);
    free(floor->first);
    *floor = (attend_floor){.count = 0};
}

/* Reading. */

typedef struct reading {
    const attend_floor *floor;
    uint64_t (*read)(const void *memory, size_t bytes);
    _Atomic(uint64_t) sum;
} reading;

static void read_part(void *argument, int64_t index, int thread) {
    reading *r = argument;
    const attend_floor *f = r->floor;
    uint64_t sum = 0;
    (void)thread;
    for (size_t i = f->first[index]; i < f->first[index + 1]; i++)
        sum += r->read(f->pieces[i].memory, f->pieces[i].bytes);
    r->sum += sum;
}

uint64_t attend_floor_read(const attend_floor *floor,
                           uint64_t (*read)(const void *memory, size_t bytes),
                           const kvc_executor *executor) {
    reading r = {.floor = floor, .read = read};
    if (executor) executor->parallel_for(executor->context, (int64_t)floor->parts, read_part, &r);
    else
        for (size_t i = 0; i < floor->parts; i++) read_part(&r, (int64_t)i, 0);
    return r.sum;
}
