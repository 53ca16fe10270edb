#include "store/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"

static int system_open(const char *path, int flags, mode_t mode) {
    return open(path, flags, mode);
}

static const kvc__file_calls system_calls = {
    .open = system_open,
    .close = close,
    .fstat = fstat,
    .lstat = lstat,
    .preadv = preadv,
    .pwrite = pwrite,
    .flock = flock,
    .fdatasync = fdatasync,
    .fsync = fsync,
    .rename = rename,
    .unlink = unlink,
    .mmap = mmap,
    .munmap = munmap,
    .getrandom = getrandom,
};
static const kvc__file_calls *in_use = &system_calls;

const kvc__file_calls *kvc__file_calls_system(void) {
    return &system_calls;
}

void kvc__file_calls_use(const kvc__file_calls *calls) {
    in_use = calls;
}

const kvc__file_calls *kvc__file_calls_get(void) {
    return in_use;
}

const char *kvc__shown(char out[KVC__SHOWN], const char *text) {
    static const char cut[] = "...";
    const size_t length = strlen(text), room = KVC__SHOWN - 1;
    size_t at = 0;
    if (length > room) { /* the end of a path tells more than its beginning */
        text += length - room + strlen(cut);
        memcpy(out, cut, strlen(cut));
        at = strlen(cut);
    }
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        out[at] = *text;
        if (c < 0x20 || c == 0x7f) out[at] = '?';
        at++;
    }
    out[at] = '\0';
    return out;
}

kvc_status kvc__file_failed(const char *verb, const char *shown_name) {
    const int error = errno;
    char text[64];
    kvc_last_error_set("%s %s: %s", verb, shown_name, strerror_r(error, text, sizeof text));
    errno = error; /* the caller may go by it */
    return error == ENOMEM ? KVC_E_NOMEM : KVC_E_IO;
}

kvc_status kvc__file_open(kvc__file *f, const char *path, int flags, mode_t mode) {
    (void)kvc__shown(f->name, path);
    do f->fd = in_use->open(path, flags | O_CLOEXEC, mode);
    while (f->fd < 0 && errno == EINTR);
    return f->fd < 0 ? kvc__file_failed("open", f->name) : KVC_OK;
}

kvc_status kvc__file_close(kvc__file *f) {
    if (f->fd < 0) return KVC_OK;
    const int fd = f->fd;
    f->fd = -1; /* Linux has closed it whatever close returns, EINTR too */
    return in_use->close(fd) == 0 || errno == EINTR ? KVC_OK : kvc__file_failed("close", f->name);
}

static size_t bytes_of(const struct iovec *parts, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    return bytes;
}

kvc_status kvc__file_read_parts(const kvc__file *f, struct iovec *parts, int count, uint64_t at) {
    while (count > 0) {
        const ssize_t n = in_use->preadv(f->fd, parts, count, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return kvc__file_failed("read", f->name);
        if (n == 0)
            return kvc__fail(KVC_E_CORRUPT, "%s: ends at byte %llu, %zu more wanted", f->name,
                             (unsigned long long)at, bytes_of(parts, count));
        size_t done = (size_t)n;
        at += done;
        for (; count > 0 && done >= parts->iov_len; parts++, count--) done -= parts->iov_len;
        if (count == 0) break;
        parts->iov_base = (char *)parts->iov_base + done;
        parts->iov_len -= done;
    }
    return KVC_OK;
}

kvc_status kvc__file_read(const kvc__file *f, void *into, size_t bytes, uint64_t at) {
    struct iovec all = {into, bytes};
    return bytes ? kvc__file_read_parts(f, &all, 1, at) : KVC_OK;
}

kvc_status kvc__file_write(const kvc__file *f, const void *from, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n =
            in_use->pwrite(f->fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* nothing written and no reason told: no loop without end */
        if (n <= 0) return kvc__file_failed("write", f->name);
        done += (size_t)n;
    }
    return KVC_OK;
}
