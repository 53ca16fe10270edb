/* Each of the disk tier's calls to the system fails, or does half of what it should: a miss, and
 * nothing is left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvcache/tier_disk.h>

#include "store/disk.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { BYTES = 1000 };

typedef enum which {
    OPENAT,
    PREADV,
    PWRITEV,
    FDATASYNC,
    RENAMEAT2,
    UNLINKAT,
    MKDIRAT,
    FUTIMENS
} which;

static kvc__disk_calls real;
static char *folder;

/* The call that fails with an errno, from its `after`th on; 0: none. */
static which failing;
static int error, after;

/* A file read or written a few bytes at a time, and the end where there is none. */
static bool piecemeal, ends;

/* Calls until the process is killed, at one, or in the middle of one that writes; 0: never. */
static int kill_at;
static bool tears;

static bool is_the_end(void) {
    return kill_at && --kill_at == 0;
}

static bool fails(which call) {
    if (call != PWRITEV && is_the_end()) (void)raise(SIGKILL);
    if (!error || call != failing || after-- > 0) return false;
    errno = error;
    return true;
}

static int fake_openat(int at, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return fails(OPENAT) ? -1 : real.openat(at, path, flags, mode);
}

/* The first 7 bytes of two parts. */
static int piece(struct iovec *out, const struct iovec *parts, int count) {
    *out = parts[0];
    if (out->iov_len == 0 && count > 1) *out = parts[1];
    if (out->iov_len > 7) out->iov_len = 7;
    return 1;
}

static ssize_t fake_preadv(int fd, const struct iovec *parts, int count, off_t at) {
    struct iovec one;
    if (fails(PREADV)) return -1;
    if (ends && at >= 140) return 0;
    return piecemeal || ends ? real.preadv(fd, &one, piece(&one, parts, count), at)
                             : real.preadv(fd, parts, count, at);
}

static ssize_t fake_pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    struct iovec one;
    if (is_the_end()) {
        if (tears) (void)real.pwritev(fd, &one, piece(&one, parts, count), at);
        (void)raise(SIGKILL);
    }
    if (fails(PWRITEV)) return -1;
    return piecemeal ? real.pwritev(fd, &one, piece(&one, parts, count), at)
                     : real.pwritev(fd, parts, count, at);
}

static int fake_fdatasync(int fd) {
    return fails(FDATASYNC) ? -1 : real.fdatasync(fd);
}

static int fake_renameat2(int from_at, const char *from, int to_at, const char *to,
                          unsigned flags) {
    return fails(RENAMEAT2) ? -1 : real.renameat2(from_at, from, to_at, to, flags);
}

static int fake_unlinkat(int at, const char *path, int flags) {
    return fails(UNLINKAT) ? -1 : real.unlinkat(at, path, flags);
}

static int fake_mkdirat(int at, const char *path, mode_t mode) {
    return fails(MKDIRAT) ? -1 : real.mkdirat(at, path, mode);
}

static int fake_futimens(int fd, const struct timespec times[2]) {
    return fails(FUTIMENS) ? -1 : real.futimens(fd, times);
}

static int setup(void **state) {
    (void)state;
    folder = test_folder_new();
    real = kvc__disk_call;
    kvc__disk_call = (kvc__disk_calls){fake_openat,    fake_preadv,   fake_pwritev, fake_fdatasync,
                                       fake_renameat2, fake_unlinkat, fake_mkdirat, fake_futimens};
    error = after = 0;
    piecemeal = ends = false;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    kvc__disk_call = real;
    test_folder_remove(folder);
    return 0;
}

static kvc_tier *open_tier(uint64_t limit_bytes) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {.struct_size = sizeof desc,
                                     .folder = folder,
                                     .limit_bytes = limit_bytes,
                                     .threads = 1,
                                     .flush = true};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

static int files_in_tmp(void) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tmp", folder);
    DIR *listing = opendir(path);
    const struct dirent *entry;
    int count = 0;
    assert_non_null(listing);
    while ((entry = readdir(listing))) count += entry->d_name[0] != '.';
    (void)closedir(listing);
    return count;
}

static void disk_fault__a_put_that_fails_anywhere_leaves_what_was_there(void **state) {
    const struct {
        which call;
        int error;
        kvc_tier_fault fault;
    } faults[] = {
        {OPENAT, ENOSPC, KVC_TIER_FULL},    {OPENAT, EACCES, KVC_TIER_REFUSED},
        {OPENAT, EMFILE, KVC_TIER_IO},      {PWRITEV, ENOSPC, KVC_TIER_FULL},
        {PWRITEV, EDQUOT, KVC_TIER_FULL},   {PWRITEV, EIO, KVC_TIER_IO},
        {PWRITEV, ENOMEM, KVC_TIER_NOMEM},  {FDATASYNC, EIO, KVC_TIER_IO},
        {FDATASYNC, ENOSPC, KVC_TIER_FULL}, {RENAMEAT2, EROFS, KVC_TIER_REFUSED},
        {RENAMEAT2, ENOSPC, KVC_TIER_FULL},
    };
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        /* Again for what is evicted when the disk is full: there must be nothing to evict. */
        assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_HIT);
        for (int at = 0; at < (faults[i].call == PWRITEV ? 3 : 1); at++) {
            piecemeal = faults[i].call == PWRITEV;
            failing = faults[i].call;
            after = at;
            error = faults[i].error;
            assert_int_equal(test_tier_put(tier, 1, 8, BYTES), KVC_TIER_FAULT);
            assert_int_equal(test_tier_fault(), faults[i].fault);
            error = 0;
            piecemeal = false;
            assert_int_equal(files_in_tmp(), 0);
            const kvc_tier_result left = test_tier_get(tier, 1, 7, BYTES);
            assert_true(left == KVC_TIER_HIT ||
                        (left == KVC_TIER_MISS && faults[i].fault == KVC_TIER_FULL));
        }
    }
    kvc_tier_free(tier);
}

static void disk_fault__new_folders_that_cannot_be_made_are_a_fault(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (int at = 0; at < 2; at++) {
        failing = MKDIRAT;
        after = at;
        error = ENOSPC;
        assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_FAULT);
        assert_int_equal(test_tier_fault(), KVC_TIER_FULL);
        assert_int_equal(files_in_tmp(), 0);
        error = 0;
        assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_MISS);
    }
    assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static void disk_fault__a_full_disk_evicts_and_tries_again(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(test_tier_put(tier, i, i, BYTES), KVC_TIER_HIT);
    /* The calls of one put: openat, pwritev. The second write of all succeeds again. */
    failing = PWRITEV;
    error = ENOSPC;
    piecemeal = false;
    after = 0;
    kvc_tier_item items[1];
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    char data[BYTES] = {0};
    test_tier_key(key, 9);
    items[0] = (kvc_tier_item){.key = key, .data = data, .size_bytes = sizeof data};
    assert_ok(kvc_tier_put_many(tier, items, 1));
    error = 0;
    assert_int_equal(items[0].fault, KVC_TIER_FULL);
    assert_int_equal(test_tier_exists(tier, 0), KVC_TIER_MISS); /* the oldest went for it */
    assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static void disk_fault__reads_in_pieces_are_whole_and_an_early_end_is_a_miss(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    piecemeal = true;
    assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_HIT);
    ends = true;
    assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_CUT);
    ends = piecemeal = false;
    assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static void disk_fault__a_get_that_fails_is_a_miss_and_the_file_stays(void **state) {
    const struct {
        which call;
        int error;
        kvc_tier_fault fault;
    } faults[] = {{OPENAT, EACCES, KVC_TIER_REFUSED},
                  {OPENAT, ENFILE, KVC_TIER_IO},
                  {PREADV, EIO, KVC_TIER_IO}};
    (void)state;
    kvc_tier *tier = open_tier(0);
    assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_HIT);
    for (int i = 0; i < 3; i++) {
        failing = faults[i].call;
        error = faults[i].error;
        assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_FAULT);
        assert_int_equal(test_tier_fault(), faults[i].fault);
        error = 0;
        assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_HIT);
    }
    failing = FUTIMENS; /* the time of use is a courtesy */
    error = EPERM;
    assert_int_equal(test_tier_get(tier, 1, 7, BYTES), KVC_TIER_HIT);
    error = 0;
    kvc_tier_free(tier);
}

static void disk_fault__what_cannot_be_evicted_refuses_the_put(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(2 * (BYTES + KVC_TIER_HEADER_BYTES));
    assert_int_equal(test_tier_put(tier, 1, 1, BYTES), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 2, 2, BYTES), KVC_TIER_HIT);
    failing = UNLINKAT;
    error = EACCES;
    assert_int_equal(test_tier_put(tier, 3, 3, BYTES), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_FULL);
    error = 0;
    assert_int_equal(test_tier_get(tier, 1, 1, BYTES), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 3, 3, BYTES), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static void disk_fault__file_systems_without_exchange_replace_too(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (uint64_t seed = 0; seed < 3; seed++) {
        failing = RENAMEAT2;
        error = EINVAL;
        after = seed == 2 ? 1 : 0; /* neither flag, or exchange alone */
        const kvc_tier_result put = test_tier_put(tier, 1, seed, BYTES);
        error = 0;
        /* Every call fails here, the plain one too: a fault, and nothing stays. */
        assert_int_equal(put, KVC_TIER_FAULT);
        assert_int_equal(files_in_tmp(), 0);
    }
    kvc_tier_free(tier);
}

static void disk_fault__a_read_only_folder_gives_and_takes_nothing(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    assert_int_equal(test_tier_put(tier, 1, 1, BYTES), KVC_TIER_HIT);
    kvc_tier_free(tier);
    failing = OPENAT;
    error = EROFS;
    after = 1; /* the folder itself opens */
    tier = open_tier(0);
    error = 0;
    assert_int_equal(test_tier_get(tier, 1, 1, BYTES), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 2, 2, BYTES), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_REFUSED);
    kvc_tier_free(tier);
}

/* Puts a new value and one over an old one, in a process that is killed at the nth call. Returns
 * whether it was. */
static bool killed(int nth) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kill_at = nth;
        kvc_tier *tier = open_tier(0);
        (void)test_tier_put(tier, 1, 8, BYTES);
        (void)test_tier_put(tier, 2, 9, BYTES);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) assert_int_equal(WTERMSIG(status), SIGKILL);
    else assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

/* The seed of the value that a key has, of two; -1: it has none. */
static int seed_of(kvc_tier *tier, uint64_t number, int one, int other) {
    uint8_t key[KVC_BLOCK_KEY_BYTES], data[BYTES], right[2][BYTES];
    kvc_tier_item item = {.key = key, .data = data, .size_bytes = BYTES};
    test_tier_key(key, number);
    test_tier_payload(right[0], BYTES, (uint64_t)one);
    test_tier_payload(right[1], BYTES, (uint64_t)other);
    assert_ok(kvc_tier_get_into_many(tier, &item, 1));
    assert_int_not_equal(item.result, KVC_TIER_FAULT);
    if (item.result == KVC_TIER_MISS) return -1;
    const bool is_one = memcmp(data, right[0], BYTES) == 0;
    if (!is_one) assert_memory_equal(data, right[1], BYTES);
    return is_one ? one : other;
}

static void disk_fault__a_kill_at_any_call_leaves_the_old_value_or_the_new_one(void **state) {
    int old = 0, new = 0;
    (void)state;
    for (int way = 0; way < 2; way++) {
        bool was_killed = true;
        tears = way;
        for (int nth = 1; was_killed; nth++) {
            kvc_tier *tier = open_tier(0);
            assert_int_equal(test_tier_put(tier, 1, 7, BYTES), KVC_TIER_HIT);
            kvc_tier_free(tier);
            was_killed = killed(nth);
            tier = open_tier(0); /* which tidies up */
            assert_int_equal(files_in_tmp(), 0);
            const int seed = seed_of(tier, 1, 7, 8), second = seed_of(tier, 2, 9, 9);
            assert_true(seed == 7 || seed == 8);
            assert_true(was_killed || (seed == 8 && second == 9));
            old += seed == 7;
            new += seed == 8;
            kvc_tier_free(tier);
        }
    }
    tears = false;
    assert_true(old >= 8 && new >= 8);
}

#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        DISK_TEST(disk_fault__a_put_that_fails_anywhere_leaves_what_was_there),
        DISK_TEST(disk_fault__new_folders_that_cannot_be_made_are_a_fault),
        DISK_TEST(disk_fault__a_full_disk_evicts_and_tries_again),
        DISK_TEST(disk_fault__reads_in_pieces_are_whole_and_an_early_end_is_a_miss),
        DISK_TEST(disk_fault__a_get_that_fails_is_a_miss_and_the_file_stays),
        DISK_TEST(disk_fault__what_cannot_be_evicted_refuses_the_put),
        DISK_TEST(disk_fault__file_systems_without_exchange_replace_too),
        DISK_TEST(disk_fault__a_read_only_folder_gives_and_takes_nothing),
        DISK_TEST(disk_fault__a_kill_at_any_call_leaves_the_old_value_or_the_new_one),
    };
    return cmocka_run_group_tests_name("disk_fault", tests, NULL, NULL);
}
