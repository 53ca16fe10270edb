#include "store/header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/digest.h"
#include "store/file.h"
#include "store/format.h"

/* What the functions below need to know of the file. */
typedef struct source {
    const char *name, *text;
    size_t bytes;
    uint64_t data_bytes;
} source;

/* The text on its way to jansson. */
typedef struct feed {
    const char *text;
    size_t left;
    bool starved;
} feed;

/* Gives the next byte, and looks whether there was memory for the one before: jansson goes on
 * without a byte of a word or number that it could not keep, and clears errno at each number. */
static size_t feed_byte(void *out, size_t room, void *context) {
    feed *f = context;
    f->starved = f->starved || errno == ENOMEM;
    if (f->left == 0 || room == 0) return 0;
    *(char *)out = *f->text++;
    f->left--;
    return 1;
}

static kvc_status parse(json_t **out, const source *s) {
    json_error_t error;
    char shown[KVC__SHOWN];
    feed f = {.text = s->text, .left = s->bytes};
    if (s->bytes == 0 || s->text[0] != '{')
        return kvc__fail(KVC_E_CORRUPT, "%s: header: begins with no '{'", s->name);
    while (f.text[f.left - 1] == ' ') f.left--; /* what aligns the data */
    errno = 0;
    *out = json_load_callback(feed_byte, &f, JSON_REJECT_DUPLICATES, &error);
    if (f.starved || errno == ENOMEM) /* *out is freed with the header */
        return kvc__fail(KVC_E_NOMEM, "%s: no memory for the JSON of its header", s->name);
    if (*out) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "%s: header: %s (byte %d)", s->name,
                     kvc__shown(shown, error.text), error.position);
}

/* Finds an array of integers >= 0 in a tensor's entry. */
static kvc_status find_integers(const json_t **out, const json_t *entry, const char *field,
                                const source *s, const char *tensor) {
    const json_t *array = json_object_get(entry, field);
    if (!json_is_array(array))
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: %s: is no array", s->name, tensor, field);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value))
            return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: %s: entry %zu is no integer", s->name,
                             tensor, field, i);
        if (json_integer_value(value) < 0)
            return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: %s: %lld found, 0 or more wanted",
                             s->name, tensor, field, (long long)json_integer_value(value));
    }
    *out = array;
    return KVC_OK;
}

static kvc_status read_shape(kvc_safetensors_tensor *t, const json_t *entry, const source *s,
                             const char *shown) {
    const json_t *array = NULL;
    KVC_TRY(find_integers(&array, entry, "shape", s, shown));
    if (json_array_size(array) > KVC_MAX_DIMS)
        return kvc__fail(KVC_E_UNSUPPORTED,
                         "%s: tensor %s: shape: %zu dimensions, at most %d wanted", s->name, shown,
                         json_array_size(array), KVC_MAX_DIMS);
    t->ndim = (int)json_array_size(array);
    for (int i = 0; i < t->ndim; i++)
        t->shape[i] = json_integer_value(json_array_get(array, (size_t)i));
    return KVC_OK;
}

/* Reads where the data lies; t->offset is from the data's begin, until the tables are complete. */
static kvc_status read_offsets(kvc_safetensors_tensor *t, const json_t *entry, const source *s,
                               const char *shown) {
    const json_t *array = NULL;
    KVC_TRY(find_integers(&array, entry, "data_offsets", s, shown));
    if (json_array_size(array) != 2)
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: data_offsets: %zu numbers, 2 wanted",
                         s->name, shown, json_array_size(array));
    const uint64_t begin = (uint64_t)json_integer_value(json_array_get(array, 0));
    const uint64_t end = (uint64_t)json_integer_value(json_array_get(array, 1));
    if (begin > end || end > s->data_bytes)
        return kvc__fail(KVC_E_CORRUPT,
                         "%s: tensor %s: data_offsets: [%llu, %llu] in %llu bytes of data", s->name,
                         shown, (unsigned long long)begin, (unsigned long long)end,
                         (unsigned long long)s->data_bytes);
    if (t->bytes != end - begin) {
        char shape[KVC__SHAPE_SHOWN];
        return kvc__fail(KVC_E_CORRUPT,
                         "%s: tensor %s: data_offsets: %llu bytes, %zu wanted for %s %s", s->name,
                         shown, (unsigned long long)(end - begin), t->bytes, t->dtype_name,
                         kvc__shape_shown(shape, t->ndim, t->shape));
    }
    t->offset = begin;
    return KVC_OK;
}

static kvc_status read_tensor(kvc_safetensors_tensor *t, const char *name, const json_t *entry,
                              const source *s) {
    char shown[KVC__SHOWN], shape[KVC__SHAPE_SHOWN], given[KVC__SHOWN];
    (void)kvc__shown(shown, name);
    if (!json_is_object(entry))
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: is no object", s->name, shown);
    const char *dtype_name = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype_name)
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: dtype: is no string", s->name, shown);
    const kvc__format_dtype *dtype = kvc__format_dtype_named(dtype_name);
    if (!dtype)
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: dtype: \"%s\" is none of the format's",
                         s->name, shown, kvc__shown(given, dtype_name));
    *t = (kvc_safetensors_tensor){.name = name, .dtype_name = dtype->name, .dtype = dtype->dtype};
    KVC_TRY(read_shape(t, entry, s, shown));
    if (!kvc__format_bytes(&t->bytes, dtype, t->ndim, t->shape))
        return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: shape: %s %s fills no number of bytes",
                         s->name, shown, dtype->name, kvc__shape_shown(shape, t->ndim, t->shape));
    return read_offsets(t, entry, s, shown);
}

static int by_offset(const void *a, const void *b) {
    const kvc_safetensors_tensor *s = a, *t = b;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes); /* empty ones first */
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kvc_safetensors_tensor *)a)->name,
                  ((const kvc_safetensors_tensor *)b)->name);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const kvc__text *)a)->key, ((const kvc__text *)b)->key);
}

/* The format: "The byte buffer needs to be entirely indexed, and cannot contain holes." */
static kvc_status check_cover(const kvc__header *h, const source *s) {
    char shown[KVC__SHOWN];
    uint64_t end = 0;
    for (size_t i = 0; i < h->count; i++) {
        const kvc_safetensors_tensor *t = &h->tensors[i];
        if (t->offset != end)
            return kvc__fail(KVC_E_CORRUPT,
                             "%s: tensor %s: data_offsets: begins at byte %llu of the data, which "
                             "%s: %llu wanted",
                             s->name, kvc__shown(shown, t->name), (unsigned long long)t->offset,
                             t->offset < end ? "overlaps the tensor before" : "leaves a gap",
                             (unsigned long long)end);
        end += t->bytes;
    }
    if (end != s->data_bytes)
        return kvc__fail(KVC_E_CORRUPT, "%s: %llu bytes of data, %llu wanted for its tensors",
                         s->name, (unsigned long long)s->data_bytes, (unsigned long long)end);
    return KVC_OK;
}

static kvc_status read_texts(kvc__header *h, json_t *metadata, const source *s) {
    char shown[KVC__SHOWN];
    const char *key;
    json_t *value;
    if (!metadata || json_is_null(metadata)) return KVC_OK; /* MLX writes null for none */
    if (!json_is_object(metadata))
        return kvc__fail(KVC_E_CORRUPT, "%s: __metadata__: is no object", s->name);
    h->text_count = json_object_size(metadata);
    KVC_TRY(kvc__store_calloc((void **)&h->texts, h->text_count, sizeof *h->texts, "metadata"));
    kvc__text *t = h->texts;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return kvc__fail(KVC_E_CORRUPT, "%s: __metadata__: %s: is no string", s->name,
                             kvc__shown(shown, key));
        *t++ = (kvc__text){key, json_string_value(value)};
    }
    qsort(h->texts, h->text_count, sizeof *h->texts, by_key);
    return KVC_OK;
}

static kvc_status read_tensors(kvc__header *h, const source *s) {
    const char *key;
    json_t *value;
    h->count = json_object_size(h->json) - (json_object_get(h->json, KVC__METADATA_KEY) != NULL);
    KVC_TRY(kvc__store_calloc((void **)&h->tensors, h->count, sizeof *h->tensors, "tensors"));
    kvc_safetensors_tensor *t = h->tensors;
    json_object_foreach(h->json, key, value) {
        if (strcmp(key, KVC__METADATA_KEY) != 0) KVC_TRY(read_tensor(t++, key, value, s));
    }
    qsort(h->tensors, h->count, sizeof *h->tensors, by_offset);
    return check_cover(h, s);
}

/* Compares the header with its checksum, which is that of the header with zeros in its place. */
static kvc_status check_header(const char *key, const char *wanted, const source *s) {
    static const char zeros[] = "00000000000000000000000000000000";
    char before[sizeof "\"1." KVC__HEADER_KEY "\":\""], found[KVC__DIGEST_DIGITS + 1];
    kvc__digest d;
    bool same = false;
    const int length = snprintf(before, sizeof before, "\"%s\":\"", key);
    const char *at = memmem(s->text, s->bytes, before, (size_t)length);
    const size_t lead = at ? (size_t)(at - s->text) + (size_t)length : s->bytes;
    if (s->bytes - lead >= KVC__DIGEST_DIGITS) {
        kvc__digest_init(&d);
        kvc__digest_add(&d, s->text, lead);
        kvc__digest_add(&d, zeros, KVC__DIGEST_DIGITS);
        kvc__digest_add(&d, s->text + lead + KVC__DIGEST_DIGITS,
                        s->bytes - lead - KVC__DIGEST_DIGITS);
        kvc__digest_text(&d, found);
        same = strcmp(found, wanted) == 0;
    }
    if (!same)
        return kvc__fail(KVC_E_CORRUPT,
                         "%s: header: differs from its checksum %s: damaged, or changed by a "
                         "program that kept the checksum",
                         s->name, key);
    return KVC_OK;
}

/* Gives each tensor its checksum: the digits follow each other in the order of the data. */
static kvc_status read_checksums(kvc__header *h, const char *prefix, const source *s) {
    char header_key[sizeof "1." KVC__HEADER_KEY], tensors_key[sizeof "1." KVC__TENSORS_KEY];
    (void)snprintf(header_key, sizeof header_key, "%s" KVC__HEADER_KEY, prefix);
    (void)snprintf(tensors_key, sizeof tensors_key, "%s" KVC__TENSORS_KEY, prefix);
    const char *header = kvc__header_text(h, header_key);
    const char *digits = kvc__header_text(h, tensors_key);
    if (!header && !digits) return KVC_OK;
    if (!header || !digits)
        return kvc__fail(KVC_E_CORRUPT, "%s: __metadata__: %s is there without %s", s->name,
                         header ? header_key : tensors_key, header ? tensors_key : header_key);
    KVC_TRY(check_header(header_key, header, s));
    if (strlen(digits) != h->count * KVC__DIGEST_DIGITS)
        return kvc__fail(KVC_E_CORRUPT, "%s: __metadata__: %s: %zu digits, %zu wanted", s->name,
                         tensors_key, strlen(digits), h->count * KVC__DIGEST_DIGITS);
    for (size_t i = 0; i < h->count; i++)
        memcpy(h->tensors[i].checksum, digits + i * KVC__DIGEST_DIGITS, KVC__DIGEST_DIGITS);
    h->has_checksums = true;
    return KVC_OK;
}

static kvc_status read_all(kvc__header *h, const source *s, bool checksums) {
    KVC_TRY(parse(&h->json, s));
    KVC_TRY(read_texts(h, json_object_get(h->json, KVC__METADATA_KEY), s));
    KVC_TRY(read_tensors(h, s));
    if (checksums) {
        KVC_TRY(read_checksums(h, "", s));
        if (!h->has_checksums) KVC_TRY(read_checksums(h, "1.", s));
        if (!h->has_checksums) KVC_TRY(read_checksums(h, "0.", s));
    }
    const uint64_t data = 8 + (uint64_t)s->bytes;
    for (size_t i = 0; i < h->count; i++) h->tensors[i].offset += data;
    qsort(h->tensors, h->count, sizeof *h->tensors, by_name);
    return KVC_OK;
}

kvc_status kvc__header_init(kvc__header *h, const char *name, const char *text, size_t bytes,
                            uint64_t data_bytes, bool checksums) {
    const source s = {name, text, bytes, data_bytes};
    *h = (kvc__header){.json = NULL};
    const kvc_status status = read_all(h, &s, checksums);
    if (status != KVC_OK) kvc__header_deinit(h);
    return status;
}

void kvc__header_deinit(kvc__header *h) {
    kvc__store_free(h->tensors, h->count, sizeof *h->tensors);
    kvc__store_free(h->texts, h->text_count, sizeof *h->texts);
    json_decref(h->json);
    *h = (kvc__header){.json = NULL};
}

const kvc_safetensors_tensor *kvc__header_tensor(const kvc__header *h, const char *name) {
    const kvc_safetensors_tensor key = {.name = name};
    return h->count ? bsearch(&key, h->tensors, h->count, sizeof key, by_name) : NULL;
}

const char *kvc__header_text(const kvc__header *h, const char *key) {
    const kvc__text wanted = {.key = key};
    if (!h->text_count) return NULL;
    const kvc__text *found = bsearch(&wanted, h->texts, h->text_count, sizeof wanted, by_key);
    return found ? found->text : NULL;
}
