/* The reader: a verified header, and ways to the bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <kvcache/safetensors.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/digest.h"
#include "store/file.h"
#include "store/format.h"
#include "store/header.h"
#include "store/opened.h"
#include "store/rows.h"

struct kvc_safetensors {
    kvc__file file;
    size_t bytes; /* of the whole file */
    void *map;    /* NULL when it is not mapped */
    kvc__header header;
};

static kvc_status find_size(kvc_safetensors *s) {
    struct stat found;
    if (kvc__file_calls_get()->fstat(s->file.fd, &found) != 0)
        return kvc__file_failed("look at", s->file.name);
    if (!S_ISREG(found.st_mode))
        return kvc__fail(KVC_E_INVALID, "%s: is no regular file", s->file.name);
    if (found.st_size < 8)
        return kvc__fail(KVC_E_CORRUPT, "%s: %lld bytes, at least the 8 of a length wanted",
                         s->file.name, (long long)found.st_size);
    s->bytes = (size_t)found.st_size;
    return KVC_OK;
}

static kvc_status read_header(kvc_safetensors *s, bool checksums) {
    uint8_t length[8];
    uint64_t bytes = 0;
    void *text;
    KVC_TRY(kvc__file_read(&s->file, length, sizeof length, 0));
    for (int i = 0; i < 8; i++) bytes |= (uint64_t)length[i] << 8 * i;
    if (bytes > KVC__HEADER_LIMIT_BYTES || bytes > s->bytes - sizeof length)
        return kvc__fail(KVC_E_CORRUPT,
                         "%s: header: a length of %llu in a file of %zu bytes, at most %d and the "
                         "file wanted",
                         s->file.name, (unsigned long long)bytes, s->bytes,
                         KVC__HEADER_LIMIT_BYTES);
    KVC_TRY(kvc__store_calloc(&text, (size_t)bytes, 1, "the header"));
    kvc_status status = kvc__file_read(&s->file, text, (size_t)bytes, sizeof length);
    if (status == KVC_OK)
        status = kvc__header_init(&s->header, s->file.name, text, (size_t)bytes,
                                  s->bytes - sizeof length - bytes, checksums);
    kvc__store_free(text, (size_t)bytes, 1);
    return status;
}

static kvc_status map_file(kvc_safetensors *s, bool writable) {
    const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
    void *map = kvc__file_calls_get()->mmap(NULL, s->bytes, protection, MAP_PRIVATE, s->file.fd, 0);
    if (map == MAP_FAILED) return kvc__file_failed("map", s->file.name);
    s->map = map;
    return KVC_OK;
}

static kvc_status open_file(kvc_safetensors *s, const char *path, unsigned flags) {
    /* O_NONBLOCK: a pipe is refused, not waited for. */
    KVC_TRY(kvc__file_open(&s->file, path, O_RDONLY | O_NONBLOCK, 0));
    KVC_TRY(find_size(s));
    KVC_TRY(read_header(s, !(flags & KVC_SAFETENSORS_NO_CHECKSUMS)));
    if (flags & KVC_SAFETENSORS_MAP) KVC_TRY(map_file(s, flags & KVC_SAFETENSORS_WRITABLE));
    return KVC_OK;
}

kvc_status kvc_safetensors_open(kvc_safetensors **out, const char *path, unsigned flags) {
    const unsigned all =
        KVC_SAFETENSORS_MAP | KVC_SAFETENSORS_WRITABLE | KVC_SAFETENSORS_NO_CHECKSUMS;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given, a kvc_safetensors ** wanted");
    *out = NULL;
    if (!path) return kvc__fail(KVC_E_INVALID, "path: NULL given, that of a file wanted");
    if ((flags & ~all) || ((flags & KVC_SAFETENSORS_WRITABLE) && !(flags & KVC_SAFETENSORS_MAP)))
        return kvc__fail(
            KVC_E_INVALID,
            "flags: %#x given, of kvc_safetensors_open_flag, WRITABLE with MAP, wanted", flags);
    kvc_safetensors *s;
    KVC_TRY(kvc__store_calloc((void **)&s, 1, sizeof *s, "an open file"));
    s->file.fd = -1;
    const kvc_status status = open_file(s, path, flags);
    if (status == KVC_OK) *out = s;
    else kvc_safetensors_close(s);
    return status;
}

void kvc_safetensors_close(kvc_safetensors *s) {
    if (!s) return;
    if (s->map) (void)kvc__file_calls_get()->munmap(s->map, s->bytes);
    kvc__header_deinit(&s->header);
    (void)kvc__file_close(&s->file);
    kvc__store_free(s, 1, sizeof *s);
}

size_t kvc_safetensors_count(const kvc_safetensors *s) {
    return s->header.count;
}

int kvc__safetensors_fd(const kvc_safetensors *s) {
    return s->file.fd;
}

const char *kvc__safetensors_name(const kvc_safetensors *s) {
    return s->file.name;
}

const kvc_safetensors_tensor *kvc_safetensors_at(const kvc_safetensors *s, size_t index) {
    return index < s->header.count ? &s->header.tensors[index] : NULL;
}

const kvc_safetensors_tensor *kvc_safetensors_find(const kvc_safetensors *s, const char *name) {
    return kvc__header_tensor(&s->header, name);
}

size_t kvc_safetensors_metadata_count(const kvc_safetensors *s) {
    return s->header.text_count;
}

const char *kvc_safetensors_metadata_at(const kvc_safetensors *s, size_t index, const char **key) {
    const bool there = index < s->header.text_count;
    if (key) *key = there ? s->header.texts[index].key : NULL;
    return there ? s->header.texts[index].text : NULL;
}

const char *kvc_safetensors_metadata(const kvc_safetensors *s, const char *key) {
    return kvc__header_text(&s->header, key);
}

bool kvc_safetensors_has_checksums(const kvc_safetensors *s) {
    return s->header.has_checksums;
}

void *kvc_safetensors_data(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor) {
    return s->map ? (char *)s->map + tensor->offset : NULL;
}

kvc_status kvc_safetensors_read(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                                void *into, size_t offset, size_t bytes) {
    if (offset > tensor->bytes || bytes > tensor->bytes - offset)
        return kvc__fail(KVC_E_RANGE, "offset: %zu bytes from %zu given, tensor %s has %zu", bytes,
                         offset, tensor->name, tensor->bytes);
    return kvc__file_read(&s->file, into, bytes, tensor->offset + offset);
}

static kvc_status compare(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                          const kvc__digest *digest) {
    char found[KVC__DIGEST_DIGITS + 1], shown[KVC__SHOWN];
    kvc__digest_text(digest, found);
    if (strcmp(found, tensor->checksum) == 0) return KVC_OK;
    return kvc__fail(KVC_E_CORRUPT, "%s: tensor %s: has the checksum %s, %s wanted", s->file.name,
                     kvc__shown(shown, tensor->name), found, tensor->checksum);
}

/* Bytes of the next piece. */
static size_t most_of(size_t left) {
    return left < KVC__PIECE_BYTES ? left : KVC__PIECE_BYTES;
}

static kvc_status check_fits(const kvc_safetensors_tensor *tensor, const kvc_array *into) {
    bool same = into->dtype == tensor->dtype && into->ndim == tensor->ndim;
    for (int i = 0; same && i < into->ndim; i++) same = into->shape[i] == tensor->shape[i];
    if (same) return KVC_OK;
    char given[KVC__SHAPE_SHOWN], wanted[KVC__SHAPE_SHOWN];
    return kvc__fail(KVC_E_SHAPE, "into: %s %s given, tensor %.64s is %s %s",
                     kvc_dtype_name(into->dtype), kvc__shape_shown(given, into->ndim, into->shape),
                     tensor->name, tensor->dtype_name,
                     kvc__shape_shown(wanted, tensor->ndim, tensor->shape));
}

/* What is shorter goes through room: to have the system place it costs more than to copy it. */
enum { SCATTERED_BYTES = 1 << 13, MOST_PARTS = 64 };

/* A tensor on its way to where it goes. */
typedef struct scatter {
    const kvc_safetensors_tensor *tensor;
    kvc__place_fn place;
    void *context;
    kvc__piece room; /* of a piece, once something goes there */
    size_t done;     /* bytes of the tensor before the piece; */
    size_t bytes;    /* in it, */
    int count;       /* in so many parts */
    struct iovec parts[MOST_PARTS];
} scatter;

/* Finds where the bytes of a piece from `at` on go: so many as are told, most at most. NULL: to
 * room, and from there to *copied if that is not NULL. */
static char *find_place(const scatter *x, size_t at, size_t most, size_t *bytes, char **copied) {
    char *to = x->place ? x->place(x->context, x->done + at, bytes) : NULL;
    if (!x->place || *bytes > most) *bytes = most;
    *copied = *bytes < SCATTERED_BYTES ? to : NULL;
    return *copied ? NULL : to;
}

/* Finds the parts of the next piece. */
static kvc_status next_parts(scatter *x) {
    const size_t most = most_of(x->tensor->bytes - x->done);
    char *copied;
    x->count = 0;
    x->bytes = 0;
    for (size_t some; x->bytes < most; x->bytes += some) {
        char *to = find_place(x, x->bytes, most - x->bytes, &some, &copied);
        if (!to && !x->room.data) KVC_TRY(kvc__piece_init(&x->room, most_of(x->tensor->bytes)));
        if (!to) to = x->room.data + x->bytes;
        struct iovec *last = &x->parts[x->count - (x->count > 0)];
        if (x->count && (char *)last->iov_base + last->iov_len == to) {
            last->iov_len += some;
            continue;
        }
        if (x->count == MOST_PARTS) break;
        x->parts[x->count++] = (struct iovec){to, some};
    }
    return KVC_OK;
}

/* Copies what went to room. */
static void copy_parts(const scatter *x) {
    char *copied;
    for (size_t at = 0, some; at < x->bytes; at += some) {
        (void)find_place(x, at, x->bytes - at, &some, &copied);
        if (copied) memcpy(copied, x->room.data + at, some);
    }
}

static kvc_status read_parts(const kvc_safetensors *s, const scatter *x, kvc__digest *digest) {
    struct iovec parts[MOST_PARTS];
    memcpy(parts, x->parts, (size_t)x->count * sizeof *parts);
    KVC_TRY(kvc__file_read_parts(&s->file, parts, x->count, x->tensor->offset + x->done));
    for (int i = 0; i < x->count && digest; i++)
        kvc__digest_add(digest, x->parts[i].iov_base, x->parts[i].iov_len);
    return KVC_OK;
}

kvc_status kvc__safetensors_scatter(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                                    kvc__place_fn place, void *context) {
    const bool verifies = s->header.has_checksums;
    kvc_status status = KVC_OK;
    kvc__digest digest;
    scatter x = {.tensor = tensor, .place = place, .context = context};
    kvc__digest_init(&digest);
    for (; status == KVC_OK && x.done < tensor->bytes; x.done += x.bytes) {
        status = next_parts(&x);
        if (status == KVC_OK) status = read_parts(s, &x, verifies ? &digest : NULL);
        if (status == KVC_OK) copy_parts(&x);
    }
    kvc__piece_deinit(&x.room);
    return status == KVC_OK && verifies ? compare(s, tensor, &digest) : status;
}

static char *place_in_rows(void *context, size_t offset, size_t *bytes) {
    return kvc__rows_find(context, offset, bytes);
}

kvc_status kvc_safetensors_load(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor,
                                const kvc_array *into) {
    size_t bytes;
    kvc__rows rows;
    KVC_TRY(kvc__rows_check(&bytes, into, "into"));
    KVC_TRY(check_fits(tensor, into));
    kvc__rows_init(&rows, into);
    return kvc__safetensors_scatter(s, tensor, place_in_rows, &rows);
}

kvc_status kvc_safetensors_verify(const kvc_safetensors *s, const kvc_safetensors_tensor *tensor) {
    if (!s->header.has_checksums)
        return kvc__fail(KVC_E_UNSUPPORTED, "%s: has no checksums", s->file.name);
    return kvc__safetensors_scatter(s, tensor, NULL, NULL);
}
