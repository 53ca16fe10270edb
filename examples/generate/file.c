#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool map_descriptor(mapped_file *out, int descriptor, const char *path, const char *wanted,
                           failure *error) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) return failure_set(error, "%s: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return failure_set(error, "%s: a %s given, %s in a regular file wanted", path,
                           S_ISDIR(status.st_mode) ? "directory" : "device or pipe", wanted);
    if (status.st_size == 0) return failure_set(error, "%s: empty, %s wanted", path, wanted);
    const size_t bytes = (size_t)status.st_size;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED)
        return failure_set(error, "%s: %zu bytes cannot be mapped: %s", path, bytes,
                           strerror(errno));
    *out = (mapped_file){data, bytes};
    return true;
}

bool file_map(mapped_file *out, const char *path, const char *wanted, failure *error) {
    *out = (mapped_file){0};
    /* Without O_NONBLOCK, opening a pipe would wait for its writer. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return failure_set(error, "%s: %s; %s wanted", path, strerror(errno), wanted);
    const bool mapped = map_descriptor(out, descriptor, path, wanted, error);
    (void)close(descriptor);
    return mapped;
}

void file_unmap(mapped_file *file) {
    if (file->data) (void)munmap(file->data, file->bytes);
    *file = (mapped_file){0};
}
