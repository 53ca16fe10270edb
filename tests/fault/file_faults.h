/** @file
 * The store's calls to the system (store/file.h), of which each is a point that fails on purpose
 * (support/fault.h), ends the process, or does less than it is asked. */
#ifndef KVC_TEST_FILE_FAULTS_H
#define KVC_TEST_FILE_FAULTS_H

#include <stddef.h>

/** What happens at a point that is armed, or everywhere. */
typedef enum test_file_fault {
    TEST_FILE_FAILS,   /**< the call returns an error and has done nothing; close has closed */
    TEST_FILE_KILLS,   /**< the process is killed before the call */
    TEST_FILE_TEARS,   /**< half of what a write is given is written, and the process killed */
    TEST_FILE_HAS_LESS /**< at every call: at most 7 bytes are read or written, every third call
                            is interrupted; nothing else fails */
} test_file_fault;

/** Puts the calls in place.
 * @param error  the errno of those that fail */
void test_file_faults_use(test_file_fault fault, int error);

/** Puts the system's own calls back. */
void test_file_faults_end(void);

/** Returns how many descriptors and mappings are open that were opened through the calls. */
size_t test_file_faults_open(void);

#endif
