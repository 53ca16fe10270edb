/** @file
 * An allocator for tests (kvc_allocator_set): malloc's, which counts and fails where it is told to.
 * For one thread. */
#ifndef KVC_TEST_FAULTY_HEAP_H
#define KVC_TEST_FAULTY_HEAP_H

#include <stdint.h>

/** What the library has asked for since faulty_heap_install. */
typedef struct faulty_heap {
    uint64_t calls;      /* allocations, those that failed too */
    uint64_t live;       /* blocks not yet freed; 0 in the end when nothing leaked */
    uint64_t good_calls; /* that many more succeed, then all fail */
} faulty_heap;

/** Zeroes the figures and gives the library this allocator; nothing fails. */
void faulty_heap_install(faulty_heap *heap);

/** Lets the next `good` allocations succeed and fails all after them; UINT64_MAX: none fails. */
void faulty_heap_fail_after(faulty_heap *heap, uint64_t good);

/** Gives the library malloc back, and fails the test when a block is still alive. */
void faulty_heap_uninstall(faulty_heap *heap);

#endif
