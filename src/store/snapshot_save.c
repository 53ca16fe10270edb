/* From a cache to a file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/file.h"
#include "store/format.h"
#include "store/snapshot.h"
#include "store/writer.h"

enum { KEY = 64, NUMBER = 24 };

/* A layer as it is to be written. */
typedef struct plan {
    const kvc_layer_spec *spec;
    const kvc_cache_held *held; /* [batch] */
    const char *kind;
    int64_t rows;
    bool packed, as_it_lies;
    int32_t scalars[4]; /* MLX_LM_0_32 */
} plan;

/* A save under way. */
typedef struct save {
    const kvc_cache *cache;
    const kvc_snapshot_info *info;
    kvc_cache_desc desc;
    int64_t first, batch; /* sequences */
    kvc_cache_held *held; /* [layers][batch] */
    plan *plans;          /* [layers] */
    kvc__source *sources; /* [layers][KVC__SNAPSHOT_PLANES] */
    char *token_text;
    size_t token_bytes;
    kvc_safetensors_writer *writer;
} save;

static bool is_even(const save *s, const plan *p) {
    for (int64_t b = 1; b < s->batch; b++)
        if (p->held[b].length != p->held[0].length || p->held[b].rows != p->held[0].rows ||
            p->held[b].first != p->held[0].first || p->held[b].row != p->held[0].row)
            return false;
    return true;
}

/* Rows of a full ring lie as mlx-lm has them, if the ring is no longer than the window or begins
 * with its oldest position. */
static bool lies_as_mlx_lm_has_it(const plan *p) {
    const kvc_cache_held *held = &p->held[0];
    const int64_t keep = p->spec->keep;
    if (held->first == keep) return true;
    return held->length - held->first == held->rows - keep &&
           (held->rows == p->spec->window || held->row == keep);
}

static kvc_status make_plan(const save *s, int64_t layer) {
    plan *p = &s->plans[layer];
    p->spec = &s->desc.specs[layer];
    p->held = s->held + layer * s->batch;
    p->packed = p->spec->kv_bits > 0;
    const bool window = p->spec->window > 0, even = is_even(s, p);
    if (p->spec->keys_per_channel)
        return kvc__fail(KVC_E_UNSUPPORTED,
                         "cache: layer %lld packs keys per channel, for which files have no form; "
                         "another packing wanted (kvc_cache_copy)",
                         (long long)layer);
    p->kind = !even || (window && p->packed) || p->spec->rotated ? KVC__SNAPSHOT_KIND
              : window                                           ? "RotatingKVCache"
              : p->packed                                        ? "QuantizedKVCache"
                                                                 : "KVCache";
    p->as_it_lies = !window || (even && !p->packed && lies_as_mlx_lm_has_it(p));
    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t rows =
            p->as_it_lies ? p->held[b].rows : kvc__source_rows(&p->held[b], p->spec->keep, window);
        if (rows > p->rows) p->rows = rows;
    }
    if (s->info->form == KVC_SNAPSHOT_MLX_LM_0_31 || strcmp(p->kind, KVC__SNAPSHOT_KIND) != 0)
        return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED,
                     "info.form: mlx-lm 0.32 has no class for layer %lld, %s; "
                     "KVC_SNAPSHOT_MLX_LM_0_31 wanted",
                     (long long)layer,
                     !even    ? "whose sequences differ in length"
                     : window ? "a window of packed rows"
                              : "whose rows are rotated");
}

static kvc_status put_number(const save *s, int64_t layer, int64_t place, int64_t number) {
    char key[KEY], text[NUMBER];
    (void)snprintf(key, sizeof key, "0.%lld.%lld", (long long)layer, (long long)place);
    (void)snprintf(text, sizeof text, "%" PRId64, number);
    return kvc_safetensors_writer_metadata(s->writer, key, text);
}

static kvc_status give_scalar(void *context, void *out, size_t offset, size_t bytes) {
    const uint32_t bits = (uint32_t) * (const int32_t *)context;
    unsigned char little[4];
    for (int i = 0; i < 4; i++) little[i] = (unsigned char)(bits >> 8 * i);
    memcpy(out, little + offset, bytes);
    return KVC_OK;
}

/* MLX_LM_0_32: tensor L.place, and two texts that say that it is a number. */
static kvc_status put_scalar(const save *s, int64_t layer, int i, int64_t number, int64_t *count) {
    plan *p = &s->plans[layer];
    char name[KVC__SNAPSHOT_NAME], key[KEY];
    if (number > INT32_MAX)
        return kvc__fail(KVC_E_RANGE, "layer %lld: %lld is more than mlx-lm 0.32 can note",
                         (long long)layer, (long long)number);
    p->scalars[i] = (int32_t)number;
    (void)snprintf(name, sizeof name, "%lld.%d", (long long)layer, 2 + i);
    (void)snprintf(key, sizeof key, "2.%lld.0", (long long)*count);
    KVC_TRY(kvc_safetensors_writer_metadata(s->writer, key, name));
    (void)snprintf(key, sizeof key, "2.%lld.1", (long long)*count);
    KVC_TRY(kvc_safetensors_writer_metadata(s->writer, key, "scalar"));
    ++*count;
    return kvc_safetensors_writer_fill(s->writer, name, "I32", 0, NULL, give_scalar,
                                       &p->scalars[i]);
}

/* The row that comes after the last one written. */
static int64_t next_row(const plan *p) {
    const kvc_cache_held *held = &p->held[0];
    if (held->first == p->spec->keep || !p->as_it_lies || held->row == p->spec->keep)
        return p->rows;
    return held->row; /* of a full ring: the oldest is overwritten next */
}

static kvc_status put_own_numbers(const save *s, int64_t layer) {
    const plan *p = &s->plans[layer];
    const bool window = p->spec->window > 0;
    const int64_t first[KVC__OWN_FIELDS] = {p->spec->window, p->spec->keep, p->spec->kv_bits,
                                            p->spec->kv_group, p->spec->rotated};
    for (int64_t i = 0; i < KVC__OWN_FIELDS; i++) KVC_TRY(put_number(s, layer, i, first[i]));
    for (int64_t b = 0; b < s->batch; b++) {
        KVC_TRY(put_number(s, layer, KVC__OWN_FIELDS + 2 * b, p->held[b].length));
        KVC_TRY(put_number(s, layer, KVC__OWN_FIELDS + 2 * b + 1,
                           kvc__source_rows(&p->held[b], p->spec->keep, window)));
    }
    return KVC_OK;
}

/* What a class keeps beside its tensors. scalars: how many there are so far, "" among them */
static kvc_status put_numbers(const save *s, int64_t layer, int64_t *scalars) {
    const plan *p = &s->plans[layer];
    const kvc_layer_spec *spec = p->spec;
    const int64_t length = p->held[0].length;
    const bool new_form = s->info->form == KVC_SNAPSHOT_MLX_LM_0_32;
    const int64_t rotating[4] = {spec->keep, spec->window, length, spec->window ? next_row(p) : 0};
    const int64_t rotating_new[4] = {length, spec->keep, spec->window, rotating[3]};
    const int64_t packed[4] = {length, spec->kv_group, spec->kv_bits};
    const int64_t *numbers = !spec->window ? packed : new_form ? rotating_new : rotating;
    int count = spec->window ? 4 : p->packed ? 3 : 1;
    char key[KEY];
    if (strcmp(p->kind, KVC__SNAPSHOT_KIND) == 0) return put_own_numbers(s, layer);
    for (int i = 0; new_form && i < count; i++)
        KVC_TRY(put_scalar(s, layer, i, numbers[i], scalars));
    if (new_form) return KVC_OK;
    if (count == 1) {
        (void)snprintf(key, sizeof key, "0.%lld", (long long)layer);
        return kvc_safetensors_writer_metadata(s->writer, key, "");
    }
    for (int i = 0; i < count; i++) KVC_TRY(put_number(s, layer, i, numbers[i]));
    return KVC_OK;
}

/* A view whose rows are those of the file, in its order. */
static bool lies_in_a_view(const kvc__source *source, const plan *p, const save *s) {
    return source->view.data && p->as_it_lies && source->view.shape[2] == p->rows && is_even(s, p);
}

static kvc_status put_plane(const save *s, int64_t layer, int plane) {
    const plan *p = &s->plans[layer];
    kvc__source *source = &s->sources[layer * KVC__SNAPSHOT_PLANES + plane];
    char name[KVC__SNAPSHOT_NAME];
    KVC_TRY(kvc__source_init(source, s->cache, layer, plane));
    source->held = p->held;
    source->first_sequence = s->first;
    source->batch = s->batch;
    source->rows = p->rows;
    source->as_it_lies = p->as_it_lies;
    (void)kvc__snapshot_tensor_name(name, layer, plane, p->packed);
    if (lies_in_a_view(source, p, s)) {
        kvc_array rows = source->view;
        rows.shape[0] = s->batch;
        rows.data = (char *)rows.data +
                    s->first * rows.strides[0] * (int64_t)kvc_dtype_size_bytes(rows.dtype);
        return kvc_safetensors_writer_array(s->writer, name, &rows);
    }
    const kvc_dtype dtype = p->packed && plane < 2 ? KVC_U32 : p->spec->dtype;
    const int64_t shape[4] = {s->batch, source->heads, p->rows,
                              (int64_t)(source->row_bytes / kvc_dtype_size_bytes(dtype))};
    return kvc_safetensors_writer_fill(s->writer, name, kvc__format_dtype_of(dtype)->name, 4, shape,
                                       kvc__source_fill, source);
}

static kvc_status put_layer(const save *s, int64_t layer, int64_t *scalars) {
    const plan *p = &s->plans[layer];
    char key[KEY];
    (void)snprintf(key, sizeof key, "%d.%lld", s->info->form == KVC_SNAPSHOT_MLX_LM_0_32 ? 1 : 2,
                   (long long)layer);
    KVC_TRY(kvc_safetensors_writer_metadata(s->writer, key, p->kind));
    KVC_TRY(put_numbers(s, layer, scalars));
    for (int plane = 0; plane < (p->packed ? KVC__SNAPSHOT_PLANES : 2); plane++)
        KVC_TRY(put_plane(s, layer, plane));
    return KVC_OK;
}

static kvc_status put_own_text(const save *s, const char *name, const char *text) {
    char key[KEY];
    if (!text) return KVC_OK;
    (void)snprintf(key, sizeof key, "%skvc.%s", kvc__snapshot_prefix(s->info->form), name);
    return kvc_safetensors_writer_metadata(s->writer, key, text);
}

/* Tokens, with a space between two. */
static kvc_status put_tokens(save *s) {
    const int64_t count = s->info->token_count;
    size_t at = 0;
    if (count == 0) return KVC_OK;
    if (count < 0 || !s->info->tokens || s->batch != 1)
        return kvc__fail(KVC_E_INVALID,
                         "info.tokens: %lld given for %lld sequences; tokens of one wanted",
                         (long long)count, (long long)s->batch);
    if (__builtin_mul_overflow((size_t)count, sizeof "2147483647", &s->token_bytes))
        return kvc__fail(KVC_E_RANGE, "info.token_count: %lld given", (long long)count);
    KVC_TRY(kvc__store_calloc((void **)&s->token_text, s->token_bytes, 1, "tokens"));
    for (int64_t i = 0; i < count; i++) {
        const int32_t token = s->info->tokens[i];
        if (token < 0)
            return kvc__fail(KVC_E_INVALID, "info.tokens[%lld]: %d given, at least 0 wanted",
                             (long long)i, token);
        at +=
            (size_t)snprintf(s->token_text + at, s->token_bytes - at, "%s%d", i ? " " : "", token);
    }
    return put_own_text(s, "tokens", s->token_text);
}

static kvc_status put_texts(const save *s) {
    for (int64_t i = 0; i < s->info->text_count; i++) {
        const kvc_snapshot_text *text = &s->info->texts[i];
        char key[KEY], shown[KVC__SHOWN];
        if (!text->key || !*text->key || strchr(text->key, '.') || strlen(text->key) > KEY - 4 ||
            strspn(text->key, "0123456789") == strlen(text->key) || strcmp(text->key, "kvc") == 0)
            return kvc__fail(KVC_E_INVALID,
                             "info.texts[%lld].key: %s given; one without dots, not \"kvc\" nor of "
                             "digits alone and of at most %d bytes wanted",
                             (long long)i, text->key ? kvc__shown(shown, text->key) : "NULL",
                             KEY - 4);
        (void)snprintf(key, sizeof key, "%s%s", kvc__snapshot_prefix(s->info->form), text->key);
        KVC_TRY(kvc_safetensors_writer_metadata(s->writer, key, text->text));
    }
    return KVC_OK;
}

static kvc_status put_all(save *s, const char *path) {
    const kvc_fingerprint *fingerprint = &s->info->fingerprint;
    int64_t scalars = 1;
    KVC_TRY(kvc_safetensors_writer_new(&s->writer, kvc__snapshot_prefix(s->info->form)));
    s->writer->progress = s->info->progress;
    s->writer->progress_context = s->info->progress_context;
    KVC_TRY(put_own_text(s, "format", KVC__SNAPSHOT_FORMAT));
#define PUT_FIELD(field) KVC_TRY(put_own_text(s, #field, fingerprint->field));
    KVC__FINGERPRINT_LIST(PUT_FIELD)
#undef PUT_FIELD
    KVC_TRY(put_texts(s));
    KVC_TRY(put_tokens(s));
    if (s->info->form == KVC_SNAPSHOT_MLX_LM_0_32)
        KVC_TRY(kvc_safetensors_writer_metadata(s->writer, "2.0", ""));
    for (int64_t i = 0; i < s->desc.layers; i++) KVC_TRY(put_layer(s, i, &scalars));
    return kvc_safetensors_writer_save(s->writer, path);
}

static kvc_status choose_sequences(save *s) {
    const int64_t *one = s->info->sequence;
    if (s->info->form != KVC_SNAPSHOT_MLX_LM_0_31 && s->info->form != KVC_SNAPSHOT_MLX_LM_0_32)
        return kvc__fail(KVC_E_INVALID, "info.form: %d given, a kvc_snapshot_form wanted",
                         (int)s->info->form);
    if (one && (*one < 0 || *one >= s->desc.batch))
        return kvc__fail(KVC_E_INVALID, "info.sequence: %lld given, 0 to %lld wanted",
                         (long long)*one, (long long)s->desc.batch - 1);
    s->first = one ? *one : 0;
    s->batch = one ? 1 : s->desc.batch;
    return KVC_OK;
}

static kvc_status run(save *s, const char *path) {
    const size_t layers = (size_t)s->desc.layers;
    KVC_TRY(kvc__store_calloc((void **)&s->held, layers * (size_t)s->batch, sizeof *s->held,
                              "what sequences hold"));
    KVC_TRY(kvc__store_calloc((void **)&s->plans, layers, sizeof *s->plans, "plans"));
    KVC_TRY(kvc__store_calloc((void **)&s->sources, layers * KVC__SNAPSHOT_PLANES,
                              sizeof *s->sources, "sources"));
    for (int64_t i = 0; i < s->desc.layers; i++) {
        for (int64_t b = 0; b < s->batch; b++)
            KVC_TRY(kvc_cache_held_get(s->cache, i, s->first + b, &s->held[i * s->batch + b]));
        KVC_TRY(make_plan(s, i));
    }
    return put_all(s, path);
}

static void end(save *s) {
    const size_t layers = (size_t)s->desc.layers;
    kvc_safetensors_writer_free(s->writer);
    kvc__store_free(s->token_text, s->token_bytes, 1);
    for (size_t i = 0; s->sources && i < layers * KVC__SNAPSHOT_PLANES; i++)
        kvc__source_deinit(&s->sources[i]);
    kvc__store_free(s->sources, layers * KVC__SNAPSHOT_PLANES, sizeof *s->sources);
    kvc__store_free(s->plans, layers, sizeof *s->plans);
    kvc__store_free(s->held, layers * (size_t)s->batch, sizeof *s->held);
}

kvc_status kvc_snapshot_save(const char *path, const kvc_cache *cache,
                             const kvc_snapshot_info *info) {
    kvc_snapshot_info full = {.struct_size = sizeof full};
    save s = {.cache = cache, .info = &full, .desc = {.struct_size = sizeof s.desc}};
    if (!path) return kvc__fail(KVC_E_INVALID, "path: NULL given, that of a file wanted");
    if (info) KVC_TRY(kvc__snapshot_struct_in(&full, sizeof full, info, info->struct_size));
    KVC_TRY(kvc_cache_desc_get(cache, &s.desc));
    KVC_TRY(choose_sequences(&s));
    const kvc_status status = run(&s, path);
    end(&s);
    return status;
}
