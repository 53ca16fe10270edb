/* Writes what a writer holds. The data comes first, behind room for the header; checksums are taken
 * as it passes and their digits, of fixed width, filled in; the header is written last. So the data
 * is walked once, where checksums before data would take a second pass over gigabytes. A file that
 * lacks its header is never seen: it has no name yet that anyone opens. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/digest.h"
#include "store/replace.h"
#include "store/rows.h"
#include "store/writer.h"

/* The begin of the data, and with it that of what is a multiple of it, is a multiple of this. */
enum { ALIGNMENT_BYTES = 64, LENGTH_BYTES = 8 };

/* The most bytes of data: with any header, a file's size still fits an off_t. */
#define MOST_BYTES (INT64_MAX - 2 * (int64_t)KVC__HEADER_LIMIT_BYTES)

/* A tensor and where its data begins, counted from the begin of all data. */
typedef struct placed {
    const kvc__entry *entry;
    uint64_t begin;
} placed;

/* A save in progress. */
typedef struct save {
    const kvc_safetensors_writer *writer;
    placed *tensors;      /* [writer->count], as their data lies in the file */
    uint64_t data_bytes;  /* of all of them */
    char *header;         /* the length, the JSON, spaces: all before the data */
    size_t header_bytes;  /* a multiple of ALIGNMENT_BYTES */
    size_t header_digits; /* where in it the digits of its checksum lie, */
    size_t tensor_digits; /* and those of the first tensor */
    kvc__piece buffer;    /* [KVC__PIECE_BYTES] */
    kvc__replacement target;
} save;

/* The largest power of two, up to ALIGNMENT_BYTES, that divides a size. */
static size_t alignment_of(size_t bytes) {
    const size_t lowest = bytes & (~bytes + 1);
    return lowest == 0 || lowest > ALIGNMENT_BYTES ? ALIGNMENT_BYTES : lowest;
}

/* Those whose size has the larger power of two first: the format allows no gaps, and so each begins
 * at a multiple of its own. Else as they were added: entries lie in an array in that order. */
static int by_alignment(const void *a, const void *b) {
    const kvc__entry *s = ((const placed *)a)->entry, *t = ((const placed *)b)->entry;
    const size_t x = alignment_of(s->bytes), y = alignment_of(t->bytes);
    if (x != y) return x > y ? -1 : 1;
    return (s > t) - (s < t);
}

static kvc_status place(save *s) {
    const kvc_safetensors_writer *w = s->writer;
    uint64_t end = 0;
    KVC_TRY(kvc__store_calloc((void **)&s->tensors, w->count, sizeof *s->tensors, "the order"));
    for (size_t i = 0; i < w->count; i++) s->tensors[i].entry = &w->entries[i];
    qsort(s->tensors, w->count, sizeof *s->tensors, by_alignment);
    for (size_t i = 0; i < w->count; i++) {
        s->tensors[i].begin = end;
        if (__builtin_add_overflow(end, s->tensors[i].entry->bytes, &end) ||
            end > (uint64_t)MOST_BYTES)
            return kvc__fail(KVC_E_RANGE, "all tensors are more than a file can hold");
    }
    s->data_bytes = end;
    return KVC_OK;
}

/* Describes a tensor. NULL for no memory. */
static json_t *describe(const placed *p) {
    const kvc__entry *e = p->entry;
    const json_int_t begin = (json_int_t)p->begin, end = begin + (json_int_t)e->bytes;
    json_t *shape = json_array();
    bool done = shape != NULL;
    for (int i = 0; done && i < e->ndim; i++)
        done = json_array_append_new(shape, json_integer(e->shape[i])) == 0;
    if (done)
        return json_pack("{s:s, s:o, s:[I, I]}", "dtype", e->dtype->name, "shape", shape,
                         "data_offsets", begin, end);
    json_decref(shape);
    return NULL;
}

/* Adds a key of the checksums with room for its digits. False for no memory. */
static bool add_digits(json_t *metadata, const char *prefix, const char *key, size_t tensors) {
    char whole[sizeof "1." KVC__TENSORS_KEY];
    const size_t digits = tensors * KVC__DIGEST_DIGITS;
    char *zeros = malloc(digits + 1);
    if (!zeros) return false;
    memset(zeros, '0', digits);
    (void)snprintf(whole, sizeof whole, "%s%s", prefix, key);
    json_t *text = json_stringn(zeros, digits);
    free(zeros);
    return json_object_set_new(metadata, whole, text) == 0;
}

/* Makes the header's JSON: the checksums, the other metadata, the tensors in the order of their
 * data. NULL for no memory. */
static json_t *make_json(const save *s) {
    const kvc_safetensors_writer *w = s->writer;
    json_t *all = json_object(), *metadata = json_object();
    bool done = all && metadata;
    if (done && w->prefix)
        done = add_digits(metadata, w->prefix, KVC__HEADER_KEY, 1) &&
               add_digits(metadata, w->prefix, KVC__TENSORS_KEY, w->count);
    done = done && json_object_update(metadata, w->metadata) == 0;
    if (done && json_object_size(metadata))
        done = json_object_set(all, KVC__METADATA_KEY, metadata) == 0;
    for (size_t i = 0; done && i < w->count; i++)
        done = json_object_set_new(all, s->tensors[i].entry->name, describe(&s->tensors[i])) == 0;
    json_decref(metadata);
    if (done) return all;
    json_decref(all);
    return NULL;
}

/* Finds the digits of the checksums: those keys come first, and compact JSON has no spaces. */
static void find_digits(save *s) {
    const size_t prefix = strlen(s->writer->prefix);
    s->header_digits = LENGTH_BYTES + strlen("{\"" KVC__METADATA_KEY "\":{\"") + prefix +
                       strlen(KVC__HEADER_KEY "\":\"");
    s->tensor_digits = s->header_digits + KVC__DIGEST_DIGITS + strlen("\",\"") + prefix +
                       strlen(KVC__TENSORS_KEY "\":\"");
}

/* Lays the header out, with zeros for the checksums. By json_dumpb, not json_dumps: jansson 2.14
 * goes on where that has no memory for a key, and leaves it out. */
static kvc_status lay_out_header(save *s, const json_t *json) {
    const size_t length = json_dumpb(json, NULL, 0, JSON_COMPACT);
    if (length == 0) return kvc__fail(KVC_E_NOMEM, "the header: no memory for its JSON");
    s->header_bytes =
        (LENGTH_BYTES + length + ALIGNMENT_BYTES - 1) & ~(size_t)(ALIGNMENT_BYTES - 1);
    if (s->header_bytes > KVC__HEADER_LIMIT_BYTES)
        return kvc__fail(KVC_E_RANGE, "the header: %zu bytes, at most %d wanted", s->header_bytes,
                         KVC__HEADER_LIMIT_BYTES);
    KVC_TRY(kvc__store_calloc((void **)&s->header, s->header_bytes, 1, "the header"));
    const uint64_t bytes = s->header_bytes - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++) s->header[i] = (char)(bytes >> 8 * i);
    memset(s->header + LENGTH_BYTES, ' ', bytes);
    if (json_dumpb(json, s->header + LENGTH_BYTES, length, JSON_COMPACT) != length)
        return kvc__fail(KVC_E_NOMEM, "the header: no memory for its JSON");
    if (s->writer->prefix) find_digits(s);
    return KVC_OK;
}

static kvc_status make_header(save *s) {
    json_t *json = make_json(s);
    if (!json) return kvc__fail(KVC_E_NOMEM, "the header: no memory for its JSON");
    const kvc_status status = lay_out_header(s, json);
    json_decref(json);
    return status;
}

/* Writes a piece, and adds it to the checksum where there is to be one. */
static kvc_status put(const save *s, const char *piece, size_t bytes, uint64_t at,
                      kvc__digest *digest) {
    if (s->writer->prefix) kvc__digest_add(digest, piece, bytes);
    return kvc__file_write(&s->target.file, piece, bytes, at);
}

static kvc_status write_array(const save *s, const kvc__entry *e, uint64_t at,
                              kvc__digest *digest) {
    kvc__rows rows;
    char *piece;
    size_t bytes;
    kvc__rows_init(&rows, &e->array, s->buffer.data);
    while (kvc__rows_next(&rows, &piece, &bytes)) {
        kvc__rows_gather(&rows);
        KVC_TRY(put(s, piece, bytes, at, digest));
        at += bytes;
    }
    return KVC_OK;
}

static kvc_status write_filled(const save *s, const kvc__entry *e, uint64_t at,
                               kvc__digest *digest) {
    for (size_t done = 0; done < e->bytes;) {
        const size_t left = e->bytes - done;
        const size_t bytes = left < KVC__PIECE_BYTES ? left : KVC__PIECE_BYTES;
        KVC_TRY(e->fill(e->context, s->buffer.data, done, bytes));
        KVC_TRY(put(s, s->buffer.data, bytes, at + done, digest));
        done += bytes;
    }
    return KVC_OK;
}

static kvc_status tell(const save *s, uint64_t done_bytes) {
    const kvc_safetensors_writer *w = s->writer;
    return w->progress ? w->progress(w->progress_context, done_bytes, s->data_bytes) : KVC_OK;
}

static kvc_status write_data(save *s) {
    for (size_t i = 0; i < s->writer->count; i++) {
        const kvc__entry *e = s->tensors[i].entry;
        KVC_TRY(tell(s, s->tensors[i].begin));
        const uint64_t at = s->header_bytes + s->tensors[i].begin;
        char digits[KVC__DIGEST_DIGITS + 1];
        kvc__digest digest;
        kvc__digest_init(&digest);
        if (e->bytes)
            KVC_TRY(e->fill ? write_filled(s, e, at, &digest) : write_array(s, e, at, &digest));
        if (!s->writer->prefix) continue;
        kvc__digest_text(&digest, digits);
        memcpy(s->header + s->tensor_digits + i * KVC__DIGEST_DIGITS, digits, KVC__DIGEST_DIGITS);
    }
    return tell(s, s->data_bytes);
}

static kvc_status write_header(save *s) {
    if (s->writer->prefix) { /* of all of it, its own digits still being zeros */
        char digits[KVC__DIGEST_DIGITS + 1];
        kvc__digest digest;
        kvc__digest_init(&digest);
        kvc__digest_add(&digest, s->header + LENGTH_BYTES, s->header_bytes - LENGTH_BYTES);
        kvc__digest_text(&digest, digits);
        memcpy(s->header + s->header_digits, digits, KVC__DIGEST_DIGITS);
    }
    return kvc__file_write(&s->target.file, s->header, s->header_bytes, 0);
}

static kvc_status write_all(save *s, const char *path) {
    KVC_TRY(place(s));
    KVC_TRY(make_header(s));
    KVC_TRY(kvc__piece_init(&s->buffer, KVC__PIECE_BYTES));
    KVC_TRY(kvc__replacement_init(&s->target, path));
    KVC_TRY(write_data(s));
    KVC_TRY(write_header(s));
    return kvc__replacement_commit(&s->target);
}

kvc_status kvc_safetensors_writer_save(kvc_safetensors_writer *writer, const char *path) {
    if (!path) return kvc__fail(KVC_E_INVALID, "path: NULL given, that of a file wanted");
    save s = {.writer = writer};
    const kvc_status status = write_all(&s, path);
    kvc__replacement_deinit(&s.target);
    kvc__store_free(s.tensors, writer->count, sizeof *s.tensors);
    kvc__store_free(s.header, s.header_bytes, 1);
    kvc__piece_deinit(&s.buffer);
    return status;
}
