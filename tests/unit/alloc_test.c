#include <stdlib.h>
#include <string.h>

#include <kvcache/allocator.h>

#include "base/alloc.h"
#include "support/support.h"

/* Counts, and has nothing left when `room` is 0. */
typedef struct counter {
    size_t room, allocated_bytes, freed_bytes;
} counter;

static void *count_allocate(void *context, size_t bytes) {
    counter *c = context;
    if (c->room < bytes) return NULL;
    c->room -= bytes;
    c->allocated_bytes += bytes;
    void *memory = malloc(bytes);
    return memory ? memset(memory, 0xab, bytes) : NULL;
}

static void count_deallocate(void *context, void *memory, size_t bytes) {
    counter *c = context;
    c->freed_bytes += bytes;
    free(memory);
}

static int restore_allocator(void **state) {
    (void)state;
    kvc_allocator_set(NULL);
    return 0;
}

static void alloc__the_caller_s_allocator_serves_and_is_told_the_sizes(void **state) {
    (void)state;
    counter c = {.room = 1000};
    kvc_allocator_set(&(kvc_allocator){count_allocate, count_deallocate, &c});
    void *memory;
    assert_ok(kvc__calloc(&memory, 10, 24, "things"));
    assert_int_equal(c.allocated_bytes, 240);
    for (size_t i = 0; i < 240; i++) assert_int_equal(((unsigned char *)memory)[i], 0);
    kvc__free(memory, 10, 24);
    kvc__free(NULL, 10, 24);
    assert_int_equal(c.freed_bytes, 240);
    assert_ptr_equal(kvc_allocator_get()->context, &c);
}

static void alloc__want_of_memory_is_an_error_that_names_what_for(void **state) {
    (void)state;
    counter c = {.room = 100};
    kvc_allocator_set(&(kvc_allocator){count_allocate, count_deallocate, &c});
    void *memory = &c;
    assert_fails(kvc__calloc(&memory, 10, 24, "things"), KVC_E_NOMEM);
    assert_null(memory);
    assert_string_equal(kvc_last_error(), "things: no memory for 240 bytes");
}

static void alloc__a_product_that_overflows_asks_nobody(void **state) {
    (void)state;
    counter c = {.room = SIZE_MAX};
    kvc_allocator_set(&(kvc_allocator){count_allocate, count_deallocate, &c});
    void *memory = &c;
    assert_fails(kvc__calloc(&memory, SIZE_MAX / 8 + 1, 8, "things"), KVC_E_RANGE);
    assert_null(memory);
    assert_int_equal(c.allocated_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(alloc__the_caller_s_allocator_serves_and_is_told_the_sizes,
                                  restore_allocator),
        cmocka_unit_test_teardown(alloc__want_of_memory_is_an_error_that_names_what_for,
                                  restore_allocator),
        cmocka_unit_test_teardown(alloc__a_product_that_overflows_asks_nobody, restore_allocator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
