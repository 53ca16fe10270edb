#include "support/snapshot_fixture.h"

#include <stdlib.h>

#include <kvcache/attention.h>

#include "support/support.h"

void snapshot_stage_init(snapshot_stage *stage, uint64_t random) {
    *stage = (snapshot_stage){.random = random};
    test_folder_init(&stage->folder);
    (void)test_folder_path(&stage->folder, "a.safetensors", stage->path);
    (void)test_folder_path(&stage->folder, "b.safetensors", stage->again);
    assert_ok(kvc_pool_new(&stage->pool, kvc_device_cpu()));
}

void snapshot_stage_deinit(snapshot_stage *stage) {
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(stage->pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    kvc_pool_free(stage->pool);
    test_folder_deinit(&stage->folder);
}

int snapshot_setup(void **state) {
    static snapshot_stage stage;
    snapshot_stage_init(&stage, 7);
    *state = &stage;
    return 0;
}

int snapshot_teardown(void **state) {
    snapshot_stage_deinit(*state);
    return 0;
}

int64_t snapshot_one_of(snapshot_stage *stage, int64_t count, const int64_t *values) {
    return values[test_below(&stage->random, count)];
}

/* [batch][heads][n][dim] of random numbers, which *numbers owns. */
static kvc_array random_rows(snapshot_stage *stage, float **numbers, int64_t batch, int64_t heads,
                             int64_t n, int64_t dim) {
    const int64_t shape[] = {batch, heads, n, dim}, count = batch * heads * n * dim;
    kvc_array rows;
    *numbers = malloc((size_t)count * sizeof **numbers);
    assert_non_null(*numbers);
    for (int64_t i = 0; i < count; i++)
        (*numbers)[i] = (float)test_below(&stage->random, 2000) / 1000 - 1;
    assert_ok(kvc_array_borrow(&rows, KVC_F32, 4, shape, NULL, *numbers));
    return rows;
}

static kvc_array sequence_of(const kvc_array *rows, int64_t sequence) {
    kvc_array one = *rows;
    one.data = (float *)one.data + sequence * one.strides[0];
    one.shape[0] = 1;
    return one;
}

void snapshot_append(snapshot_stage *stage, kvc_cache *cache, int64_t n, const int64_t *counts,
                     kvc_cache *other, const int64_t *sequence) {
    int64_t all[SNAPSHOT_MOST_BATCH];
    for (int b = 0; b < SNAPSHOT_MOST_BATCH; b++) all[b] = n;
    if (!counts) counts = all;
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    assert_ok(kvc_cache_desc_get(cache, &desc));
    for (int64_t i = 0; i < desc.layers; i++) {
        const kvc_layer_spec *spec = &desc.specs[i];
        float *keys, *values;
        const kvc_array k = random_rows(stage, &keys, desc.batch, spec->kv_heads, n, spec->key_dim);
        const kvc_array v =
            random_rows(stage, &values, desc.batch, spec->kv_heads, n, spec->value_dim);
        assert_ok(kvc_cache_append_ragged(cache, i, &k, &v, counts));
        if (other && sequence) {
            const kvc_array k_one = sequence_of(&k, *sequence), v_one = sequence_of(&v, *sequence);
            assert_ok(kvc_cache_append_ragged(other, i, &k_one, &v_one, counts + *sequence));
        } else if (other) assert_ok(kvc_cache_append_ragged(other, i, &k, &v, counts));
        free(keys);
        free(values);
    }
}

kvc_cache *snapshot_filled(snapshot_stage *stage, const kvc_layer_spec *spec, kvc_growth growth,
                           int64_t batch, int64_t n) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .layers = 1,
                                 .specs = spec,
                                 .spec_count = 1,
                                 .growth = growth,
                                 .max_positions = SNAPSHOT_MOST};
    kvc_cache *cache;
    assert_ok(kvc_cache_new(&cache, stage->pool, &desc));
    for (int64_t i = 0; i < n; i++) snapshot_append(stage, cache, 1, NULL, NULL, NULL);
    return cache;
}

void snapshot_attend(const kvc_cache *cache, int64_t layer, float *out) {
    kvc_attention_desc desc = {.struct_size = sizeof desc};
    kvc_cache_desc of = {.struct_size = sizeof of};
    kvc_attention *plan;
    kvc_array q_rows, out_rows;
    assert_ok(kvc_cache_desc_get(cache, &of));
    const kvc_layer_spec *spec = &of.specs[layer];
    const int64_t q_shape[] = {of.batch, spec->kv_heads, 1, spec->key_dim};
    const int64_t out_shape[] = {of.batch, spec->kv_heads, 1, spec->value_dim};
    const int64_t count = of.batch * spec->kv_heads * spec->key_dim;
    float *q = malloc((size_t)count * sizeof *q);
    assert_non_null(q);
    for (int64_t i = 0; i < count; i++) q[i] = (float)(i % 5) / 4;
    assert_ok(kvc_attention_desc_for(&desc, cache, layer));
    desc.q_heads = spec->kv_heads;
    assert_ok(kvc_attention_plan(&plan, &desc));
    assert_ok(kvc_array_borrow(&q_rows, KVC_F32, 4, q_shape, NULL, q));
    assert_ok(kvc_array_borrow(&out_rows, KVC_F32, 4, out_shape, NULL, out));
    assert_ok(kvc_attention_run(plan, cache, layer, &q_rows, &out_rows, NULL));
    kvc_attention_free(plan);
    free(q);
}

void snapshot_files_equal(const char *a, const char *b) {
    size_t a_bytes, b_bytes;
    char *x = test_file_get(a, &a_bytes), *y = test_file_get(b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(x, y, a_bytes);
    free(x);
    free(y);
}
