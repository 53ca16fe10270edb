#include "support/spill_fixture.h"

#include <string.h>

#include "support/support.h"
#include "support/tier_fixture.h"

enum { BLOCK_BYTES = 128, MOST_BLOCKS = 64 };

void spill_machine_init(spill_machine *m, uint64_t most_blocks, kvc_tier *const *tiers,
                        int64_t tier_count) {
    static const kvc_layer_spec spec = {.kv_heads = 1, .key_dim = 1, .dtype = KVC_F16};
    const kvc_blocks_desc blocks = {.struct_size = sizeof blocks,
                                    .layers = 1,
                                    .specs = &spec,
                                    .spec_count = 1,
                                    .positions = SPILL_B,
                                    .limit_bytes = most_blocks * BLOCK_BYTES,
                                    .slab_bytes = 4 * (uint64_t)BLOCK_BYTES};
    kvc_spill_desc desc = {
        .struct_size = sizeof desc, .tiers = tiers, .tier_count = tier_count, .most_in_flight = 64};
    const kvc_tier_desc tier = test_tier_desc();
    memcpy(desc.fingerprint, tier.fingerprint, sizeof desc.fingerprint);
    assert_ok(kvc_pool_new(&m->pool, kvc_device_cpu()));
    assert_ok(kvc_blocks_new(&m->blocks, m->pool, &blocks));
    assert_ok(kvc_prefix_new(&m->tree, m->blocks));
    desc.tree = m->tree;
    assert_ok(kvc_spill_new(&m->spill, &desc));
}

void spill_machine_deinit(spill_machine *m) {
    kvc_blocks_stats stats = {.struct_size = sizeof stats};
    assert_true(kvc_spill_wait(m->spill, UINT64_MAX));
    kvc_spill_free(m->spill);
    assert_ok(kvc_prefix_check(m->tree));
    kvc_prefix_free(m->tree);
    assert_ok(kvc_blocks_check(m->blocks));
    assert_ok(kvc_blocks_stats_get(m->blocks, &stats));
    assert_int_equal(stats.used_blocks, 0); /* nobody's reference is left */
    kvc_blocks_free(m->blocks);
    kvc_pool_free(m->pool);
}

void *spill_memory(const spill_machine *m, int32_t id) {
    kvc_blocks_layout l = {.struct_size = sizeof l};
    assert_ok(kvc_blocks_layout_get(m->blocks, 0, &l));
    assert_int_equal(l.block_bytes, BLOCK_BYTES);
    return (char *)l.slabs[id >> l.slab_shift] +
           (size_t)(id & ((1 << l.slab_shift) - 1)) * l.block_bytes;
}

void spill_expected(void *out, const char *tenant, const int32_t *tokens, int64_t n) {
    uint64_t seed = tenant ? 1 + strlen(tenant) : 1;
    for (const char *at = tenant; at && *at; at++) seed = seed * 1099511628211u ^ (uint64_t)*at;
    for (int64_t i = 0; i < n; i++) seed = (seed ^ (uint32_t)tokens[i]) * 1099511628211u;
    test_tier_payload(out, BLOCK_BYTES, seed);
}

static kvc_prefix_namespace space_of(const char *tenant) {
    return (kvc_prefix_namespace){.struct_size = sizeof(kvc_prefix_namespace),
                                  .tenant = {tenant, tenant ? strlen(tenant) : 0}};
}

int64_t spill_match_held(const spill_machine *m, const char *tenant, const int32_t *tokens,
                         int64_t n, int32_t *ids) {
    const kvc_prefix_namespace space = space_of(tenant);
    char right[BLOCK_BYTES];
    int64_t count;
    assert_ok(kvc_spill_match(m->spill, tenant ? &space : NULL, tokens, n, ids, &count));
    assert_in_range(count, 0, n / SPILL_B);
    for (int64_t i = 0; i < count; i++) {
        spill_expected(right, tenant, tokens, (i + 1) * SPILL_B);
        assert_memory_equal(spill_memory(m, ids[i]), right, BLOCK_BYTES);
    }
    return count;
}

int64_t spill_find(const spill_machine *m, const char *tenant, const int32_t *tokens, int64_t n) {
    int32_t ids[MOST_BLOCKS];
    const int64_t count = spill_match_held(m, tenant, tokens, n, ids);
    assert_ok(kvc_blocks_release(m->blocks, ids, count));
    return count;
}

int64_t spill_turn(const spill_machine *m, const char *tenant, const int32_t *tokens, int64_t n,
                   int64_t *published) {
    const kvc_prefix_namespace space = space_of(tenant);
    int32_t ids[MOST_BLOCKS];
    const int64_t found = spill_match_held(m, tenant, tokens, n, ids);
    int64_t count = found;
    while (count < n / SPILL_B && kvc_blocks_take(m->blocks, 1, ids + count) == KVC_OK) {
        count++;
        spill_expected(spill_memory(m, ids[count - 1]), tenant, tokens, count * SPILL_B);
    }
    assert_ok(kvc_spill_publish(m->spill, tenant ? &space : NULL, tokens, count * SPILL_B, ids, 0));
    assert_ok(kvc_blocks_release(m->blocks, ids, count));
    if (published) *published = count;
    return found;
}

void spill_forget(const spill_machine *m) {
    assert_true(kvc_spill_wait(m->spill, UINT64_MAX));
    (void)kvc_prefix_evict(m->tree, UINT64_MAX);
    kvc_prefix_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_prefix_stats_get(m->tree, &stats));
    assert_int_equal(stats.blocks, 0);
}

kvc_spill_stats spill_stats(const spill_machine *m) {
    kvc_spill_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_spill_stats_get(m->spill, &stats));
    return stats;
}
