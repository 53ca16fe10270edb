/* Bytes in use, counted by all processes together, and what is evicted to stay below the limit.
 *
 * A scan lists all files by their time of last use. Eviction goes down that list, and passes over
 * what has been used since: who comes next has not, and was used before all that came later. So the
 * order is that of last use, and there is a scan only when the list has come to its end.
 *
 * Nothing here waits for a process that holds the state file's lock, which might be stopped: what
 * could not be written there is added the next time. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/client.h"
#include "store/disk.h"

enum { MOST_SCANS = 4 };

/* The state file: the bytes in use, and the same with all bits turned, as a check. */
typedef struct kvc__disk_state {
    int64_t bytes, turned;
} kvc__disk_state;

/* Locks the state file; false when others keep it locked. */
static bool lock_state(const kvc__disk *disk) {
    for (int i = 0; i < 8; i++) {
        if (flock(disk->state, LOCK_EX | LOCK_NB) == 0) return true;
        (void)sched_yield();
    }
    return false;
}

static void write_state(const kvc__disk *disk) {
    const kvc__disk_state state = {disk->bytes, ~disk->bytes};
    /* A write that fails or is torn is found by the check, and a scan mends it. */
    (void)!pwrite(disk->state, &state, sizeof state, 0);
}

/* Adds what is pending to the state file, and learns from it what others did; false when others
 * keep it locked. */
static bool share(kvc__disk *disk) {
    kvc__disk_state state;
    if (!lock_state(disk)) return false;
    const bool is_known = pread(disk->state, &state, sizeof state, 0) == (ssize_t)sizeof state &&
                          state.bytes >= 0 && state.turned == ~state.bytes;
    disk->bytes = -1;
    if (is_known && !__builtin_add_overflow(state.bytes, disk->pending, &disk->bytes)) {
        if (disk->bytes < 0) disk->bytes = 0; /* files that were never counted are gone */
        if (disk->pending) write_state(disk);
        disk->pending = 0;
    }
    (void)flock(disk->state, LOCK_UN);
    return true;
}

/* Has the state file say what a scan found, where it says nothing. */
static void declare(kvc__disk *disk, int64_t found) {
    disk->bytes = found;
    disk->pending = 0;
    if (!lock_state(disk)) return;
    write_state(disk);
    (void)flock(disk->state, LOCK_UN);
}

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads hexadecimal digits, exactly so many bytes of them before `end`. */
static bool parse_hex(uint8_t *out, size_t bytes, const char *text, const char *end) {
    for (size_t i = 0; i < bytes; i++) {
        const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return strcmp(text + 2 * bytes, end) == 0;
}

static int64_t used_ns_of(const struct stat *about) {
    return (int64_t)about->st_mtim.tv_sec * 1000000000 + about->st_mtim.tv_nsec;
}

/* Takes a file into the list; false when there is no memory for it. */
static bool list(kvc__disk *disk, int folder, const char *name) {
    struct stat about;
    kvc__disk_entry entry;
    if (!parse_hex(entry.key, sizeof entry.key, name, ".kvb")) return true;
    if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0) return true; /* gone by now */
    entry.used_ns = used_ns_of(&about);
    entry.bytes = (uint64_t)about.st_size;
    if (disk->count == disk->room) {
        const size_t room = disk->room ? 2 * disk->room : 256;
        kvc__disk_entry *entries;
        void *memory;
        if (kvc__client_calloc(&memory, room, sizeof *entries, "list of files")) return false;
        entries = memory;
        if (disk->count) memcpy(entries, disk->entries, disk->count * sizeof *entries);
        kvc__client_free(disk->entries, disk->room, sizeof *entries);
        disk->entries = entries;
        disk->room = room;
    }
    disk->entries[disk->count++] = entry;
    return true;
}

/* Walks folders of two digits down to the files; false when there was no memory. */
static bool walk(kvc__disk *disk, int folder, int levels) { // NOLINT(misc-no-recursion): two levels
    DIR *listing = fdopendir(folder);
    const struct dirent *entry;
    bool good = true;
    if (!listing) {
        (void)close(folder);
        return true;
    }
    while (good && (entry = readdir(listing))) {
        uint8_t number;
        if (levels == 0) {
            good = list(disk, folder, entry->d_name);
        } else if (parse_hex(&number, 1, entry->d_name, "")) {
            const int below =
                openat(folder, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
            good = below < 0 || walk(disk, below, levels - 1);
        }
    }
    (void)closedir(listing);
    return good;
}

static int older(const void *a, const void *b) {
    const kvc__disk_entry *x = a, *y = b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return memcmp(x->key, y->key, sizeof x->key);
}

/* Lists all files. What they have more or less than was counted is added to the count, unless
 * others count meanwhile: of what these add or remove some is found and some not, depending on how
 * far the walk was. */
static void scan(kvc__disk *disk) {
    int64_t found = 0;
    share(disk);
    const int64_t counted = disk->bytes + disk->pending;
    const int folder = openat(disk->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    disk->count = disk->next = 0;
    if (folder < 0) return;
    const bool is_whole = walk(disk, folder, 2);
    for (size_t i = 0; i < disk->count; i++) found += (int64_t)disk->entries[i].bytes;
    if (disk->count) qsort(disk->entries, disk->count, sizeof *disk->entries, older);
    if (!is_whole) return;
    if (disk->bytes < 0) declare(disk, found);
    else if (share(disk) && disk->bytes == counted) {
        disk->pending += found - counted;
        share(disk);
    }
}

void kvc__disk_room_init(kvc__disk *disk, bool alone) {
    (void)pthread_mutex_lock(&disk->mutex);
    share(disk);
    if (alone || disk->bytes < 0) scan(disk);
    (void)pthread_mutex_unlock(&disk->mutex);
}

void kvc__disk_room_deinit(kvc__disk *disk) {
    if (disk->pending) share(disk);
    kvc__client_free(disk->entries, disk->room, sizeof *disk->entries);
}

void kvc__disk_count(kvc__disk *disk, int64_t bytes) {
    (void)pthread_mutex_lock(&disk->mutex);
    disk->pending += bytes;
    share(disk);
    (void)pthread_mutex_unlock(&disk->mutex);
}

/* Removes a file, if nobody has used it since, or whether or not; returns its bytes, once for all
 * who try. */
static uint64_t evict_entry(kvc__disk *disk, const kvc__disk_entry *entry, bool used_too) {
    struct stat about;
    const kvc__disk_path path = kvc__disk_path_of(entry->key);
    if (fstatat(disk->root, path.text, &about, AT_SYMLINK_NOFOLLOW) != 0) return 0;
    if (!used_too && used_ns_of(&about) != entry->used_ns) return 0;
    if (kvc__disk_call.unlinkat(disk->root, path.text, 0) != 0) return 0;
    disk->pending -= about.st_size;
    return (uint64_t)about.st_size;
}

/* Evicts the oldest; 0 when there is none, even after a few scans for all of an eviction. A process
 * that is kept from the CPU after a scan may find that others used or evicted all that it had
 * found: from the second scan on it takes what is still there. */
static uint64_t evict_oldest(kvc__disk *disk, int *scans) {
    for (;;) {
        while (disk->next < disk->count) {
            const uint64_t bytes = evict_entry(disk, &disk->entries[disk->next++], *scans > 1);
            if (bytes) return bytes;
        }
        if (*scans == MOST_SCANS) return 0;
        ++*scans;
        scan(disk);
    }
}

static uint64_t in_use(const kvc__disk *disk) {
    const int64_t bytes = (disk->bytes < 0 ? 0 : disk->bytes) + disk->pending;
    return bytes < 0 ? 0 : (uint64_t)bytes;
}

bool kvc__disk_make_room(kvc__disk *disk, uint64_t more) {
    int scans = 0;
    bool fits = true;
    if (disk->limit_bytes == UINT64_MAX) return true;
    if (more > disk->limit_bytes) return false;
    (void)pthread_mutex_lock(&disk->mutex);
    share(disk);
    if (disk->bytes < 0) scan(disk);
    while (fits && in_use(disk) > disk->limit_bytes - more)
        /* The scan may have found that less is in use. */
        fits = evict_oldest(disk, &scans) > 0 || in_use(disk) <= disk->limit_bytes - more;
    share(disk);
    (void)pthread_mutex_unlock(&disk->mutex);
    return fits;
}

bool kvc__disk_evict(kvc__disk *disk, uint64_t bytes) {
    int scans = 0;
    uint64_t freed = 0, one = 1;
    (void)pthread_mutex_lock(&disk->mutex);
    while (freed < bytes && one) {
        one = evict_oldest(disk, &scans);
        freed += one;
    }
    share(disk);
    (void)pthread_mutex_unlock(&disk->mutex);
    return freed >= bytes;
}

void kvc__disk_remove(kvc__disk *disk, const uint8_t *key) {
    struct stat about;
    const kvc__disk_path path = kvc__disk_path_of(key);
    if (fstatat(disk->root, path.text, &about, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (kvc__disk_call.unlinkat(disk->root, path.text, 0) != 0) return;
    kvc__disk_count(disk, -(int64_t)about.st_size);
}
