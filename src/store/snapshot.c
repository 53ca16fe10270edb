/* An open snapshot: its form, and what it tells beside the rows. */
#include "store/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/file.h"
#include "store/opened.h"

enum { KEY = 64 };

const char *kvc__snapshot_prefix(kvc_snapshot_form form) {
    return form == KVC_SNAPSHOT_MLX_LM_0_32 ? "0." : "1.";
}

const char *kvc__snapshot_tensor_name(char out[KVC__SNAPSHOT_NAME], const char *base, int plane,
                                      bool packed) {
    const int side = plane < 2 ? plane : (plane - 2) / 2;
    const int part = plane < 2 ? 0 : 1 + (plane - 2) % 2;
    if (packed && plane != KVC__SNAPSHOT_TAIL)
        (void)snprintf(out, KVC__SNAPSHOT_NAME, "%s.%d.%d", base, side, part);
    else (void)snprintf(out, KVC__SNAPSHOT_NAME, "%s.%d", base, side);
    return out;
}

int kvc__snapshot_planes(const kvc_layer_spec *spec) {
    return spec->keys_per_channel ? KVC__SNAPSHOT_PLANES : spec->kv_bits ? KVC__SNAPSHOT_TAIL : 2;
}

int64_t kvc__snapshot_row_positions(const kvc_layer_spec *spec, int plane) {
    const bool of_keys = plane == 0 || plane == 2 || plane == 3;
    return spec->keys_per_channel && of_keys ? spec->kv_group : 1;
}

int64_t kvc__snapshot_rows(const kvc_layer_spec *spec, int plane, int64_t positions) {
    if (plane == KVC__SNAPSHOT_TAIL) return positions > 0 ? 2 * (int64_t)spec->kv_group : 0;
    return positions / kvc__snapshot_row_positions(spec, plane);
}

kvc_status kvc__snapshot_struct_in(void *full, size_t full_bytes, const void *given,
                                   size_t struct_size) {
    if (struct_size < sizeof(size_t))
        return kvc__fail(KVC_E_INVALID, "struct_size: %zu given, that of the struct wanted",
                         struct_size);
    memcpy(full, given, struct_size < full_bytes ? struct_size : full_bytes);
    return KVC_OK;
}

bool kvc__snapshot_number(int64_t *out, const char *text) {
    int64_t n = 0;
    if (!*text) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *text - '0', &n))
            return false;
    }
    *out = n;
    return true;
}

/* A text of ours, or NULL. */
static const char *own_text(const kvc_snapshot *s, const char *name) {
    char key[KEY];
    (void)snprintf(key, sizeof key, "%skvc.%s", kvc__snapshot_prefix(s->contents.form), name);
    return kvc_safetensors_metadata(s->file, key);
}

/* The third list of a file is one of classes until 0.31, and from 0.32 on begins with "". */
static kvc_status find_form(kvc_snapshot *s) {
    const char *third = kvc_safetensors_metadata(s->file, "2.0");
    if (!third)
        return kvc__fail(KVC_E_CORRUPT, "%s: no metadata 2.0, so that it is no prompt cache",
                         kvc__safetensors_name(s->file));
    s->contents.form = *third ? KVC_SNAPSHOT_MLX_LM_0_31 : KVC_SNAPSHOT_MLX_LM_0_32;
    return KVC_OK;
}

static kvc_status check_format(const kvc_snapshot *s) {
    const char *format = own_text(s, "format");
    char shown[KVC__SHOWN];
    if (!format || strcmp(format, KVC__SNAPSHOT_FORMAT) == 0) return KVC_OK;
    return kvc__fail(KVC_E_UNSUPPORTED, "%s: kvc.format is \"%s\", " KVC__SNAPSHOT_FORMAT " wanted",
                     kvc__safetensors_name(s->file), kvc__shown(shown, format));
}

static kvc_status read_texts(kvc_snapshot *s) {
    const char *prefix = kvc__snapshot_prefix(s->contents.form);
    const size_t count = kvc_safetensors_metadata_count(s->file);
    KVC_TRY(kvc__store_calloc((void **)&s->texts, count, sizeof *s->texts, "texts"));
    s->texts_room = count;
    for (size_t i = 0; i < count; i++) {
        const char *key;
        const char *text = kvc_safetensors_metadata_at(s->file, i, &key);
        if (strncmp(key, prefix, 2) != 0 || strncmp(key + 2, "kvc.", 4) == 0) continue;
        s->texts[s->contents.text_count++] = (kvc_snapshot_text){key + 2, text};
    }
    s->contents.texts = s->texts;
    return KVC_OK;
}

/* Counts tokens; -1 where a text is no list of them: numbers with a space between two. */
static int64_t count_tokens(const char *text) {
    int64_t count = 1;
    if (!*text) return 0;
    for (const char *c = text; *c; c++) {
        const bool digit = *c >= '0' && *c <= '9';
        if (!digit && (*c != ' ' || c == text || c[-1] == ' ' || !c[1])) return -1;
        if (*c == ' ') count++;
    }
    return count;
}

static kvc_status read_tokens(kvc_snapshot *s) {
    const char *text = own_text(s, "tokens");
    const int64_t count = text ? count_tokens(text) : 0;
    bool valid = count == 0 || (count > 0 && s->contents.batch == 1);
    if (count > 0)
        KVC_TRY(kvc__store_calloc((void **)&s->tokens, (size_t)count, sizeof *s->tokens, "tokens"));
    s->contents.tokens = s->tokens;
    s->contents.token_count = count > 0 ? count : 0;
    for (int64_t i = 0; valid && i < count; i++) {
        int64_t token = 0;
        for (; *text && *text != ' '; text++) {
            token = 10 * token + (*text - '0');
            if (token > INT32_MAX) token = (int64_t)INT32_MAX + 1;
        }
        if (*text) text++;
        valid = token <= INT32_MAX;
        s->tokens[i] = (int32_t)token;
    }
    if (valid) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT,
                     "%s: kvc.tokens: a list of int32 numbers with a space between two wanted, of "
                     "one sequence",
                     kvc__safetensors_name(s->file));
}

static kvc_status read(kvc_snapshot *s, const char *path) {
    KVC_TRY(kvc_safetensors_open(&s->file, path, 0));
    KVC_TRY(find_form(s));
    KVC_TRY(check_format(s));
    KVC_TRY(kvc__snapshot_read_layers(s));
    KVC_TRY(read_texts(s));
    KVC_TRY(read_tokens(s));
#define READ_FIELD(field) s->contents.fingerprint.field = own_text(s, #field);
    KVC__FINGERPRINT_LIST(READ_FIELD)
#undef READ_FIELD
    s->contents.container = s->file;
    return KVC_OK;
}

kvc_status kvc_snapshot_open(kvc_snapshot **out, const char *path) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given, a kvc_snapshot ** wanted");
    *out = NULL;
    kvc_snapshot *s;
    KVC_TRY(kvc__store_calloc((void **)&s, 1, sizeof *s, "a snapshot"));
    const kvc_status status = read(s, path);
    if (status == KVC_OK) *out = s;
    else kvc_snapshot_close(s);
    return status;
}

void kvc_snapshot_close(kvc_snapshot *s) {
    if (!s) return;
    const size_t layers = (size_t)s->contents.layers;
    kvc__store_free(s->texts, s->texts_room, sizeof *s->texts);
    kvc__store_free(s->tokens, (size_t)s->contents.token_count, sizeof *s->tokens);
    kvc__store_free(s->held, layers * (size_t)s->contents.batch, sizeof *s->held);
    kvc__store_free(s->tensors, layers, sizeof *s->tensors);
    kvc__store_free(s->paths, layers, sizeof *s->paths);
    kvc__store_free(s->layers, layers, sizeof *s->layers);
    kvc_safetensors_close(s->file);
    kvc__store_free(s, 1, sizeof *s);
}

const kvc_snapshot_contents *kvc_snapshot_contents_of(const kvc_snapshot *s) {
    return &s->contents;
}

kvc_status kvc_snapshot_verify(const kvc_snapshot *s) {
    for (size_t i = 0; i < kvc_safetensors_count(s->file); i++)
        KVC_TRY(kvc_safetensors_verify(s->file, kvc_safetensors_at(s->file, i)));
    return KVC_OK;
}
