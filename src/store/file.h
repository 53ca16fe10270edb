/** @file
 * The one door to files. Every call to the system is made through a table, which tests replace:
 * they fail each of them, cut it short, or end the process in its place. */
#ifndef KVC_STORE_FILE_H
#define KVC_STORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <kvcache/status.h>

/** The system's calls, with its meanings. */
typedef struct kvc__file_calls {
    int (*open)(const char *path, int flags, mode_t mode);
    int (*close)(int fd);
    int (*fstat)(int fd, struct stat *out);
    int (*lstat)(const char *path, struct stat *out);
    ssize_t (*preadv)(int fd, const struct iovec *parts, int count, off_t at);
    ssize_t (*pwrite)(int fd, const void *from, size_t bytes, off_t at);
    int (*flock)(int fd, int operation);
    int (*fdatasync)(int fd);
    int (*fsync)(int fd);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    void *(*mmap)(void *where, size_t bytes, int protection, int flags, int fd, off_t at);
    int (*munmap)(void *memory, size_t bytes);
    ssize_t (*getrandom)(void *into, size_t bytes, unsigned flags);
} kvc__file_calls;

/** Returns the system's own calls. Static storage. */
const kvc__file_calls *kvc__file_calls_system(void);

/** Makes all files be used through other calls. For tests, while no file is in use. */
void kvc__file_calls_use(const kvc__file_calls *calls);

/** Returns the table in use, for calls that no function below makes. */
const kvc__file_calls *kvc__file_calls_get(void);

enum { KVC__SHOWN = 96 };

/** Makes a name or text from outside fit for a sentence: control characters become '?', the
 * beginning of what is too long "...". Returns out. */
const char *kvc__shown(char out[KVC__SHOWN], const char *text);

/** Writes what the system said of a call that failed, "verb name: reason", and returns KVC_E_IO, or
 * KVC_E_NOMEM for want of memory. errno stays. */
kvc_status kvc__file_failed(const char *verb, const char *shown_name);

/** An open file. */
typedef struct kvc__file {
    int fd;
    char name[KVC__SHOWN]; /**< for sentences */
} kvc__file;

/** Opens a file, for no longer than this process. @errors KVC_E_IO; fd is -1 then */
kvc_status kvc__file_open(kvc__file *f, const char *path, int flags, mode_t mode);

/** Closes a file. Nothing where fd is -1. */
kvc_status kvc__file_close(kvc__file *f);

/** Reads exactly bytes. @errors KVC_E_CORRUPT the file ends before; KVC_E_IO */
kvc_status kvc__file_read(const kvc__file *f, void *into, size_t bytes, uint64_t at);

/** Reads all parts, one behind the other in the file, by one call where the system gives all at
 * once.
 * @param parts  [count], none empty; undefined afterwards
 * @errors KVC_E_CORRUPT the file ends before; KVC_E_IO */
kvc_status kvc__file_read_parts(const kvc__file *f, struct iovec *parts, int count, uint64_t at);

/** Writes exactly bytes. @errors KVC_E_IO */
kvc_status kvc__file_write(const kvc__file *f, const void *from, size_t bytes, uint64_t at);

#endif
