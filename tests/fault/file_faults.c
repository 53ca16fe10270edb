#include "fault/file_faults.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/file.h"
#include "support/fault.h"

static test_file_fault fault;
static int error;
static unsigned calls;
static size_t held; /* descriptors and mappings */

static const kvc__file_calls *below(void) {
    return kvc__file_calls_system();
}

/* Tells whether the call that asks is to fail; errno says why. */
static bool fails(void) {
    if (fault == TEST_FILE_HAS_LESS || !test_fault_here()) return false;
    if (fault != TEST_FILE_FAILS) (void)raise(SIGKILL);
    errno = error;
    return true;
}

/* Tells whether a call that can be interrupted is. */
static bool interrupted(void) {
    if (fault != TEST_FILE_HAS_LESS || ++calls % 3 != 0) return false;
    errno = EINTR;
    return true;
}

static size_t less(size_t bytes) {
    return fault == TEST_FILE_HAS_LESS && bytes > 7 ? 7 : bytes;
}

static int faulty_open(const char *path, int flags, mode_t mode) {
    if (fails() || interrupted()) return -1;
    const int fd = below()->open(path, flags, mode);
    held += fd >= 0;
    return fd;
}

static int faulty_close(int fd) {
    const bool failed = fails();
    const int kept = errno;
    const int result = below()->close(fd);
    held--;
    if (failed) errno = kept;
    return failed ? -1 : result;
}

static int faulty_fstat(int fd, struct stat *out) {
    return fails() ? -1 : below()->fstat(fd, out);
}

static int faulty_lstat(const char *path, struct stat *out) {
    return fails() ? -1 : below()->lstat(path, out);
}

static ssize_t faulty_preadv(int fd, const struct iovec *parts, int count, off_t at) {
    if (fails() || interrupted()) return -1;
    const struct iovec some = {parts->iov_base, less(parts->iov_len)};
    return some.iov_len < parts->iov_len ? below()->preadv(fd, &some, 1, at)
                                         : below()->preadv(fd, parts, count, at);
}

static ssize_t faulty_pwrite(int fd, const void *from, size_t bytes, off_t at) {
    if (fault == TEST_FILE_TEARS && test_fault_here()) {
        (void)below()->pwrite(fd, from, bytes / 2, at);
        (void)raise(SIGKILL);
    }
    return fails() || interrupted() ? -1 : below()->pwrite(fd, from, less(bytes), at);
}

static int faulty_flock(int fd, int operation) {
    return fails() ? -1 : below()->flock(fd, operation);
}

/* Nobody draws the plug: nothing is written to the disk, which would take most of the time. */
static int faulty_sync(int fd) {
    (void)fd;
    return fails() || interrupted() ? -1 : 0;
}

static int faulty_rename(const char *from, const char *to) {
    return fails() ? -1 : below()->rename(from, to);
}

static int faulty_unlink(const char *path) {
    return fails() ? -1 : below()->unlink(path);
}

static void *faulty_mmap(void *where, size_t bytes, int protection, int flags, int fd, off_t at) {
    if (fails()) return MAP_FAILED;
    void *map = below()->mmap(where, bytes, protection, flags, fd, at);
    held += map != MAP_FAILED;
    return map;
}

static int faulty_munmap(void *memory, size_t bytes) {
    held--;
    return below()->munmap(memory, bytes);
}

static ssize_t faulty_getrandom(void *into, size_t bytes, unsigned flags) {
    return fails() || interrupted() ? -1 : below()->getrandom(into, bytes, flags);
}

static const kvc__file_calls faulty = {
    .open = faulty_open,
    .close = faulty_close,
    .fstat = faulty_fstat,
    .lstat = faulty_lstat,
    .preadv = faulty_preadv,
    .pwrite = faulty_pwrite,
    .flock = faulty_flock,
    .fdatasync = faulty_sync,
    .fsync = faulty_sync,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
    .mmap = faulty_mmap,
    .munmap = faulty_munmap,
    .getrandom = faulty_getrandom,
};

void test_file_faults_use(test_file_fault new_fault, int new_error) {
    fault = new_fault;
    error = new_error;
    kvc__file_calls_use(&faulty);
}

void test_file_faults_end(void) {
    kvc__file_calls_use(kvc__file_calls_system());
}

size_t test_file_faults_open(void) {
    return held;
}
