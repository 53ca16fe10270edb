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
#include "store/sink.h"
#include "store/writer.h"

/* The begin of the data, and with it that of what is a multiple of it, is a multiple of a line of
 * the cache; where there is much, which is worth mapping, of any system's page. */
enum { LINE_BYTES = 64, PAGE_BYTES = 1 << 16, MUCH_BYTES = 4 << 20, LENGTH_BYTES = 8 };

/* The most bytes of data: with any header, a file's size still fits an off_t. */
#define MOST_BYTES (INT64_MAX - 2 * (int64_t)KVC__HEADER_LIMIT_BYTES)

/* A tensor and where its data begins, counted from the begin of all data. */
typedef struct placed {
    const kvc__entry *entry;
    size_t alignment; /* the largest power of two, up to the save's, that divides its size */
    uint64_t begin;
} placed;

/* A save in progress. */
typedef struct save {
    const kvc_safetensors_writer *writer;
    placed *tensors;      /* [writer->count], as their data lies in the file */
    uint64_t data_bytes;  /* of all of them */
    char *header;         /* the length, the JSON, spaces: all before the data */
    size_t alignment;     /* LINE_BYTES or PAGE_BYTES */
    size_t header_bytes;  /* a multiple of it */
    size_t header_digits; /* where in it the digits of its checksum lie, */
    size_t tensor_digits; /* and those of the first tensor */
    kvc__replacement target;
    kvc__sink sink; /* to it */
} save;

static size_t alignment_of(size_t bytes, size_t most) {
    const size_t lowest = bytes & (~bytes + 1);
    return lowest == 0 || lowest > most ? most : lowest;
}

/* Those whose size has the larger power of two first: the format allows no gaps, and so each begins
 * at a multiple of its own. Else as they were added: entries lie in an array in that order. */
static int by_alignment(const void *a, const void *b) {
    const placed *s = a, *t = b;
    if (s->alignment != t->alignment) return s->alignment > t->alignment ? -1 : 1;
    return (s->entry > t->entry) - (s->entry < t->entry);
}

static kvc_status count_bytes(save *s) {
    const kvc_safetensors_writer *w = s->writer;
    for (size_t i = 0; i < w->count; i++)
        if (__builtin_add_overflow(s->data_bytes, w->entries[i].bytes, &s->data_bytes) ||
            s->data_bytes > (uint64_t)MOST_BYTES)
            return kvc__fail(KVC_E_RANGE, "all tensors are more than a file can hold");
    s->alignment = s->data_bytes < MUCH_BYTES ? LINE_BYTES : PAGE_BYTES;
    return KVC_OK;
}

static kvc_status place(save *s) {
    const kvc_safetensors_writer *w = s->writer;
    uint64_t end = 0;
    KVC_TRY(count_bytes(s));
    KVC_TRY(kvc__store_calloc((void **)&s->tensors, w->count, sizeof *s->tensors, "the order"));
    for (size_t i = 0; i < w->count; i++)
        s->tensors[i] =
            (placed){&w->entries[i], alignment_of(w->entries[i].bytes, s->alignment), 0};
    qsort(s->tensors, w->count, sizeof *s->tensors, by_alignment);
    for (size_t i = 0; i < w->count; i++) {
        s->tensors[i].begin = end;
        end += s->tensors[i].entry->bytes;
    }
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
    s->header_bytes = (LENGTH_BYTES + length + s->alignment - 1) & ~(s->alignment - 1);
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

/* Puts a piece, and adds it to the checksum where there is to be one. */
static kvc_status put(save *s, const char *piece, size_t bytes, kvc__digest *digest) {
    if (s->writer->prefix) kvc__digest_add(digest, piece, bytes);
    return kvc__sink_put(&s->sink, piece, bytes);
}

/* Room for the next piece, and how much of what is left it takes. */
static char *room_for(save *s, size_t left, size_t *bytes) {
    char *room = kvc__sink_room(&s->sink, bytes);
    if (*bytes > KVC__PIECE_BYTES) *bytes = KVC__PIECE_BYTES;
    if (*bytes > left) *bytes = left;
    return room;
}

/* Runs that are shorter are gathered: to write each by itself would cost more. */
enum { DIRECT_BYTES = 1 << 16 };

static void gather(char *to, const kvc__rows *rows, size_t offset, size_t bytes) {
    for (size_t done = 0, some; done < bytes; done += some) {
        const char *from = kvc__rows_find(rows, offset + done, &some);
        if (some > bytes - done) some = bytes - done;
        memcpy(to + done, from, some);
    }
}

static kvc_status write_array(save *s, const kvc__entry *e, kvc__digest *digest) {
    kvc__rows rows;
    kvc__rows_init(&rows, &e->array);
    const bool gathers = rows.run_bytes < DIRECT_BYTES && rows.run_bytes < e->bytes;
    for (size_t done = 0, bytes, run; done < e->bytes; done += bytes) {
        char *room = room_for(s, e->bytes - done, &bytes), *piece = room;
        if (gathers) gather(room, &rows, done, bytes);
        else {
            piece = kvc__rows_find(&rows, done, &run);
            if (bytes > run) bytes = run;
        }
        KVC_TRY(put(s, piece, bytes, digest));
        if (rows.run_bytes >= KVC__LONG_RUN_BYTES && (done + bytes) % rows.run_bytes == 0)
            KVC_TRY(kvc__sink_flush(&s->sink));
    }
    return KVC_OK;
}

static kvc_status write_filled(save *s, const kvc__entry *e, kvc__digest *digest) {
    for (size_t done = 0, bytes; done < e->bytes; done += bytes) {
        char *room = room_for(s, e->bytes - done, &bytes);
        KVC_TRY(e->fill(e->context, room, done, bytes));
        KVC_TRY(put(s, room, bytes, digest));
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
        char digits[KVC__DIGEST_DIGITS + 1];
        kvc__digest digest;
        kvc__digest_init(&digest);
        if (e->bytes) KVC_TRY(e->fill ? write_filled(s, e, &digest) : write_array(s, e, &digest));
        if (!s->writer->prefix) continue;
        kvc__digest_text(&digest, digits);
        memcpy(s->header + s->tensor_digits + i * KVC__DIGEST_DIGITS, digits, KVC__DIGEST_DIGITS);
    }
    KVC_TRY(kvc__sink_flush(&s->sink));
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
    KVC_TRY(kvc__sink_init(&s->sink, &s->target.file, s->header_bytes, s->data_bytes));
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
    kvc__sink_deinit(&s.sink);
    return status;
}
