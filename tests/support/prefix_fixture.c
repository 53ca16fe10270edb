#include "support/prefix_fixture.h"

#include <string.h>

enum { LONGEST = 32 };

kvc_blocks *prefix_blocks(kvc_pool *pool, uint64_t most, uint64_t slab) {
    static const kvc_layer_spec spec = {.kv_heads = 1, .key_dim = 1, .dtype = KVC_F16};
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = 1,
                                  .specs = &spec,
                                  .spec_count = 1,
                                  .positions = PREFIX_B,
                                  .limit_bytes = most * PREFIX_BLOCK_BYTES,
                                  .slab_bytes = slab * PREFIX_BLOCK_BYTES};
    kvc_blocks *blocks;
    assert_ok(kvc_blocks_new(&blocks, pool, &desc));
    return blocks;
}

int prefix_fixture_setup(void **state) {
    static prefix_fixture fixture;
    void *base;
    if (pool_fixture_setup(&base) != 0) return 1;
    fixture.base = base;
    fixture.blocks = prefix_blocks(fixture.base->pool, 32, 4);
    assert_ok(kvc_prefix_new(&fixture.tree, fixture.blocks));
    *state = &fixture;
    return 0;
}

int prefix_fixture_teardown(void **state) {
    prefix_fixture *f = *state;
    void *base = f->base;
    if (f->tree) assert_ok(kvc_prefix_check(f->tree));
    assert_ok(kvc_blocks_check(f->blocks));
    kvc_prefix_free(f->tree);
    assert_ok(kvc_blocks_check(f->blocks));
    kvc_blocks_free(f->blocks);
    return pool_fixture_teardown(&base);
}

int64_t prefix_tokens(int32_t *out, const char *letters) {
    const int64_t blocks = (int64_t)strlen(letters);
    for (int64_t i = 0; i < blocks * PREFIX_B; i++)
        out[i] = letters[i / PREFIX_B] * 1000 + (int32_t)(i % PREFIX_B);
    return blocks * PREFIX_B;
}

kvc_prefix_namespace prefix_space(const char *tenant, const char *adapter, const char *model) {
    return (kvc_prefix_namespace){.struct_size = sizeof(kvc_prefix_namespace),
                                  .tenant = {tenant, strlen(tenant)},
                                  .adapter = {adapter, strlen(adapter)},
                                  .model = {model, strlen(model)}};
}

int64_t prefix_insert_held(const prefix_fixture *f, const char *letters, int priority,
                           int32_t *ids) {
    int32_t tokens[LONGEST * PREFIX_B];
    int64_t stored;
    const int64_t n = prefix_tokens(tokens, letters);
    assert_ok(kvc_blocks_take(f->blocks, n / PREFIX_B, ids));
    assert_ok(kvc_prefix_insert(f->tree, NULL, tokens, n, ids, priority, &stored));
    return stored;
}

int64_t prefix_insert(const prefix_fixture *f, const char *letters, int priority) {
    int32_t ids[LONGEST];
    const int64_t stored = prefix_insert_held(f, letters, priority, ids);
    assert_ok(kvc_blocks_release(f->blocks, ids, (int64_t)strlen(letters)));
    return stored;
}

int64_t prefix_stored(const prefix_fixture *f, const char *letters) {
    int32_t tokens[LONGEST * PREFIX_B];
    int64_t count;
    const int64_t n = prefix_tokens(tokens, letters);
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, NULL, &count));
    return count;
}

int64_t prefix_use(const prefix_fixture *f, const char *letters) {
    int32_t tokens[LONGEST * PREFIX_B], ids[LONGEST];
    int64_t count;
    const int64_t n = prefix_tokens(tokens, letters);
    assert_ok(kvc_prefix_match(f->tree, NULL, tokens, n, ids, &count));
    assert_ok(kvc_blocks_release(f->blocks, ids, count));
    return count;
}

kvc_prefix_stats prefix_stats(kvc_prefix *tree) {
    kvc_prefix_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_prefix_stats_get(tree, &stats));
    return stats;
}
