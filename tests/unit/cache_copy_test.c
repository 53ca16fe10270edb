/* From one cache to another, whatever the kinds of either. */
#include <string.h>

#include <kvcache/blocks.h>
#include <kvcache/quantize.h>

#include "support/attend.h"
#include "support/fault.h"
#include "support/stories.h"
#include "support/support.h"

enum { BATCH = 2, HEADS = 2, KEY_DIM = 64, VALUE_DIM = 32, CHUNK = 16 };

/* What a test chooses of a cache. */
typedef struct choice {
    kvc_growth growth;
    kvc_dtype dtype;
    int bits; /* 0: not packed */
    int64_t window, keep, slack;
    int64_t most; /* 0: 1000 */
} choice;

/* One of each kind, and of those that are of two. */
static const choice kinds[] = {
    {.growth = KVC_GROW_RESERVE, .dtype = KVC_F16},
    {.growth = KVC_GROW_CHUNK, .dtype = KVC_F32},
    {.growth = KVC_GROW_EXACT, .dtype = KVC_BF16},
    {.growth = KVC_GROW_PAGED, .dtype = KVC_F16},
    {.growth = KVC_GROW_RESERVE, .dtype = KVC_F32, .bits = 8},
    {.growth = KVC_GROW_EXACT, .dtype = KVC_F16, .bits = 4},
    {.growth = KVC_GROW_PAGED, .dtype = KVC_BF16, .bits = 3},
    {.growth = KVC_GROW_RESERVE, .dtype = KVC_F16, .window = 20, .keep = 3},
    {.growth = KVC_GROW_CHUNK, .dtype = KVC_F32, .window = 20},
    {.growth = KVC_GROW_EXACT, .dtype = KVC_BF16, .window = 20, .keep = 3, .slack = 7},
    {.growth = KVC_GROW_CHUNK, .dtype = KVC_F16, .window = 20, .keep = 1, .bits = 8},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static stories open_choice(choice c) {
    kvc_pool *pool;
    kvc_blocks *blocks = NULL;
    kvc_cache *cache;
    stories s;
    const kvc_layer_spec spec = {.kv_heads = HEADS,
                                 .key_dim = KEY_DIM,
                                 .value_dim = VALUE_DIM,
                                 .dtype = c.dtype,
                                 .window = c.window,
                                 .keep = c.keep,
                                 .kv_bits = c.bits,
                                 .kv_group = c.bits ? 32 : 0};
    const kvc_blocks_desc blocks_desc = {.struct_size = sizeof blocks_desc,
                                         .layers = 2,
                                         .specs = &spec,
                                         .spec_count = 1,
                                         .positions = 16};
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    if (c.growth == KVC_GROW_PAGED) assert_ok(kvc_blocks_new(&blocks, pool, &blocks_desc));
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = BATCH,
                                 .layers = 2,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = c.growth,
                                 .chunk = CHUNK,
                                 .max_positions = c.most ? c.most : 1000,
                                 .blocks = blocks,
                                 .slack = c.slack};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_blocks_free(blocks); /* the cache keeps both alive */
    kvc_pool_free(pool);
    stories_init(&s, cache);
    return s;
}

static void close_stories(stories *s) {
    kvc_cache_free(s->cache);
    stories_deinit(s);
}

static void assert_empty(const kvc_cache *cache) {
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_check(cache));
    assert_ok(kvc_cache_nbytes_get(cache, &nbytes));
    assert_int_equal(nbytes.used, 0);
    for (int64_t layer = 0; layer < 2; layer++) assert_int_equal(kvc_cache_length(cache, layer), 0);
}

/* Elements of stories are exact in every dtype: what was not packed arrives as it was, and is
 * packed as it would have been by appends. Both then go on. */
static void copy__any_kind_takes_what_any_other_holds(void **state) {
    (void)state;
    static const int64_t lengths[][BATCH] = {{0, 0}, {1, 2}, {15, 20}, {17, 0}, {16, 19}};
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < KINDS; j++) {
            if (kinds[i].bits) continue; /* see below */
            for (int l = 0; l < 5; l++) {
                stories from = open_choice(kinds[i]), to = open_choice(kinds[j]);
                stories_append_ragged(&from, lengths[l], NULL);
                assert_ok(kvc_cache_copy(to.cache, from.cache));
                stories_copy(&to, &from);
                stories_check(&to);
                stories_append_ragged(&to, (const int64_t[]){1, 30}, NULL);
                stories_append(&to, 1);
                stories_append_ragged(&from, (const int64_t[]){3, 0}, NULL);
                stories_check(&to);
                stories_check(&from);
                close_stories(&from);
                close_stories(&to);
            }
        }
}

static void copy__packed_rows_of_one_format_move_as_they_are(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < KINDS; j++) {
            choice c = kinds[j];
            if (!kinds[i].bits) continue;
            c.bits = kinds[i].bits;
            c.dtype = kinds[i].dtype;
            stories from = open_choice(kinds[i]), to = open_choice(c);
            stories_append_ragged(&from, (const int64_t[]){18, 5}, NULL);
            assert_ok(kvc_cache_copy(to.cache, from.cache));
            stories_copy(&to, &from);
            stories_check(&to);
            stories_append(&to, 2);
            stories_check(&to);
            close_stories(&from);
            close_stories(&to);
        }
}

/* Windows take the end of what is longer, and what they keep. */
static void copy__a_window_takes_what_its_queries_see(void **state) {
    (void)state;
    static const int64_t lengths[][BATCH] = {{21, 20}, {100, 3}, {0, 27}, {28, 333}};
    for (int i = 0; i < KINDS; i++)
        for (int j = 0; j < KINDS; j++) {
            if (kinds[i].bits || kinds[i].window || !kinds[j].window) continue;
            for (int l = 0; l < 4; l++) {
                stories from = open_choice(kinds[i]), to = open_choice(kinds[j]);
                stories_append_ragged(&from, lengths[l], NULL);
                assert_ok(kvc_cache_copy(to.cache, from.cache));
                stories_copy(&to, &from);
                stories_check(&to);
                for (int64_t n = 1; n < 30; n += 4) {
                    stories_append_ragged(&to, (const int64_t[]){n, 1}, NULL);
                    stories_check(&to);
                }
                close_stories(&from);
                close_stories(&to);
            }
        }
}

/* A ring that has turned: into one that wants no more, whatever the slack of either. */
static void copy__a_window_goes_into_one_that_is_no_wider(void **state) {
    (void)state;
    static const struct {
        choice from, to;
        bool goes;
    } cases[] = {
        {{.window = 20, .keep = 3}, {.window = 20, .keep = 3}, true},
        {{.window = 20, .keep = 3}, {.window = 20, .keep = 3, .slack = 50}, true},
        {{.window = 20, .keep = 3, .slack = 9}, {.window = 20, .keep = 3}, true},
        {{.window = 20, .keep = 3}, {.window = 10, .keep = 2}, true},
        {{.window = 20, .keep = 3}, {.window = 17}, true},
        {{.window = 20, .keep = 3}, {.window = 18}, false}, /* 18 recent, of 17 */
        {{.window = 20, .keep = 3, .slack = 1}, {.window = 18}, true},
        {{.window = 20, .keep = 3}, {.window = 10, .keep = 4}, false}, /* the fourth is gone */
        {{.window = 20}, {.window = 21}, false},
        {{.window = 20}, {.window = 0}, false},
        {{.window = 20}, {.growth = KVC_GROW_PAGED}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
            choice a = cases[i].from, b = cases[i].to;
            a.dtype = b.dtype = KVC_F16;
            a.growth = (kvc_growth)growth;
            if (b.growth != KVC_GROW_PAGED) b.growth = (kvc_growth)((growth + 1) % 3);
            stories from = open_choice(a), to = open_choice(b);
            for (int n = 0; n < 50; n++) stories_append(&from, 1);
            if (cases[i].goes) {
                assert_ok(kvc_cache_copy(to.cache, from.cache));
                stories_copy(&to, &from);
                stories_check(&to);
                for (int n = 0; n < 30; n++) stories_append(&to, 1 + n % 3);
                stories_check(&to);
            } else {
                assert_fails(kvc_cache_copy(to.cache, from.cache), KVC_E_RANGE);
                assert_non_null(strstr(kvc_last_error(), "layer 0, sequence 0"));
                assert_empty(to.cache);
            }
            stories_check(&from);
            close_stories(&from);
            close_stories(&to);
        }
}

/* Keys and values of a packed layer, unpacked. */
static void unpack(test_tensor out[2], const kvc_cache *cache, int64_t layer) {
    kvc_quantized packed[2];
    assert_ok(kvc_cache_view_quantized(cache, layer, &packed[0], &packed[1]));
    for (int side = 0; side < 2; side++) {
        out[side] = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, BATCH, HEADS,
                                    packed[side].words.shape[2], side ? VALUE_DIM : KEY_DIM);
        assert_ok(kvc_dequantize(&out[side].array, &packed[side]));
        kvc_array_release(&packed[side].words);
        kvc_array_release(&packed[side].scales);
        kvc_array_release(&packed[side].biases);
    }
}

static void assert_layer_equal(const test_tensor wanted[2], const kvc_cache *cache, int64_t layer) {
    kvc_array found[2];
    assert_ok(kvc_cache_view(cache, layer, &found[0], &found[1]));
    for (int side = 0; side < 2; side++) {
        bool equal = false;
        assert_ok(kvc_array_equal(&equal, &found[side], &wanted[side].array));
        assert_true(equal);
        kvc_array_release(&found[side]);
    }
}

/* Longer than what is unpacked at a time, and not a multiple of it. */
static void copy__packed_rows_are_unpacked_where_they_go_unpacked(void **state) {
    (void)state;
    for (int bits = 2; bits <= 8; bits += bits == 6 ? 2 : 1)
        for (int paged = 0; paged < 2; paged++) {
            stories packed =
                open_choice((choice){.growth = KVC_GROW_CHUNK, .dtype = KVC_F16, .bits = bits});
            stories through = open_choice((choice){.growth = KVC_GROW_PAGED, .dtype = KVC_F32});
            stories plain = open_choice((choice){.growth = KVC_GROW_RESERVE, .dtype = KVC_F32});
            stories_append(&packed, 130);
            if (paged) assert_ok(kvc_cache_copy(through.cache, packed.cache));
            assert_ok(kvc_cache_copy(plain.cache, paged ? through.cache : packed.cache));
            assert_ok(kvc_cache_check(plain.cache));
            for (int64_t layer = 0; layer < 2; layer++) {
                test_tensor wanted[2];
                unpack(wanted, packed.cache, layer);
                assert_layer_equal(wanted, plain.cache, layer);
                test_tensor_free(&wanted[0]);
                test_tensor_free(&wanted[1]);
            }
            close_stories(&packed);
            close_stories(&through);
            close_stories(&plain);
        }
}

/* As if the numbers that one width unpacks to had been appended to the other. */
static void copy__packed_rows_are_packed_anew_in_another_width(void **state) {
    (void)state;
    for (int bits = 2; bits <= 8; bits += bits == 6 ? 2 : 1) {
        const choice other = {.growth = KVC_GROW_RESERVE, .dtype = KVC_F32, .bits = bits};
        stories from =
            open_choice((choice){.growth = KVC_GROW_EXACT, .dtype = KVC_BF16, .bits = 5});
        stories to = open_choice(other), wanted = open_choice(other);
        stories_append(&from, 70);
        assert_ok(kvc_cache_copy(to.cache, from.cache));
        for (int64_t layer = 0; layer < 2; layer++) {
            test_tensor numbers[2], right[2], found[2];
            unpack(numbers, from.cache, layer);
            assert_ok(kvc_cache_append(wanted.cache, layer, &numbers[0].array, &numbers[1].array));
            unpack(right, wanted.cache, layer);
            unpack(found, to.cache, layer);
            for (int side = 0; side < 2; side++) {
                bool equal = false;
                assert_ok(kvc_array_equal(&equal, &found[side].array, &right[side].array));
                assert_true(equal);
                test_tensor_free(&numbers[side]);
                test_tensor_free(&right[side]);
                test_tensor_free(&found[side]);
            }
        }
        close_stories(&from);
        close_stories(&to);
        close_stories(&wanted);
    }
}

/* In any order, which for blocks means that the first one gets them. */
static void copy__layer_by_layer_is_the_same(void **state) {
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        stories from = open_choice((choice){.growth = KVC_GROW_CHUNK, .dtype = KVC_F32});
        stories to = open_choice(kinds[i]);
        stories_append_ragged(&from, (const int64_t[]){19, 33}, NULL);
        assert_ok(kvc_cache_copy_layer(to.cache, from.cache, 1));
        assert_int_equal(kvc_cache_length(to.cache, 0), 0);
        assert_fails(kvc_cache_copy_layer(to.cache, from.cache, 1), KVC_E_INVALID);
        assert_fails(kvc_cache_copy(to.cache, from.cache), KVC_E_INVALID);
        assert_int_equal(kvc_cache_length(to.cache, 1), 33);
        assert_ok(kvc_cache_check(to.cache));
        assert_ok(kvc_cache_copy_layer(to.cache, from.cache, 0));
        stories_copy(&to, &from);
        stories_check(&to);
        for (int64_t layer = -1; layer < 3; layer += 3)
            assert_fails(kvc_cache_copy_layer(to.cache, from.cache, layer), KVC_E_INVALID);
        close_stories(&from);
        close_stories(&to);
    }
}

static void copy__is_refused_with_its_reason(void **state) {
    (void)state;
    const choice c = {.growth = KVC_GROW_CHUNK, .dtype = KVC_F16};
    stories from = open_choice(c), to = open_choice(c);
    stories_append(&from, 3);
    assert_fails(kvc_cache_copy(NULL, from.cache), KVC_E_INVALID);
    assert_fails(kvc_cache_copy(to.cache, NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_copy(from.cache, from.cache), KVC_E_INVALID);
    stories_append_ragged(&to, (const int64_t[]){0, 1}, NULL);
    assert_fails(kvc_cache_copy(to.cache, from.cache), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "an empty cache wanted"));
    stories_check(&to);
    stories_check(&from);
    close_stories(&from);
    close_stories(&to);
}

static void copy__geometry_is_the_same_or_refused(void **state) {
    (void)state;
    kvc_pool *pool;
    const kvc_layer_spec spec = {.kv_heads = 2, .key_dim = 8, .value_dim = 4, .dtype = KVC_F16};
    kvc_layer_spec others[5] = {spec, spec, spec, spec, spec};
    const int64_t layers[] = {1, 1, 1, 2, 1}, batches[] = {1, 1, 1, 1, 2};
    others[0].kv_heads = 1;
    others[1].key_dim = 9;
    others[2].value_dim = 8;
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .layers = 1,
                           .specs = &spec,
                           .spec_count = 1,
                           .growth = KVC_GROW_CHUNK};
    kvc_cache *from, *to;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    assert_ok(kvc_cache_new(&from, pool, &desc));
    for (int i = 0; i < 5; i++) {
        desc.specs = &others[i];
        desc.layers = layers[i];
        desc.batch = batches[i];
        assert_ok(kvc_cache_new(&to, pool, &desc));
        assert_fails(kvc_cache_copy(to, from), KVC_E_SHAPE);
        kvc_cache_free(to);
    }
    kvc_cache_free(from);
    kvc_pool_free(pool);
}

static void copy__what_does_not_fit_leaves_nothing(void **state) {
    (void)state;
    for (int growth = KVC_GROW_RESERVE; growth <= KVC_GROW_PAGED; growth++)
        for (int window = 0; window < 2; window++) {
            if (window && growth == KVC_GROW_PAGED) continue;
            stories from = open_choice((choice){.growth = KVC_GROW_CHUNK, .dtype = KVC_F16});
            stories to = open_choice((choice){.growth = (kvc_growth)growth,
                                              .dtype = KVC_F16,
                                              .window = window * 8,
                                              .keep = window,
                                              .most = 40});
            stories_append_ragged(&from, (const int64_t[]){40, 41}, NULL);
            assert_fails(kvc_cache_copy(to.cache, from.cache), KVC_E_RANGE);
            assert_empty(to.cache);
            stories_trim_sequence(&from, 1, 1);
            assert_ok(kvc_cache_copy(to.cache, from.cache));
            stories_copy(&to, &from);
            stories_check(&to);
            close_stories(&from);
            close_stories(&to);
        }
}

/* Every allocation fails once: small objects by the allocator, buffers by a limit of the pool. */
static void copy__without_memory_leaves_nothing(void **state) {
    (void)state;
    test_allocator_use(true);
    for (int i = 0; i < KINDS; i++) {
        stories from = open_choice((choice){.growth = KVC_GROW_CHUNK, .dtype = KVC_F16, .bits = 6});
        stories to = open_choice(kinds[i]);
        kvc_status status = KVC_E_NOMEM;
        stories_append_ragged(&from, (const int64_t[]){19, 12}, NULL);
        for (size_t nth = 1; status != KVC_OK; nth++) {
            test_fault_arm(nth, TEST_FAULT_ONCE);
            status = kvc_cache_copy(to.cache, from.cache);
            const bool failed = test_fault_disarm();
            assert_true(failed == (status == KVC_E_NOMEM));
            if (status != KVC_OK) assert_empty(to.cache);
            assert_true(nth < 100);
        }
        assert_ok(kvc_cache_check(to.cache));
        assert_int_equal(kvc_cache_sequence_length(to.cache, 1, 1), 12);
        close_stories(&from);
        close_stories(&to);
    }
    assert_int_equal(test_allocator_held(), 0);
    test_allocator_use(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy__any_kind_takes_what_any_other_holds),
        cmocka_unit_test(copy__packed_rows_of_one_format_move_as_they_are),
        cmocka_unit_test(copy__a_window_takes_what_its_queries_see),
        cmocka_unit_test(copy__a_window_goes_into_one_that_is_no_wider),
        cmocka_unit_test(copy__packed_rows_are_unpacked_where_they_go_unpacked),
        cmocka_unit_test(copy__packed_rows_are_packed_anew_in_another_width),
        cmocka_unit_test(copy__layer_by_layer_is_the_same),
        cmocka_unit_test(copy__is_refused_with_its_reason),
        cmocka_unit_test(copy__geometry_is_the_same_or_refused),
        cmocka_unit_test(copy__what_does_not_fit_leaves_nothing),
        cmocka_unit_test(copy__without_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
