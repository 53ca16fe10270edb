/** @file
 * A device for tests: the cpu's, which counts what it is asked for, fails where it is told to, and
 * whose reserved memory traps until it is committed. For one thread. */
#ifndef KVC_TEST_FAULTY_DEVICE_H
#define KVC_TEST_FAULTY_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/device.h>

/** The calls that can fail. */
typedef enum faulty_call {
    FAULTY_ALLOCATE,
    FAULTY_RESERVE,
    FAULTY_COMMIT,
    FAULTY_COPY,
    FAULTY_CALLS /* how many there are */
} faulty_call;

/** A device and what it has seen. Give &device to kvc_pool_new. */
typedef struct faulty_device {
    kvc_device device;
    uint64_t calls[FAULTY_CALLS]; /* those that failed too */
    uint64_t copied_bytes;        /* written by copy, in the destination's dtype */
    uint64_t committed_bytes;
    uint64_t held_bytes; /* given and not yet taken back; 0 in the end when nothing leaked */
    uint64_t good_calls; /* that many more succeed, then all fail */
} faulty_device;

/** Fills the table; nothing fails. */
void faulty_device_init(faulty_device *device);

/** Lets the next `good` calls succeed and fails all after them; UINT64_MAX: none fails.
 * All and not one: the pool asks twice before it believes that there is no memory. */
void faulty_device_fail_after(faulty_device *device, uint64_t good);

/** Returns the calls that asked for memory: all but copies. */
uint64_t faulty_device_memory_calls(const faulty_device *device);

#endif
