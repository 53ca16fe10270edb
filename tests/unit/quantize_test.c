/* Packing by affine groups: meaning, bounds, bits, and what is refused. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/quantize.h>

#include "array/pack.h"
#include "support/attend.h"
#include "support/guarded.h"
#include "support/support.h"

static const int widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

/* Numbers [1][heads][positions][dim], and what they are packed to, each in a layout. */
typedef struct pair {
    test_tensor x, scales, biases, back;
    test_tensor words;
    kvc_quantized packed;
} pair;

static pair pair_new(int bits, int group, kvc_dtype dtype, kvc_dtype scaling, test_layout layout,
                     int64_t heads, int64_t positions, int64_t dim) {
    pair p = {.x = test_tensor_new(dtype, layout, 1, heads, positions, dim),
              .scales = test_tensor_new(scaling, layout, 1, heads, positions, dim / group),
              .biases = test_tensor_new(scaling, layout, 1, heads, positions, dim / group),
              .words = test_tensor_new(KVC_U8, layout, 1, heads, positions, dim * bits / 8),
              .back = test_tensor_new(KVC_F32, layout, 1, heads, positions, dim)};
    p.packed = (kvc_quantized){.struct_size = sizeof p.packed,
                               .bits = bits,
                               .group = group,
                               .words = p.words.array,
                               .scales = p.scales.array,
                               .biases = p.biases.array};
    return p;
}

static void pair_free(pair *p) {
    test_tensor *all[] = {&p->x, &p->scales, &p->biases, &p->back, &p->words};
    for (int i = 0; i < COUNT(all); i++) test_tensor_free(all[i]);
}

/* Value d of a row of words, bit by bit. */
static int integer_at(const pair *p, int64_t h, int64_t i, int64_t d) {
    int q = 0;
    for (int bit = 0; bit < p->packed.bits; bit++) {
        const int64_t at = d * p->packed.bits + bit;
        const int byte = (int)test_get(&p->words.array, 0, h, i, at / 8);
        q |= (byte >> (at % 8) & 1) << bit;
    }
    return q;
}

/* Half a unit in the last place of a number near x, of 2^-bits. */
static double rounding(kvc_dtype dtype, double x) {
    const double unit = dtype == KVC_F32 ? 0x1p-24 : dtype == KVC_F16 ? 0x1p-11 : 0x1p-8;
    return fabs(x) * unit + (dtype == KVC_F16 ? 0x1p-25 : 0);
}

/* |x - value| ≤ half a scale; at the end that is not kept, which may lie beyond the last step, ≤ a
 * scale; and what rounding adds: that of scale (q times) and bias to their dtype, and of f32. */
static void check_value(const pair *p, int64_t h, int64_t i, int64_t d) {
    const double x = test_get(&p->x.array, 0, h, i, d);
    const double scale = test_get(&p->scales.array, 0, h, i, d / p->packed.group);
    const double bias = test_get(&p->biases.array, 0, h, i, d / p->packed.group);
    const double value = test_get(&p->back.array, 0, h, i, d);
    const int q = integer_at(p, h, i, d), last = (1 << p->packed.bits) - 1;
    const float product = (float)scale * (float)q;
    assert_true(value == (double)(product + (float)bias));
    const kvc_dtype scaling = p->packed.scales.dtype;
    const double slack = 2 * q * rounding(scaling, scale) + 2 * rounding(scaling, bias) +
                         4 * (fabs(x) + fabs(bias)) * FLT_EPSILON;
    const double bound = (q == last ? 1 : 0.5) * fabs(scale) * (1 + 1e-5) + slack;
    if (!(fabs(x - value) <= bound))
        fail_msg("%d bits, group %d: %g became %g, scale %g, q %d", p->packed.bits, p->packed.group,
                 x, value, scale, q);
}

static void check_random(int bits, int group, kvc_dtype dtype, kvc_dtype scaling,
                         test_layout layout, uint64_t *seed) {
    const int64_t heads = 2, positions = 1 + (int64_t)(test_random(seed) % 4);
    const int64_t dim = group * (1 + (int64_t)(test_random(seed) % 5));
    pair p = pair_new(bits, group, dtype, scaling, layout, heads, positions, dim);
    static const double sizes[] = {1e-6, 0.3, 1, 100}; /* around 0, or beside it */
    const double size = sizes[test_random(seed) % 4];
    const double shift = test_random(seed) % 2 ? 0 : size * (double)(test_random(seed) % 7) - size;
    test_fill_random(&p.x.array, size, seed);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < positions; i++)
            for (int64_t d = 0; d < dim; d++)
                test_set(&p.x.array, 0, h, i, d, test_get(&p.x.array, 0, h, i, d) + shift);
    assert_ok(kvc_quantize(&p.packed, &p.x.array));
    assert_ok(kvc_dequantize(&p.back.array, &p.packed));
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < positions; i++)
            for (int64_t d = 0; d < dim; d++) check_value(&p, h, i, d);
    pair_free(&p);
}

static void quantize__is_off_by_half_a_scale_at_most(void **state) {
    (void)state;
    uint64_t seed = test_seed(41);
    for (int b = 0; b < COUNT(widths); b++)
        for (int g = 0; g < COUNT(groups); g++)
            for (int d = 0; d < COUNT(dtypes); d++)
                for (int s = 0; s < COUNT(dtypes); s++)
                    for (int l = TEST_HEAD_MAJOR; l <= TEST_SPARE; l++)
                        check_random(widths[b], groups[g], dtypes[d], dtypes[s], (test_layout)l,
                                     &seed);
}

static void quantize__packs_low_bits_first(void **state) {
    (void)state;
    static const uint8_t wanted[][8] = {
        {0xe4, 0xe4},
        {0x88, 0xc6, 0xfa},
        {0x10, 0x32, 0x54, 0x76},
        {0x20, 0x88, 0x41, 0x8a, 0x39},
        {0x40, 0x20, 0x0c, 0x44, 0x61, 0x1c},
        {0, 1, 2, 3, 4, 5, 6, 7},
    };
    for (int b = 0; b < COUNT(widths); b++) {
        const int count = 1 << widths[b], last = count - 1, group = 128;
        float x[256], scales[2], biases[2];
        uint8_t words[256];
        kvc_quantized packed = {.struct_size = sizeof packed, .bits = widths[b], .group = group};
        kvc_array a;
        const int64_t dim = 256, bytes = dim * widths[b] / 8, two = 2;
        /* The largest number is kept, as 0, and the scale is -1. */
        for (int i = 0; i < dim; i++) x[i] = (float)(last - i % count);
        if (widths[b] == 8) x[127] = 0, x[128] = 255; /* each group has both ends */
        assert_ok(kvc_array_borrow(&a, KVC_F32, 1, &dim, NULL, x));
        assert_ok(kvc_array_borrow(&packed.words, KVC_U8, 1, &bytes, NULL, words));
        assert_ok(kvc_array_borrow(&packed.scales, KVC_F32, 1, &two, NULL, scales));
        assert_ok(kvc_array_borrow(&packed.biases, KVC_F32, 1, &two, NULL, biases));
        assert_ok(kvc_quantize(&packed, &a));
        assert_true(scales[0] == -1.0f && biases[0] == (float)last);
        assert_memory_equal(words, wanted[b], (size_t)widths[b]);
    }
}

/* A row of four groups whose second holds `odd`. */
static void check_odd(int bits, kvc_dtype scaling, float odd, bool spoils, uint64_t *seed) {
    pair p = pair_new(bits, 32, KVC_F32, scaling, TEST_SPARE, 1, 1, 128);
    test_fill_random(&p.x.array, 1, seed);
    test_set(&p.x.array, 0, 0, 0, 32 + (int64_t)(test_random(seed) % 32), (double)odd);
    assert_ok(kvc_quantize(&p.packed, &p.x.array));
    assert_ok(kvc_dequantize(&p.back.array, &p.packed));
    for (int64_t d = 0; d < 128; d++) {
        if (!spoils || d / 32 != 1) {
            check_value(&p, 0, 0, d);
            continue;
        }
        assert_true(isnan(test_get(&p.back.array, 0, 0, 0, d)));
        assert_int_equal(integer_at(&p, 0, 0, d), 0);
    }
    assert_int_equal(isnan(test_get(&p.scales.array, 0, 0, 0, 1)) != 0, spoils);
    assert_int_equal(isnan(test_get(&p.biases.array, 0, 0, 0, 1)) != 0, spoils);
    pair_free(&p);
}

static void quantize__nan_and_infinity_spoil_their_group_alone(void **state) {
    (void)state;
    uint64_t seed = test_seed(42);
    for (int b = 0; b < COUNT(widths); b++)
        for (int s = 0; s < COUNT(dtypes); s++)
            for (int i = 0; i < 40; i++) { /* places */
                check_odd(widths[b], dtypes[s], NAN, true, &seed);
                check_odd(widths[b], dtypes[s], INFINITY, true, &seed);
                check_odd(widths[b], dtypes[s], -INFINITY, true, &seed);
            }
}

static void quantize__what_scales_cannot_hold_spoils_its_group_alone(void **state) {
    (void)state;
    uint64_t seed = test_seed(43);
    check_odd(8, KVC_F16, 65519, false, &seed);
    check_odd(8, KVC_F16, -65519, false, &seed);
    check_odd(8, KVC_F16, 65520, true, &seed);
    check_odd(8, KVC_BF16, 65520, false, &seed);
    check_odd(8, KVC_BF16, 0x1.fefffep127f, false, &seed); /* rounds to a number, barely */
    check_odd(8, KVC_BF16, 0x1.ffp127f, true, &seed);
    check_odd(8, KVC_F32, 0x1.ffp127f, false, &seed);
    float x[32] = {FLT_MAX, -FLT_MAX}, scale = 0, bias = 0; /* the range is no f32 */
    uint8_t words[32];
    kvc_quantized packed = {.struct_size = sizeof packed, .bits = 8, .group = 32};
    const int64_t dim = 32, one = 1;
    kvc_array a;
    assert_ok(kvc_array_borrow(&a, KVC_F32, 1, &dim, NULL, x));
    assert_ok(kvc_array_borrow(&packed.words, KVC_U8, 1, &dim, NULL, words));
    assert_ok(kvc_array_borrow(&packed.scales, KVC_F32, 1, &one, NULL, &scale));
    assert_ok(kvc_array_borrow(&packed.biases, KVC_F32, 1, &one, NULL, &bias));
    assert_ok(kvc_quantize(&packed, &a));
    assert_true(isnan(scale) && isnan(bias));
}

/* Positions [begin, end) of a tensor, as a view. */
static kvc_array positions(const test_tensor *t, int64_t begin, int64_t end) {
    kvc_array a = t->array;
    a.data = (char *)a.data + begin * a.strides[2] * (int64_t)kvc_dtype_size_bytes(a.dtype);
    a.shape[2] = end - begin;
    return a;
}

static void quantize__streaming_equals_one_shot(void **state) {
    (void)state;
    uint64_t seed = test_seed(44);
    for (int b = 0; b < COUNT(widths); b++) {
        pair all = pair_new(widths[b], 64, KVC_F16, KVC_BF16, TEST_SPARE, 3, 9, 192);
        pair some = pair_new(widths[b], 64, KVC_F16, KVC_BF16, TEST_SPARE, 3, 9, 192);
        test_fill_random(&all.x.array, 2, &seed);
        assert_ok(kvc_quantize(&all.packed, &all.x.array));
        for (int64_t i = 0, n = 1; i < 9; i += n, n = n % 3 + 1) {
            const int64_t end = i + n < 9 ? i + n : 9;
            kvc_quantized part = some.packed;
            part.words = positions(&some.words, i, end);
            part.scales = positions(&some.scales, i, end);
            part.biases = positions(&some.biases, i, end);
            const kvc_array x = positions(&all.x, i, end);
            assert_ok(kvc_quantize(&part, &x));
        }
        bool same;
        assert_ok(kvc_array_equal(&same, &all.packed.words, &some.packed.words));
        assert_true(same);
        assert_ok(kvc_array_equal(&same, &all.packed.scales, &some.packed.scales));
        assert_true(same);
        assert_ok(kvc_array_equal(&same, &all.packed.biases, &some.packed.biases));
        assert_true(same);
        pair_free(&all);
        pair_free(&some);
    }
}

static void quantize__gives_the_same_bits_on_every_instruction_set(void **state) {
    (void)state;
    uint64_t seed = test_seed(45);
    const kvc__pack_ops *best = kvc__pack_best();
    for (int round = 0; round < 2000; round++) {
        const int bits = widths[test_random(&seed) % 6], group = groups[test_random(&seed) % 3];
        const kvc__packing how = {bits, group, 1, dtypes[test_random(&seed) % 3],
                                  dtypes[test_random(&seed) % 3]};
        union {
            uint32_t words[128];
            uint64_t random[64];
        } x, back[2];
        uint8_t words[2][128] = {{0}};
        uint32_t scales[2] = {0}, biases[2] = {0};
        for (int i = 0; i < 64; i++) x.random[i] = test_random(&seed);
        if (round % 2) /* of all exponents at first, then of few: numbers that matter */
            for (int i = 0; i < 128; i++) x.words[i] = (x.words[i] & 0x87ff87ff) | 0x38003800;
        memset(back, 0, sizeof back);
        for (int k = 0; k < 2; k++) {
            const kvc__pack_ops *ops = k ? best : &kvc__pack_generic;
            const kvc__packed to = {words[k], &scales[k], &biases[k]};
            ops->pack(&how, &to, &x);
            ops->unpack(&how, &back[k], &to);
        }
        assert_memory_equal(words[0], words[1], sizeof words[0]);
        assert_memory_equal(&scales[0], &scales[1], sizeof scales[0]);
        assert_memory_equal(&biases[0], &biases[1], sizeof biases[0]);
        assert_memory_equal(&back[0], &back[1], sizeof back[0]);
    }
}

static void quantize__stays_within_its_rows(void **state) {
    (void)state;
    for (int b = 0; b < COUNT(widths); b++)
        for (int at_end = 0; at_end < 2; at_end++) {
            const int64_t bytes = 64 * widths[b] / 8;
            guarded x = guarded_new(256), w = guarded_new(64), s = guarded_new(2);
            uint16_t bias;
            float *numbers = (float *)(void *)guarded_place(&x, 256, at_end);
            for (int i = 0; i < 64; i++) numbers[i] = (float)i;
            const kvc__packed to = {(uint8_t *)guarded_place(&w, (size_t)bytes, at_end),
                                    guarded_place(&s, 2, at_end), &bias};
            const kvc__packing how = {widths[b], 64, 1, KVC_F32, KVC_F16};
            kvc__pack_best()->pack(&how, &to, numbers);
            kvc__pack_best()->unpack(&how, numbers, &to);
            guarded_free(&x);
            guarded_free(&w);
            guarded_free(&s);
        }
}

static void dequantize__takes_every_scale_as_it_is(void **state) {
    (void)state;
    static const float scales[] = {0, -0.5f, 1e-30f, NAN, INFINITY};
    for (int i = 0; i < COUNT(scales); i++) {
        pair p = pair_new(4, 32, KVC_F32, KVC_F32, TEST_HEAD_MAJOR, 1, 1, 32);
        memset(p.words.memory, 0x21, 16); /* 1, 2, 1, 2, … */
        test_set(&p.scales.array, 0, 0, 0, 0, (double)scales[i]);
        test_set(&p.biases.array, 0, 0, 0, 0, 3);
        assert_ok(kvc_dequantize(&p.back.array, &p.packed));
        for (int64_t d = 0; d < 32; d++) {
            const float value = (float)test_get(&p.back.array, 0, 0, 0, d);
            const float wanted = scales[i] * (float)(1 + d % 2) + 3;
            assert_true(isnan(wanted) ? isnan(value) : value == wanted);
        }
        pair_free(&p);
    }
}

static void quantize__refuses_what_does_not_fit(void **state) {
    (void)state;
    pair p = pair_new(4, 32, KVC_F32, KVC_F32, TEST_HEAD_MAJOR, 2, 3, 64);
    const kvc_quantized right = p.packed;
    kvc_quantized wrong;
    kvc_array x = p.x.array;
#define REFUSES(change, status, words)                                                             \
    do {                                                                                           \
        wrong = right;                                                                             \
        x = p.x.array;                                                                             \
        change;                                                                                    \
        assert_fails(kvc_quantize(&wrong, &x), status);                                            \
        assert_non_null(strstr(kvc_last_error(), words));                                          \
        assert_fails(kvc_dequantize(&x, &wrong), status);                                          \
    } while (0)
    REFUSES(wrong.struct_size = 0, KVC_E_INVALID, "struct_size");
    REFUSES(wrong.bits = 7, KVC_E_INVALID, "bits: 7 given");
    REFUSES(wrong.group = 16, KVC_E_INVALID, "group: 16 given");
    REFUSES((x.shape[3] = 48), KVC_E_SHAPE, "48 given, a multiple of the group 32");
    REFUSES(x.dtype = KVC_U8, KVC_E_SHAPE, "dtype u8 given");
    REFUSES(x.strides[3] = 2, KVC_E_SHAPE, "last stride 2 given");
    REFUSES(x.ndim = 0, KVC_E_SHAPE, "no dimensions");
    REFUSES(x.data = NULL, KVC_E_INVALID, "data");
    REFUSES(wrong.words.dtype = KVC_I8, KVC_E_SHAPE, "words: dtype i8");
    REFUSES(wrong.words.shape[3] = 31, KVC_E_SHAPE, "words: shape [1, 2, 3, 31] given");
    REFUSES(wrong.words.data = NULL, KVC_E_INVALID, "words: data");
    REFUSES(wrong.scales.dtype = KVC_U32, KVC_E_SHAPE, "scales: dtype u32");
    REFUSES(wrong.scales.shape[2] = 2, KVC_E_SHAPE, "scales: shape");
    REFUSES(wrong.biases.shape[1] = 3, KVC_E_SHAPE, "biases: shape");
    REFUSES(wrong.biases.dtype = KVC_F16, KVC_E_SHAPE, "biases: dtype f16");
    assert_fails(kvc_quantize(NULL, &x), KVC_E_INVALID);
    assert_fails(kvc_quantize(&right, NULL), KVC_E_INVALID);
    assert_fails(kvc_dequantize(NULL, &right), KVC_E_INVALID);
    for (size_t i = 0; i < kvc_array_nbytes(&p.words.array); i++)
        assert_int_equal(((uint8_t *)p.words.memory)[i], 0xff);
    pair_free(&p);
}

static void quantize__takes_no_rows(void **state) {
    (void)state;
    pair p = pair_new(4, 32, KVC_F32, KVC_F32, TEST_HEAD_MAJOR, 2, 0, 64);
    assert_ok(kvc_quantize(&p.packed, &p.x.array));
    assert_ok(kvc_dequantize(&p.back.array, &p.packed));
    pair_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize__is_off_by_half_a_scale_at_most),
        cmocka_unit_test(quantize__packs_low_bits_first),
        cmocka_unit_test(quantize__nan_and_infinity_spoil_their_group_alone),
        cmocka_unit_test(quantize__what_scales_cannot_hold_spoils_its_group_alone),
        cmocka_unit_test(quantize__streaming_equals_one_shot),
        cmocka_unit_test(quantize__gives_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(quantize__stays_within_its_rows),
        cmocka_unit_test(quantize__refuses_what_does_not_fit),
        cmocka_unit_test(quantize__takes_no_rows),
        cmocka_unit_test(dequantize__takes_every_scale_as_it_is),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
