/* What mlx-lm's classes say of their state, and whether it can be. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/file.h"
#include "store/format.h"
#include "store/opened.h"
#include "store/snapshot.h"

enum { KEY = KVC__SNAPSHOT_NAME + 24, FIELDS = KVC__OWN_FIELDS };

/* A class: the numbers that it keeps beside its tensors, and where they are in each form. */
typedef struct kind {
    const char *name;
    bool packed;
    int fields;
    int in_0_32[FIELDS]; /* field i is tensor L.(in_0_32[i]); in 0.31 it is metadata 0.L.i */
} kind;

/* Field of each class by index. */
enum { KV_OFFSET };
enum { QUANTIZED_OFFSET, QUANTIZED_GROUP, QUANTIZED_BITS };
enum { ROTATING_KEEP, ROTATING_MAX, ROTATING_OFFSET, ROTATING_INDEX };
enum { OWN_WINDOW, OWN_KEEP, OWN_BITS, OWN_GROUP, OWN_PACKING };

static const kind kinds[] = {
    {"KVCache", false, 1, {2}},
    {"QuantizedKVCache", true, 3, {2, 3, 4}},
    {"RotatingKVCache", false, 4, {3, 4, 2, 5}},
    {KVC__SNAPSHOT_KIND, false, KVC__OWN_FIELDS, {0}},
};
enum { KIND_KV, KIND_QUANTIZED, KIND_ROTATING, KIND_OWN, KINDS };

/* Classes of mlx-lm that no cache here is, and what can be done. */
static const struct {
    const char *name, *remedy;
} others[] = {
    {"ArraysCache", "it has no keys and values; save the other caches without it"},
    {"MambaCache", "it has no keys and values; save the other caches without it"},
    {"ChunkedKVCache", "save a KVCache of what it holds"},
    {"ConcatenateKVCache", "save a KVCache of what it holds"},
    {"BatchKVCache", "save its sequences one by one, each as extract gives it"},
    {"BatchRotatingKVCache", "save its sequences one by one, each as extract gives it"},
};

/* A layer being read. */
typedef struct reading {
    kvc_snapshot *s;
    int64_t index;
    kvc__snapshot_path path;        /* where it is in the file */
    char where[KVC__SNAPSHOT_NAME]; /* the same, for sentences */
    char base[KVC__SNAPSHOT_NAME];  /* of the names of its tensors */
    char class[KVC__SNAPSHOT_CLASS];
    const kind *kind;
    int64_t fields[FIELDS];
    size_t tensors; /* found so far, of all layers */
} reading;

static kvc_status wrong(const reading *r, const char *field, int64_t found, const char *wanted) {
    return kvc__fail(KVC_E_CORRUPT, "%s: layer %s, %s: %s is %lld, %s wanted",
                     kvc__safetensors_name(r->s->file), r->where, r->kind->name, field,
                     (long long)found, wanted);
}

static kvc_status find_kind(reading *r) {
    const char *remedy = "KVCache, QuantizedKVCache, RotatingKVCache, KvcCache or a CacheList of "
                         "these wanted";
    char shown[KVC__SHOWN];
    r->kind = NULL;
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, r->class) == 0) r->kind = &kinds[i];
    if (r->kind == &kinds[KIND_OWN] && r->s->contents.form == KVC_SNAPSHOT_MLX_LM_0_32)
        r->kind = NULL;
    if (r->kind) return KVC_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].name, r->class) == 0) remedy = others[i].remedy;
    return kvc__fail(KVC_E_UNSUPPORTED, "%s: layer %s is a %s; %s",
                     kvc__safetensors_name(r->s->file), r->where, kvc__shown(shown, r->class),
                     remedy);
}

static kvc_status read_text(const reading *r, int64_t place, int64_t *out) {
    char base[KVC__SNAPSHOT_NAME], key[KEY], shown[KVC__SHOWN];
    (void)snprintf(key, sizeof key, "%s.%lld", kvc__path_numbers(base, &r->path), (long long)place);
    const char *text = kvc_safetensors_metadata(r->s->file, key);
    if (text && kvc__snapshot_number(out, text)) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "%s: layer %s, %s: metadata %s is %s, a number wanted",
                     kvc__safetensors_name(r->s->file), r->where, r->kind->name, key,
                     text ? kvc__shown(shown, text) : "not there");
}

/* A number that is a tensor without dimensions. */
static kvc_status read_scalar(reading *r, int place, int64_t *out) {
    char name[KEY];
    const kvc_safetensors *file = r->s->file;
    unsigned char bytes[8];
    uint64_t bits = 0;
    (void)snprintf(name, sizeof name, "%s.%d", r->base, place);
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, name);
    if (!t || t->ndim != 0 ||
        (strcmp(t->dtype_name, "I32") != 0 && strcmp(t->dtype_name, "I64") != 0))
        return kvc__fail(KVC_E_CORRUPT,
                         "%s: layer %s, %s: tensor %s is %s, an I32 or I64 of no dimensions "
                         "wanted",
                         kvc__safetensors_name(file), r->where, r->kind->name, name,
                         t ? t->dtype_name : "not there");
    if (kvc_safetensors_has_checksums(file)) KVC_TRY(kvc_safetensors_verify(file, t));
    KVC_TRY(kvc_safetensors_read(file, t, bytes, 0, t->bytes));
    for (size_t i = 0; i < t->bytes; i++) bits |= (uint64_t)bytes[i] << 8 * i;
    *out = t->bytes == 4 ? (int32_t)(uint32_t)bits : (int64_t)bits;
    r->tensors++;
    if (*out < 0) return wrong(r, name, *out, "at least 0");
    return KVC_OK;
}

static kvc_status read_fields(reading *r) {
    const bool scalars = r->s->contents.form == KVC_SNAPSHOT_MLX_LM_0_32;
    for (int i = 0; i < r->kind->fields; i++) {
        if (scalars) KVC_TRY(read_scalar(r, r->kind->in_0_32[i], &r->fields[i]));
        else if (r->kind != &kinds[KIND_KV]) KVC_TRY(read_text(r, i, &r->fields[i]));
    }
    return KVC_OK;
}

static kvc_status wrong_tensor(const reading *r, const char *name, const kvc_safetensors_tensor *t,
                               const char *wanted) {
    char shape[KVC__SHAPE_SHOWN];
    return kvc__fail(KVC_E_CORRUPT, "%s: layer %s, %s: tensor %s is %s %s, %s wanted",
                     kvc__safetensors_name(r->s->file), r->where, r->kind->name, name,
                     t ? t->dtype_name : "not",
                     t ? kvc__shape_shown(shape, t->ndim, t->shape) : "there", wanted);
}

/* Finds a tensor of a layer, of four dimensions and of a dtype that it can have. */
static kvc_status find_tensor(reading *r, int plane) {
    const bool packed = r->s->layers[r->index].spec.kv_bits > 0, words = packed && plane < 2;
    char name[KVC__SNAPSHOT_NAME];
    (void)kvc__snapshot_tensor_name(name, r->base, plane, packed);
    const kvc_safetensors_tensor *t = kvc_safetensors_find(r->s->file, name);
    if (!t || t->ndim != 4) return wrong_tensor(r, name, t, "four dimensions");
    if (words ? t->dtype != KVC_U32
              : t->dtype != KVC_F32 && t->dtype != KVC_F16 && t->dtype != KVC_BF16)
        return wrong_tensor(r, name, t, words ? "U32" : "F32, F16 or BF16");
    if (t->shape[0] < 1 || t->shape[1] < 1 || t->shape[3] < 1 ||
        t->shape[0] > KVC__SNAPSHOT_BATCH_MOST)
        return wrong_tensor(r, name, t, "extents of at least 1, and at most 65536 sequences");
    r->s->tensors[r->index].planes[plane] = t;
    r->tensors++;
    return KVC_OK;
}

/* Finds a layer's tensors, which agree in batch and heads, and in positions. */
static kvc_status find_tensors(reading *r) {
    kvc__snapshot_tensors *tensors = &r->s->tensors[r->index];
    kvc_snapshot_layer *layer = &r->s->layers[r->index];
    tensors->count = kvc__snapshot_planes(&layer->spec);
    for (int p = 0; p < tensors->count; p++) KVC_TRY(find_tensor(r, p));
    const kvc_safetensors_tensor *values = tensors->planes[1];
    layer->rows = values->shape[2];
    if (layer->rows % kvc__snapshot_row_positions(&layer->spec, 0) != 0)
        return wrong_tensor(r, values->name, values, "rows of whole groups");
    for (int p = 0; p < tensors->count; p++) {
        const kvc_safetensors_tensor *t = tensors->planes[p];
        if (t->shape[0] != values->shape[0] || t->shape[1] != values->shape[1] ||
            t->shape[2] != kvc__snapshot_rows(&layer->spec, p, layer->rows))
            return wrong_tensor(r, t->name, t, "batch, heads and rows as the layer's values");
    }
    return KVC_OK;
}

/* The dim of a side whose rows are packed: what its scales, biases and words say alike. */
static kvc_status read_packed_dim(const reading *r, int side, int64_t *dim) {
    const kvc_safetensors_tensor *const *planes = r->s->tensors[r->index].planes;
    const kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    const bool channels = spec->keys_per_channel && side == 0;
    for (int part = 0; part < 2; part++) {
        const kvc_safetensors_tensor *t = planes[2 + 2 * side + part];
        int64_t elements, bits, packed;
        if (t->dtype != spec->dtype) return wrong_tensor(r, t->name, t, "one dtype of scales");
        if (__builtin_mul_overflow(t->shape[3], spec->kv_group, &elements) ||
            __builtin_mul_overflow(elements, spec->kv_bits, &bits) ||
            __builtin_mul_overflow(planes[side]->shape[3], 32, &packed) || bits != packed)
            return wrong_tensor(r, t->name, t, "a scale for each group of the words");
        *dim = channels ? t->shape[3] : elements;
    }
    return KVC_OK;
}

static kvc_status check_unpacked(const reading *r) {
    const kvc_safetensors_tensor *t = r->s->tensors[r->index].planes[KVC__SNAPSHOT_TAIL];
    const kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    if (t->dtype == spec->dtype && t->shape[3] == spec->key_dim &&
        spec->key_dim % spec->kv_group == 0)
        return KVC_OK;
    return wrong_tensor(r, t->name, t,
                        "dtype and channels of the scales of keys, these in whole groups,");
}

/* The dims and the dtype that tensors have. */
static kvc_status read_geometry(const reading *r) {
    const kvc_safetensors_tensor *const *planes = r->s->tensors[r->index].planes;
    kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    spec->kv_heads = planes[0]->shape[1];
    if (spec->kv_bits) {
        spec->dtype = planes[2]->dtype;
        KVC_TRY(read_packed_dim(r, 0, &spec->key_dim));
        KVC_TRY(read_packed_dim(r, 1, &spec->value_dim));
        return spec->keys_per_channel ? check_unpacked(r) : KVC_OK;
    }
    spec->key_dim = planes[0]->shape[3];
    spec->value_dim = planes[1]->shape[3];
    spec->dtype = planes[0]->dtype;
    if (planes[1]->dtype == spec->dtype) return KVC_OK;
    return wrong_tensor(r, planes[1]->name, planes[1], "the dtype of keys");
}

static kvc_status set_packing(const reading *r, int64_t bits, int64_t group) {
    kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    if (bits < 2 || bits > 8 || bits == 7) return wrong(r, "bits", bits, "2, 3, 4, 5, 6 or 8");
    if (group != 32 && group != 64 && group != 128)
        return wrong(r, "group", group, "32, 64 or 128");
    spec->kv_bits = (int)bits;
    spec->kv_group = (int)group;
    return KVC_OK;
}

static kvc_status set_window(const reading *r, int64_t window, int64_t keep) {
    kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    if (window < 1 && r->kind == &kinds[KIND_ROTATING])
        return wrong(r, "max_size", window, "1 or more");
    if (keep >= (window ? window : 1)) return wrong(r, "keep", keep, "less than the window");
    spec->window = window;
    spec->keep = keep;
    return KVC_OK;
}

static kvc_status read_spec(const reading *r) {
    const int64_t *f = r->fields;
    if (r->kind == &kinds[KIND_QUANTIZED])
        return set_packing(r, f[QUANTIZED_BITS], f[QUANTIZED_GROUP]);
    if (r->kind == &kinds[KIND_ROTATING]) return set_window(r, f[ROTATING_MAX], f[ROTATING_KEEP]);
    if (r->kind != &kinds[KIND_OWN]) return KVC_OK;
    kvc_layer_spec *spec = &r->s->layers[r->index].spec;
    const int64_t most = f[OWN_BITS] ? KVC__OWN_ROTATED + KVC__OWN_PER_CHANNEL : 0;
    if (f[OWN_BITS]) KVC_TRY(set_packing(r, f[OWN_BITS], f[OWN_GROUP]));
    if (f[OWN_PACKING] > most)
        return wrong(r, "packing", f[OWN_PACKING], "0, or 1 to 3 for packed rows");
    spec->rotated = f[OWN_PACKING] & KVC__OWN_ROTATED;
    spec->keys_per_channel = f[OWN_PACKING] & KVC__OWN_PER_CHANNEL;
    if (spec->keys_per_channel && f[OWN_WINDOW])
        return wrong(r, "window", f[OWN_WINDOW], "none for keys per channel");
    return set_window(r, f[OWN_WINDOW], f[OWN_KEEP]);
}

/* A RotatingKVCache: rows in order until they are full, then turned, the next one at index. */
static kvc_status read_ring(const reading *r, kvc_cache_held *held) {
    const kvc_snapshot_layer *layer = &r->s->layers[r->index];
    const int64_t keep = layer->spec.keep, offset = r->fields[ROTATING_OFFSET];
    const int64_t index = r->fields[ROTATING_INDEX], rows = layer->rows;
    if (offset <= rows) {
        if (index != offset) return wrong(r, "idx", index, "the offset");
        *held = (kvc_cache_held){offset, offset, keep, keep};
        return KVC_OK;
    }
    if (rows < layer->spec.window) return wrong(r, "rows", rows, "those of max_size");
    if (index > rows || index < keep || (index < rows && rows != layer->spec.window))
        return wrong(r, "idx", index,
                     "a row behind the kept ones, or all rows where they are more");
    *held = (kvc_cache_held){offset, rows, offset - (rows - keep), index == rows ? keep : index};
    return KVC_OK;
}

/* Of keys per channel: from where on they are unpacked too. */
static kvc_status read_unpacked(const reading *r, int64_t first, kvc_cache_held *held) {
    const int64_t group = r->s->layers[r->index].spec.kv_group;
    if (held->length > r->s->layers[r->index].rows)
        return wrong(r, "length", held->length, "at most the rows of its tensors");
    if (first > held->length / group * group || held->length - first > 2 * group)
        return wrong(r, "unpacked", first, "a position of the last two groups, in whole ones");
    held->rows = held->length;
    held->first = first;
    return KVC_OK;
}

static kvc_status read_own_sequence(const reading *r, int64_t length, int64_t rows,
                                    kvc_cache_held *held) {
    const kvc_snapshot_layer *layer = &r->s->layers[r->index];
    const int64_t keep = layer->spec.keep;
    const bool turned = layer->spec.window && rows < length;
    *held = (kvc_cache_held){.length = length, .rows = rows};
    if (layer->spec.keys_per_channel) return read_unpacked(r, rows, held);
    if (rows > layer->rows) return wrong(r, "rows", rows, "at most those of its tensors");
    if (rows > length || (rows < length && (!turned || rows < layer->spec.window)))
        return wrong(r, "rows", rows, "the length, or of a window at least its own");
    if (layer->spec.window) held->first = held->row = keep;
    if (turned) held->first = length - (rows - keep);
    return KVC_OK;
}

/* A KvcCache: two numbers of each sequence; rows are in the order of positions. */
static kvc_status read_own(const reading *r, kvc_cache_held *held) {
    for (int64_t b = 0; b < r->s->contents.batch; b++) {
        int64_t n[2];
        for (int i = 0; i < 2; i++) KVC_TRY(read_text(r, KVC__OWN_FIELDS + 2 * b + i, &n[i]));
        KVC_TRY(read_own_sequence(r, n[0], n[1], &held[b]));
    }
    return KVC_OK;
}

static kvc_status read_held(const reading *r) {
    const kvc_snapshot_layer *layer = &r->s->layers[r->index];
    kvc_cache_held *held = r->s->held + r->index * r->s->contents.batch;
    if (r->kind == &kinds[KIND_OWN]) return read_own(r, held);
    if (r->kind == &kinds[KIND_ROTATING]) KVC_TRY(read_ring(r, held));
    else {
        const bool told = r->kind->packed || r->s->contents.form == KVC_SNAPSHOT_MLX_LM_0_32;
        const int64_t offset = told ? r->fields[KV_OFFSET] : layer->rows;
        if (offset > layer->rows)
            return wrong(r, "offset", offset, "at most the rows of its tensors");
        *held = (kvc_cache_held){.length = offset, .rows = offset};
    }
    for (int64_t b = 1; b < r->s->contents.batch; b++) held[b] = held[0];
    return KVC_OK;
}

static kvc_status read_layer(reading *r) {
    kvc_snapshot *s = r->s;
    (void)kvc__path_text(r->where, &r->path);
    (void)kvc__path_tensors(r->base, &r->path, s->contents.form);
    KVC_TRY(find_kind(r));
    KVC_TRY(read_fields(r));
    KVC_TRY(read_spec(r));
    KVC_TRY(find_tensors(r));
    KVC_TRY(read_geometry(r));
    const int64_t batch = s->tensors[r->index].planes[0]->shape[0];
    if (r->index == 0) {
        s->contents.batch = batch;
        KVC_TRY(kvc__store_calloc((void **)&s->held, (size_t)(s->contents.layers * batch),
                                  sizeof *s->held, "what sequences hold"));
    }
    if (batch != s->contents.batch) return wrong(r, "batch", batch, "that of layer 0");
    KVC_TRY(read_held(r));
    memcpy(s->paths[r->index], r->where, sizeof *s->paths - 1);
    s->layers[r->index].kind = r->kind->name;
    s->layers[r->index].path = s->paths[r->index];
    s->layers[r->index].held = s->held + r->index * batch;
    return KVC_OK;
}

static kvc_status next(reading *r) {
    return kvc__path_next(&r->path, r->class, &r->tensors, r->s);
}

kvc_status kvc__snapshot_read_layers(kvc_snapshot *s) {
    reading counting = {.s = s}, r = counting;
    int64_t count = 0;
    KVC_TRY(next(&counting));
    for (; counting.path.depth > 0; count++) KVC_TRY(next(&counting));
    if (count == 0)
        return kvc__fail(KVC_E_CORRUPT, "%s: has no class of layer 0",
                         kvc__safetensors_name(s->file));
    s->contents.layers = count;
    KVC_TRY(kvc__store_calloc((void **)&s->layers, (size_t)count, sizeof *s->layers, "layers"));
    KVC_TRY(kvc__store_calloc((void **)&s->paths, (size_t)count, sizeof *s->paths, "layers"));
    KVC_TRY(kvc__store_calloc((void **)&s->tensors, (size_t)count, sizeof *s->tensors, "layers"));
    for (; r.index < count; r.index++) {
        KVC_TRY(next(&r));
        KVC_TRY(read_layer(&r));
    }
    s->contents.layer = s->layers;
    if (r.tensors == kvc_safetensors_count(s->file)) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "%s: %zu tensors, of which its %lld layers have %zu",
                     kvc__safetensors_name(s->file), kvc_safetensors_count(s->file),
                     (long long)count, r.tensors);
}
