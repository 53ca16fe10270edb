#include "store/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/tier_disk.h>

#include "base/client.h"

static void exists_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    const kvc__disk *disk = context;
    (void)worker;
    for (int64_t i = 0; i < count; i++) {
        const kvc__disk_path path = kvc__disk_path_of(values[i].key);
        if (faccessat(disk->root, path.text, R_OK, 0) == 0) values[i].result = KVC_TIER_HIT;
        else if (errno != ENOENT) {
            values[i].result = KVC_TIER_FAULT;
            values[i].fault = kvc__disk_fault(errno);
        }
    }
}

static void get_into_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    const kvc__disk *disk = context;
    (void)worker;
    for (int64_t i = 0; i < count; i++) kvc__disk_read(disk, &values[i]);
}

static kvc_tier_fault put(kvc__disk *disk, const kvc_tier_value *value) {
    const uint64_t bytes = KVC_TIER_HEADER_BYTES + (uint64_t)value->payload_bytes;
    int64_t grown;
    if (disk->refuses) return disk->refuses;
    if (!kvc__disk_make_room(disk, bytes)) return KVC_TIER_FULL;
    kvc_tier_fault fault = kvc__disk_write(disk, value, &grown);
    /* The disk may be full before our limit is reached: others use it too. */
    if (fault == KVC_TIER_FULL && kvc__disk_evict(disk, bytes))
        fault = kvc__disk_write(disk, value, &grown);
    if (grown) kvc__disk_count(disk, grown);
    return fault;
}

static void put_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    kvc__disk *disk = context;
    (void)worker;
    for (int64_t i = 0; i < count; i++) {
        values[i].fault = put(disk, &values[i]);
        values[i].result = values[i].fault ? KVC_TIER_FAULT : KVC_TIER_HIT;
    }
}

static void remove_one(void *context, int worker, const uint8_t *key) {
    (void)worker;
    kvc__disk_remove(context, key);
}

static void close_disk(void *context) {
    kvc__disk *disk = context;
    kvc__disk_room_deinit(disk);
    (void)pthread_mutex_destroy(&disk->mutex);
    if (disk->state >= 0) (void)close(disk->state);
    if (disk->lock >= 0) (void)close(disk->lock);
    if (disk->root >= 0) (void)close(disk->root);
    kvc__client_free(disk, 1, sizeof *disk);
}

static kvc_status open_root(kvc__disk *disk, const char *folder) {
    if (kvc__disk_call.mkdirat(AT_FDCWD, folder, 0700) != 0 && errno != EEXIST && errno != EROFS)
        return kvc__fail(KVC_E_IO, "desc.folder: %s: %s", folder, strerror(errno));
    disk->root = kvc__disk_call.openat(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (disk->root >= 0) return KVC_OK;
    return kvc__fail(KVC_E_IO, "desc.folder: %s: %s", folder, strerror(errno));
}

/* Opens a file of the tier's own; -1, with the reason kept, where the folder takes no files. */
static int open_own(kvc__disk *disk, const char *name) {
    const int fd =
        kvc__disk_call.openat(disk->root, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) disk->refuses = kvc__disk_fault(errno);
    return fd;
}

/* Locks the folder as one who has it open; true when nobody else has, for a moment at least. */
static bool join(const kvc__disk *disk) {
    const struct timespec moment = {.tv_nsec = 1000000};
    const bool alone = flock(disk->lock, LOCK_EX | LOCK_NB) == 0;
    /* Somebody who is alone counts files, and may take a while: then without the lock. */
    for (int i = 0; !alone && i < 100 && flock(disk->lock, LOCK_SH | LOCK_NB) != 0; i++)
        (void)nanosleep(&moment, NULL);
    return alone;
}

static void open_files(kvc__disk *disk) {
    if (kvc__disk_call.mkdirat(disk->root, "tmp", 0700) != 0 && errno != EEXIST)
        disk->refuses = kvc__disk_fault(errno);
    disk->lock = open_own(disk, "lock");
    disk->state = open_own(disk, "state");
    if (disk->refuses) return;
    const bool alone = join(disk);
    kvc__disk_tidy(disk);
    kvc__disk_room_init(disk, alone);
    if (alone) (void)flock(disk->lock, LOCK_SH | LOCK_NB);
}

static kvc_status check_desc(const kvc_tier_disk_desc *desc) {
    if (!desc->folder || !*desc->folder)
        return kvc__fail(KVC_E_INVALID, "desc.folder: %s given", desc->folder ? "\"\"" : "NULL");
    if (desc->threads < 0 || desc->threads > 64)
        return kvc__fail(KVC_E_INVALID, "desc.threads: %d given, 0 to 64 wanted", desc->threads);
    return KVC_OK;
}

kvc_status kvc_tier_disk_new(kvc_tier **out, const kvc_tier_desc *tier,
                             const kvc_tier_disk_desc *desc) {
    kvc_tier_disk_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__client_struct_in(&full, sizeof full, desc, "kvc_tier_disk_desc"));
    KVC_TRY(check_desc(&full));
    KVC_TRY(kvc__client_calloc(&memory, 1, sizeof(kvc__disk), "disk tier"));
    kvc__disk *disk = memory;
    disk->root = disk->lock = disk->state = -1;
    disk->flush = full.flush;
    atomic_init(&disk->serial, (unsigned long)kvc__client_now_ns());
    disk->limit_bytes = full.limit_bytes ? full.limit_bytes : UINT64_MAX;
    (void)pthread_mutex_init(&disk->mutex, NULL);
    kvc_status status = open_root(disk, full.folder);
    if (status == KVC_OK) {
        open_files(disk);
        const kvc_tier_backend backend = {.struct_size = sizeof backend,
                                          .name = "disk",
                                          .context = disk,
                                          .workers = full.threads ? full.threads
                                                                  : KVC_TIER_DISK_THREADS_DEFAULT,
                                          .most_values = 1,
                                          .exists_many = exists_many,
                                          .get_into_many = get_into_many,
                                          .put_many = put_many,
                                          .remove = remove_one,
                                          .free = close_disk};
        status = kvc_tier_new(out, &backend, tier);
    }
    if (status != KVC_OK) close_disk(disk);
    return status;
}
