/* Attention through block tables: each path, alone and by threads, against the formula on the rows
 * in order. What no query sees is NaN, and so is every block that is in no table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/attention.h>
#include <kvcache/blocks.h>

#include "support/attend.h"
#include "support/support.h"

static const int64_t block_positions[] = {16, 20, 64, 256};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
static const int64_t edges[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

enum { LAYERS = 2, LAYER = 1, SPARE_BLOCKS = 5, SPARE_IDS = 2 };

/* The keys and values of a problem in blocks, out of order. */
typedef struct paged {
    kvc_pool *pool;
    kvc_blocks *blocks;
    int64_t taken, stride;
    int32_t *ids;     /* [taken] */
    int32_t *tables;  /* [batch][stride]; ids behind a length name no block */
    int64_t *lengths; /* [batch] */
} paged;

static void fill_with_nan(kvc_blocks *blocks, int32_t id) {
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        kvc_array k, v;
        assert_ok(kvc_blocks_view(blocks, id, layer, &k, &v));
        memset(k.data, 0xff, kvc_array_nbytes(&k));
        memset(v.data, 0xff, kvc_array_nbytes(&v));
        kvc_array_release(&k);
        kvc_array_release(&v);
    }
}

static void shuffle(int32_t *ids, int64_t n, uint64_t *seed) {
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t other = test_below(seed, i + 1);
        const int32_t id = ids[i];
        ids[i] = ids[other];
        ids[other] = id;
    }
}

/* to[h][row] = from[b][h][position] */
static void put(const kvc_array *to, int64_t row, const kvc_array *from, int64_t b,
                int64_t position) {
    for (int64_t h = 0; h < from->shape[1]; h++)
        for (int64_t d = 0; d < from->shape[3]; d++) {
            const int64_t element = h * to->strides[0] + row * to->strides[1] + d;
            const int64_t source = b * from->strides[0] + h * from->strides[1] +
                                   position * from->strides[2] + d * from->strides[3];
            const size_t bytes = kvc_dtype_size_bytes(to->dtype);
            memcpy((char *)to->data + (size_t)element * bytes,
                   (const char *)from->data + (size_t)source * bytes, bytes);
        }
}

static void fill_tables(paged *g, const test_problem *p, int64_t positions, uint64_t *seed) {
    static const int32_t no_blocks[] = {-1, INT32_MAX, INT32_MIN, 1 << 20};
    int64_t next = 0;
    for (int64_t b = 0; b < p->c.batch; b++)
        for (int64_t i = 0; i < g->stride; i++) {
            int32_t *id = &g->tables[b * g->stride + i];
            *id = no_blocks[test_below(seed, COUNT(no_blocks))];
            if (i * positions >= g->lengths[b]) continue;
            *id = g->ids[next++];
            kvc_array k, v;
            assert_ok(kvc_blocks_view(g->blocks, *id, LAYER, &k, &v));
            for (int64_t row = 0; row < positions && i * positions + row < g->lengths[b]; row++) {
                put(&k, row, &p->k.array, b, i * positions + row);
                put(&v, row, &p->v.array, b, i * positions + row);
            }
            kvc_array_release(&k);
            kvc_array_release(&v);
        }
}

static paged paged_new(const test_problem *p, int64_t positions, uint64_t *seed) {
    const test_case *c = &p->c;
    const kvc_layer_spec specs[LAYERS] = {
        {.kv_heads = 3, .key_dim = 5, .value_dim = 5, .dtype = KVC_F32},
        {.kv_heads = c->kv_heads,
         .key_dim = c->key_dim,
         .value_dim = c->value_dim,
         .dtype = c->kv_dtype}};
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = LAYERS,
                                  .specs = specs,
                                  .spec_count = LAYERS,
                                  .positions = positions,
                                  .slab_bytes = (uint64_t)test_below(seed, 400000)};
    paged g = {.stride = (c->length + positions - 1) / positions + SPARE_IDS};
    g.taken = c->batch * g.stride + SPARE_BLOCKS;
    g.ids = malloc((size_t)g.taken * sizeof *g.ids);
    g.tables = malloc((size_t)(c->batch * g.stride) * sizeof *g.tables);
    g.lengths = malloc((size_t)c->batch * sizeof *g.lengths);
    assert_true(g.ids && g.tables && g.lengths);
    for (int64_t b = 0; b < c->batch; b++) g.lengths[b] = c->lengths ? c->lengths[b] : c->length;
    assert_ok(kvc_pool_new(&g.pool, kvc_device_cpu()));
    assert_ok(kvc_blocks_new(&g.blocks, g.pool, &desc));
    assert_ok(kvc_blocks_take(g.blocks, g.taken, g.ids));
    for (int64_t i = 0; i < g.taken; i++) fill_with_nan(g.blocks, g.ids[i]);
    shuffle(g.ids, g.taken, seed);
    fill_tables(&g, p, positions, seed);
    return g;
}

static void paged_free(paged *g) {
    assert_ok(kvc_blocks_release(g->blocks, g->ids, g->taken));
    kvc_blocks_free(g->blocks);
    kvc_pool_free(g->pool);
    free(g->ids);
    free(g->tables);
    free(g->lengths);
}

static kvc_status run(const test_problem *p, const paged *g, kvc_path path,
                      const kvc_executor *executor) {
    test_problem own = *p;
    kvc_attention *plan;
    kvc_attention_desc desc = test_desc(p, path);
    kvc_attention_extras extras = test_extras(&own);
    desc.executor = executor;
    extras.lengths = NULL;
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc_status status =
        kvc_attention_run_blocks(plan, g->blocks, LAYER, g->tables, g->stride, g->lengths,
                                 &own.q.array, &own.out.array, &extras);
    kvc_attention_free(plan);
    return status;
}

/* On the fused path, there by threads, and now and then on the reference, which is slow. A case
 * with lengths has one of all its positions. */
static void check(const test_case *c, int64_t positions, uint64_t *seed) {
    if (test_leaves_out(c, seed)) return;
    test_problem p = test_problem_new(c, seed);
    test_truth right = test_truth_new(&p);
    test_poison_unseen(&p);
    paged g = paged_new(&p, positions, seed);
    const kvc_executor executor = test_seven_threads();
    for (int turn = test_below(seed, 4) ? 1 : 0; turn < 3; turn++) {
        memset(p.out.memory, 0xff, kvc_array_nbytes(&p.out.array));
        memset(p.lse.memory, 0xff, kvc_array_nbytes(&p.lse.array));
        assert_ok(
            run(&p, &g, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE, turn == 2 ? &executor : NULL));
        test_compare(&p, &right);
    }
    paged_free(&g);
    test_truth_free(&right);
    test_problem_free(&p);
}

static void blocks__every_size_dtype_and_dim_is_right(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 7, 16, 33, 64, 80, 100, 128};
    uint64_t seed = test_seed(81);
    for (int n = 0; n < COUNT(block_positions); n++)
        for (int t = 0; t < COUNT(dtypes); t++)
            for (int d = 0; d < COUNT(dims); d++)
                check(&(test_case){.kv_heads = 2,
                                   .q_heads = 2 * (1 + test_below(&seed, 5)),
                                   .key_dim = dims[d],
                                   .value_dim = dims[test_below(&seed, 2) ? d : 7 - d],
                                   .kv_dtype = dtypes[t],
                                   .length = 1 + test_below(&seed, 400)},
                      block_positions[n], &seed);
}

static void blocks__every_tail_and_number_of_rows_is_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(82);
    for (int n = 0; n < COUNT(block_positions); n++)
        for (int l = 0; l < COUNT(edges); l++)
            for (int64_t rows = 1; rows <= 9; rows += 2 + test_below(&seed, 3))
                check(&(test_case){.q_heads = rows,
                                   .key_dim = test_below(&seed, 2) ? 128 : 64,
                                   .kv_dtype = KVC_BF16,
                                   .length = edges[l]},
                      block_positions[n], &seed);
}

static void blocks__long_sequences_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(83);
    for (int n = 0; n < COUNT(block_positions); n++)
        for (int64_t heads = 1; heads <= 4; heads += 3)
            check(&(test_case){.kv_heads = 2,
                               .q_heads = 2 * heads,
                               .key_dim = 64,
                               .value_dim = n % 2 ? 64 : 48,
                               .kv_dtype = KVC_F16,
                               .length = 1500 + test_below(&seed, 300)},
                  block_positions[n], &seed);
}

static void blocks__many_queries_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(84);
    for (int n = 0; n < COUNT(block_positions); n++)
        for (int64_t queries = 3; queries <= 150; queries += 20 + test_below(&seed, 20))
            check(&(test_case){.kv_heads = 2,
                               .q_heads = 4,
                               .key_dim = 24 + test_below(&seed, 30),
                               .queries = queries,
                               .kv_dtype = dtypes[test_below(&seed, 3)],
                               .window = test_below(&seed, 2) * 70,
                               .length = queries + test_below(&seed, 200)},
                  block_positions[n], &seed);
}

static void blocks__variants_are_right(void **state) {
    (void)state;
    uint64_t seed = test_seed(85);
    for (int i = 0; i < 120; i++) {
        const int64_t heads = 1 + test_below(&seed, 2), queries = 1 + test_below(&seed, 6);
        const int64_t length = queries + test_below(&seed, 300);
        const int64_t lengths[] = {test_below(&seed, length + 1), length, test_below(&seed, 2)};
        const int64_t window = test_below(&seed, 3) ? 1 + test_below(&seed, 150) : 0;
        check(&(test_case){.batch = 3,
                           .kv_heads = heads,
                           .q_heads = heads * (1 + test_below(&seed, 6)),
                           .key_dim = 1 + test_below(&seed, 70),
                           .value_dim = 1 + test_below(&seed, 70),
                           .queries = queries,
                           .length = length,
                           .lengths = test_below(&seed, 3) ? lengths : NULL,
                           .kv_dtype = dtypes[test_below(&seed, 3)],
                           .not_causal = window == 0 && test_below(&seed, 4) == 0,
                           .window = window,
                           .keep = window ? test_below(&seed, window) : 0,
                           .softcap = test_below(&seed, 3) ? 0 : 5,
                           .sinks = test_below(&seed, 3) ? 0 : KVC_F32,
                           .slopes = test_below(&seed, 3) ? 0 : KVC_F16,
                           .mask = {.dtype = test_below(&seed, 2)   ? 0
                                             : test_below(&seed, 2) ? KVC_U8
                                                                    : KVC_F32,
                                    .pattern = (test_pattern)test_below(&seed, 4)}},
              block_positions[test_below(&seed, COUNT(block_positions))], &seed);
    }
}

/* PITFALLS 7: the same window in every path. Values are their positions, and weigh alike. */
static void blocks__window_counts_the_query_itself(void **state) {
    (void)state;
    uint64_t seed = test_seed(86);
    for (int64_t window = 1; window <= 70; window++)
        for (int turn = 0; turn < 2; turn++) {
            const test_case c = {.key_dim = 8, .queries = 3, .length = 70, .window = window};
            test_problem p = test_problem_new(&c, &seed);
            test_fill_random(&p.q.array, 0, &seed);
            for (int64_t j = 0; j < c.length; j++)
                for (int64_t d = 0; d < 8; d++) test_set(&p.v.array, 0, 0, j, d, (double)j);
            paged g = paged_new(&p, 16, &seed);
            assert_ok(run(&p, &g, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE, NULL));
            for (int64_t i = 0; i < 3; i++) {
                const int64_t last = c.length - 3 + i;
                const int64_t count = window < last + 1 ? window : last + 1;
                const double mean = (double)last - (double)(count - 1) / 2;
                assert_true(fabs(test_get(&p.out.array, 0, 0, i, 3) - mean) <= 1e-5 * mean);
            }
            paged_free(&g);
            test_problem_free(&p);
        }
}

static void blocks__runs_count_what_they_read(void **state) {
    (void)state;
    uint64_t seed = test_seed(87);
    test_problem p = test_problem_new(
        &(test_case){
            .kv_heads = 2, .q_heads = 2, .key_dim = 16, .length = 90, .window = 20, .keep = 4},
        &seed);
    paged g = paged_new(&p, 16, &seed);
    kvc_attention *plan;
    kvc_attention_stats stats = {.struct_size = sizeof stats};
    const kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    assert_ok(kvc_attention_plan(&plan, &desc));
    assert_ok(kvc_attention_run_blocks(plan, g.blocks, LAYER, g.tables, g.stride, g.lengths,
                                       &p.q.array, &p.out.array, NULL));
    assert_ok(kvc_attention_stats_get(plan, &stats));
    assert_int_equal(stats.runs[KVC_PATH_FUSED], 1);
    assert_int_equal(stats.kv_bytes, 2 * 20 * 2 * 16 * 4);
    kvc_attention_free(plan);
    paged_free(&g);
    test_problem_free(&p);
}

/* PITFALLS 10: everything is verified before anything is read or written. */
static void blocks__refuses_what_it_cannot_read(void **state) {
    (void)state;
    uint64_t seed = test_seed(88);
    test_problem p = test_problem_new(
        &(test_case){.batch = 2, .kv_heads = 2, .q_heads = 4, .key_dim = 16, .length = 40}, &seed);
    paged g = paged_new(&p, 16, &seed);
    kvc_attention *plan, *other;
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
    assert_ok(kvc_attention_plan(&plan, &desc));
    desc.value_dim = 17;
    assert_ok(kvc_attention_plan(&other, &desc));
#define RUN(plan, blocks, layer, tables, stride, lengths, extras)                                  \
    kvc_attention_run_blocks(plan, blocks, layer, tables, stride, lengths, &p.q.array,             \
                             &p.out.array, extras)
    assert_fails(RUN(NULL, g.blocks, LAYER, g.tables, g.stride, g.lengths, NULL), KVC_E_INVALID);
    assert_fails(RUN(plan, NULL, LAYER, g.tables, g.stride, g.lengths, NULL), KVC_E_INVALID);
    assert_fails(RUN(plan, g.blocks, LAYERS, g.tables, g.stride, g.lengths, NULL), KVC_E_INVALID);
    assert_fails(RUN(plan, g.blocks, LAYER, NULL, g.stride, g.lengths, NULL), KVC_E_INVALID);
    assert_fails(RUN(plan, g.blocks, LAYER, g.tables, -1, g.lengths, NULL), KVC_E_INVALID);
    assert_fails(RUN(plan, g.blocks, LAYER, g.tables, g.stride, NULL, NULL), KVC_E_INVALID);
    assert_fails(RUN(other, g.blocks, LAYER, g.tables, g.stride, g.lengths, NULL), KVC_E_SHAPE);
    assert_fails(RUN(plan, g.blocks, 0, g.tables, g.stride, g.lengths, NULL), KVC_E_SHAPE);

    const kvc_attention_extras extras = {.struct_size = sizeof extras, .lengths = g.lengths};
    assert_fails(RUN(plan, g.blocks, LAYER, g.tables, g.stride, g.lengths, &extras), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "extras.lengths"));

    static const int64_t wrong_lengths[] = {-1, 81, INT64_MAX, INT64_MIN};
    for (int i = 0; i < COUNT(wrong_lengths); i++) {
        const int64_t lengths[] = {40, wrong_lengths[i]};
        assert_fails(RUN(plan, g.blocks, LAYER, g.tables, g.stride, lengths, NULL), KVC_E_RANGE);
        assert_non_null(strstr(kvc_last_error(), "lengths[1]"));
    }
    static const int32_t wrong_ids[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
    int32_t *last = &g.tables[g.stride + 2];
    const int32_t right = *last;
    for (int i = 0; i < COUNT(wrong_ids); i++) {
        *last = wrong_ids[i];
        assert_fails(RUN(plan, g.blocks, LAYER, g.tables, g.stride, g.lengths, NULL),
                     KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "tables[1][2]"));
    }
    const int64_t shorter[] = {40, 32}; /* nobody looks at that id */
    for (int64_t h = 0; h < 4; h++) assert_true(isnan(test_get(&p.out.array, 1, h, 0, 0)));
    assert_ok(RUN(plan, g.blocks, LAYER, g.tables, g.stride, shorter, NULL));
    *last = right;
#undef RUN
    kvc_attention_free(plan);
    kvc_attention_free(other);
    paged_free(&g);
    test_problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks__every_size_dtype_and_dim_is_right),
        cmocka_unit_test(blocks__every_tail_and_number_of_rows_is_right),
        cmocka_unit_test(blocks__long_sequences_are_right),
        cmocka_unit_test(blocks__many_queries_are_right),
        cmocka_unit_test(blocks__variants_are_right),
        cmocka_unit_test(blocks__window_counts_the_query_itself),
        cmocka_unit_test(blocks__runs_count_what_they_read),
        cmocka_unit_test(blocks__refuses_what_it_cannot_read),
    };
    return cmocka_run_group_tests(tests, test_threads_setup, test_threads_teardown);
}
