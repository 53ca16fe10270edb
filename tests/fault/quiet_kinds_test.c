/* The steady state of windows, packed rows and blocks asks nothing of the system: no call, no
 * allocation. */
#include <kvcache/blocks.h>
#include <kvcache/cache.h>

#include "quiet.h"
#include "support/support.h"

enum { BATCH = 2, HEADS = 2, DIM = 64, WINDOW = 40, KEEP = 4, SLACK = 3, BLOCK = 32, CHUNK = 64 };

typedef struct fixture {
    kvc_pool *pool;
    kvc_blocks *blocks;
    kvc_cache *cache;
    kvc_array rows; /* [BATCH][HEADS][n][DIM] */
    int64_t steps;
} fixture;

static float zeros[BATCH * HEADS * (SLACK + 1) * DIM];

static void open_all(fixture *f, const kvc_layer_spec *spec, kvc_growth growth) {
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .batch = BATCH,
                           .layers = 1,
                           .specs = spec,
                           .spec_count = 1,
                           .growth = growth,
                           .chunk = CHUNK,
                           .slack = SLACK,
                           .max_positions = growth == KVC_GROW_RESERVE ? 4096 : 0};
    *f = (fixture){.steps = 1};
    assert_ok(kvc_pool_new(&f->pool, kvc_device_cpu()));
    if (growth == KVC_GROW_PAGED) {
        const kvc_blocks_desc blocks = {.struct_size = sizeof blocks,
                                        .layers = 1,
                                        .specs = spec,
                                        .spec_count = 1,
                                        .positions = BLOCK};
        assert_ok(kvc_blocks_new(&f->blocks, f->pool, &blocks));
        desc.blocks = f->blocks;
    }
    assert_ok(kvc_cache_new(&f->cache, f->pool, &desc));
    const int64_t shape[4] = {BATCH, HEADS, 1, DIM};
    assert_ok(kvc_array_borrow(&f->rows, KVC_F32, 4, shape, NULL, zeros));
}

static void close_all(fixture *f) {
    kvc_cache_free(f->cache);
    kvc_blocks_free(f->blocks);
    kvc_pool_free(f->pool);
}

static void assert_quiet(bool (*work)(void *context), fixture *f) {
    const quiet_counts counts = quiet_run(work, f);
    if (counts.calls || counts.allocations)
        fail_msg("%llu system calls, the first number %lld; %llu allocations",
                 (unsigned long long)counts.calls, (long long)counts.first_call,
                 (unsigned long long)counts.allocations);
    assert_true(counts.ok);
}

static bool append(void *context) {
    const fixture *f = context;
    for (int64_t i = 0; i < f->steps; i++)
        if (kvc_cache_append(f->cache, 0, &f->rows, &f->rows) != KVC_OK) return false;
    return true;
}

/* What speculation does: a few positions at once, some of which go again. */
static bool append_and_go_back(void *context) {
    fixture *f = context;
    f->rows.shape[2] = SLACK + 1;
    for (int64_t i = 0; i < f->steps; i++) {
        const int64_t counts[BATCH] = {i % (SLACK + 2), SLACK + 1};
        if (kvc_cache_append_ragged(f->cache, 0, &f->rows, &f->rows, counts) != KVC_OK ||
            kvc_cache_trim_sequence(f->cache, 1, SLACK) != KVC_OK)
            return false;
    }
    return true;
}

static const kvc_dtype dtypes[3] = {KVC_F32, KVC_F16, KVC_BF16};

static void append__to_a_window_is_quiet(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++)
        for (int bits = 0; bits <= 8; bits += 4)
            for (int i = 0; i < 3; i++) {
                const kvc_layer_spec spec = {.kv_heads = HEADS,
                                             .key_dim = DIM,
                                             .dtype = dtypes[i],
                                             .window = WINDOW,
                                             .keep = KEEP,
                                             .kv_bits = bits,
                                             .kv_group = bits ? 32 : 0};
                fixture f;
                open_all(&f, &spec, growth);
                f.steps = WINDOW + SLACK;
                assert_true(append(&f)); /* the ring has turned, or is about to */
                f.steps = 5 * WINDOW;
                assert_quiet(append, &f);
                assert_quiet(append_and_go_back, &f);
                close_all(&f);
            }
}

static void append__to_packed_rows_is_quiet(void **state) {
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_CHUNK; growth++)
        for (int i = 0; i < 6; i++)
            for (int form = 0; form < 8; form++) {
                const kvc_layer_spec spec = {.kv_heads = HEADS,
                                             .key_dim = DIM,
                                             .dtype = KVC_F16,
                                             .kv_bits = widths[i],
                                             .kv_group = 32,
                                             .keys_per_channel = form & 1,
                                             .rotated = form & 2};
                fixture f;
                open_all(&f, &spec, growth);
                f.rows.strides[3] = form & 4 ? 2 : 1; /* elements that follow each other, or not */
                f.steps = CHUNK;
                assert_true(append(&f));
                assert_ok(kvc_cache_trim(f.cache, CHUNK));
                assert_quiet(append, &f);
                close_all(&f);
            }
}

static const kvc_layer_spec plain = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16};

static void append__within_a_block_is_quiet(void **state) {
    (void)state;
    for (int bits = 0; bits <= 8; bits += 4) {
        kvc_layer_spec spec = plain;
        spec.kv_bits = bits;
        spec.kv_group = bits ? 64 : 0;
        fixture f;
        open_all(&f, &spec, KVC_GROW_PAGED);
        assert_true(append(&f)); /* takes a block */
        f.steps = BLOCK - 1;
        assert_quiet(append, &f);
        close_all(&f);
    }
}

static bool fork_and_leave(void *context) {
    const fixture *f = context;
    for (int i = 0; i < 10; i++)
        if (kvc_cache_fork(f->cache, 1, 0) != KVC_OK ||
            kvc_cache_clear_sequence(f->cache, 1) != KVC_OK)
            return false;
    return kvc_cache_fork(f->cache, 1, 0) == KVC_OK;
}

static void fork__is_quiet(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_PAGED; growth++) {
        fixture f;
        open_all(&f, &plain, growth);
        f.steps = 3 * BLOCK + 5;
        assert_true(append(&f));
        assert_quiet(fork_and_leave, &f);
        close_all(&f);
    }
}

int main(void) {
    if (!quiet_can_count()) return 77; /* skipped, to CTest */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append__to_a_window_is_quiet),
        cmocka_unit_test(append__to_packed_rows_is_quiet),
        cmocka_unit_test(append__within_a_block_is_quiet),
        cmocka_unit_test(fork__is_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
