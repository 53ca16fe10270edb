/* Attention over rings that a layer keeps of its sequences: plain rows and packed ones, each path
 * against the formula. Every row that holds no position in sight is NaN, and pages around the rows
 * trap. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/plan.h"
#include "support/attend.h"
#include "support/guarded.h"
#include "support/support.h"

enum { BATCH = 2 };

/* Rows of a ring [batch][head][row][dim] that hold the positions of an array. */
typedef struct side {
    guarded memory;
    kvc__rows rows;
} side;

/* By the definition in cache/map.h, in another form. */
static int64_t row_of(const kvc__ring *ring, int64_t position) {
    int64_t at = position - ring->origin, turning = ring->rows - ring->keep;
    if (position < ring->keep) return position;
    while (at < 0) at += turning;
    while (at >= turning) at -= turning;
    return ring->keep + at;
}

static side side_new(const kvc_array *x, const kvc__ring *rings, const int64_t *lengths) {
    const int64_t heads = x->shape[1], dim = x->shape[3], rows = rings[0].rows;
    const size_t bytes = kvc_dtype_size_bytes(x->dtype), row_bytes = (size_t)dim * bytes;
    const size_t all_bytes = (size_t)(BATCH * heads * rows) * row_bytes;
    side s = {.memory = guarded_new(all_bytes)};
    char *data = guarded_place(&s.memory, all_bytes, true);
    memset(data, 0xff, all_bytes);
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = 0; j < lengths[b]; j++) {
                if (j >= rings[b].keep && j < rings[b].first) continue;
                const int64_t from = b * x->strides[0] + h * x->strides[1] + j * x->strides[2];
                const int64_t to = (b * heads + h) * rows + row_of(&rings[b], j);
                memcpy(data + (size_t)to * row_bytes, (char *)x->data + (size_t)from * bytes,
                       row_bytes);
            }
    s.rows = (kvc__rows){.data = data,
                         .dtype = x->dtype,
                         .batch_stride = heads * rows * dim,
                         .head_stride = rows * dim,
                         .position_stride = dim,
                         .last_stride = 1};
    return s;
}

/* A ring of a sequence that holds all that `positions` of `length` and its kept ones need. */
static kvc__ring ring_of(int64_t keep, int64_t rows, int64_t length, int64_t origin) {
    const int64_t first = length - (rows - keep);
    return (kvc__ring){
        .keep = keep, .rows = rows, .origin = origin, .first = first > keep ? first : keep};
}

static kvc__layer_view view_of(const test_problem *p, const side *k, const side *v,
                               const kvc__ring *rings) {
    const kvc_dtype dtype = p->c.kv_dtype;
    return (kvc__layer_view){.spec = {.kv_heads = p->c.kv_heads,
                                      .key_dim = p->c.key_dim,
                                      .value_dim = p->c.value_dim,
                                      .dtype = dtype},
                             .planes = {k->rows.data, v->rows.data},
                             .rows = {{.dtype = dtype, .dim = p->c.key_dim, .positions = 1},
                                      {.dtype = dtype, .dim = p->c.value_dim, .positions = 1}},
                             .batch = BATCH,
                             .length = p->c.length,
                             .lengths = p->c.lengths,
                             .capacity = rings[0].rows,
                             .map = {.rings = rings},
                             .device = kvc_device_cpu()};
}

static void check(test_case c, int64_t rows, int64_t origin, uint64_t *seed) {
    if (test_leaves_out(&c, seed)) return;
    const int64_t lengths[BATCH] = {c.length, test_below(seed, c.length + 1)};
    c.batch = BATCH;
    c.lengths = lengths;
    test_problem p = test_problem_new(&c, seed);
    test_truth right = test_truth_new(&p);
    test_poison_unseen(&p);
    kvc__ring rings[BATCH];
    for (int b = 0; b < BATCH; b++) rings[b] = ring_of(c.keep, rows, lengths[b], origin + b);
    side k = side_new(&p.k.array, rings, lengths), v = side_new(&p.v.array, rings, lengths);
    const kvc__layer_view view = view_of(&p, &k, &v, rings);
    const kvc_executor executor = test_seven_threads();
    for (int turn = test_below(seed, 4) ? 1 : 0; turn < 3; turn++) {
        kvc_attention *plan;
        kvc_attention_desc desc = test_desc(&p, turn ? KVC_PATH_FUSED : KVC_PATH_REFERENCE);
        kvc_attention_extras extras = test_extras(&p);
        extras.lengths = NULL; /* the layer's own */
        desc.executor = turn == 2 ? &executor : NULL;
        memset(p.out.memory, 0xff, kvc_array_nbytes(&p.out.array));
        assert_ok(kvc_attention_plan(&plan, &desc));
        assert_ok(kvc__attention_run_layer(plan, &view, &p.q.array, &p.out.array, &extras));
        kvc_attention_free(plan);
        test_compare(&p, &right);
    }
    guarded_free(&k.memory);
    guarded_free(&v.memory);
    test_truth_free(&right);
    test_problem_free(&p);
}

/* Rows as few as the queries need. */
static int64_t least_rows(int64_t window, int64_t queries) {
    return window + queries - 1;
}

static void rings__wrap_at_every_row(void **state) {
    (void)state;
    uint64_t seed = test_seed(91);
    for (int64_t keep = 0; keep <= 5; keep += 5)
        for (int64_t rows = 20; rows <= 70; rows += 50)
            for (int64_t origin = keep; origin < keep + rows; origin++)
                check((test_case){.q_heads = 1 + test_below(&seed, 5),
                                  .key_dim = test_below(&seed, 2) ? 16 : 24,
                                  .value_dim = 16,
                                  .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                                  .length = 150,
                                  .window = rows,
                                  .keep = keep},
                      rows, origin, &seed);
}

/* PITFALLS 8: all keys that earlier queries of a run see are still there. */
static void rings__several_queries_see_what_each_of_them_wants(void **state) {
    (void)state;
    uint64_t seed = test_seed(92);
    for (int i = 0; i < 150; i++) {
        const int64_t queries = 1 + test_below(&seed, i % 3 ? 6 : 60);
        const int64_t window = 1 + test_below(&seed, 150), keep = test_below(&seed, window);
        const int64_t rows = least_rows(window, queries) + test_below(&seed, 2) * 13;
        check((test_case){.kv_heads = 2,
                          .q_heads = 2 * (1 + test_below(&seed, 4)),
                          .key_dim = 1 + test_below(&seed, 40),
                          .value_dim = 1 + test_below(&seed, 40),
                          .queries = queries,
                          .kv_dtype = (kvc_dtype)(KVC_F32 + test_below(&seed, 3)),
                          .length = queries + test_below(&seed, 400),
                          .window = window,
                          .keep = keep,
                          .sinks = test_below(&seed, 3) ? 0 : KVC_F32,
                          .slopes = test_below(&seed, 3) ? 0 : KVC_F32,
                          .mask = {.dtype = test_below(&seed, 3) ? 0 : KVC_F32,
                                   .pattern = (test_pattern)test_below(&seed, 4)}},
              rows, keep + test_below(&seed, 300), &seed);
    }
}

/* Keys or values packed, words, scales and biases each in a ring. */
typedef struct packed_side {
    test_tensor linear[3];
    side rings[3];
} packed_side;

static packed_side pack(const kvc_array *x, int bits, int group, const kvc__ring *rings,
                        const int64_t *lengths) {
    const int64_t h = x->shape[1], n = x->shape[2], dim = x->shape[3];
    const int64_t widths[3] = {dim * bits / 8, dim / group, dim / group};
    packed_side s;
    for (int i = 0; i < 3; i++)
        s.linear[i] =
            test_tensor_new(i ? KVC_BF16 : KVC_U8, TEST_HEAD_MAJOR, BATCH, h, n, widths[i]);
    kvc_quantized packed = {.struct_size = sizeof packed,
                            .bits = bits,
                            .group = group,
                            .words = s.linear[0].array,
                            .scales = s.linear[1].array,
                            .biases = s.linear[2].array};
    assert_ok(kvc_quantize(&packed, x));
    assert_ok(kvc_dequantize(x, &packed));
    for (int i = 0; i < 3; i++) s.rings[i] = side_new(&s.linear[i].array, rings, lengths);
    return s;
}

static void packed_side_free(packed_side *s) {
    for (int i = 0; i < 3; i++) {
        test_tensor_free(&s->linear[i]);
        guarded_free(&s->rings[i].memory);
    }
}

static kvc__rows rows_in(const kvc_array *a) {
    return (kvc__rows){a->data,       a->dtype, a->strides[0], a->strides[1], a->strides[2],
                       a->strides[3], 0};
}

static void check_packed(test_case c, int bits, int group, int64_t rows, uint64_t *seed) {
    const int64_t lengths[BATCH] = {c.length, test_below(seed, c.length + 1)};
    c.batch = BATCH;
    c.lengths = lengths;
    test_problem p = test_problem_new(&c, seed);
    kvc__ring rings[BATCH];
    for (int b = 0; b < BATCH; b++)
        rings[b] = ring_of(c.keep, rows, lengths[b], c.keep + test_below(seed, 200));
    packed_side k = pack(&p.k.array, bits, group, rings, lengths);
    packed_side v = pack(&p.v.array, bits, group, rings, lengths);
    test_truth right = test_truth_new(&p);
    kvc_attention_desc desc = test_desc(&p, KVC_PATH_FUSED);
    desc.kv_dtype = KVC_BF16;
    desc.kv_bits = bits;
    desc.kv_group = group;
    kvc_attention *plan;
    assert_ok(kvc_attention_plan(&plan, &desc));
    const kvc__job job = {.batch = BATCH,
                          .kv_heads = p.c.kv_heads,
                          .group = p.c.q_heads / p.c.kv_heads,
                          .key_dim = p.c.key_dim,
                          .value_dim = p.c.value_dim,
                          .queries = p.c.queries,
                          .length = p.c.length,
                          .lengths = lengths,
                          .window = p.c.window,
                          .keep = p.c.keep,
                          .scale = plan->desc.scale,
                          .causal = true,
                          .format = {.dtype = KVC_BF16, .bits = bits, .group = group},
                          .q = rows_in(&p.q.array),
                          .k = k.rings[0].rows,
                          .v = v.rings[0].rows,
                          .out = rows_in(&p.out.array),
                          .k_scaling = {k.rings[1].rows, k.rings[2].rows},
                          .v_scaling = {v.rings[1].rows, v.rings[2].rows},
                          .map = {.rings = rings},
                          .lse = rows_in(&p.lse.array)};
    assert_ok(kvc__attention_check_held(&job));
    kvc__attend_fused(&job, &plan->schedule, plan->scratch);
    test_allow_packed(&p, bits, &k.linear[1].array, &v.linear[1].array);
    test_compare(&p, &right);
    p.score_slack = p.value_slack = 0;
    memset(p.out.memory, 0xff, kvc_array_nbytes(&p.out.array));
    if (test_below(seed, 4) == 0) {
        kvc__attend_reference(&job, plan->scratch);
        test_compare(&p, &right);
    }
    kvc_attention_free(plan);
    packed_side_free(&k);
    packed_side_free(&v);
    test_truth_free(&right);
    test_problem_free(&p);
}

static void rings__packed_rows_are_right(void **state) {
    (void)state;
    static const int widths[] = {8, 4, 2, 3, 5, 6};
    uint64_t seed = test_seed(93);
    for (int i = 0; i < 120; i++) {
        const int64_t queries = 1 + test_below(&seed, i % 4 ? 3 : 30);
        const int64_t window = 1 + test_below(&seed, 100), keep = test_below(&seed, window);
        check_packed((test_case){.kv_heads = 2,
                                 .q_heads = 2 * (1 + test_below(&seed, 4)),
                                 .key_dim = 64,
                                 .value_dim = 128,
                                 .queries = queries,
                                 .length = queries + test_below(&seed, 300),
                                 .window = window,
                                 .keep = keep},
                     widths[i % 6], test_below(&seed, 2) ? 32 : 64,
                     least_rows(window, queries) + test_below(&seed, 20), &seed);
    }
}

/* PITFALLS 8: what a ring has overwritten is refused, and nothing else is. Of a ring of 10 rows,
 * after 30 positions, two of which are kept. */
static void rings__refuse_what_they_no_longer_hold(void **state) {
    (void)state;
    enum { KEEP = 2, ROWS = 10, LENGTH = 30 };
    static const int64_t lengths[BATCH] = {LENGTH, LENGTH};
    uint64_t seed = test_seed(94);
    for (int64_t window = 0; window <= LENGTH + 1; window++)
        for (int64_t keep = 0; keep < 4 && (keep == 0 || keep < window); keep++)
            for (int64_t queries = 1; queries <= 4; queries++) {
                const test_case c = {.batch = BATCH,
                                     .key_dim = 4,
                                     .queries = queries,
                                     .length = LENGTH,
                                     .lengths = lengths,
                                     .window = window,
                                     .keep = keep};
                test_problem p = test_problem_new(&c, &seed);
                const kvc__ring rings[BATCH] = {ring_of(KEEP, ROWS, LENGTH, KEEP),
                                                ring_of(KEEP, ROWS, LENGTH, 7)};
                side k = side_new(&p.k.array, rings, lengths);
                side v = side_new(&p.v.array, rings, lengths);
                const kvc__layer_view view = view_of(&p, &k, &v, rings);
                const kvc_attention_desc desc = test_desc(&p, KVC_PATH_AUTO);
                kvc_attention *plan;
                assert_ok(kvc_attention_plan(&plan, &desc));
                const kvc_status status =
                    kvc__attention_run_layer(plan, &view, &p.q.array, &p.out.array, NULL);
                const bool fits =
                    window > 0 && keep <= KEEP && window - keep + queries - 1 <= ROWS - KEEP;
                assert_true(status == (fits ? KVC_OK : KVC_E_RANGE));
                if (fits) assert_true(!isnan(test_get(&p.out.array, 1, 0, 0, 0)));
                else {
                    assert_non_null(strstr(kvc_last_error(), "holds those from 22 on"));
                    assert_true(isnan(test_get(&p.out.array, 0, 0, 0, 0)));
                }
                kvc_attention_free(plan);
                guarded_free(&k.memory);
                guarded_free(&v.memory);
                test_problem_free(&p);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings__wrap_at_every_row),
        cmocka_unit_test(rings__several_queries_see_what_each_of_them_wants),
        cmocka_unit_test(rings__packed_rows_are_right),
        cmocka_unit_test(rings__refuse_what_they_no_longer_hold),
    };
    return cmocka_run_group_tests(tests, test_threads_setup, test_threads_teardown);
}
