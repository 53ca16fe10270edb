#include "support/tier_fixture.h"

#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

static _Thread_local kvc_tier_fault last_fault;
static atomic_int logged[KVC_TIER_FAULTS_MAX];

void test_tier_key(uint8_t *key, uint64_t number) {
    uint64_t state = number;
    for (int i = 0; i < KVC_BLOCK_KEY_BYTES; i++) key[i] = (uint8_t)test_random(&state);
}

void test_tier_payload(void *data, size_t bytes, uint64_t seed) {
    uint8_t *out = data;
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t word = test_random(&seed);
        memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

static void on_log(void *context, kvc_tier_fault fault, const char *sentence) {
    (void)context;
    if (*sentence) (void)atomic_fetch_add(&logged[fault], 1);
}

kvc_tier_desc test_tier_desc(void) {
    kvc_tier_desc desc = {.struct_size = sizeof desc, .log = on_log};
    for (int i = 0; i < KVC_TIER_FAULTS_MAX; i++) atomic_store(&logged[i], 0);
    memset(desc.fingerprint, 0x5f, sizeof desc.fingerprint);
    return desc;
}

int test_tier_logged(kvc_tier_fault fault) {
    return atomic_load(&logged[fault]);
}

kvc_tier_result test_tier_put(kvc_tier *tier, uint64_t number, uint64_t seed, size_t bytes) {
    uint8_t key[KVC_BLOCK_KEY_BYTES], *data = malloc(bytes + 1);
    assert_non_null(data);
    kvc_tier_item item = {.key = key, .data = data, .size_bytes = bytes};
    test_tier_key(key, number);
    test_tier_payload(data, bytes, seed);
    assert_ok(kvc_tier_put_many(tier, &item, 1));
    free(data);
    last_fault = item.fault;
    return item.result;
}

kvc_tier_result test_tier_get(kvc_tier *tier, uint64_t number, uint64_t seed, size_t bytes) {
    uint8_t key[KVC_BLOCK_KEY_BYTES], *data = malloc(bytes + 1), *right = malloc(bytes + 1);
    assert_non_null(data);
    assert_non_null(right);
    kvc_tier_item item = {.key = key, .data = data, .size_bytes = bytes};
    test_tier_key(key, number);
    test_tier_payload(right, bytes, seed);
    memset(data, 0xa5, bytes + 1);
    assert_ok(kvc_tier_get_into_many(tier, &item, 1));
    if (item.result == KVC_TIER_HIT) assert_memory_equal(data, right, bytes);
    assert_int_equal(data[bytes], 0xa5);
    free(data);
    free(right);
    last_fault = item.fault;
    return item.result;
}

kvc_tier_result test_tier_exists(kvc_tier *tier, uint64_t number) {
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    kvc_tier_item item = {.key = key};
    test_tier_key(key, number);
    assert_ok(kvc_tier_exists_many(tier, &item, 1));
    last_fault = item.fault;
    return item.result;
}

kvc_tier_fault test_tier_fault(void) {
    return last_fault;
}

kvc_tier_stats test_tier_stats(kvc_tier *tier) {
    kvc_tier_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_tier_stats_get(tier, &stats));
    return stats;
}

char *test_folder_new(void) {
    const char *parent = getenv("TMPDIR");
    char *folder = NULL;
    if (asprintf(&folder, "%s/kvc-test-XXXXXX", parent ? parent : "/tmp") < 0) folder = NULL;
    assert_non_null(folder);
    assert_non_null(mkdtemp(folder));
    return folder;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where) {
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

void test_folder_remove(char *folder) {
    assert_int_equal(nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(folder);
}
