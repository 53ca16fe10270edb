/* The safetensors reader on any bytes: it refuses them in a sentence, or every tensor and text can
 * be had; and what it read the writer writes, to a file that reads the same. Where it is a
 * snapshot, that loads or is refused, and is saved again in the same places. Files are memory: the
 * table of calls (store/file.h) makes them so. The first byte: 1, a length is put before what
 * follows, all but its last bytes (the second byte says how many) being header, so that headers can
 * grow; 2, checksums are not looked at. */
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <kvcache/pool.h>
#include <kvcache/safetensors.h>
#include <kvcache/snapshot.h>

#include "fuzz.h"
#include "store/file.h"

enum { INPUT_FD = 3, OUTPUT_FD, FOLDER_FD, MOST_OUTPUT = 1 << 20 };

/* What a path names: the input, and what the writer makes of it. */
static const uint8_t *input;
static size_t input_bytes, output_bytes;
static uint8_t output[MOST_OUTPUT];

static int memory_open(const char *path, int flags, mode_t mode) {
    (void)mode;
    if (flags & O_DIRECTORY) return FOLDER_FD;
    return strcmp(path, "input") == 0 ? INPUT_FD : OUTPUT_FD;
}

static int memory_close(int fd) {
    (void)fd;
    return 0;
}

static int memory_fstat(int fd, struct stat *out) {
    memset(out, 0, sizeof *out);
    out->st_mode = S_IFREG;
    out->st_size = (off_t)(fd == INPUT_FD ? input_bytes : output_bytes);
    return 0;
}

static int memory_lstat(const char *path, struct stat *out) {
    (void)path;
    return memory_fstat(OUTPUT_FD, out);
}

static ssize_t memory_pread(int fd, void *into, size_t bytes, off_t at) {
    const size_t size = fd == INPUT_FD ? input_bytes : output_bytes, from = (size_t)at;
    const size_t left = from < size ? size - from : 0, n = bytes < left ? bytes : left;
    if (n) memcpy(into, (fd == INPUT_FD ? input : output) + from, n);
    return (ssize_t)n;
}

static ssize_t memory_preadv(int fd, const struct iovec *parts, int count, off_t at) {
    ssize_t done = 0;
    for (int i = 0; i < count; i++) {
        const ssize_t n = memory_pread(fd, parts[i].iov_base, parts[i].iov_len, at + done);
        done += n;
        if ((size_t)n < parts[i].iov_len) break;
    }
    return done;
}

static ssize_t memory_pwrite(int fd, const void *from, size_t bytes, off_t at) {
    const size_t end = (size_t)at + bytes;
    FUZZ_WANT(fd == OUTPUT_FD && end <= MOST_OUTPUT);
    memcpy(output + at, from, bytes);
    if (end > output_bytes) output_bytes = end;
    return (ssize_t)bytes;
}

static int memory_flock(int fd, int operation) {
    (void)fd;
    (void)operation;
    return 0;
}

static int memory_rename(const char *from, const char *to) {
    (void)from;
    (void)to;
    return 0;
}

static int memory_unlink(const char *path) {
    (void)path;
    return 0;
}

/* A copy of exactly its bytes: what is touched outside of it stops here. */
static void *memory_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t at) {
    (void)where;
    (void)protection;
    (void)flags;
    char *map = malloc(bytes);
    if (map) (void)memory_pread(fd, map, bytes, at);
    return map ? map : MAP_FAILED;
}

static int memory_munmap(void *memory, size_t bytes) {
    (void)bytes;
    free(memory);
    return 0;
}

static ssize_t memory_getrandom(void *into, size_t bytes, unsigned flags) {
    (void)flags;
    memset(into, 7, bytes);
    return (ssize_t)bytes;
}

static const kvc__file_calls memory_calls = {
    .open = memory_open,
    .close = memory_close,
    .fstat = memory_fstat,
    .lstat = memory_lstat,
    .preadv = memory_preadv,
    .pwrite = memory_pwrite,
    .flock = memory_flock,
    .fdatasync = memory_close,
    .fsync = memory_close,
    .rename = memory_rename,
    .unlink = memory_unlink,
    .mmap = memory_mmap,
    .munmap = memory_munmap,
    .getrandom = memory_getrandom,
};

/* A tensor of a file, as the writer wants it given. */
typedef struct origin {
    const kvc_safetensors *file;
    const kvc_safetensors_tensor *tensor;
} origin;

static kvc_status give(void *context, void *out, size_t offset, size_t bytes) {
    const origin *o = context;
    memcpy(out, (char *)kvc_safetensors_data(o->file, o->tensor) + offset, bytes);
    return KVC_OK;
}

static void expect_same(const kvc_safetensors *a, const kvc_safetensors *b) {
    FUZZ_WANT(kvc_safetensors_count(a) == kvc_safetensors_count(b));
    for (size_t i = 0; i < kvc_safetensors_count(a); i++) {
        const kvc_safetensors_tensor *s = kvc_safetensors_at(a, i);
        const kvc_safetensors_tensor *t = kvc_safetensors_find(b, s->name);
        FUZZ_WANT(t && t == kvc_safetensors_at(b, i) && strcmp(s->name, t->name) == 0);
        FUZZ_WANT(s->dtype == t->dtype && strcmp(s->dtype_name, t->dtype_name) == 0);
        FUZZ_WANT(s->ndim == t->ndim && memcmp(s->shape, t->shape, sizeof s->shape) == 0);
        FUZZ_WANT(s->bytes == t->bytes);
        FUZZ_WANT(memcmp(kvc_safetensors_data(a, s), kvc_safetensors_data(b, t), s->bytes) == 0);
        FUZZ_WANT(kvc_safetensors_verify(b, t) == KVC_OK);
    }
    for (size_t i = 0; i < kvc_safetensors_metadata_count(a); i++) {
        const char *key, *text = kvc_safetensors_metadata_at(a, i, &key);
        const char *found = kvc_safetensors_metadata(b, key);
        FUZZ_WANT(strstr(key, "kvc.xxh3.") || (found && strcmp(text, found) == 0));
    }
}

/* Writes all that was read. Nothing of it can be refused but the keys of checksums. */
static void write_again(const kvc_safetensors *file, origin *origins) {
    kvc_safetensors_writer *w;
    FUZZ_WANT(kvc_safetensors_writer_new(&w, "") == KVC_OK);
    for (size_t i = 0; i < kvc_safetensors_metadata_count(file); i++) {
        const char *key, *text = kvc_safetensors_metadata_at(file, i, &key);
        const kvc_status status = kvc_safetensors_writer_metadata(w, key, text);
        FUZZ_WANT(status == KVC_OK || strstr(key, "kvc.xxh3."));
    }
    for (size_t i = 0; i < kvc_safetensors_count(file); i++) {
        const kvc_safetensors_tensor *t = kvc_safetensors_at(file, i);
        origins[i] = (origin){file, t};
        FUZZ_WANT(kvc_safetensors_writer_fill(w, t->name, t->dtype_name, t->ndim, t->shape, give,
                                              &origins[i]) == KVC_OK);
    }
    output_bytes = 0;
    FUZZ_WANT(kvc_safetensors_writer_save(w, "output") == KVC_OK);
    kvc_safetensors_writer_free(w);
}

/* Loads a tensor where the library has its dtype. */
static void load(const kvc_safetensors *file, const kvc_safetensors_tensor *t) {
    kvc_array a = {.dtype = t->dtype, .ndim = t->ndim};
    int64_t stride = 1;
    if (!t->dtype) return;
    for (int i = t->ndim - 1; i >= 0; i--) {
        a.shape[i] = t->shape[i];
        a.strides[i] = stride;
        stride *= t->shape[i] ? t->shape[i] : 1;
    }
    a.data = malloc(t->bytes + 1);
    FUZZ_WANT(a.data);
    const kvc_status status = kvc_safetensors_load(file, t, &a);
    FUZZ_WANT(status == KVC_OK || (status == KVC_E_CORRUPT && kvc_safetensors_has_checksums(file)));
    FUZZ_WANT(memcmp(a.data, kvc_safetensors_data(file, t), t->bytes) == 0);
    free(a.data);
}

static void read_file(unsigned flags) {
    kvc_safetensors *file, *again;
    const kvc_status status = kvc_safetensors_open(&file, "input", KVC_SAFETENSORS_MAP | flags);
    if (status != KVC_OK) {
        FUZZ_WANT(!file && strncmp(kvc_last_error(), "input: ", 7) == 0);
        FUZZ_WANT(status == KVC_E_CORRUPT || status == KVC_E_UNSUPPORTED);
        return;
    }
    const size_t count = kvc_safetensors_count(file);
    for (size_t i = 0; i < count; i++) load(file, kvc_safetensors_at(file, i));
    origin *origins = malloc((count + 1) * sizeof *origins);
    FUZZ_WANT(origins);
    write_again(file, origins);
    FUZZ_WANT(kvc_safetensors_open(&again, "output", KVC_SAFETENSORS_MAP) == KVC_OK);
    expect_same(file, again);
    kvc_safetensors_close(again);
    kvc_safetensors_close(file);
    free(origins);
}

/* Saves a cache that came of a snapshot, in the places and the form that it had. */
static void save_again(const kvc_cache *cache, const kvc_snapshot_contents *c) {
    const char **paths = malloc((size_t)c->layers * sizeof *paths);
    kvc_snapshot *again;
    FUZZ_WANT(paths);
    for (int64_t i = 0; i < c->layers; i++) paths[i] = c->layer[i].path;
    const kvc_snapshot_info info = {.struct_size = sizeof info, .form = c->form, .paths = paths};
    output_bytes = 0;
    const kvc_status status = kvc_snapshot_save("output", cache, &info);
    FUZZ_WANT(status == KVC_OK || status == KVC_E_RANGE); /* 0.32 notes numbers in 32 bits */
    FUZZ_WANT(status || kvc_snapshot_open(&again, "output") == KVC_OK);
    if (status == KVC_OK) {
        const kvc_snapshot_contents *d = kvc_snapshot_contents_of(again);
        FUZZ_WANT(c->layers == d->layers && c->batch == d->batch && c->form == d->form);
        for (int64_t i = 0; i < c->layers; i++) {
            FUZZ_WANT(strcmp(c->layer[i].path, d->layer[i].path) == 0);
            for (int64_t b = 0; b < c->batch; b++)
                FUZZ_WANT(c->layer[i].held[b].length == d->layer[i].held[b].length);
        }
        kvc_snapshot_close(again);
    }
    free(paths);
}

static void read_snapshot(void) {
    const kvc_snapshot_options options = {
        .struct_size = sizeof options, .growth = KVC_GROW_CHUNK, .chunk = 1};
    kvc_pool *pool;
    kvc_snapshot *snapshot;
    kvc_cache *cache;
    const kvc_status status = kvc_snapshot_open(&snapshot, "input");
    if (status != KVC_OK) {
        FUZZ_WANT(!snapshot && strncmp(kvc_last_error(), "input: ", 7) == 0);
        FUZZ_WANT(status == KVC_E_CORRUPT || status == KVC_E_UNSUPPORTED);
        return;
    }
    FUZZ_WANT(kvc_pool_new(&pool, kvc_device_cpu()) == KVC_OK);
    if (kvc_snapshot_restore(&cache, pool, snapshot, &options) == KVC_OK) {
        FUZZ_WANT(kvc_cache_check(cache) == KVC_OK);
        save_again(cache, kvc_snapshot_contents_of(snapshot));
    } else FUZZ_WANT(!cache);
    kvc_cache_free(cache);
    kvc_pool_free(pool);
    kvc_snapshot_close(snapshot);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 2) return 0;
    const unsigned flags = data[0] & 2 ? KVC_SAFETENSORS_NO_CHECKSUMS : 0;
    const size_t length = data[0] & 1 ? 8 : 0, rest = bytes - 2;
    const size_t header = data[1] < rest ? rest - data[1] : 0;
    uint8_t *file = malloc(length + rest + 1);
    FUZZ_WANT(file);
    for (size_t i = 0; i < length; i++) file[i] = (uint8_t)(header >> 8 * i);
    memcpy(file + length, data + 2, rest);
    input = file;
    input_bytes = length + rest;
    kvc__file_calls_use(&memory_calls);
    read_file(flags);
    read_snapshot();
    free(file);
    return 0;
}
