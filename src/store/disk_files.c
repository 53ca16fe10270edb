/* Files of values: read into place, written whole or not at all. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "store/disk.h"

enum { FILE_MODE = 0600, FOLDER_MODE = 0700, TRIES = 16 };

kvc__disk_path kvc__disk_path_of(const uint8_t *key) {
    static const char digits[] = "0123456789abcdef";
    char hex[2 * KVC_BLOCK_KEY_BYTES + 1];
    kvc__disk_path path;
    for (size_t i = 0; i < KVC_BLOCK_KEY_BYTES; i++) {
        hex[2 * i] = digits[key[i] >> 4];
        hex[2 * i + 1] = digits[key[i] & 15];
    }
    hex[sizeof hex - 1] = '\0';
    (void)snprintf(path.text, sizeof path.text, "%.2s/%.2s/%s.kvb", hex, hex + 2, hex);
    return path;
}

/* Moves all bytes of header and payload, in as many calls as it takes. */
static kvc_tier_fault move_all(int fd, const kvc_tier_value *value,
                               ssize_t (*move)(int, const struct iovec *, int, off_t),
                               kvc_tier_fault at_end) {
    const size_t all = KVC_TIER_HEADER_BYTES + value->payload_bytes;
    for (size_t done = 0; done < all;) {
        struct iovec parts[2] = {{value->payload, value->payload_bytes}};
        int count = 1;
        if (done < KVC_TIER_HEADER_BYTES) {
            parts[1] = parts[0];
            parts[0] = (struct iovec){(char *)value->header + done, KVC_TIER_HEADER_BYTES - done};
            count = value->payload_bytes ? 2 : 1;
        } else {
            const size_t before = done - KVC_TIER_HEADER_BYTES;
            parts[0].iov_base = (char *)value->payload + before;
            parts[0].iov_len -= before;
        }
        const ssize_t moved = move(fd, parts, count, (off_t)done);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) return kvc__disk_fault(errno);
        if (moved == 0) return at_end;
        done += (size_t)moved;
    }
    return KVC_TIER_FINE;
}

/* With the clock's own nanoseconds: "now" of a file system has those of its last tick, some
 * milliseconds, in which many files are used. */
static void mark_used(int fd) {
    struct timespec now[2];
    (void)clock_gettime(CLOCK_REALTIME, &now[0]);
    now[1] = now[0];
    (void)kvc__disk_call.futimens(fd, now); /* where it may not, files age from when they came */
}

static kvc_tier_fault read_open(int fd, const kvc_tier_value *value) {
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) return KVC_TIER_IO;
    if ((uint64_t)about.st_size != KVC_TIER_HEADER_BYTES + (uint64_t)value->payload_bytes)
        return KVC_TIER_BAD_LENGTH;
    return move_all(fd, value, kvc__disk_call.preadv, KVC_TIER_CUT);
}

void kvc__disk_read(const kvc__disk *disk, kvc_tier_value *value) {
    const kvc__disk_path path = kvc__disk_path_of(value->key);
    /* Not to wait, should somebody have put a pipe there. */
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int fd = kvc__disk_call.openat(disk->root, path.text, flags);
    if (fd < 0 && errno == ENOENT) return;
    value->fault = fd < 0 ? kvc__disk_fault(errno) : read_open(fd, value);
    value->result = value->fault ? KVC_TIER_FAULT : KVC_TIER_HIT;
    if (value->result == KVC_TIER_HIT) mark_used(fd);
    if (fd >= 0) (void)close(fd);
}

/* Opens a file of its own in tmp/, locked for as long as it is open: who tidies up removes those
 * that it can lock. Between its coming and the lock that may have happened: then another name. */
static int open_temporary(kvc__disk *disk, char *path, size_t path_bytes) {
    for (int i = 0; i < TRIES; i++) {
        struct stat about;
        const unsigned long serial = atomic_fetch_add(&disk->serial, 1);
        (void)snprintf(path, path_bytes, "tmp/%ld-%lx", (long)getpid(), serial);
        const int fd = kvc__disk_call.openat(disk->root, path,
                                             O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &about) == 0 && about.st_nlink == 1)
            return fd;
        (void)kvc__disk_call.unlinkat(disk->root, path, 0);
        (void)close(fd);
    }
    errno = EBUSY;
    return -1;
}

static int rename_making_folders(const kvc__disk *disk, const char *from, const char *to,
                                 unsigned flags) {
    char folder[6]; /* "ab/cd" */
    if (kvc__disk_call.renameat2(disk->root, from, disk->root, to, flags) == 0) return 0;
    if (errno != ENOENT || flags == RENAME_EXCHANGE) return -1;
    for (int length = 2; length <= 5; length += 3) {
        (void)snprintf(folder, sizeof folder, "%.*s", length, to);
        if (kvc__disk_call.mkdirat(disk->root, folder, FOLDER_MODE) != 0 && errno != EEXIST)
            return -1;
    }
    return kvc__disk_call.renameat2(disk->root, from, disk->root, to, flags);
}

static int64_t size_at(const kvc__disk *disk, const char *path) {
    struct stat about;
    return fstatat(disk->root, path, &about, AT_SYMLINK_NOFOLLOW) == 0 ? (int64_t)about.st_size : 0;
}

/* Puts a temporary file in its place. Where one lies already the two change places, and the old one
 * goes: so each byte that comes or goes is counted once, whoever else does the same. */
static kvc_tier_fault place(const kvc__disk *disk, const char *from, const char *to,
                            int64_t *grown) {
    for (int i = 0; i < TRIES; i++) {
        if (rename_making_folders(disk, from, to, RENAME_NOREPLACE) == 0) return KVC_TIER_FINE;
        if (errno == EINVAL) break; /* not on this file system */
        if (errno != EEXIST) return kvc__disk_fault(errno);
        if (rename_making_folders(disk, from, to, RENAME_EXCHANGE) == 0) {
            *grown -= size_at(disk, from);
            (void)kvc__disk_call.unlinkat(disk->root, from, 0);
            return KVC_TIER_FINE;
        }
        if (errno == EINVAL) break;
        if (errno != ENOENT) return kvc__disk_fault(errno); /* else: evicted just now */
    }
    *grown -= size_at(disk, to);
    return rename_making_folders(disk, from, to, 0) == 0 ? KVC_TIER_FINE : kvc__disk_fault(errno);
}

kvc_tier_fault kvc__disk_write(kvc__disk *disk, const kvc_tier_value *value, int64_t *grown) {
    char temporary[64];
    const kvc__disk_path path = kvc__disk_path_of(value->key);
    const int fd = open_temporary(disk, temporary, sizeof temporary);
    *grown = 0;
    if (fd < 0) return kvc__disk_fault(errno);
    kvc_tier_fault fault = move_all(fd, value, kvc__disk_call.pwritev, KVC_TIER_IO);
    if (!fault && disk->flush && kvc__disk_call.fdatasync(fd) != 0) fault = kvc__disk_fault(errno);
    if (!fault) {
        mark_used(fd);
        *grown = (int64_t)(KVC_TIER_HEADER_BYTES + value->payload_bytes);
        fault = place(disk, temporary, path.text, grown);
    }
    if (fault) {
        *grown = 0;
        (void)kvc__disk_call.unlinkat(disk->root, temporary, 0);
    }
    (void)close(fd);
    return fault;
}

void kvc__disk_tidy(const kvc__disk *disk) {
    const int folder = openat(disk->root, "tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = folder < 0 ? NULL : fdopendir(folder);
    const struct dirent *entry;
    if (!listing && folder >= 0) (void)close(folder);
    while (listing && (entry = readdir(listing))) {
        if (entry->d_name[0] == '.') continue;
        const int fd =
            openat(folder, entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) (void)unlinkat(folder, entry->d_name, 0);
        (void)close(fd);
    }
    if (listing) (void)closedir(listing);
}
