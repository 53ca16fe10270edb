#include "attend_subject.h"

#include <inttypes.h>
#include <stdlib.h>

#include <kvcache/device.h>

#include "cli.h"
#include "machine.h"

enum { FILL_POSITIONS = 256, PARTS_A_THREAD = 8 };

/* The scene. */

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Small numbers of both signs, the same on every machine. */
static void fill_random(float *out, size_t count) {
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) out[i] = (float)next_random(&state) * 0x1p-23f - 1.0f;
}

/* Long and short sequences in no order, the same on every machine. */
static int make_lengths(attend_scene *scene, int64_t context) {
    const int64_t batch = scene->shape->batch;
    uint32_t state = 1;
    int64_t *lengths = malloc((size_t)batch * sizeof *lengths);
    if (!lengths) return cli_fail("no memory for the lengths of %" PRId64 " sequences", batch);
    for (int64_t i = 0; i < batch; i++) lengths[i] = attend_length(scene->shape, context, i);
    for (int64_t i = batch - 1; i > 0; i--) {
        const int64_t j = (int64_t)next_random(&state) % (i + 1), length = lengths[i];
        lengths[i] = lengths[j];
        lengths[j] = length;
    }
    scene->lengths = lengths;
    return CLI_DONE;
}

int attend_scene_init(attend_scene *out, const attend_shape *shape, int64_t context) {
    const int64_t extents[] = {shape->batch, shape->q_heads, shape->q_len, shape->dim};
    *out = (attend_scene){.shape = shape};
    if (kvc_threads_new(&out->threads, (int)shape->threads) != KVC_OK)
        return cli_fail_library("--threads");
    out->executor = kvc_threads_executor(out->threads);
    if (kvc_pool_new(&out->pool, kvc_device_cpu()) != KVC_OK ||
        kvc_array_empty(&out->q, out->pool, KVC_F32, 4, extents) != KVC_OK ||
        kvc_array_empty(&out->out, out->pool, KVC_F32, 4, extents) != KVC_OK)
        return cli_fail_library("query");
    fill_random(out->q.data, (size_t)kvc_array_size(&out->q));
    return make_lengths(out, context);
}

void attend_scene_deinit(attend_scene *scene) {
    kvc_array_release(&scene->q);
    kvc_array_release(&scene->out);
    kvc_threads_free(scene->threads);
    kvc_pool_free(scene->pool);
    free(scene->lengths);
}

const kvc_executor *attend_executor(const attend_scene *scene) {
    return scene->shape->threads > 1 ? &scene->executor : NULL;
}

/* Filling. */

static int make_cache(attend_subject *s) {
    const attend_shape *shape = s->scene->shape;
    const cache_kind *kind = s->row->cache;
    const kvc_layer_spec spec = cache_kind_spec(kind, shape->kv_heads, shape->dim, shape->dtype);
    if (cache_kind_blocks(&s->blocks, s->scene->pool, kind, &spec, s->row->layers) != KVC_OK)
        return cli_fail_library("blocks");
    const kvc_cache_desc desc = {
        .struct_size = sizeof desc,
        .batch = shape->batch,
        .layers = s->row->layers,
        .specs = &spec,
        .spec_count = 1,
        .growth = kind->growth,
        .chunk = kind->window ? 0 : s->row->context, /* at once, where not reserved */
        .max_positions = s->row->context,
        .blocks = s->blocks};
    return kvc_cache_new(&s->cache, s->scene->pool, &desc) == KVC_OK ? CLI_DONE
                                                                     : cli_fail_library("cache");
}

/* Appends counts[b] positions, n at most, to each sequence of every layer, alike for all.
 * @param rows  [kv_heads][FILL_POSITIONS][dim]; where n is more, its first position comes n times
 */
static int append(attend_subject *s, const float *rows, int64_t n, const int64_t *counts) {
    const attend_shape *shape = s->scene->shape;
    const int64_t extents[] = {shape->batch, shape->kv_heads, n, shape->dim};
    const int64_t strides[] = {0, FILL_POSITIONS * shape->dim, n > FILL_POSITIONS ? 0 : shape->dim,
                               1};
    kvc_array kv;
    if (kvc_array_borrow(&kv, KVC_F32, 4, extents, strides, rows) != KVC_OK)
        return cli_fail_library("positions");
    for (int64_t layer = 0; layer < s->row->layers; layer++)
        if (kvc_cache_append_ragged(s->cache, layer, &kv, &kv, counts) != KVC_OK)
            return cli_fail_library("cache");
    return CLI_DONE;
}

/* Appends some positions at a time until sequences have their lengths, but for the last `less`. */
static int fill_up_to(attend_subject *s, const float *rows, int64_t less, int64_t *counts) {
    const int64_t batch = s->scene->shape->batch;
    for (;;) {
        int64_t most = 0;
        for (int64_t b = 0; b < batch; b++) {
            const int64_t has = kvc_cache_sequence_length(s->cache, 0, b);
            const int64_t left = s->scene->lengths[b] - less - has;
            counts[b] = left < FILL_POSITIONS ? left : FILL_POSITIONS;
            if (counts[b] > most) most = counts[b];
        }
        if (most <= 0) return CLI_DONE;
        if (append(s, rows, most, counts) != CLI_DONE) return CLI_FAILED;
    }
}

/* The queries' own positions come at once, as from an engine: then windows hold what all of these
 * see. */
static int fill(attend_subject *s, const float *rows, int64_t *counts) {
    const attend_shape *shape = s->scene->shape;
    if (!s->row->cache->window) return fill_up_to(s, rows, 0, counts);
    if (fill_up_to(s, rows, shape->q_len, counts) != CLI_DONE) return CLI_FAILED;
    for (int64_t b = 0; b < shape->batch; b++) counts[b] = shape->q_len;
    return append(s, rows, shape->q_len, counts);
}

/* Copies the ids of the whole blocks of all sequences to ids and holds them. */
static int hold_blocks(attend_subject *s, int32_t *ids, int64_t *count) {
    *count = 0;
    for (int64_t b = 0; b < s->scene->shape->batch; b++) {
        const int32_t *table;
        int64_t in_table;
        if (kvc_cache_block_table(s->cache, b, &table, &in_table) != KVC_OK)
            return cli_fail_library("cache");
        const int64_t whole = s->scene->lengths[b] / s->row->cache->block;
        for (int64_t i = 0; i < whole; i++) ids[(*count)++] = table[i];
    }
    return kvc_blocks_retain(s->blocks, ids, *count) == KVC_OK ? CLI_DONE
                                                               : cli_fail_library("blocks");
}

/* Begins all sequences anew with the blocks, as they are in the list. */
static int adopt_blocks(attend_subject *s, const int32_t *ids, int64_t count) {
    kvc_status status = KVC_OK;
    kvc_cache_clear(s->cache);
    for (int64_t b = 0, at = 0; b < s->scene->shape->batch && status == KVC_OK; b++) {
        const int64_t whole = s->scene->lengths[b] / s->row->cache->block;
        status = kvc_cache_adopt(s->cache, b, ids + at, whole);
        at += whole;
    }
    if (kvc_blocks_release(s->blocks, ids, count) != KVC_OK || status != KVC_OK)
        return cli_fail_library("blocks");
    return CLI_DONE;
}

/* Scatters a paged cache, as after much coming and going: the whole blocks of all sequences are
 * shuffled and handed out again. What they hold is much alike. */
static int scatter(attend_subject *s) {
    int64_t room = 1, count;
    uint32_t state = 1;
    for (int64_t b = 0; b < s->scene->shape->batch; b++)
        room += s->scene->lengths[b] / s->row->cache->block;
    int32_t *ids = malloc((size_t)room * sizeof *ids);
    if (!ids) return cli_fail("no memory for %" PRId64 " blocks", room);
    int status = hold_blocks(s, ids, &count);
    for (int64_t i = count - 1; i > 0 && status == CLI_DONE; i--) {
        const int64_t j = (int64_t)next_random(&state) % (i + 1);
        const int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
    if (status == CLI_DONE) status = adopt_blocks(s, ids, count);
    free(ids);
    return status;
}

static int fill_with(attend_subject *s, const float *rows) {
    int64_t *counts = calloc((size_t)s->scene->shape->batch, sizeof *counts);
    if (!counts) return cli_fail("no memory for counts");
    int status = fill(s, rows, counts);
    if (status == CLI_DONE && s->blocks) {
        status = scatter(s);
        if (status == CLI_DONE) status = fill(s, rows, counts); /* what is no whole block */
    }
    free(counts);
    return status;
}

static int fill_cache(attend_subject *s) {
    const attend_shape *shape = s->scene->shape;
    const size_t count = (size_t)(shape->kv_heads * FILL_POSITIONS * shape->dim);
    float *rows = malloc(count * sizeof *rows);
    if (!rows) return cli_fail("no memory for %d positions", FILL_POSITIONS);
    fill_random(rows, count);
    const uint64_t before = machine_huge_bytes();
    int status = fill_with(s, rows);
    const double huge_bytes = (double)machine_huge_bytes() - (double)before;
    free(rows);
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    if (status == CLI_DONE && kvc_cache_nbytes_get(s->cache, &nbytes) != KVC_OK)
        status = cli_fail_library("cache");
    s->row->huge_share = huge_bytes / (double)nbytes.resident;
    return status;
}

/* What runs do with it. */

static int make_plan(attend_subject *s) {
    const attend_shape *shape = s->scene->shape;
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_explanation explanation = {.struct_size = sizeof explanation};
    if (kvc_attention_desc_for(&desc, s->cache, 0) != KVC_OK) return cli_fail_library("plan");
    desc.q_heads = shape->q_heads;
    desc.max_q_len = shape->q_len;
    desc.window = attend_window(shape, s->row->cache);
    desc.executor = attend_executor(s->scene);
    if (kvc_attention_plan(&s->plan, &desc) != KVC_OK ||
        kvc_attention_explain(&explanation, s->plan, s->cache, 0) != KVC_OK)
        return cli_fail_library("plan");
    s->row->path = explanation.path;
    return CLI_DONE;
}

static int list_bytes(attend_subject *s) {
    const attend_shape *shape = s->scene->shape;
    const int64_t window = attend_window(shape, s->row->cache), keep = s->row->cache->keep;
    const attend_sight sight = {.keep = keep,
                                .recent = window ? window - keep + shape->q_len - 1 : INT64_MAX};
    const int64_t parts = shape->threads > 1 ? PARTS_A_THREAD * shape->threads : 1;
    s->floors = calloc((size_t)s->row->layers, sizeof *s->floors);
    if (!s->floors) return cli_fail("no memory for %" PRId64 " layers", s->row->layers);
    for (int64_t layer = 0; layer < s->row->layers; layer++)
        if (attend_floor_init(&s->floors[layer], s->cache, s->blocks, layer, &sight, parts) !=
            CLI_DONE)
            return CLI_FAILED;
    s->row->bytes = s->floors[0].bytes;
    return CLI_DONE;
}

int attend_subject_init(attend_subject *out, const attend_scene *scene, attend_row *row) {
    *out = (attend_subject){.scene = scene, .row = row};
    int status = make_cache(out);
    if (status == CLI_DONE) status = fill_cache(out);
    if (status == CLI_DONE) status = make_plan(out);
    return status == CLI_DONE ? list_bytes(out) : status;
}

void attend_subject_deinit(attend_subject *s) {
    for (int64_t layer = 0; s->floors && layer < s->row->layers; layer++)
        attend_floor_deinit(&s->floors[layer]);
    free(s->floors);
    kvc_attention_free(s->plan);
    kvc_cache_free(s->cache);
    kvc_blocks_free(s->blocks);
    stats_free(&s->run_us);
    stats_free(&s->floor_us);
}
