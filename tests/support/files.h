/** @file
 * Files for tests: a folder of their own, whole files in and out. */
#ifndef KVC_TEST_FILES_H
#define KVC_TEST_FILES_H

#include <stddef.h>

enum { TEST_PATH = 512 };

/** A folder below TMPDIR. */
typedef struct test_folder {
    char path[TEST_PATH];
} test_folder;

void test_folder_init(test_folder *folder);

/** Removes it and the files in it. */
void test_folder_deinit(test_folder *folder);

/** Returns how many files there are in it, hidden ones too. */
size_t test_folder_count(const test_folder *folder);

/** Writes the path of a file in it. Returns out. */
const char *test_folder_path(const test_folder *folder, const char *name, char out[TEST_PATH]);

/** Writes a whole new file. */
void test_file_put(const char *path, const void *data, size_t bytes);

/** Reads a whole file to memory that the caller frees. */
char *test_file_get(const char *path, size_t *bytes);

#endif
