#include "store/writer.h"

#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/file.h"
#include "store/rows.h"

kvc_status kvc_safetensors_writer_new(kvc_safetensors_writer **out, const char *prefix) {
    static const char *const prefixes[] = {"", "1.", "0."};
    const char *known = NULL;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given, a writer's address wanted");
    *out = NULL;
    for (size_t i = 0; prefix && i < sizeof prefixes / sizeof *prefixes; i++)
        if (strcmp(prefix, prefixes[i]) == 0) known = prefixes[i];
    if (prefix && !known)
        return kvc__fail(KVC_E_INVALID,
                         "prefix: \"%.32s\" given, \"\", \"1.\", \"0.\" or NULL wanted", prefix);
    kvc_safetensors_writer *w;
    KVC_TRY(kvc__store_calloc((void **)&w, 1, sizeof *w, "a writer"));
    w->prefix = known;
    w->metadata = json_object();
    w->names = json_object();
    if (!w->metadata || !w->names) {
        kvc_safetensors_writer_free(w);
        return kvc__fail(KVC_E_NOMEM, "a writer: no memory for its JSON");
    }
    *out = w;
    return KVC_OK;
}

void kvc_safetensors_writer_free(kvc_safetensors_writer *w) {
    if (!w) return;
    for (size_t i = 0; i < w->count; i++) kvc_array_release(&w->entries[i].array);
    kvc__store_free(w->entries, w->room, sizeof *w->entries);
    json_decref(w->metadata);
    json_decref(w->names);
    kvc__store_free(w, 1, sizeof *w);
}

/* Returns the bytes of the character that begins here, 0 where none does (RFC 3629). */
static size_t utf8_length(const unsigned char *c) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c[0] < 0x80) return 1;
    const size_t length = c[0] < 0xc0 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : c[0] < 0xf8 ? 4 : 0;
    uint32_t character = c[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0; /* the end of the text too */
        character = character << 6 | (c[i] & 0x3fu);
    }
    const bool surrogate = character >= 0xd800 && character < 0xe000;
    return character < least[length] || surrogate || character > 0x10ffff ? 0 : length;
}

/* Verifies that a text can stand in JSON. jansson does too, but tells this and want of memory in
 * the same way. */
static kvc_status check_text(const char *text, const char *what) {
    char shown[KVC__SHOWN];
    if (!text) return kvc__fail(KVC_E_INVALID, "%s: NULL given, a text wanted", what);
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        const size_t length = utf8_length(c);
        if (length == 0)
            return kvc__fail(KVC_E_INVALID, "%s: \"%s\" is not UTF-8", what,
                             kvc__shown(shown, text));
        c += length;
    }
    return KVC_OK;
}

/* Sets a key that is not there; takes the reference to value, which may be NULL for no memory. */
static kvc_status set_new(json_t *object, const char *key, json_t *value, const char *what) {
    if (json_object_set_new(object, key, value) == 0) return KVC_OK;
    return kvc__fail(KVC_E_NOMEM, "%s: no memory for it", what);
}

kvc_status kvc_safetensors_writer_metadata(kvc_safetensors_writer *w, const char *key,
                                           const char *text) {
    char shown[KVC__SHOWN];
    KVC_TRY(check_text(key, "key"));
    KVC_TRY(check_text(text, "text"));
    const char *bare = (key[0] == '0' || key[0] == '1') && key[1] == '.' ? key + 2 : key;
    if (strcmp(bare, KVC__HEADER_KEY) == 0 || strcmp(bare, KVC__TENSORS_KEY) == 0)
        return kvc__fail(KVC_E_INVALID, "key: %s given, which is for checksums", key);
    if (json_object_get(w->metadata, key))
        return kvc__fail(KVC_E_INVALID, "key: %s given a second time", kvc__shown(shown, key));
    return set_new(w->metadata, key, json_string(text), "text");
}

static kvc_status check_name(const kvc_safetensors_writer *w, const char *name) {
    char shown[KVC__SHOWN];
    KVC_TRY(check_text(name, "name"));
    if (strcmp(name, KVC__METADATA_KEY) == 0)
        return kvc__fail(KVC_E_INVALID, "name: %s given, which is for metadata", name);
    if (json_object_get(w->names, name))
        return kvc__fail(KVC_E_INVALID, "name: %s given a second time", kvc__shown(shown, name));
    return KVC_OK;
}

static kvc_status make_room(kvc_safetensors_writer *w) {
    if (w->count < w->room) return KVC_OK;
    const size_t room = w->room ? 2 * w->room : 16;
    void *entries;
    KVC_TRY(kvc__store_calloc(&entries, room, sizeof *w->entries, "a writer's tensors"));
    if (w->count) memcpy(entries, w->entries, w->count * sizeof *w->entries);
    kvc__store_free(w->entries, w->room, sizeof *w->entries);
    w->entries = entries;
    w->room = room;
    return KVC_OK;
}

/* Adds an entry, whose name is the caller's until here. */
static kvc_status add(kvc_safetensors_writer *w, const kvc__entry *entry) {
    KVC_TRY(check_name(w, entry->name));
    KVC_TRY(make_room(w));
    KVC_TRY(set_new(w->names, entry->name, json_null(), "name"));
    kvc__entry *added = &w->entries[w->count++];
    *added = *entry;
    added->name = json_object_iter_key(json_object_iter_at(w->names, entry->name));
    if (entry->array.buffer) added->array = kvc_array_retain(&entry->array);
    return KVC_OK;
}

kvc_status kvc_safetensors_writer_array(kvc_safetensors_writer *w, const char *name,
                                        const kvc_array *array) {
    kvc__entry entry = {.name = name};
    KVC_TRY(kvc__rows_check(&entry.bytes, array, "array"));
    entry.dtype = kvc__format_dtype_of(array->dtype);
    entry.ndim = array->ndim;
    memcpy(entry.shape, array->shape, sizeof entry.shape);
    entry.array = *array;
    return add(w, &entry);
}

kvc_status kvc_safetensors_writer_fill(kvc_safetensors_writer *w, const char *name,
                                       const char *dtype_name, int ndim, const int64_t *shape,
                                       kvc_safetensors_fill_fn fill, void *context) {
    kvc__entry entry = {.name = name, .ndim = ndim, .fill = fill, .context = context};
    char shown[KVC__SHOWN];
    if (!fill) return kvc__fail(KVC_E_INVALID, "fill: NULL given, a function wanted");
    entry.dtype = dtype_name ? kvc__format_dtype_named(dtype_name) : NULL;
    if (!entry.dtype)
        return kvc__fail(KVC_E_INVALID, "dtype_name: \"%s\" given, one of the format's wanted",
                         dtype_name ? kvc__shown(shown, dtype_name) : "NULL");
    if (ndim < 0 || ndim > KVC_MAX_DIMS || (ndim > 0 && !shape))
        return kvc__fail(KVC_E_INVALID, "ndim: %d given with a shape, 0 to %d wanted", ndim,
                         KVC_MAX_DIMS);
    if (ndim) memcpy(entry.shape, shape, (size_t)ndim * sizeof *shape);
    if (!kvc__format_bytes(&entry.bytes, entry.dtype, ndim, entry.shape)) {
        char text[KVC__SHAPE_SHOWN];
        return kvc__fail(KVC_E_RANGE, "shape: %s %s given, which fills no number of bytes",
                         entry.dtype->name, kvc__shape_shown(text, ndim, entry.shape));
    }
    return add(w, &entry);
}
