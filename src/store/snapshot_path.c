/* Where a cache is in a file: in the list of a model's layers, or in a CacheList of that list. Up
 * to 0.31 a CacheList has, in place of numbers, a list of its caches' classes and one of their
 * numbers; from 0.32 on it makes each of them a pair, tensors and class. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/file.h"
#include "store/opened.h"
#include "store/snapshot.h"

/* Writes the first index, and each of the others between two texts. There is room for any. */
static const char *join(char out[KVC__SNAPSHOT_NAME], const char *first,
                        const kvc__snapshot_path *path, const char *before, const char *behind) {
    int at = snprintf(out, KVC__SNAPSHOT_NAME, "%s%lld", first, (long long)path->at[0]);
    for (int i = 1; i < path->depth; i++)
        at += snprintf(out + at, (size_t)(KVC__SNAPSHOT_NAME - at), "%s%lld%s", before,
                       (long long)path->at[i], behind);
    return out;
}

const char *kvc__path_text(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path) {
    return join(out, "", path, ".", "");
}

const char *kvc__path_tensors(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path,
                              kvc_snapshot_form form) {
    return join(out, "", path, ".", form == KVC_SNAPSHOT_MLX_LM_0_32 ? ".0" : "");
}

const char *kvc__path_numbers(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path) {
    return join(out, "0.", path, ".1.", "");
}

const char *kvc__path_class(char out[KVC__SNAPSHOT_NAME], const kvc__snapshot_path *path,
                            kvc_snapshot_form form) {
    const bool new_form = form == KVC_SNAPSHOT_MLX_LM_0_32;
    const long long last = path->at[path->depth - 1];
    kvc__snapshot_path list = *path;
    list.depth--;
    if (list.depth == 0) (void)snprintf(out, KVC__SNAPSHOT_NAME, "%d.%lld", new_form ? 1 : 2, last);
    else {
        if (new_form) (void)kvc__path_tensors(out, &list, form);
        else (void)kvc__path_numbers(out, &list);
        const size_t at = strlen(out);
        (void)snprintf(out + at, KVC__SNAPSHOT_NAME - at, new_form ? ".%lld.1" : ".0.%lld", last);
    }
    return out;
}

/* Reads "3.0.1". Returns false for another text. */
static bool parse(kvc__snapshot_path *path, const char *text) {
    *path = (kvc__snapshot_path){0};
    while (path->depth < KVC__SNAPSHOT_DEPTH) {
        char number[24];
        const size_t digits = strspn(text, "0123456789");
        if (digits == 0 || digits >= sizeof number || (digits > 1 && *text == '0')) return false;
        memcpy(number, text, digits);
        number[digits] = '\0';
        if (!kvc__snapshot_number(&path->at[path->depth++], number)) return false;
        text += digits;
        if (!*text) return true;
        if (*text++ != '.') return false;
    }
    return false;
}

/* The first index at which a path is another than the one before it, if it comes right behind that
 * in a tree; else -1. */
static int next_from(const kvc__snapshot_path *before, const kvc__snapshot_path *path) {
    int i = 0;
    while (i < before->depth && i < path->depth && before->at[i] == path->at[i]) i++;
    if (i == before->depth || i == path->depth || path->at[i] != before->at[i] + 1) return -1;
    for (int j = i + 1; j < path->depth; j++)
        if (path->at[j] != 0) return -1;
    return i;
}

kvc_status kvc__path_read(kvc__snapshot_path *out, int *fresh, const kvc__snapshot_path *before,
                          const char *text, int64_t layer) {
    const kvc__snapshot_path none = {1, {-1}};
    char shown[KVC__SHOWN];
    if (text && parse(out, text)) {
        *fresh = next_from(before ? before : &none, out);
        if (*fresh >= 0) return KVC_OK;
    }
    return kvc__fail(KVC_E_INVALID,
                     "info.paths[%lld]: %s given; the next place of a tree wanted, such as \"3\" "
                     "behind \"2\" or \"2.1\", or \"2.1\" behind \"2.0\", at most %d deep",
                     (long long)layer, text ? kvc__shown(shown, text) : "NULL",
                     KVC__SNAPSHOT_DEPTH);
}

/* A class that is a tensor of characters. */
static kvc_status read_class(const kvc_snapshot *s, const char *name,
                             char out[KVC__SNAPSHOT_CLASS]) {
    const kvc_safetensors_tensor *t = kvc_safetensors_find(s->file, name);
    unsigned char bytes[8 * KVC__SNAPSHOT_CLASS];
    bool valid = t && t->ndim == 1 && t->shape[0] > 0 && t->shape[0] < KVC__SNAPSHOT_CLASS &&
                 (strcmp(t->dtype_name, "I32") == 0 || strcmp(t->dtype_name, "I64") == 0);
    out[0] = '\0';
    if (!t) return KVC_OK;
    if (valid) {
        const size_t step = t->bytes / (size_t)t->shape[0];
        if (kvc_safetensors_has_checksums(s->file)) KVC_TRY(kvc_safetensors_verify(s->file, t));
        KVC_TRY(kvc_safetensors_read(s->file, t, bytes, 0, t->bytes));
        for (size_t i = 0; i < t->bytes; i++) {
            if (i % step == 0) out[i / step] = (char)bytes[i];
            valid = valid && (i % step ? bytes[i] == 0 : bytes[i] > ' ' && bytes[i] < 0x7f);
        }
        out[t->shape[0]] = '\0';
    }
    if (valid) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT,
                     "%s: tensor %s: the characters of a class wanted, less than %d of them, as "
                     "I32 or I64",
                     kvc__safetensors_name(s->file), name, KVC__SNAPSHOT_CLASS);
}

/* The class of the cache at a path; "" where there is none. */
static kvc_status class_at(const kvc_snapshot *s, const kvc__snapshot_path *path,
                           char out[KVC__SNAPSHOT_CLASS], size_t *tensors) {
    char name[KVC__SNAPSHOT_NAME];
    (void)kvc__path_class(name, path, s->contents.form);
    if (path->depth > 1 && s->contents.form == KVC_SNAPSHOT_MLX_LM_0_32) {
        KVC_TRY(read_class(s, name, out));
        if (*out) ++*tensors;
        return KVC_OK;
    }
    const char *text = kvc_safetensors_metadata(s->file, name);
    (void)snprintf(out, KVC__SNAPSHOT_CLASS, "%s", text ? text : "");
    return KVC_OK;
}

kvc_status kvc__path_next(kvc__snapshot_path *path, char kind[KVC__SNAPSHOT_CLASS], size_t *tensors,
                          const kvc_snapshot *s) {
    char text[KVC__SNAPSHOT_NAME];
    if (path->depth == 0) *path = (kvc__snapshot_path){1, {-1}};
    for (; path->depth > 0; path->depth--) {
        path->at[path->depth - 1]++;
        KVC_TRY(class_at(s, path, kind, tensors));
        if (*kind) break;
    }
    while (path->depth > 0 && strcmp(kind, KVC__SNAPSHOT_LIST) == 0) {
        if (path->depth == KVC__SNAPSHOT_DEPTH)
            return kvc__fail(KVC_E_UNSUPPORTED,
                             "%s: layer %s is a " KVC__SNAPSHOT_LIST
                             " in %d others, at most %d deep wanted",
                             kvc__safetensors_name(s->file), kvc__path_text(text, path),
                             path->depth - 1, KVC__SNAPSHOT_DEPTH - 1);
        path->at[path->depth++] = 0;
        KVC_TRY(class_at(s, path, kind, tensors));
        if (*kind) continue;
        path->depth--;
        return kvc__fail(KVC_E_CORRUPT, "%s: layer %s is a " KVC__SNAPSHOT_LIST " of no caches",
                         kvc__safetensors_name(s->file), kvc__path_text(text, path));
    }
    return KVC_OK;
}
