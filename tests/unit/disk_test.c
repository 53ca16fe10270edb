/* The disk tier: values, what is wrong with files, room and eviction. Faults of the system's calls
 * are in tests/fault/disk_fault_test.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvcache/tier_disk.h>

#include "store/disk.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { SMALL = 24, FILE_BYTES = KVC_TIER_HEADER_BYTES + SMALL };

static char *folder;

static int setup(void **state) {
    (void)state;
    folder = test_folder_new();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    test_folder_remove(folder);
    return 0;
}

static kvc_tier *open_tier(uint64_t limit_bytes) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {
        .struct_size = sizeof desc, .folder = folder, .limit_bytes = limit_bytes};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

/* The path of a number's file, or of another below the folder.
 * Lifetime: until the fourth call after. */
static const char *path_below(const char *name) {
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    (void)snprintf(path, sizeof *paths, "%s/%s", folder, name);
    return path;
}

static const char *path_of(uint64_t number) {
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    test_tier_key(key, number);
    return path_below(kvc__disk_path_of(key).text);
}

static int64_t size_of(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (int64_t)about.st_size : -1;
}

/* The bytes in use that the state file tells. */
static int64_t counted(void) {
    int64_t numbers[2] = {-1, 0};
    FILE *file = fopen(path_below("state"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(numbers, sizeof *numbers, 2, file), 2);
    (void)fclose(file);
    assert_true(numbers[0] == ~numbers[1]);
    return numbers[0];
}

static void overwrite(const char *path, off_t at, const void *data, size_t bytes) {
    const int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, at), bytes);
    (void)close(fd);
}

static void disk__values_come_back_after_a_restart(void **state) {
    const size_t sizes[] = {0, 1, 127, 4096, 300001};
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_MISS);
        assert_int_equal(test_tier_exists(tier, i), KVC_TIER_MISS);
        assert_int_equal(test_tier_put(tier, i, i, sizes[i]), KVC_TIER_HIT);
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_HIT);
    }
    kvc_tier_free(tier);
    tier = open_tier(0);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(test_tier_exists(tier, i), KVC_TIER_HIT);
        assert_int_equal(test_tier_get(tier, i, i, sizes[i]), KVC_TIER_HIT);
    }
    assert_int_equal(test_tier_stats(tier).bytes_read, 1 + 127 + 4096 + 300001);
    kvc_tier_free(tier);
}

static void disk__files_are_for_their_owner_alone(void **state) {
    struct stat about;
    (void)state;
    kvc_tier *tier = open_tier(0);
    assert_int_equal(test_tier_put(tier, 1, 1, SMALL), KVC_TIER_HIT);
    assert_int_equal(stat(path_of(1), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    kvc_tier_free(tier);
}

static void disk__a_put_replaces_and_is_counted_once(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (uint64_t seed = 0; seed < 3; seed++)
        assert_int_equal(test_tier_put(tier, 1, seed, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 2, SMALL), KVC_TIER_HIT);
    assert_int_equal(counted(), FILE_BYTES);
    assert_int_equal(test_tier_put(tier, 1, 9, 1000), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 9, 1000), KVC_TIER_HIT);
    assert_int_equal(counted(), KVC_TIER_HEADER_BYTES + 1000);
    kvc_tier_free(tier);
}

static void disk__every_byte_changed_is_a_miss_and_the_file_goes(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (int at = 0; at < FILE_BYTES; at++) {
        char byte;
        assert_int_equal(test_tier_put(tier, 1, 7, SMALL), KVC_TIER_HIT);
        const int fd = open(path_of(1), O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte = (char)(byte ^ 0x40);
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        (void)close(fd);
        assert_int_equal(test_tier_get(tier, 1, 7, SMALL), KVC_TIER_FAULT);
        assert_int_equal(size_of(path_of(1)), -1);
        assert_int_equal(counted(), 0);
    }
    kvc_tier_free(tier);
}

static void disk__a_file_cut_or_grown_is_a_miss(void **state) {
    const off_t sizes[] = {0, 1, 127, 128, FILE_BYTES - 1, FILE_BYTES + 1, 100000};
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(test_tier_put(tier, 1, 7, SMALL), KVC_TIER_HIT);
        assert_int_equal(truncate(path_of(1), sizes[i]), 0);
        assert_int_equal(test_tier_get(tier, 1, 7, SMALL), KVC_TIER_FAULT);
        assert_int_equal(test_tier_fault(), KVC_TIER_BAD_LENGTH);
        assert_int_equal(size_of(path_of(1)), -1);
    }
    kvc_tier_free(tier);
}

static void disk__the_file_of_another_key_is_a_miss(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    assert_int_equal(test_tier_put(tier, 1, 7, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 2, 8, SMALL), KVC_TIER_HIT);
    assert_int_equal(rename(path_of(2), path_of(1)), 0);
    assert_int_equal(test_tier_get(tier, 1, 7, SMALL), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_KEY);
    assert_int_equal(test_tier_get(tier, 2, 8, SMALL), KVC_TIER_MISS);
    kvc_tier_free(tier);
}

static void disk__what_is_no_file_is_a_miss_and_nothing_waits(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    for (uint64_t i = 1; i <= 3; i++) {
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
        assert_int_equal(unlink(path_of(i)), 0);
    }
    assert_int_equal(mkfifo(path_of(1), 0600), 0);
    assert_int_equal(mkdir(path_of(2), 0700), 0);
    assert_int_equal(symlink("/etc/passwd", path_of(3)), 0);
    for (uint64_t i = 1; i <= 3; i++)
        assert_int_equal(test_tier_get(tier, i, i, SMALL), KVC_TIER_FAULT);
    kvc_tier_free(tier);
}

static void disk__the_least_recently_used_goes_first(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(4 * FILE_BYTES);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 0, 0, SMALL), KVC_TIER_HIT); /* order: 1 2 3 0 */
    assert_int_equal(test_tier_put(tier, 4, 4, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_MISS);
    assert_int_equal(test_tier_get(tier, 2, 2, SMALL), KVC_TIER_HIT); /* after the scan: 3 0 4 2 */
    assert_int_equal(test_tier_put(tier, 5, 5, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 6, 6, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 7, 7, SMALL), KVC_TIER_HIT);
    const bool stays[] = {false, false, true, false, false, true, true, true};
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(test_tier_get(tier, i, i, SMALL), stays[i] ? KVC_TIER_HIT : KVC_TIER_MISS);
    assert_int_equal(counted(), 4 * FILE_BYTES);
    kvc_tier_free(tier);
}

static void disk__a_limit_holds_and_what_is_larger_is_refused(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(10 * FILE_BYTES + 5);
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
        assert_true(counted() <= 10 * FILE_BYTES + 5);
    }
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(test_tier_exists(tier, i), i < 90 ? KVC_TIER_MISS : KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 200, 1, 10 * FILE_BYTES), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_FULL);
    assert_int_equal(counted(), 10 * FILE_BYTES); /* nothing went for it */
    kvc_tier_free(tier);

    tier = open_tier(3 * FILE_BYTES); /* a lower limit holds from the next put on */
    assert_int_equal(test_tier_put(tier, 300, 1, SMALL), KVC_TIER_HIT);
    assert_int_equal(counted(), 3 * FILE_BYTES);
    kvc_tier_free(tier);
}

static void disk__two_tiers_on_one_folder_count_together(void **state) {
    (void)state;
    kvc_tier *one = open_tier(6 * FILE_BYTES), *two = open_tier(6 * FILE_BYTES);
    for (uint64_t i = 0; i < 60; i++) {
        kvc_tier *tier = i % 3 ? one : two, *other = i % 3 ? two : one;
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
        assert_int_equal(test_tier_get(other, i, i, SMALL), KVC_TIER_HIT);
        assert_int_equal(counted(), (i < 6 ? (int64_t)i + 1 : 6) * FILE_BYTES);
    }
    for (uint64_t i = 54; i < 60; i++) assert_int_equal(test_tier_exists(one, i), KVC_TIER_HIT);
    kvc_tier_free(one);
    kvc_tier_free(two);
}

static void disk__a_wrong_count_is_mended(void **state) {
    const int64_t wrong[][2] = {{5, 5}, {-8, 7}, {1 << 20, ~(int64_t)(1 << 20)}, {0, ~(int64_t)0}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        kvc_tier *tier = open_tier(4 * FILE_BYTES);
        for (uint64_t j = 0; j < 4; j++)
            assert_int_equal(test_tier_put(tier, j, j, SMALL), KVC_TIER_HIT);
        if (i == 3) kvc_tier_free(tier); /* too small a number: seen by who opens it alone */
        overwrite(path_below("state"), 0, wrong[i], sizeof wrong[i]);
        if (i == 3) tier = open_tier(4 * FILE_BYTES);
        assert_int_equal(test_tier_put(tier, 9, 9, SMALL), KVC_TIER_HIT);
        assert_true(counted() <= 4 * FILE_BYTES);
        kvc_tier_free(tier);
        kvc_tier_free(open_tier(0));
        assert_int_equal(counted() % FILE_BYTES, 0);
    }
    kvc_tier *tier = open_tier(0);
    assert_int_equal(truncate(path_below("state"), 0), 0);
    assert_int_equal(test_tier_put(tier, 10, 10, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 10, 10, SMALL), KVC_TIER_HIT);
    kvc_tier_free(tier);
}

static void disk__nobody_waits_for_who_keeps_the_count_locked(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(2 * FILE_BYTES);
    const int stopped = open(path_below("state"), O_RDWR);
    assert_int_equal(flock(stopped, LOCK_EX), 0);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 4, 4, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_exists(tier, 2), KVC_TIER_MISS); /* the limit holds all the same */
    (void)close(stopped);
    assert_int_equal(test_tier_put(tier, 5, 5, SMALL), KVC_TIER_HIT);
    assert_int_equal(counted(), 2 * FILE_BYTES);
    kvc_tier_free(tier);
}

static void disk__temporary_files_of_the_dead_go_and_of_the_living_stay(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    overwrite(path_below("tmp/1-0"), 0, "stray", 5);
    const int living = open(path_below("tmp/2-0"), O_WRONLY | O_CREAT, 0600);
    assert_true(living >= 0);
    assert_int_equal(flock(living, LOCK_EX), 0);
    kvc_tier_free(open_tier(0)); /* another one, while the first is open */
    assert_int_equal(size_of(path_below("tmp/1-0")), -1);
    assert_int_equal(size_of(path_below("tmp/2-0")), 0);
    (void)close(living);
    kvc_tier_free(tier);
    kvc_tier_free(open_tier(0));
    assert_int_equal(size_of(path_below("tmp/2-0")), -1);
}

static void disk__foreign_files_are_left_alone(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(2 * FILE_BYTES);
    assert_int_equal(test_tier_put(tier, 1, 1, SMALL), KVC_TIER_HIT);
    assert_int_equal(mkdir(path_below("zz"), 0700), 0);
    overwrite(path_below("zz/notes"), 0, "mine", 4);
    overwrite(path_below("notes.kvb"), 0, "mine", 4);
    for (uint64_t i = 2; i < 9; i++)
        assert_int_equal(test_tier_put(tier, i, i, SMALL), KVC_TIER_HIT);
    assert_int_equal(size_of(path_below("zz/notes")), 4);
    assert_int_equal(size_of(path_below("notes.kvb")), 4);
    kvc_tier_free(tier);
}

static void disk__a_folder_that_cannot_be_written_gives_and_takes_nothing(void **state) {
    (void)state;
    kvc_tier *tier = open_tier(0);
    assert_int_equal(test_tier_put(tier, 1, 1, SMALL), KVC_TIER_HIT);
    kvc_tier_free(tier);
    /* Files where a tier wants to write, which no permission would refuse to root. */
    assert_int_equal(unlink(path_below("state")), 0);
    assert_int_equal(mkdir(path_below("state"), 0700), 0);
    tier = open_tier(0);
    assert_int_equal(test_tier_get(tier, 1, 1, SMALL), KVC_TIER_HIT);
    assert_int_equal(test_tier_put(tier, 2, 2, SMALL), KVC_TIER_FAULT);
    assert_int_equal(test_tier_exists(tier, 2), KVC_TIER_MISS);
    kvc_tier_free(tier);
}

static void disk__what_makes_no_sense_is_refused(void **state) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    kvc_tier_disk_desc desc = {.struct_size = sizeof desc};
    (void)state;
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
    assert_null(tier);
    desc.folder = "";
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
    desc.folder = path_below("no/such");
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_IO);
    overwrite(path_below("file"), 0, "x", 1);
    desc.folder = path_below("file");
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_IO);
    desc.folder = folder;
    desc.threads = 65;
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
    desc.threads = 1;
    desc.struct_size = 0;
    assert_fails(kvc_tier_disk_new(&tier, &tier_desc, &desc), KVC_E_INVALID);
    desc.struct_size = sizeof desc;
    assert_fails(kvc_tier_disk_new(&tier, NULL, &desc), KVC_E_INVALID);
    assert_fails(kvc_tier_disk_new(NULL, &tier_desc, &desc), KVC_E_INVALID);
}

#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        DISK_TEST(disk__values_come_back_after_a_restart),
        DISK_TEST(disk__files_are_for_their_owner_alone),
        DISK_TEST(disk__a_put_replaces_and_is_counted_once),
        DISK_TEST(disk__every_byte_changed_is_a_miss_and_the_file_goes),
        DISK_TEST(disk__a_file_cut_or_grown_is_a_miss),
        DISK_TEST(disk__the_file_of_another_key_is_a_miss),
        DISK_TEST(disk__what_is_no_file_is_a_miss_and_nothing_waits),
        DISK_TEST(disk__the_least_recently_used_goes_first),
        DISK_TEST(disk__a_limit_holds_and_what_is_larger_is_refused),
        DISK_TEST(disk__two_tiers_on_one_folder_count_together),
        DISK_TEST(disk__a_wrong_count_is_mended),
        DISK_TEST(disk__nobody_waits_for_who_keeps_the_count_locked),
        DISK_TEST(disk__temporary_files_of_the_dead_go_and_of_the_living_stay),
        DISK_TEST(disk__foreign_files_are_left_alone),
        DISK_TEST(disk__a_folder_that_cannot_be_written_gives_and_takes_nothing),
        DISK_TEST(disk__what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
