/** @file
 * The insides of the disk tier: disk.c (the backend's calls), disk_files.c (files of values),
 * disk_room.c (bytes in use, and what is evicted), disk_calls.c (the one door to the system).
 *
 * A folder holds
 *
 *       ab/cd/abcd….kvb   a value: header, payload (tier_value.h); abcd… is its key
 *       tmp/              files being written, each locked by who writes it
 *       lock              locked, shared, by everybody who has the folder open
 *       state             bytes in use: struct kvc__disk_state, changed under its lock */
#ifndef KVC_STORE_DISK_H
#define KVC_STORE_DISK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <kvcache/tier.h>

/** The system's calls by which values are read and written; tests put others in their place while
 * no tier is open. */
typedef struct kvc__disk_calls {
    int (*openat)(int folder, const char *path, int flags, ...);
    ssize_t (*preadv)(int fd, const struct iovec *parts, int count, off_t offset);
    ssize_t (*pwritev)(int fd, const struct iovec *parts, int count, off_t offset);
    int (*fdatasync)(int fd);
    int (*renameat2)(int from_folder, const char *from, int to_folder, const char *to,
                     unsigned flags);
    int (*unlinkat)(int folder, const char *path, int flags);
    int (*mkdirat)(int folder, const char *path, mode_t mode);
    int (*futimens)(int fd, const struct timespec times[2]);
} kvc__disk_calls;

extern kvc__disk_calls kvc__disk_call;

/** A key as a path below the folder: two folders and a name. */
typedef struct kvc__disk_path {
    char text[3 + 3 + 2 * KVC_BLOCK_KEY_BYTES + 4 + 1];
} kvc__disk_path;

/** A file that a scan found. */
typedef struct kvc__disk_entry {
    int64_t used_ns; /* when it was used last */
    uint64_t bytes;
    uint8_t key[KVC_BLOCK_KEY_BYTES];
} kvc__disk_entry;

typedef struct kvc__disk {
    int root, lock, state;  /* the folder, and two files in it; -1: there is none */
    kvc_tier_fault refuses; /* FINE, or why there is no writing to it */
    bool flush;
    uint64_t limit_bytes; /* UINT64_MAX: none */
    atomic_ulong serial;  /* of temporary files */

    pthread_mutex_t mutex;    /* of what follows */
    int64_t bytes;            /* in use, by all, when the state file was seen last; < 0: unknown */
    int64_t pending;          /* added since by us */
    kvc__disk_entry *entries; /* [room]: by time of last use; those before `next` are done with */
    size_t room, count, next;
} kvc__disk;

/** Says what errno means for a value. */
kvc_tier_fault kvc__disk_fault(int error);

/* disk_files.c */

/** The path of a key's file. */
kvc__disk_path kvc__disk_path_of(const uint8_t *key);

/** Reads a value and marks it as used now. O(bytes), no copy between. */
void kvc__disk_read(const kvc__disk *disk, kvc_tier_value *value);

/** Writes a value's file and puts it in its place. *grown receives the bytes that the folder has
 * more than before: of the value, less those of one that it replaces. */
kvc_tier_fault kvc__disk_write(kvc__disk *disk, const kvc_tier_value *value, int64_t *grown);

/** Removes files in tmp/ whose writers are gone. */
void kvc__disk_tidy(const kvc__disk *disk);

/* disk_room.c; all of it takes the mutex */

/** Learns the bytes in use: from the state file, or by a scan when that says nothing or `alone`. */
void kvc__disk_room_init(kvc__disk *disk, bool alone);

/** Frees the list of files. */
void kvc__disk_room_deinit(kvc__disk *disk);

/** Adds to the bytes in use; may be negative. */
void kvc__disk_count(kvc__disk *disk, int64_t bytes);

/** Evicts until `more` bytes fit below the limit; false when they cannot. O(files evicted),
 * amortized. */
bool kvc__disk_make_room(kvc__disk *disk, uint64_t more);

/** Evicts at least so many bytes, whatever the limit; false when there are not as many. */
bool kvc__disk_evict(kvc__disk *disk, uint64_t bytes);

/** Removes the file of a key. */
void kvc__disk_remove(kvc__disk *disk, const uint8_t *key);

#endif
