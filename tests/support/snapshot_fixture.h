/** @file
 * What tests of snapshots share: a folder, a pool, small caches, and what to compare them by. */
#ifndef KVC_TEST_SNAPSHOT_FIXTURE_H
#define KVC_TEST_SNAPSHOT_FIXTURE_H

#include <kvcache/cache.h>
#include <kvcache/pool.h>

#include "support/files.h"

/** Of the caches of snapshot_filled: a position's elements are those of HEADS · DIM. */
enum { SNAPSHOT_HEADS = 2, SNAPSHOT_DIM = 32, SNAPSHOT_MOST = 512, SNAPSHOT_MOST_BATCH = 4 };

/** Two files in a folder of their own, and a pool. */
typedef struct snapshot_stage {
    test_folder folder;
    char path[TEST_PATH], again[TEST_PATH];
    kvc_pool *pool;
    uint64_t random;
} snapshot_stage;

void snapshot_stage_init(snapshot_stage *stage, uint64_t random);

/** Fails the test where something is still held of the pool. */
void snapshot_stage_deinit(snapshot_stage *stage);

/** A stage as a test's state: for cmocka_unit_test_setup_teardown. */
int snapshot_setup(void **state);
int snapshot_teardown(void **state);

/** Returns one of `count` values. */
int64_t snapshot_one_of(snapshot_stage *stage, int64_t count, const int64_t *values);

/** Makes a cache of one layer with n random positions a sequence, from -1 to 1. */
kvc_cache *snapshot_filled(snapshot_stage *stage, const kvc_layer_spec *spec, kvc_growth growth,
                           int64_t batch, int64_t n);

/** Appends up to n such positions to each layer of a cache.
 * @param counts    [batch] how many each sequence gets; NULL: n
 * @param other     gets the same; or NULL
 * @param sequence  the one of the cache that the other has alone; NULL: it has all */
void snapshot_append(snapshot_stage *stage, kvc_cache *cache, int64_t n, const int64_t *counts,
                     kvc_cache *other, const int64_t *sequence);

/** Attends to a layer of a cache with one query a sequence and head, always the same.
 * @param out  [batch][heads][value_dim] of the layer */
void snapshot_attend(const kvc_cache *cache, int64_t layer, float *out);

/** Fails the test unless two files are the same to the byte. */
void snapshot_files_equal(const char *a, const char *b);

#endif
