#include "support/support.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *test_shared_path(const char *file) {
    static char path[PATH_MAX];
    const char *folder = getenv("KVC_SHARED_DIR");
    if (!folder || !*folder) {
        print_message("skipped: KVC_SHARED_DIR is not set, %s wanted\n", file);
        skip();
    }
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s: %s\n", path, strerror(errno));
        skip();
    }
    return path;
}

uint64_t test_seed(uint64_t otherwise) {
    const char *text = getenv("KVC_TEST_SEED");
    const uint64_t seed = text && *text ? strtoull(text, NULL, 0) : otherwise;
    print_message("KVC_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

double test_seconds(double otherwise) {
    const char *text = getenv("KVC_TEST_SECONDS");
    return text && *text ? strtod(text, NULL) : otherwise;
}

uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t test_below(uint64_t *state, int64_t n) {
    return (int64_t)(test_random(state) % (uint64_t)n);
}

double test_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
