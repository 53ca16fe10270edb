/* What a description may say, what it means, and how a wrong one is refused. */
#include <limits.h>
#include <string.h>

#include <kvcache/cache.h>

#include "support/support.h"
#include "support/test_device.h"

static kvc_pool *pool;

static int open_pool(void **state) {
    (void)state;
    assert_ok(kvc_pool_new(&pool, kvc_device_cpu()));
    return 0;
}

static int close_pool(void **state) {
    (void)state;
    kvc_pool_free(pool);
    return 0;
}

static const kvc_layer_spec small_spec = {
    .kv_heads = 2, .key_dim = 8, .value_dim = 4, .dtype = KVC_F32};

static kvc_cache_desc good_desc(void) {
    return (kvc_cache_desc){.struct_size = sizeof(kvc_cache_desc),
                            .batch = 1,
                            .layers = 3,
                            .specs = &small_spec,
                            .spec_count = 1,
                            .growth = KVC_GROW_RESERVE,
                            .chunk = 16,
                            .max_positions = 100};
}

/* A refusal leaves no cache, says what kind it is and names every word. */
static void assert_refused(const kvc_cache_desc *desc, kvc_status status,
                           const char *const *words) {
    kvc_cache *cache = (kvc_cache *)&pool; /* anything but NULL */
    assert_fails(kvc_cache_new(&cache, pool, desc), status);
    assert_null(cache);
    for (; *words; words++)
        if (!strstr(kvc_last_error(), *words))
            fail_msg("'%s' does not name '%s'", kvc_last_error(), *words);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void cache_desc__zeroes_mean_one_sequence_and_the_seeds_chunk(void **state) {
    (void)state;
    kvc_cache *cache;
    const kvc_layer_spec spec = {.kv_heads = 2, .key_dim = 8, .dtype = KVC_BF16};
    kvc_cache_desc desc = {.struct_size = sizeof desc,
                           .layers = 2,
                           .specs = &spec,
                           .spec_count = 1,
                           .max_positions = 1000};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_cache_desc full = {.struct_size = sizeof full};
    assert_ok(kvc_cache_desc_get(cache, &full));
    assert_int_equal(full.batch, 1);
    assert_int_equal(full.growth, KVC_GROW_RESERVE);
    assert_int_equal(full.chunk, 256);
    assert_int_equal(full.chunk, KVC_CHUNK_DEFAULT);
    assert_int_equal(full.max_positions, 1000);
    assert_int_equal(full.spec_count, 2);
    assert_int_equal(full.specs[0].value_dim, 8);
    assert_int_equal(full.specs[1].value_dim, 8);
    kvc_cache_free(cache);
}

static void
cache_desc__comes_back_with_a_spec_for_each_layer_that_outlives_the_callers(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_layer_spec specs[3] = {{.kv_heads = 2, .key_dim = 8, .value_dim = 4, .dtype = KVC_F32},
                               {.kv_heads = 1, .key_dim = 16, .dtype = KVC_F16},
                               {.kv_heads = 4, .key_dim = 1, .value_dim = 3, .dtype = KVC_BF16}};
    kvc_cache_desc desc = good_desc();
    desc.specs = specs;
    desc.spec_count = 3;
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    memset(specs, 0xff, sizeof specs);
    memset(&desc, 0xff, sizeof desc);
    kvc_cache_desc full = {.struct_size = sizeof full};
    assert_ok(kvc_cache_desc_get(cache, &full));
    assert_int_equal(full.struct_size, sizeof full);
    assert_int_equal(full.layers, 3);
    assert_int_equal(full.spec_count, 3);
    assert_int_equal(full.chunk, 16);
    const kvc_layer_spec wanted[3] = {
        {.kv_heads = 2, .key_dim = 8, .value_dim = 4, .dtype = KVC_F32},
        {.kv_heads = 1, .key_dim = 16, .value_dim = 16, .dtype = KVC_F16},
        {.kv_heads = 4, .key_dim = 1, .value_dim = 3, .dtype = KVC_BF16}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(full.specs[i].kv_heads, wanted[i].kv_heads);
        assert_int_equal(full.specs[i].key_dim, wanted[i].key_dim);
        assert_int_equal(full.specs[i].value_dim, wanted[i].value_dim);
        assert_int_equal(full.specs[i].dtype, wanted[i].dtype);
    }
    kvc_cache_free(cache);
}

static void cache_desc__makes_the_next_cache_alike(void **state) {
    (void)state;
    kvc_cache *cache, *twin;
    kvc_cache_desc desc = good_desc(), full = {.struct_size = sizeof full};
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    assert_ok(kvc_cache_desc_get(cache, &full));
    assert_ok(kvc_cache_new(&twin, pool, &full));
    assert_int_equal(kvc_cache_capacity(twin, 2), kvc_cache_capacity(cache, 2));
    kvc_cache_free(cache);
    kvc_cache_free(twin);
}

static void cache_desc__every_misuse_of_a_field_is_refused_by_its_name(void **state) {
    (void)state;
    kvc_cache_desc d;
#define REFUSED(field, value, ...)                                                                 \
    d = good_desc();                                                                               \
    d.field = (value);                                                                             \
    assert_refused(&d, KVC_E_INVALID, WORDS(__VA_ARGS__))
    REFUSED(batch, -1, "batch -1");
    REFUSED(batch, INT64_MIN, "batch -9223372036854775808");
    REFUSED(layers, 0, "layers 0");
    REFUSED(layers, -7, "layers -7");
    REFUSED(chunk, -256, "chunk -256");
    REFUSED(max_positions, -1, "max_positions -1");
    REFUSED(max_positions, 0, "max_positions", "KVC_GROW_RESERVE");
    REFUSED(specs, NULL, "specs");
    REFUSED(spec_count, 0, "specs", "0 given", "3 layers");
    REFUSED(spec_count, 2, "specs", "2 given", "3 layers");
    REFUSED(spec_count, 4, "specs", "4 given", "3 layers");
    REFUSED(spec_count, -1, "specs", "-1 given", "3 layers");
    REFUSED(growth, (kvc_growth)4, "growth", "4 given");
    REFUSED(growth, (kvc_growth)-1, "growth", "-1 given");
    REFUSED(struct_size, 0, "kvc_cache_desc.struct_size");
#undef REFUSED
}

static void cache_desc__every_misuse_of_a_spec_is_refused_with_its_layer(void **state) {
    (void)state;
    kvc_layer_spec specs[3];
    kvc_cache_desc d = good_desc();
    d.specs = specs;
    d.spec_count = 3;
#define REFUSED(field, value, ...)                                                                 \
    specs[0] = specs[1] = specs[2] = small_spec;                                                   \
    specs[2].field = (value);                                                                      \
    assert_refused(&d, KVC_E_INVALID, WORDS("specs[2]." #field, __VA_ARGS__))
    REFUSED(kv_heads, 0, "0 given");
    REFUSED(kv_heads, -1, "-1 given");
    REFUSED(key_dim, 0, "0 given");
    REFUSED(key_dim, -8, "-8 given");
    REFUSED(value_dim, -1, "-1 given");
    REFUSED(dtype, (kvc_dtype)0, "f32, f16 or bf16 wanted");
    REFUSED(dtype, KVC_I8, "i8 given");
    REFUSED(dtype, KVC_U32, "u32 given");
#undef REFUSED
}

static void cache_desc__null_arguments_are_refused_by_their_names(void **state) {
    (void)state;
    kvc_cache *cache;
    const kvc_cache_desc desc = good_desc();
    assert_fails(kvc_cache_new(NULL, pool, &desc), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "out"));
    assert_fails(kvc_cache_new(&cache, NULL, &desc), KVC_E_INVALID);
    assert_null(cache);
    assert_non_null(strstr(kvc_last_error(), "pool"));
    assert_fails(kvc_cache_new(&cache, pool, NULL), KVC_E_INVALID);
    assert_null(cache);
    assert_non_null(strstr(kvc_last_error(), "kvc_cache_desc"));
    kvc_cache_free(NULL);
}

/* A caller compiled with fewer fields gets their zeroes: here no limit. */
static void cache_desc__of_an_older_caller_is_read_as_far_as_it_goes(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_cache_desc desc = good_desc();
    desc.struct_size = offsetof(kvc_cache_desc, max_positions);
    desc.growth = KVC_GROW_CHUNK;
    desc.max_positions = 1; /* not his to say */
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_cache_desc full = {.struct_size = sizeof full};
    assert_ok(kvc_cache_desc_get(cache, &full));
    assert_int_equal(full.max_positions, 0);
    kvc_cache_desc part = {.struct_size = offsetof(kvc_cache_desc, max_positions),
                           .max_positions = 77};
    assert_ok(kvc_cache_desc_get(cache, &part));
    assert_int_equal(part.chunk, 16);
    assert_int_equal(part.max_positions, 77);
    kvc_cache_free(cache);
}

static void cache_desc__reserve_on_a_device_that_cannot_is_unsupported(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_pool *plain;
    kvc_device device = *kvc_device_cpu();
    device.reserve = NULL;
    device.commit = NULL;
    device.release = NULL;
    assert_ok(kvc_pool_new(&plain, &device));
    kvc_cache_desc desc = good_desc();
    assert_fails(kvc_cache_new(&cache, plain, &desc), KVC_E_UNSUPPORTED);
    assert_null(cache);
    desc.growth = KVC_GROW_CHUNK;
    assert_ok(kvc_cache_new(&cache, plain, &desc));
    kvc_cache_free(cache);
    kvc_pool_free(plain);
}

/* No policy takes memory before the first append; RESERVE takes its address space. */
static void cache_desc__a_new_cache_holds_no_memory(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_RESERVE; growth <= KVC_GROW_EXACT; growth++) {
        test_device device;
        kvc_pool *fresh;
        kvc_cache *cache;
        kvc_cache_desc desc = good_desc();
        desc.growth = growth;
        test_device_init(&device);
        assert_ok(kvc_pool_new(&fresh, &device.table));
        assert_ok(kvc_cache_new(&cache, fresh, &desc));
        kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
        assert_ok(kvc_cache_nbytes_get(cache, &nbytes));
        assert_int_equal(nbytes.used, 0);
        assert_int_equal(nbytes.resident, 0);
        /* 3 layers of 2 heads × 112 positions (100 in whole chunks of 16) × 8 and 4 floats. */
        const size_t page = device.table.page_bytes;
        const size_t pages = (7168 + page - 1) / page + (3584 + page - 1) / page;
        assert_int_equal(nbytes.reserved, growth == KVC_GROW_RESERVE ? 3 * pages * page : 0);
        assert_int_equal(kvc_cache_capacity(cache, 0), growth == KVC_GROW_RESERVE ? 112 : 0);
        assert_int_equal(device.calls[TEST_ALLOCATE] + device.calls[TEST_COMMIT], 0);
        assert_ok(kvc_cache_check(cache));
        kvc_cache_free(cache);
        kvc_pool_free(fresh);
        test_device_deinit(&device);
    }
}

/* Pitfall 4. 16 heads × 2^21 positions × 256 bytes: the size is 0 in 32 bits, and so is the offset
 * of every eighth head; only address space is taken. */
static void cache_desc__sizes_that_wrap_32_bits_are_right(void **state) {
    (void)state;
    enum { HEADS = 16, DIM = 128 };
    kvc_cache *cache;
    const kvc_layer_spec spec = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .max_positions = (int64_t)1 << 21};
    const kvc_status status = kvc_cache_new(&cache, pool, &desc);
    if (status == KVC_E_NOMEM) {
        print_message("skipped: this system gives no 16 GiB of address space\n");
        skip();
    }
    assert_ok(status);
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    assert_ok(kvc_cache_nbytes_get(cache, &nbytes));
    assert_int_equal(nbytes.reserved, (uint64_t)1 << 34);

    float one[HEADS][DIM];
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < DIM; d++) one[h][d] = (float)(h + 1);
    kvc_array row, k, v;
    assert_ok(kvc_array_borrow(&row, KVC_F32, 4, (const int64_t[4]){1, HEADS, 1, DIM}, NULL, one));
    assert_ok(kvc_cache_append(cache, 0, &row, &row));
    assert_ok(kvc_cache_view(cache, 0, &k, &v));
    assert_int_equal(k.strides[1], ((int64_t)1 << 21) * DIM);
    for (int h = 0; h < HEADS; h++) {
        const uint16_t *word = (const uint16_t *)v.data + h * v.strides[1];
        const float value = (float)(h + 1);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        assert_int_equal(*word, bits >> 16);
    }
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(cache);
    kvc_pool_clear(pool);
}

static void cache_desc__sizes_that_wrap_64_bits_are_refused_with_the_sizes(void **state) {
    (void)state;
    kvc_layer_spec spec = {.kv_heads = 16, .key_dim = 128, .dtype = KVC_BF16};
    kvc_cache_desc d = good_desc();
    d.specs = &spec;
    d.max_positions = (int64_t)1 << 52; /* × 16 × 256 wraps to 0 */
    assert_refused(&d, KVC_E_RANGE, WORDS("16 ranges", "4503599627370496 positions", "256 bytes"));
    d.max_positions = (int64_t)1 << 51; /* fits a size_t, but no object is as large */
    assert_refused(&d, KVC_E_RANGE, WORDS("16 ranges", "2251799813685248 positions", "256 bytes"));
    d.max_positions = INT64_MAX; /* whole chunks of it are no number */
    assert_refused(&d, KVC_E_RANGE, WORDS("9223372036854775807 positions", "chunks of 16"));

    d = good_desc();
    d.specs = &spec;
    d.growth = KVC_GROW_CHUNK;
    d.batch = (int64_t)1 << 60;
    assert_refused(&d, KVC_E_RANGE, WORDS("batch 1152921504606846976", "layers"));
    d.batch = 16;
    spec.kv_heads = (int64_t)1 << 60;
    assert_refused(&d, KVC_E_RANGE, WORDS("batch 16", "kv_heads 1152921504606846976"));
    d.batch = 1;
    spec.kv_heads = 16;
    spec.key_dim = INT64_MAX;
    assert_refused(&d, KVC_E_RANGE, WORDS("16 ranges", "18446744073709551614 bytes"));
    spec.key_dim = 128;
    spec.value_dim = (int64_t)1 << 62;
    assert_refused(&d, KVC_E_RANGE, WORDS("16", "positions"));
    spec = small_spec;
    d.layers = INT64_MAX;
    assert_refused(&d, KVC_E_RANGE, WORDS("9223372036854775807"));
}

/* What CHUNK and EXACT multiply, they multiply when they grow. */
static void cache_desc__growth_that_wraps_64_bits_is_refused_and_changes_nothing(void **state) {
    (void)state;
    for (kvc_growth growth = KVC_GROW_CHUNK; growth <= KVC_GROW_EXACT; growth++) {
        kvc_cache *cache;
        kvc_array k, v;
        kvc_cache_desc d = good_desc();
        d.growth = growth;
        d.max_positions = 0;
        assert_ok(kvc_cache_new(&cache, pool, &d));
        assert_ok(kvc_cache_prepare(cache, 1, 3, &k, &v));
        kvc_array_release(&k);
        kvc_array_release(&v);
        assert_ok(kvc_cache_commit(cache, 1, 3));
        const int64_t capacity = kvc_cache_capacity(cache, 1);
        const int64_t absurd[] = {INT64_MAX, INT64_MAX - 3, (int64_t)1 << 60, (int64_t)1 << 58};
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            k.ndim = v.ndim = 9;
            assert_fails(kvc_cache_prepare(cache, 1, absurd[i], &k, &v), KVC_E_RANGE);
            assert_null(k.buffer);
            assert_null(v.data);
            assert_int_equal(k.ndim + v.ndim, 0);
            assert_int_equal(kvc_cache_length(cache, 1), 3);
            assert_int_equal(kvc_cache_capacity(cache, 1), capacity);
        }
        assert_ok(kvc_cache_check(cache));
        kvc_cache_free(cache);
    }
}

static void
cache_desc__a_chunk_as_large_as_a_number_goes_is_refused_when_it_is_wanted(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_array k, v;
    kvc_cache_desc d = good_desc();
    d.chunk = INT64_MAX;
    assert_refused(&d, KVC_E_RANGE, WORDS("9223372036854775807"));
    d.growth = KVC_GROW_CHUNK;
    assert_ok(kvc_cache_new(&cache, pool, &d));
    assert_fails(kvc_cache_prepare(cache, 0, 1, &k, &v), KVC_E_RANGE);
    assert_fails(kvc_cache_prepare(cache, 0, 2, &k, &v), KVC_E_RANGE);
    assert_ok(kvc_cache_check(cache));
    kvc_cache_free(cache);
}

static void cache_desc__layers_that_are_not_there_are_refused_by_every_call(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_array k, v, row;
    static const float zeros[2 * 8];
    const kvc_cache_desc desc = good_desc();
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    assert_ok(kvc_array_borrow(&row, KVC_F32, 4, (const int64_t[4]){1, 2, 1, 8}, NULL, zeros));
    const int64_t absent[] = {-1, 3, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        const int64_t layer = absent[i];
        assert_int_equal(kvc_cache_length(cache, layer), -1);
        assert_int_equal(kvc_cache_capacity(cache, layer), -1);
        assert_fails(kvc_cache_append(cache, layer, &row, &row), KVC_E_INVALID);
        assert_fails(kvc_cache_prepare(cache, layer, 1, &k, &v), KVC_E_INVALID);
        assert_fails(kvc_cache_commit(cache, layer, 0), KVC_E_INVALID);
        assert_fails(kvc_cache_view(cache, layer, &k, &v), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "layer"));
        assert_non_null(strstr(kvc_last_error(), "0 to 2 wanted"));
    }
    kvc_cache_free(cache);
}

static void cache_desc__a_null_cache_is_refused_by_every_call(void **state) {
    (void)state;
    kvc_array k, v;
    kvc_cache_desc desc = {.struct_size = sizeof desc};
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    kvc_cache_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvc_cache_length(NULL, 0), -1);
    assert_int_equal(kvc_cache_capacity(NULL, 0), -1);
    assert_fails(kvc_cache_append(NULL, 0, NULL, NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_prepare(NULL, 0, 1, &k, &v), KVC_E_INVALID);
    assert_fails(kvc_cache_commit(NULL, 0, 0), KVC_E_INVALID);
    assert_fails(kvc_cache_view(NULL, 0, &k, &v), KVC_E_INVALID);
    assert_fails(kvc_cache_trim(NULL, 0), KVC_E_INVALID);
    assert_fails(kvc_cache_check(NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_desc_get(NULL, &desc), KVC_E_INVALID);
    assert_fails(kvc_cache_nbytes_get(NULL, &nbytes), KVC_E_INVALID);
    assert_fails(kvc_cache_stats_get(NULL, &stats), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "cache"));
}

static void cache_desc__figures_want_their_struct_size(void **state) {
    (void)state;
    kvc_cache *cache;
    kvc_cache_desc desc = good_desc();
    assert_ok(kvc_cache_new(&cache, pool, &desc));
    kvc_cache_nbytes nbytes = {0};
    kvc_cache_stats stats = {0};
    desc.struct_size = 0;
    assert_fails(kvc_cache_desc_get(cache, &desc), KVC_E_INVALID);
    assert_fails(kvc_cache_desc_get(cache, NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_nbytes_get(cache, &nbytes), KVC_E_INVALID);
    assert_fails(kvc_cache_nbytes_get(cache, NULL), KVC_E_INVALID);
    assert_fails(kvc_cache_stats_get(cache, &stats), KVC_E_INVALID);
    assert_fails(kvc_cache_stats_get(cache, NULL), KVC_E_INVALID);
    kvc_cache_free(cache);
}

static void cache_desc__growths_have_names(void **state) {
    (void)state;
    assert_string_equal(kvc_growth_name(KVC_GROW_RESERVE), "reserve");
    assert_string_equal(kvc_growth_name(KVC_GROW_CHUNK), "chunk");
    assert_string_equal(kvc_growth_name(KVC_GROW_EXACT), "exact");
    assert_string_equal(kvc_growth_name((kvc_growth)9), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_desc__zeroes_mean_one_sequence_and_the_seeds_chunk),
        cmocka_unit_test(
            cache_desc__comes_back_with_a_spec_for_each_layer_that_outlives_the_callers),
        cmocka_unit_test(cache_desc__makes_the_next_cache_alike),
        cmocka_unit_test(cache_desc__every_misuse_of_a_field_is_refused_by_its_name),
        cmocka_unit_test(cache_desc__every_misuse_of_a_spec_is_refused_with_its_layer),
        cmocka_unit_test(cache_desc__null_arguments_are_refused_by_their_names),
        cmocka_unit_test(cache_desc__of_an_older_caller_is_read_as_far_as_it_goes),
        cmocka_unit_test(cache_desc__reserve_on_a_device_that_cannot_is_unsupported),
        cmocka_unit_test(cache_desc__a_new_cache_holds_no_memory),
        cmocka_unit_test(cache_desc__sizes_that_wrap_32_bits_are_right),
        cmocka_unit_test(cache_desc__sizes_that_wrap_64_bits_are_refused_with_the_sizes),
        cmocka_unit_test(cache_desc__growth_that_wraps_64_bits_is_refused_and_changes_nothing),
        cmocka_unit_test(
            cache_desc__a_chunk_as_large_as_a_number_goes_is_refused_when_it_is_wanted),
        cmocka_unit_test(cache_desc__layers_that_are_not_there_are_refused_by_every_call),
        cmocka_unit_test(cache_desc__a_null_cache_is_refused_by_every_call),
        cmocka_unit_test(cache_desc__figures_want_their_struct_size),
        cmocka_unit_test(cache_desc__growths_have_names),
    };
    return cmocka_run_group_tests(tests, open_pool, close_pool);
}
