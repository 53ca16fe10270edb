#include <string.h>

#include "array/pack.h"
#include "array/view.h"
#include "attention/plan.h"
#include "base/error.h"
#include "base/trace.h"

/* Kernels read and write through host pointers: they belong to the cpu. */
static kvc_status check_device(const kvc_device *device, const char *name) {
    if (device == kvc_device_cpu()) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED, "%s: memory of device %s given, of the cpu wanted", name,
                     device->name);
}

kvc_status kvc__attention_check(const kvc_array *a, const char *name, int ndim,
                                const int64_t *shape) {
    char given[KVC__SHAPE_TEXT], wanted[KVC__SHAPE_TEXT];
    KVC_TRY(kvc__array_check(a, name));
    if (a->ndim != ndim || memcmp(a->shape, shape, (size_t)ndim * sizeof *shape) != 0)
        return kvc__fail(KVC_E_SHAPE, "%s: shape %s given, %s wanted", name,
                         kvc__shape_text(given, a->ndim, a->shape),
                         kvc__shape_text(wanted, ndim, shape));
    KVC_TRY(check_device(kvc__array_device(a), name));
    if (kvc_array_size(a) > 0 &&
        (!a->data || (uintptr_t)a->data % kvc_dtype_size_bytes(a->dtype) != 0))
        return kvc__fail(KVC_E_INVALID, "%s: data %p given, a multiple of %zu wanted", name,
                         a->data, kvc_dtype_size_bytes(a->dtype));
    return KVC_OK;
}

/* Describes an array to a kernel: what every argument of floats must be. */
static kvc_status describe(kvc__rows *out, const kvc_array *a, const char *name,
                           const int64_t shape[4]) {
    KVC_TRY(kvc__attention_check(a, name, 4, shape));
    if (a->dtype != KVC_F32 && a->dtype != KVC_F16 && a->dtype != KVC_BF16)
        return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32, f16 or bf16 wanted", name,
                         kvc_dtype_name(a->dtype));
    *out = (kvc__rows){
        .data = a->data,
        .dtype = a->dtype,
        .batch_stride = a->strides[0],
        .head_stride = a->strides[1],
        .position_stride = a->strides[2],
        .last_stride = shape[3] > 1 ? a->strides[3] : 1,
    };
    return KVC_OK;
}

static kvc_status describe_kv(kvc__rows *out, const kvc_attention *plan, const kvc_array *a,
                              const char *name, const int64_t shape[4]) {
    KVC_TRY(describe(out, a, name, shape));
    if (a->dtype == plan->desc.kv_dtype) return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, %s, the plan's kv_dtype, wanted", name,
                     kvc_dtype_name(a->dtype), kvc_dtype_name(plan->desc.kv_dtype));
}

/* Queries and output: rows are contiguous. */
static kvc_status describe_io(kvc__rows *out, const kvc_array *a, const char *name,
                              const int64_t shape[4]) {
    KVC_TRY(describe(out, a, name, shape));
    if (out->last_stride == 1) return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: last stride %lld given, 1 wanted", name,
                     (long long)out->last_stride);
}

/* The positions that an array has; the shape is compared later. */
static int64_t positions_of(const kvc_array *a) {
    return a && a->ndim == 4 && a->shape[2] > 0 ? a->shape[2] : 0;
}

static kvc_status begin_job(kvc__job *job, const kvc_attention *plan, int64_t length) {
    if (!plan) return kvc__fail(KVC_E_INVALID, "plan: NULL given");
    const kvc_attention_desc *d = &plan->desc;
    *job = (kvc__job){
        .batch = d->batch,
        .kv_heads = d->kv_heads,
        .group = d->q_heads / d->kv_heads,
        .key_dim = d->key_dim,
        .value_dim = d->value_dim,
        .length = length,
        .window = d->window > 0 ? d->window : INT64_MAX,
        .keep = d->keep,
        .scale = d->scale,
        .softcap = d->softcap,
        .causal = !d->not_causal,
        .format = {d->kv_dtype, d->kv_bits, d->kv_group, d->kv_keys_per_channel, d->kv_rotated},
    };
    return KVC_OK;
}

kvc_status kvc__attention_check_plain(const kvc_attention *plan) {
    if (!plan || !plan->desc.kv_bits) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "plan: made for packed keys and values (desc.kv_bits %d), which "
                     "kvc_attention_run_quantized takes",
                     plan->desc.kv_bits);
}

kvc_status kvc__attention_array_job(kvc__job *job, const kvc_attention *plan, const kvc_array *k,
                                    const kvc_array *v) {
    const int64_t length = positions_of(k);
    KVC_TRY(kvc__attention_check_plain(plan));
    KVC_TRY(begin_job(job, plan, length));
    const int64_t k_shape[4] = {job->batch, job->kv_heads, length, job->key_dim};
    const int64_t v_shape[4] = {job->batch, job->kv_heads, length, job->value_dim};
    KVC_TRY(describe_kv(&job->k, plan, k, "k", k_shape));
    return describe_kv(&job->v, plan, v, "v", v_shape);
}

/* The rows of an array, counted in elements of `bytes` of its own. */
static kvc__rows rows_in(const kvc_array *a, kvc_dtype dtype, int64_t bytes) {
    return (kvc__rows){
        .data = a->data,
        .dtype = dtype,
        .batch_stride = a->strides[0] * bytes,
        .head_stride = a->strides[1] * bytes,
        .position_stride = a->strides[2] * bytes,
        .last_stride = 1,
    };
}

/* Packed keys or values: words as bytes. */
static kvc_status describe_packed(kvc__rows *words, kvc__scaling *scaling, const kvc_quantized *x,
                                  const char *name, const kvc__format *format,
                                  const int64_t shape[4]) {
    KVC_TRY(kvc__quantized_check(x, name, 4, shape));
    if (x->bits != format->bits || x->group != format->group || x->scales.dtype != format->dtype)
        return kvc__fail(KVC_E_SHAPE,
                         "%s: %d bits, group %d, scales of %s given; the plan is for %d, %d, %s",
                         name, x->bits, x->group, kvc_dtype_name(x->scales.dtype), format->bits,
                         format->group, kvc_dtype_name(format->dtype));
    *words = rows_in(&x->words, KVC_U8, (int64_t)kvc_dtype_size_bytes(x->words.dtype));
    scaling->scales = rows_in(&x->scales, x->scales.dtype, 1);
    scaling->biases = rows_in(&x->biases, x->biases.dtype, 1);
    return KVC_OK;
}

/* A plane of a layer: [batch][kv_heads][rows][dim], or in each block [kv_heads][rows][dim]. */
static kvc__rows rows_of(const kvc__layer_view *layer, int plane) {
    const int64_t dim = layer->rows[plane].dim;
    const int64_t head = kvc__rows_of(&layer->rows[plane], layer->capacity) * dim;
    return (kvc__rows){
        .data = (void *)layer->planes[plane],
        .dtype = layer->rows[plane].dtype,
        .batch_stride = layer->spec.kv_heads * head,
        .head_stride = head,
        .position_stride = dim,
        .last_stride = 1,
        .offset_bytes = layer->offset_bytes[plane],
    };
}

static kvc_status check_layer(const kvc__job *job, const kvc__layer_view *layer) {
    const kvc_layer_spec *spec = &layer->spec;
    if (layer->batch != job->batch || spec->kv_heads != job->kv_heads ||
        spec->key_dim != job->key_dim || spec->value_dim != job->value_dim ||
        spec->dtype != job->format.dtype)
        return kvc__fail(
            KVC_E_SHAPE,
            "layer: batch %lld, kv_heads %lld, key_dim %lld, value_dim %lld, %s given; "
            "the plan is for %lld, %lld, %lld, %lld, %s",
            (long long)layer->batch, (long long)spec->kv_heads, (long long)spec->key_dim,
            (long long)spec->value_dim, kvc_dtype_name(spec->dtype), (long long)job->batch,
            (long long)job->kv_heads, (long long)job->key_dim, (long long)job->value_dim,
            kvc_dtype_name(job->format.dtype));
    const kvc__format *plan = &job->format;
    if (spec->kv_bits == plan->bits && spec->kv_group == plan->group &&
        spec->keys_per_channel == plan->keys_per_channel && spec->rotated == plan->rotated)
        return KVC_OK;
    return kvc__fail(KVC_E_SHAPE,
                     "layer: kv_bits %d, kv_group %d, keys_per_channel %d, rotated %d given; the "
                     "plan is for %d, %d, %d, %d",
                     spec->kv_bits, spec->kv_group, spec->keys_per_channel, spec->rotated,
                     plan->bits, plan->group, plan->keys_per_channel, plan->rotated);
}

kvc_status kvc__attention_layer_job(kvc__job *job, const kvc_attention *plan,
                                    const kvc__layer_view *layer) {
    KVC_TRY(begin_job(job, plan, layer->length));
    KVC_TRY(check_device(layer->device, "cache"));
    KVC_TRY(check_layer(job, layer));
    job->map = layer->map;
    job->lengths = layer->lengths;
    job->k = rows_of(layer, KVC__KEYS);
    job->v = rows_of(layer, KVC__VALUES);
    if (!job->format.bits) return KVC_OK;
    if (job->format.keys_per_channel) job->tail = rows_of(layer, KVC__TAIL);
    job->held = layer->held;
    job->k_scaling = (kvc__scaling){rows_of(layer, KVC__SCALES), rows_of(layer, KVC__SCALES + 1)};
    job->v_scaling =
        (kvc__scaling){rows_of(layer, KVC__SCALES + 2), rows_of(layer, KVC__SCALES + 3)};
    return KVC_OK;
}

/* Tells whether a ring holds positions. */
static bool holds(const kvc__ring *ring, kvc__range positions) {
    return positions.begin >= positions.end || positions.end <= ring->keep ||
           positions.begin >= ring->first || ring->first <= ring->keep;
}

kvc_status kvc__attention_check_held(const kvc__job *job) {
    for (int64_t b = 0; job->map.rings && b < job->batch; b++) {
        const kvc__ring *ring = &job->map.rings[b];
        const kvc__range seen = kvc__reach(job, b, 0, job->queries - 1);
        const kvc__range last = kvc__seen(job, b, job->queries - 1);
        if (holds(ring, seen) && holds(ring, (kvc__range){0, kvc__kept_besides(job, last)}))
            continue;
        return kvc__fail(
            KVC_E_RANGE,
            "plan: %lld queries of sequence %lld want positions from %lld on and the first %lld, "
            "by "
            "desc.window %lld and desc.keep %lld (0: no limit); the layer holds those from %lld on "
            "and the first %lld",
            (long long)job->queries, (long long)b, (long long)seen.begin,
            (long long)kvc__kept_besides(job, last),
            job->window == INT64_MAX ? 0LL : (long long)job->window, (long long)job->keep,
            (long long)ring->first, (long long)ring->keep);
    }
    return KVC_OK;
}

kvc_path kvc__attention_path(const kvc_attention *plan, const kvc__job *job) {
    const bool contiguous = job->k.last_stride == 1 && job->v.last_stride == 1;
    return contiguous ? plan->path : KVC_PATH_REFERENCE;
}

static kvc_status add_io(kvc__job *job, const kvc_attention *plan, const kvc_array *q,
                         const kvc_array *out) {
    const int64_t n = positions_of(q);
    const int64_t q_heads = job->kv_heads * job->group;
    const int64_t q_shape[4] = {job->batch, q_heads, n, job->key_dim};
    const int64_t out_shape[4] = {job->batch, q_heads, n, job->value_dim};
    KVC_TRY(describe_io(&job->q, q, "q", q_shape));
    if (n < 1 || n > plan->desc.max_q_len)
        return kvc__fail(KVC_E_SHAPE, "q: %lld query positions given, 1 to %lld, max_q_len, wanted",
                         (long long)n, (long long)plan->desc.max_q_len);
    KVC_TRY(describe_io(&job->out, out, "out", out_shape));
    job->queries = n;
    return KVC_OK;
}

/* Of a key and a value, with their scales and biases. */
static uint64_t row_bytes_of(const kvc__job *job) {
    const int64_t dims = job->key_dim + job->value_dim, bytes = kvc__row_bytes(job, dims);
    if (!job->format.bits) return (uint64_t)bytes;
    const uint64_t groups = (uint64_t)(dims / job->format.group);
    return (uint64_t)bytes + 2 * groups * kvc_dtype_size_bytes(job->format.dtype);
}

static kvc_status run(kvc_attention *plan, const kvc__job *job) {
    const kvc_path path = kvc__attention_path(plan, job);
    if (plan->desc.strict && path == KVC_PATH_REFERENCE) {
        plan->stats.refused++;
        return kvc__fail(
            KVC_E_SLOW,
            "%s: last stride %lld given, and strict mode refuses the reference path; "
            "1 wanted",
            job->k.last_stride != 1 ? "k" : "v",
            (long long)(job->k.last_stride != 1 ? job->k.last_stride : job->v.last_stride));
    }
    const uint64_t row_bytes = row_bytes_of(job);
    uint64_t positions = 0;
    for (int64_t b = 0; b < job->batch; b++) {
        const kvc__range seen = kvc__reach(job, b, 0, job->queries - 1);
        positions += (uint64_t)(seen.end - seen.begin + kvc__kept_besides(job, seen));
    }
    const uint64_t kv_bytes = (uint64_t)job->kv_heads * positions * row_bytes;
    const uint64_t start = kvc__span_begin();
    if (path == KVC_PATH_FUSED) kvc__attend_fused(job, &plan->schedule, plan->scratch);
    else kvc__attend_reference(job, plan->scratch);
    kvc__span_end(start, KVC_SPAN_KERNEL, kvc_path_name(path), (size_t)kv_bytes);
    plan->stats.runs[path]++;
    plan->stats.kv_bytes += kv_bytes;
    return KVC_OK;
}

kvc_status kvc_attention_run(kvc_attention *plan, const kvc_cache *cache, int64_t layer,
                             const kvc_array *q, kvc_array *out,
                             const kvc_attention_extras *extras) {
    kvc__layer_view view;
    KVC_TRY(kvc__cache_layer_view(&view, cache, layer));
    return kvc__attention_run_layer(plan, &view, q, out, extras);
}

kvc_status kvc__attention_run_layer(kvc_attention *plan, const kvc__layer_view *layer,
                                    const kvc_array *q, kvc_array *out,
                                    const kvc_attention_extras *extras) {
    kvc__job job;
    KVC_TRY(kvc__attention_layer_job(&job, plan, layer));
    KVC_TRY(add_io(&job, plan, q, out));
    KVC_TRY(kvc__attention_add_extras(&job, extras));
    KVC_TRY(kvc__attention_check_held(&job));
    return run(plan, &job);
}

kvc_status kvc_attention_run_kv(kvc_attention *plan, const kvc_array *k, const kvc_array *v,
                                const kvc_array *q, kvc_array *out,
                                const kvc_attention_extras *extras) {
    kvc__job job;
    KVC_TRY(kvc__attention_array_job(&job, plan, k, v));
    KVC_TRY(add_io(&job, plan, q, out));
    KVC_TRY(kvc__attention_add_extras(&job, extras));
    return run(plan, &job);
}

kvc_status kvc_attention_run_quantized(kvc_attention *plan, const kvc_quantized *k,
                                       const kvc_quantized *v, const kvc_array *q, kvc_array *out,
                                       const kvc_attention_extras *extras) {
    kvc__job job;
    kvc_quantized keys, values;
    KVC_TRY(kvc__struct_in(&keys, sizeof keys, k, "k: kvc_quantized"));
    KVC_TRY(kvc__struct_in(&values, sizeof values, v, "v: kvc_quantized"));
    const int64_t length = positions_of(&keys.words);
    KVC_TRY(begin_job(&job, plan, length));
    if (!job.format.bits)
        return kvc__fail(KVC_E_INVALID, "plan: not made for packed keys and values; desc.kv_bits "
                                        "wanted");
    if (job.format.keys_per_channel)
        return kvc__fail(KVC_E_INVALID, "plan: made for keys packed per channel "
                                        "(desc.kv_keys_per_channel), which only a cache has "
                                        "unpacked ones beside; kvc_attention_run wanted");
    const int64_t k_shape[4] = {job.batch, job.kv_heads, length, job.key_dim};
    const int64_t v_shape[4] = {job.batch, job.kv_heads, length, job.value_dim};
    KVC_TRY(describe_packed(&job.k, &job.k_scaling, &keys, "k", &job.format, k_shape));
    KVC_TRY(describe_packed(&job.v, &job.v_scaling, &values, "v", &job.format, v_shape));
    KVC_TRY(add_io(&job, plan, q, out));
    KVC_TRY(kvc__attention_add_extras(&job, extras));
    return run(plan, &job);
}

/* Takes in what a caller says of its sequences, and verifies every block that is reached. */
static kvc_status add_tables(kvc__layer_view *view, const kvc_blocks *blocks, const int32_t *tables,
                             int64_t table_stride, const int64_t *lengths) {
    const int64_t positions = view->map.block_positions;
    if (table_stride < 0)
        return kvc__fail(KVC_E_INVALID, "table_stride: %lld given, at least 0 wanted",
                         (long long)table_stride);
    if (!tables || !lengths)
        return kvc__fail(KVC_E_INVALID, "%s: NULL given, those of each sequence wanted",
                         tables ? "lengths" : "tables");
    for (int64_t b = 0; b < view->batch; b++) {
        const int64_t count = lengths[b] / positions + (lengths[b] % positions != 0);
        if (lengths[b] < 0 || count > table_stride)
            return kvc__fail(
                KVC_E_RANGE,
                "lengths[%lld]: %lld given, 0 to the positions of %lld blocks of %lld, "
                "which table_stride has room for, wanted",
                (long long)b, (long long)lengths[b], (long long)table_stride, (long long)positions);
        const int32_t *ids = tables + b * table_stride;
        const int64_t missing = kvc__blocks_first_missing(blocks, ids, count);
        if (missing < count)
            return kvc__fail(KVC_E_INVALID,
                             "tables[%lld][%lld]: %d given, the id of a block in memory wanted, as "
                             "lengths[%lld] is %lld",
                             (long long)b, (long long)missing, ids[missing], (long long)b,
                             (long long)lengths[b]);
        if (lengths[b] > view->length) view->length = lengths[b];
    }
    view->map.tables = tables;
    view->map.table_stride = table_stride;
    view->lengths = lengths;
    return KVC_OK;
}

kvc_status kvc_attention_run_blocks(kvc_attention *plan, const kvc_blocks *blocks, int64_t layer,
                                    const int32_t *tables, int64_t table_stride,
                                    const int64_t *lengths, const kvc_array *q, kvc_array *out,
                                    const kvc_attention_extras *extras) {
    kvc__layer_view view;
    kvc_attention_extras given = {0};
    if (!plan) return kvc__fail(KVC_E_INVALID, "plan: NULL given");
    KVC_TRY(kvc__blocks_layer_view(&view, blocks, layer));
    if (extras) KVC_TRY(kvc__struct_in(&given, sizeof given, extras, "kvc_attention_extras"));
    if (given.lengths)
        return kvc__fail(KVC_E_INVALID, "extras.lengths: given beside lengths, which tells all of "
                                        "them; NULL wanted");
    view.batch = plan->desc.batch;
    KVC_TRY(add_tables(&view, blocks, tables, table_stride, lengths));
    return kvc__attention_run_layer(plan, &view, q, out, extras);
}
