/** @file
 * Failures on purpose. Every point of a test that can fail (an allocation, a call on a device) asks
 * test_fault_here; which one fails is armed beforehand. An allocator that counts comes with it. */
#ifndef KVC_TEST_FAULT_H
#define KVC_TEST_FAULT_H

#include <stdbool.h>
#include <stddef.h>

/** How long an armed fault lasts. */
typedef enum test_fault_span {
    TEST_FAULT_ONCE,   /**< one point fails, those after it work again */
    TEST_FAULT_FOREVER /**< it and all after it fail */
} test_fault_span;

/** Makes the nth point from now on fail, nth >= 1. */
void test_fault_arm(size_t nth, test_fault_span span);

/** Lets everything work again. Returns true when a point failed since the last arming. */
bool test_fault_disarm(void);

/** Asks whether this point fails. Thread-safe. */
bool test_fault_here(void);

/** Makes the library's small objects come from an allocator that asks test_fault_here, counts, and
 * verifies that memory comes back whole and with its size. False gives malloc and free back. */
void test_allocator_use(bool use);

/** Returns how many objects the allocator has given out and not taken back. */
size_t test_allocator_held(void);

/** Returns how many allocations there have been. */
size_t test_allocator_calls(void);

#endif
