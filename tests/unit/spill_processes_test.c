/* Processes that share one folder, each with a tree and a spill of its own: what one computed
 * others find, and a kill harms nobody. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/tier_disk.h>

#include "support/spill_fixture.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { B = SPILL_B, DEPTH = 8, LIMIT_BYTES = 30000 };

static char *folder;

static kvc_tier *open_tier(uint64_t limit_bytes) {
    kvc_tier *tier;
    const kvc_tier_desc tier_desc = test_tier_desc();
    const kvc_tier_disk_desc desc = {
        .struct_size = sizeof desc, .folder = folder, .limit_bytes = limit_bytes};
    assert_ok(kvc_tier_disk_new(&tier, &tier_desc, &desc));
    return tier;
}

/* Turns of an engine until killed, or so many. Returns the blocks that came from the folder. A
 * failed assertion ends the process with 255. */
static uint64_t engine(uint64_t seed, int turns, uint64_t limit_bytes) {
    kvc_tier *tier = open_tier(limit_bytes);
    spill_machine m;
    spill_machine_init(&m, 16, &tier, 1);
    for (int i = 0; turns == 0 || i < turns; i++) {
        int32_t tokens[DEPTH * B];
        const int64_t blocks = 1 + test_below(&seed, DEPTH);
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t letter = test_below(&seed, 2);
            for (int64_t j = 0; j < B; j++) tokens[b * B + j] = (int32_t)(100 * letter + j);
        }
        (void)spill_turn(&m, NULL, tokens, blocks * B, NULL);
        if (i % 8 == 0) spill_forget(&m);
    }
    const uint64_t found = spill_stats(&m).tiers[0].found_blocks;
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
    return found;
}

static pid_t start(uint64_t seed, int turns, uint64_t limit_bytes) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(engine(seed, turns, limit_bytes) > 0 ? 0 : 1);
}

static void spill_processes__one_finds_what_another_computed(void **state) {
    int32_t tokens[DEPTH * B];
    int status;
    (void)state;
    folder = test_folder_new();
    for (int32_t i = 0; i < DEPTH * B; i++) tokens[i] = i;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvc_tier *tier = open_tier(0);
        spill_machine m;
        spill_machine_init(&m, 16, &tier, 1);
        (void)spill_turn(&m, "a", tokens, DEPTH * B, NULL);
        (void)kvc_spill_wait(m.spill, UINT64_MAX);
        (void)raise(SIGKILL); /* nothing is left to be done at the end */
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    kvc_tier *tier = open_tier(0);
    spill_machine m;
    spill_machine_init(&m, 16, &tier, 1);
    assert_int_equal(spill_find(&m, "b", tokens, DEPTH * B), 0);
    assert_int_equal(spill_find(&m, "a", tokens, DEPTH * B), DEPTH);
    spill_machine_deinit(&m);
    kvc_tier_free(tier);
    test_folder_remove(folder);
}

static void spill_processes__that_share_a_small_folder_are_never_wrong(void **state) {
    uint64_t seed = test_seed(71);
    pid_t children[2];
    int status;
    (void)state;
    folder = test_folder_new();
    for (int i = 0; i < 2; i++) children[i] = start(test_random(&seed), 200, LIMIT_BYTES);
    for (int i = 0; i < 6; i++) {
        const struct timespec a_while = {.tv_nsec = 10000000 + test_below(&seed, 20000000)};
        const pid_t dying = start(test_random(&seed), 0, LIMIT_BYTES);
        (void)nanosleep(&a_while, NULL);
        assert_int_equal(kill(dying, SIGKILL), 0);
        assert_int_equal(waitpid(dying, &status, 0), dying);
        assert_true(WIFSIGNALED(status)); /* it had not ended for a failure */
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    test_folder_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spill_processes__one_finds_what_another_computed),
        cmocka_unit_test(spill_processes__that_share_a_small_folder_are_never_wrong),
    };
    return cmocka_run_group_tests_name("spill_processes", tests, NULL, NULL);
}
