#include "store/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "base/error.h"
#include "store/alloc.h"
#include "store/digest.h"

enum { NAME_BYTES = sizeof ".kvc-0123456789abcdef.tmp", MOST_TRIES = 16 };

/* The bytes of a path up to its file's name: "a/b" 2, "b" 0. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Finds the permissions that the new file gets, before umask: those of the old one. */
static kvc_status find_mode(mode_t *mode, const char *target, const char *shown) {
    struct stat old;
    *mode = 0666;
    if (kvc__file_calls_get()->lstat(target, &old) != 0)
        return errno == ENOENT ? KVC_OK : kvc__file_failed("look at", shown);
    if (S_ISREG(old.st_mode)) *mode = old.st_mode & 0777;
    else if (!S_ISLNK(old.st_mode))
        return kvc__fail(KVC_E_INVALID, "%s: is no regular file", shown);
    return KVC_OK;
}

static void set_name(const kvc__replacement *r, uint64_t number) {
    (void)snprintf(r->temporary + folder_length(r->target), NAME_BYTES, ".kvc-%016" PRIx64 ".tmp",
                   number);
}

static bool lock(const kvc__file *f) {
    return kvc__file_calls_get()->flock(f->fd, LOCK_EX | LOCK_NB) == 0;
}

/* Whether a file has the temporary name still: it may be in its target's place by now. */
static bool is_named(const kvc__replacement *r, const kvc__file *f) {
    const kvc__file_calls *calls = kvc__file_calls_get();
    struct stat open, named;
    return calls->fstat(f->fd, &open) == 0 && calls->lstat(r->temporary, &named) == 0 &&
           open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

/* Removes what a save left that did not come to its end. Who is at work has locked it. */
static void remove_left(const kvc__replacement *r) {
    kvc__file f;
    if (kvc__file_open(&f, r->temporary, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0) != KVC_OK) return;
    if (lock(&f) && is_named(r, &f)) (void)kvc__file_calls_get()->unlink(r->temporary);
    (void)kvc__file_close(&f);
}

/* Locks a file that was just made. Where somebody took it for one that was left, it is gone, or
 * will be; else it goes here. */
static bool keep_new(const kvc__replacement *r) {
    const kvc__file_calls *calls = kvc__file_calls_get();
    struct stat about = {.st_nlink = 1};
    if (lock(&r->file)) {
        if (calls->fstat(r->file.fd, &about) == 0 && about.st_nlink > 0) return true;
    } else if (errno == EWOULDBLOCK) {
        return false;
    }
    if (about.st_nlink > 0) (void)calls->unlink(r->temporary);
    return false;
}

/* Opens a new file of the name that is the target's own. False where somebody else has it, or files
 * cannot be locked here. */
static bool open_own(kvc__replacement *r, mode_t mode) {
    const char *name = r->target + folder_length(r->target);
    unsigned char sum[KVC__DIGEST_DIGITS / 2];
    uint64_t number;
    kvc__digest digest;
    kvc__digest_init(&digest);
    kvc__digest_add(&digest, name, strlen(name));
    kvc__digest_bytes(&digest, sum);
    memcpy(&number, sum, sizeof number);
    set_name(r, number);
    remove_left(r);
    if (kvc__file_open(&r->file, r->temporary, O_WRONLY | O_CREAT | O_EXCL, mode) != KVC_OK)
        return false;
    if (keep_new(r)) return true;
    (void)kvc__file_close(&r->file);
    return false;
}

static kvc_status random_number(uint64_t *number, const char *shown) {
    ssize_t n;
    do n = kvc__file_calls_get()->getrandom(number, sizeof *number, 0);
    while (n < 0 && errno == EINTR);
    return n == sizeof *number ? KVC_OK : kvc__file_failed("find a temporary name for", shown);
}

/* Opens a file that was not there. */
static kvc_status open_temporary(kvc__replacement *r, mode_t mode) {
    if (open_own(r, mode)) return KVC_OK;
    for (int tries = 0;; tries++) {
        uint64_t number;
        KVC_TRY(random_number(&number, r->file.name));
        set_name(r, number);
        const kvc_status status =
            kvc__file_open(&r->file, r->temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
        if (status == KVC_OK || errno != EEXIST || tries == MOST_TRIES) return status;
    }
}

static void forget_temporary(kvc__replacement *r) {
    kvc__store_free(r->temporary, r->temporary_bytes, 1);
    r->temporary = NULL;
}

kvc_status kvc__replacement_init(kvc__replacement *r, const char *target) {
    const size_t folder = folder_length(target);
    mode_t mode;
    *r = (kvc__replacement){.file = {.fd = -1}, .target = target};
    (void)kvc__shown(r->file.name, target);
    if (!target[folder])
        return kvc__fail(KVC_E_INVALID, "path: \"%s\" given, that of a file wanted", r->file.name);
    KVC_TRY(find_mode(&mode, target, r->file.name));
    r->temporary_bytes = folder + NAME_BYTES;
    KVC_TRY(kvc__store_calloc((void **)&r->temporary, r->temporary_bytes, 1, "a temporary name"));
    memcpy(r->temporary, target, folder);
    const kvc_status status = open_temporary(r, mode);
    if (status != KVC_OK) forget_temporary(r); /* it names nothing of ours */
    (void)kvc__shown(r->file.name, target);
    return status;
}

/* Flushes a file or folder. Only an interruption is tried again: after another failure the system
 * may have forgotten what it could not write, and a second call would say that all is well. */
static kvc_status flush(int (*call)(int fd), const kvc__file *f) {
    int result;
    do result = call(f->fd);
    while (result != 0 && errno == EINTR);
    return result == 0 ? KVC_OK : kvc__file_failed("flush", f->name);
}

/* Has the folder's new entry survive a loss of power. The temporary name's room serves for it. */
static kvc_status flush_folder(kvc__replacement *r) {
    kvc__file f;
    memcpy(r->temporary + folder_length(r->target), ".", sizeof ".");
    KVC_TRY(kvc__file_open(&f, r->temporary, O_RDONLY | O_DIRECTORY, 0));
    const kvc_status status = flush(kvc__file_calls_get()->fsync, &f);
    (void)kvc__file_close(&f);
    return status;
}

kvc_status kvc__replacement_commit(kvc__replacement *r) {
    const kvc__file_calls *calls = kvc__file_calls_get();
    KVC_TRY(flush(calls->fdatasync, &r->file));
    if (calls->rename(r->temporary, r->target) != 0)
        return kvc__file_failed("rename a temporary file to", r->file.name);
    (void)kvc__file_close(&r->file); /* and with it the lock; all that it could tell, flush did */
    const kvc_status status = flush_folder(r);
    forget_temporary(r);
    return status;
}

void kvc__replacement_deinit(kvc__replacement *r) {
    if (!r->temporary) return;
    (void)kvc__file_close(&r->file);
    (void)kvc__file_calls_get()->unlink(r->temporary);
    forget_temporary(r);
}
