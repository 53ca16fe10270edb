/** @file
 * Reads safetensors files for tests: a length (u64, little-endian), a JSON header, the data. The
 * file is trusted: what is not as expected fails the running test. */
#ifndef KVC_TEST_SAFETENSORS_H
#define KVC_TEST_SAFETENSORS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <kvcache/array.h>

/** An open file. */
typedef struct test_safetensors {
    json_t *header;
    char *bytes; /* the whole file */
    const char *data;
    size_t data_bytes;
} test_safetensors;

test_safetensors test_safetensors_open(const char *path);
void test_safetensors_close(test_safetensors *file);

/** Returns a text of the metadata, or NULL.
 * @lifetime the file's */
const char *test_safetensors_metadata(const test_safetensors *file, const char *key);

bool test_safetensors_has(const test_safetensors *file, const char *name);

/** Copies a tensor to memory of its own, aligned as its dtype wants: the data of a file need not
 * be. Free its data. */
kvc_array test_safetensors_tensor(const test_safetensors *file, const char *name);

#endif
