#include <stdio.h>
#include <string.h>

#include <kvcache/quantize.h>

#include "array/pack.h"
#include "array/view.h"
#include "base/error.h"
#include "base/isa.h"

const kvc__pack_ops *kvc__pack_best(void) {
    switch (kvc__isa_best()->isa) {
#if defined(__x86_64__)
    case KVC__ISA_AVX2:
    case KVC__ISA_AVX512:
    case KVC__ISA_AVX512_BF16: return &kvc__pack_avx2;
#endif
    default: return &kvc__pack_generic;
    }
}

static bool is_float(kvc_dtype dtype) {
    return dtype == KVC_F32 || dtype == KVC_F16 || dtype == KVC_BF16;
}

/* What all four arrays are: rows of contiguous elements that the host can reach. */
static kvc_status check_rows(const kvc_array *a, const char *name) {
    KVC_TRY(kvc__array_check(a, name));
    if (a->ndim < 1) return kvc__fail(KVC_E_SHAPE, "%s: no dimensions given, rows wanted", name);
    if (kvc__array_device(a) != kvc_device_cpu())
        return kvc__fail(KVC_E_UNSUPPORTED, "%s: memory of device %s given, of the cpu wanted",
                         name, kvc__array_device(a)->name);
    if (a->shape[a->ndim - 1] > 1 && a->strides[a->ndim - 1] != 1)
        return kvc__fail(KVC_E_SHAPE, "%s: last stride %lld given, 1 wanted", name,
                         (long long)a->strides[a->ndim - 1]);
    if (kvc_array_size(a) > 0 &&
        (!a->data || (uintptr_t)a->data % kvc_dtype_size_bytes(a->dtype) != 0))
        return kvc__fail(KVC_E_INVALID, "%s: data %p given, a multiple of %zu wanted", name,
                         a->data, kvc_dtype_size_bytes(a->dtype));
    return KVC_OK;
}

static kvc_status check_numbers(const kvc_array *a, const char *name) {
    KVC_TRY(check_rows(a, name));
    if (is_float(a->dtype)) return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32, f16 or bf16 wanted", name,
                     kvc_dtype_name(a->dtype));
}

/* An array as numbers of this shape have it beside them: `dim` elements a row. */
static kvc_status check_beside(const kvc_array *a, const char *name, int ndim,
                               const int64_t *numbers, int64_t dim) {
    char given[KVC__SHAPE_TEXT], wanted[KVC__SHAPE_TEXT];
    int64_t shape[KVC_MAX_DIMS];
    memcpy(shape, numbers, (size_t)ndim * sizeof *shape);
    shape[ndim - 1] = dim;
    if (a->ndim == ndim && memcmp(a->shape, shape, (size_t)ndim * sizeof *shape) == 0)
        return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: shape %s given, %s wanted", name,
                     kvc__shape_text(given, a->ndim, a->shape),
                     kvc__shape_text(wanted, ndim, shape));
}

kvc_status kvc__packing_check(int bits, int group) {
    if (bits < 2 || bits > 8 || bits == 7)
        return kvc__fail(KVC_E_INVALID, "bits: %d given, 2, 3, 4, 5, 6 or 8 wanted", bits);
    if (group != 32 && group != 64 && group != 128)
        return kvc__fail(KVC_E_INVALID, "group: %d given, 32, 64 or 128 wanted", group);
    return KVC_OK;
}

kvc_status kvc__quantized_check(const kvc_quantized *x, const char *name, int ndim,
                                const int64_t *shape) {
    char words[32], scales[32], biases[32];
    (void)snprintf(words, sizeof words, "%s.words", name);
    (void)snprintf(scales, sizeof scales, "%s.scales", name);
    (void)snprintf(biases, sizeof biases, "%s.biases", name);
    KVC_TRY(kvc__packing_check(x->bits, x->group));
    const int64_t dim = shape[ndim - 1];
    if (dim % x->group != 0)
        return kvc__fail(KVC_E_SHAPE,
                         "%s: a last dimension of %lld given, a multiple of the group %d wanted",
                         name, (long long)dim, x->group);
    KVC_TRY(check_rows(&x->words, words));
    if (x->words.dtype != KVC_U8 && x->words.dtype != KVC_U32)
        return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, u8 or u32 wanted", words,
                         kvc_dtype_name(x->words.dtype));
    const int64_t word_bits = 8 * (int64_t)kvc_dtype_size_bytes(x->words.dtype);
    KVC_TRY(check_beside(&x->words, words, ndim, shape, dim / word_bits * x->bits));
    KVC_TRY(check_numbers(&x->scales, scales));
    KVC_TRY(check_beside(&x->scales, scales, ndim, shape, dim / x->group));
    KVC_TRY(check_numbers(&x->biases, biases));
    KVC_TRY(check_beside(&x->biases, biases, ndim, shape, dim / x->group));
    if (x->biases.dtype == x->scales.dtype) return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, %s, that of scales, wanted", biases,
                     kvc_dtype_name(x->biases.dtype), kvc_dtype_name(x->scales.dtype));
}

static kvc_status check(kvc__packing *p, const kvc_quantized *x, const char *packed_name,
                        const kvc_array *numbers, const char *name) {
    KVC_TRY(check_numbers(numbers, name));
    KVC_TRY(kvc__quantized_check(x, packed_name, numbers->ndim, numbers->shape));
    const int64_t dim = numbers->shape[numbers->ndim - 1];
    *p = (kvc__packing){x->bits, x->group, dim / x->group, numbers->dtype, x->scales.dtype};
    return KVC_OK;
}

/* The row at a position of all dimensions but the last. */
static void *row_at(const kvc_array *a, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < a->ndim - 1; i++) offset += at[i] * a->strides[i];
    return (char *)a->data + offset * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

/* Row by row, one way or the other. */
static void each_row(const kvc__packing *p, const kvc_quantized *x, const kvc_array *numbers,
                     bool pack) {
    const kvc__pack_ops *ops = kvc__pack_best();
    int64_t at[KVC_MAX_DIMS] = {0};
    if (kvc_array_size(numbers) == 0) return;
    for (;;) {
        const kvc__packed row = {row_at(&x->words, at), row_at(&x->scales, at),
                                 row_at(&x->biases, at)};
        if (pack) ops->pack(p, &row, row_at(numbers, at));
        else ops->unpack(p, row_at(numbers, at), &row);
        int i = numbers->ndim - 2;
        while (i >= 0 && ++at[i] == numbers->shape[i]) at[i--] = 0;
        if (i < 0) return;
    }
}

kvc_status kvc_quantize(const kvc_quantized *out, const kvc_array *x) {
    kvc_quantized full;
    kvc__packing p;
    KVC_TRY(kvc__struct_in(&full, sizeof full, out, "kvc_quantized"));
    KVC_TRY(check(&p, &full, "out", x, "x"));
    each_row(&p, &full, x, true);
    return KVC_OK;
}

kvc_status kvc_dequantize(const kvc_array *out, const kvc_quantized *x) {
    kvc_quantized full;
    kvc__packing p;
    KVC_TRY(kvc__struct_in(&full, sizeof full, x, "kvc_quantized"));
    KVC_TRY(check(&p, &full, "x", out, "out"));
    each_row(&p, &full, out, false);
    return KVC_OK;
}
