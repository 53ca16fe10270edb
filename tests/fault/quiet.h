/** @file
 * Counts what a piece of work asks of the system: every system call, by a seccomp filter that traps
 * them, and every allocation, by malloc and its kind defined here. So this is linked into test
 * programs that want it and into no other. */
#ifndef KVC_TEST_QUIET_H
#define KVC_TEST_QUIET_H

#include <stdbool.h>
#include <stdint.h>

/** What a piece of work did. */
typedef struct quiet_counts {
    bool ok;              /* what it returned */
    uint64_t calls;       /* of the system; each was refused */
    int64_t first_call;   /* the number of the first; -1: none */
    uint64_t allocations; /* malloc, calloc, realloc, aligned_alloc */
} quiet_counts;

/** Tells whether this build and this system can count; says why not. */
bool quiet_can_count(void);

/** Runs work(context) in a child of its own, which sees the memory as it is now and changes none of
 * it here. */
quiet_counts quiet_run(bool (*work)(void *context), void *context);

#endif
