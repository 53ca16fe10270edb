#include "support/fault.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/allocator.h>

#include "support/support.h"

static atomic_long points_left = -1; /* before the one that fails; -1: none is armed */
static atomic_bool forever, failed;

void test_fault_arm(size_t nth, test_fault_span span) {
    atomic_store(&forever, span == TEST_FAULT_FOREVER);
    atomic_store(&failed, false);
    atomic_store(&points_left, (long)nth);
}

bool test_fault_disarm(void) {
    atomic_store(&points_left, -1);
    return atomic_load(&failed);
}

bool test_fault_here(void) {
    long left = atomic_load(&points_left);
    do {
        if (left < 0) return false;
        if (left == 0 && !atomic_load(&forever)) return false; /* it has failed once */
    } while (!atomic_compare_exchange_weak(&points_left, &left, left > 0 ? left - 1 : 0));
    if (left > 1) return false;
    atomic_store(&failed, true);
    return true;
}

/* Before each object: its size, and a word that an overrun of the one before would change. */
typedef struct header {
    size_t bytes;
    size_t guard;
} header;

enum { LARGEST_BYTES = 1 << 28 }; /* what is larger fails, as it would at last in malloc */

static const size_t guard = (size_t)0x5ca1ab1e0ddba11u;
static atomic_size_t held, calls;

static void *allocate(void *context, size_t bytes) {
    (void)context;
    (void)atomic_fetch_add(&calls, 1);
    if (bytes > LARGEST_BYTES || test_fault_here()) return NULL;
    header *h = malloc(sizeof *h + bytes);
    if (!h) return NULL;
    *h = (header){bytes, guard};
    (void)atomic_fetch_add(&held, 1);
    return memset(h + 1, 0xa5, bytes);
}

static void deallocate(void *context, void *memory, size_t bytes) {
    (void)context;
    header *h = (header *)memory - 1;
    if (h->guard != guard || h->bytes != bytes) {
        print_error("allocator: %zu bytes come back as %zu\n", h->bytes, bytes);
        abort();
    }
    (void)atomic_fetch_sub(&held, 1);
    free(h);
}

void test_allocator_use(bool use) {
    static const kvc_allocator counting = {allocate, deallocate, NULL};
    kvc_allocator_set(use ? &counting : NULL);
}

size_t test_allocator_held(void) {
    return atomic_load(&held);
}

size_t test_allocator_calls(void) {
    return atomic_load(&calls);
}
