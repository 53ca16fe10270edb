/* Several processes on one folder, one of them killed again and again. */
#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/tier_disk.h>

#include "support/support.h"
#include "support/tier_fixture.h"

enum { KEYS = 40, MOST_BYTES = 20000, LIMIT_BYTES = 250000, ROUNDS = 12 };

static char *folder;

static kvc_tier *open_tier(void) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {
        .struct_size = sizeof desc, .folder = folder, .limit_bytes = LIMIT_BYTES};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

/* A key's value has one size, as a block has. */
static size_t size_of(uint64_t number) {
    return (size_t)(number * number * 977 % MOST_BYTES);
}

/* Puts and gets at random until killed, or for so many turns; returns the worst that it met. */
static int hammer(uint64_t seed, int turns) {
    kvc_tier *tier = open_tier();
    for (int i = 0; turns == 0 || i < turns; i++) {
        const uint64_t number = (uint64_t)test_below(&seed, KEYS);
        const bool puts = test_below(&seed, 2);
        const kvc_tier_result result = puts ? test_tier_put(tier, number, number, size_of(number))
                                            : test_tier_get(tier, number, number, size_of(number));
        if (result == KVC_TIER_FAULT || (puts && result != KVC_TIER_HIT)) {
            (void)fprintf(stderr, "turn %d, %s: result %d, %s\n", i, puts ? "put" : "get",
                          (int)result, kvc_tier_fault_name(test_tier_fault()));
            return 1;
        }
    }
    kvc_tier_free(tier);
    return 0;
}

static pid_t start(uint64_t seed, int turns) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(hammer(seed, turns));
}

static int64_t bytes_found;
static int strays_found;

static int visit(const char *path, const struct stat *about, int kind, struct FTW *where) {
    (void)where;
    if (kind != FTW_F) return 0;
    const char *name = path + strlen(folder);
    if (strstr(name, ".kvb")) bytes_found += about->st_size;
    if (strstr(name, "/tmp/")) strays_found++;
    return 0;
}

static int64_t counted(void) {
    char path[512];
    int64_t bytes = -1;
    (void)snprintf(path, sizeof path, "%s/state", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&bytes, sizeof bytes, 1, file), 1);
    (void)fclose(file);
    return bytes;
}

static void walk(void) {
    bytes_found = strays_found = 0;
    assert_int_equal(nftw(folder, visit, 16, FTW_PHYS), 0);
}

static void disk_processes__one_that_is_killed_harms_nobody(void **state) {
    uint64_t seed = test_seed(11);
    int status;
    (void)state;
    folder = test_folder_new();
    const pid_t living = start(test_random(&seed), 0);
    for (int i = 0; i < ROUNDS; i++) {
        const struct timespec a_while = {.tv_nsec = 20000000 + test_below(&seed, 40000000)};
        const pid_t dying = start(test_random(&seed), 0);
        (void)nanosleep(&a_while, NULL);
        assert_int_equal(kill(dying, SIGKILL), 0);
        assert_int_equal(waitpid(dying, &status, 0), dying);
        assert_true(WIFSIGNALED(status)); /* it had not ended for a fault */
    }
    assert_int_equal(waitpid(living, &status, WNOHANG), 0);
    assert_int_equal(kill(living, SIGKILL), 0);
    assert_int_equal(waitpid(living, &status, 0), living);

    kvc_tier *tier = open_tier(); /* alone: tidies up and counts */
    walk();
    assert_int_equal(strays_found, 0);
    assert_int_equal(counted(), bytes_found);
    for (uint64_t i = 0; i < KEYS; i++)
        assert_int_not_equal(test_tier_get(tier, i, i, size_of(i)), KVC_TIER_FAULT);
    kvc_tier_free(tier);
    test_folder_remove(folder);
}

static void disk_processes__who_live_count_each_byte_once(void **state) {
    uint64_t seed = test_seed(12);
    pid_t children[3];
    int status;
    (void)state;
    folder = test_folder_new();
    for (int i = 0; i < 3; i++) children[i] = start(test_random(&seed), 400);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    walk();
    assert_int_equal(strays_found, 0);
    /* Scans count while others write: what is off by that stays within what they write at once. */
    const int64_t off = counted() - bytes_found, slack = 6 * (MOST_BYTES + KVC_TIER_HEADER_BYTES);
    assert_true(off >= -slack && off <= slack);
    assert_true(bytes_found <= LIMIT_BYTES + slack);
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disk_processes__one_that_is_killed_harms_nobody),
        cmocka_unit_test(disk_processes__who_live_count_each_byte_once),
    };
    return cmocka_run_group_tests_name("disk_processes", tests, NULL, NULL);
}
