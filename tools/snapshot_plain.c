#include "snapshot_plain.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* Of a call, where all goes to memory or comes from it: a single write of gigabytes has the system
 * look for ever larger pages, and may take three times as long. */
enum { PIECE = 1 << 20 };

static bool write_all(int fd, const char *data, size_t bytes) {
    size_t done = 0;
    for (ssize_t n = 1; done < bytes && n > 0; done += n > 0 ? (size_t)n : 0)
        n = write(fd, data + done, bytes - done < PIECE ? bytes - done : PIECE);
    return done == bytes;
}

/* Also where it did not open. */
static bool close_all(int fd, bool good) {
    const int error = errno;
    const bool closed = fd >= 0 && close(fd) == 0;
    if (!good) errno = error;
    return good && closed;
}

static bool flush_folder(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return close_all(fd, fd >= 0 && fsync(fd) == 0);
}

bool snapshot_plain_write(const char *folder, const char *name, const char *data, size_t bytes) {
    char temporary[PATH_MAX], path[PATH_MAX];
    (void)snprintf(temporary, sizeof temporary, "%s/plain.tmp", folder);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const bool written = fd >= 0 && write_all(fd, data, bytes) && fdatasync(fd) == 0;
    return close_all(fd, written) && rename(temporary, path) == 0 && flush_folder(folder);
}

/* @param step  from one piece in memory to the next; 0: all to the same place */
static bool read_all(const char *path, char *into, size_t bytes, size_t piece, size_t step) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    for (ssize_t n = 1; fd >= 0 && done < bytes && n > 0; done += n > 0 ? (size_t)n : 0)
        n = read(fd, into + done * step, bytes - done < piece ? bytes - done : piece);
    return close_all(fd, fd >= 0 && done == bytes);
}

bool snapshot_plain_read(const char *path, char *into, size_t bytes) {
    return read_all(path, into, bytes, PIECE, 1);
}

bool snapshot_plain_read_through(const char *path, char *buffer, size_t bytes) {
    return read_all(path, buffer, bytes, SNAPSHOT_PLAIN_BUFFER, 0);
}
