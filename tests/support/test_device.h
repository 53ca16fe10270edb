/** @file
 * A device over host memory for tests: counts its calls, notes every misuse, and fails when told.
 * It is stricter than the cpu: memory is exactly as long as asked for (AddressSanitizer sees one
 * byte too many) and poisoned, and reserved memory traps until it is committed. */
#ifndef KVC_TEST_DEVICE_H
#define KVC_TEST_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include <kvcache/device.h>

enum {
    TEST_PAGE_BYTES = 4096, /**< of test devices, whatever the machine has */
    TEST_ROOM_BYTES = 1 << 28,
    TEST_DEVICE_BLOCKS = 4096,
    TEST_POISON = 0xa5 /**< every byte of memory that allocate gives */
};

/** The calls of a device, to count them and to make them fail. */
typedef enum test_call {
    TEST_ALLOCATE,
    TEST_DEALLOCATE,
    TEST_RESERVE,
    TEST_COMMIT,
    TEST_RELEASE,
    TEST_DECOMMIT,
    TEST_COPY,
    TEST_FILL,
    TEST_TRANSFER,
    TEST_SYNCHRONIZE,
    TEST_CALLS /**< how many there are */
} test_call;

/** A block that the device gave and has not got back. */
typedef struct test_block {
    char *memory;
    size_t bytes;
    bool reserved;
} test_block;

/** The device; hand &device.table to the library. */
typedef struct test_device {
    kvc_device table;
    size_t room_bytes;        /**< allocate fails beyond; TEST_ROOM_BYTES at first */
    size_t largest_asked;     /**< bytes of the largest allocate or reserve, failed ones too */
    size_t held_bytes;        /**< by allocate */
    size_t committed_bytes;   /**< by commit, calls that failed left out */
    size_t decommitted_bytes; /**< by decommit */
    size_t copied_bytes;      /**< written by copy, in the destination's dtype */
    size_t calls[TEST_CALLS]; /**< made so far, failed ones too */
    size_t fail_from[TEST_CALLS], fail_until[TEST_CALLS]; /**< see test_device_fail */
    const char *misuse;    /**< the first call that broke the contract; NULL: none */
    void *last_given_back; /**< memory of the last deallocate or release */

    pthread_mutex_t lock;
    test_block blocks[TEST_DEVICE_BLOCKS];
    size_t count;
} test_device;

/** Makes a device that holds nothing. */
void test_device_init(test_device *device);

/** Ends a device; fails the test when it was misused or something was not given back. */
void test_device_deinit(test_device *device);

/** Makes `count` calls of one kind fail, from the nth from now on (nth >= 1). */
void test_device_fail(test_device *device, test_call call, size_t nth, size_t count);

/** Returns the calls that the pool counts as driver calls. */
size_t test_device_driver_calls(const test_device *device);

#endif
