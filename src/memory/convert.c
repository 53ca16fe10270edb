#include "memory/convert.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"

/* The innermost dimension of a copy. */
typedef struct row {
    int64_t n; /* elements */
    int64_t dst_stride, src_stride;
    kvc_dtype to, from;
    size_t whole_bytes; /* when both sides are contiguous and of one dtype: all of it */
} row;

typedef void (*row_fn)(void *dst, const void *src, const row *r);

/* A row of one conversion, written twice so that the compiler vectorises the contiguous one. */
#define ROW(name, to, from, convert)                                                               \
    static void name(void *dst, const void *src, const row *r) {                                   \
        to *restrict d = dst;                                                                      \
        const from *restrict s = src;                                                              \
        const int64_t n = r->n, ds = r->dst_stride, ss = r->src_stride;                            \
        if (ds == 1 && ss == 1)                                                                    \
            for (int64_t i = 0; i < n; i++) d[i] = convert(s[i]);                                  \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) d[i * ds] = convert(s[i * ss]);                        \
    }

/* The same for elements that keep their type; by memcpy, as the type of the memory is not known. */
#define ROW_SAME(name, bytes)                                                                      \
    static void name(void *dst, const void *src, const row *r) {                                   \
        for (int64_t i = 0; i < r->n; i++)                                                         \
            memcpy((char *)dst + i * r->dst_stride * (bytes),                                      \
                   (const char *)src + i * r->src_stride * (bytes), (bytes));                      \
    }

static void row_whole(void *dst, const void *src, const row *r) {
    memcpy(dst, src, r->whole_bytes);
}

#define F16_OF_BF16(x) kvc__f16_of_f32(kvc__f32_of_bf16(x))
#define BF16_OF_F16(x) kvc__bf16_of_f32(kvc__f32_of_f16(x))

ROW_SAME(row_1_byte, 1)
ROW_SAME(row_2_bytes, 2)
ROW_SAME(row_4_bytes, 4)
ROW(row_f16_of_f32, uint16_t, float, kvc__f16_of_f32)
ROW(row_bf16_of_f32, uint16_t, float, kvc__bf16_of_f32)
ROW(row_f32_of_f16, float, uint16_t, kvc__f32_of_f16)
ROW(row_f32_of_bf16, float, uint16_t, kvc__f32_of_bf16)
ROW(row_f16_of_bf16, uint16_t, uint16_t, F16_OF_BF16)
ROW(row_bf16_of_f16, uint16_t, uint16_t, BF16_OF_F16)

/* An element of memory whose type is not known. */
typedef union element {
    float f32;
    uint16_t half;
    int8_t i8;
    uint8_t u8;
    uint32_t u32;
} element;

double kvc__convert_load(const void *src, kvc_dtype dtype) {
    element e;
    memcpy(&e, src, kvc_dtype_size_bytes(dtype));
    switch (dtype) {
    case KVC_F32: return (double)e.f32;
    case KVC_F16: return (double)kvc__f32_of_f16(e.half);
    case KVC_BF16: return (double)kvc__f32_of_bf16(e.half);
    case KVC_I8: return (double)e.i8;
    case KVC_U8: return (double)e.u8;
    case KVC_U32: return (double)e.u32;
    }
    return 0.0;
}

/* Rounds to f32 so that rounding again to a half type ends where one rounding would: inexact
 * results get an odd last bit (Boldo and Melquiond, "Emulation of a FMA", 2008). */
static float narrow_to_odd(double x) {
    float f = (float)x;
    if (isnan(x) || isinf(f) || (double)f == x) return f;
    if (fabs((double)f) > fabs(x)) f = nextafterf(f, 0.0F);
    return kvc__f32_of_bits(kvc__bits_of_f32(f) | 1u);
}

static double saturate(double x, double low, double high) {
    if (isnan(x)) return 0.0;
    return x < low ? low : x > high ? high : x;
}

static void store(void *dst, kvc_dtype dtype, double x) {
    element e = {0};
    switch (dtype) {
    case KVC_F32: e.f32 = (float)x; break;
    case KVC_F16: e.half = kvc__f16_of_f32(narrow_to_odd(x)); break;
    case KVC_BF16: e.half = kvc__bf16_of_f32(narrow_to_odd(x)); break;
    case KVC_I8: e.i8 = (int8_t)saturate(x, INT8_MIN, INT8_MAX); break;
    case KVC_U8: e.u8 = (uint8_t)saturate(x, 0, UINT8_MAX); break;
    case KVC_U32: e.u32 = (uint32_t)saturate(x, 0, UINT32_MAX); break;
    }
    memcpy(dst, &e, kvc_dtype_size_bytes(dtype));
}

/* A conversion without a loop of its own: exact through f64, an element at a time. */
static void row_any(void *dst, const void *src, const row *r) {
    const int64_t ds = r->dst_stride * (int64_t)kvc_dtype_size_bytes(r->to);
    const int64_t ss = r->src_stride * (int64_t)kvc_dtype_size_bytes(r->from);
    for (int64_t i = 0; i < r->n; i++)
        store((char *)dst + i * ds, r->to, kvc__convert_load((const char *)src + i * ss, r->from));
}

static row_fn same_row_of(const row *r, size_t element_bytes) {
    if (r->whole_bytes) return row_whole;
    return element_bytes == 1 ? row_1_byte : element_bytes == 2 ? row_2_bytes : row_4_bytes;
}

static row_fn converting_row_of(kvc_dtype to, kvc_dtype from) {
    switch (to) {
    case KVC_F32:
        return from == KVC_F16 ? row_f32_of_f16 : from == KVC_BF16 ? row_f32_of_bf16 : row_any;
    case KVC_F16:
        return from == KVC_F32 ? row_f16_of_f32 : from == KVC_BF16 ? row_f16_of_bf16 : row_any;
    case KVC_BF16:
        return from == KVC_F32 ? row_bf16_of_f32 : from == KVC_F16 ? row_bf16_of_f16 : row_any;
    case KVC_I8:
    case KVC_U8:
    case KVC_U32: break;
    }
    return row_any;
}

/* A copy whose dimensions of extent 1 are gone and whose mergeable neighbours are one. */
typedef struct plan {
    int ndim; /* >= 2: rows, and elements of a row */
    int64_t shape[KVC_MAX_DIMS + 1];
    int64_t dst_strides[KVC_MAX_DIMS + 1], src_strides[KVC_MAX_DIMS + 1]; /* in elements */
} plan;

/* Returns false when there is nothing to copy. */
static bool plan_copy(plan *p, const kvc_strided *dst, const kvc_strided *src, int ndim,
                      const int64_t *shape) {
    int n = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) return false;
        if (shape[i] == 1) continue;
        if (n > 0 && p->dst_strides[n - 1] == shape[i] * dst->strides[i] &&
            p->src_strides[n - 1] == shape[i] * src->strides[i])
            p->shape[--n] *= shape[i];
        else p->shape[n] = shape[i];
        p->dst_strides[n] = dst->strides[i];
        p->src_strides[n++] = src->strides[i];
    }
    if (n == 0) { /* one element */
        p->shape[0] = p->dst_strides[0] = p->src_strides[0] = 1;
        n = 1;
    }
    if (n == 1) { /* one row */
        p->shape[1] = p->shape[0];
        p->dst_strides[1] = p->dst_strides[0];
        p->src_strides[1] = p->src_strides[0];
        p->shape[0] = 1;
        p->dst_strides[0] = p->src_strides[0] = 0;
        n = 2;
    }
    p->ndim = n;
    return true;
}

void kvc__convert_copy(const kvc_strided *dst, const kvc_strided *src, int ndim,
                       const int64_t *shape) {
    plan p;
    if (!plan_copy(&p, dst, src, ndim, shape)) return;
    const int64_t dst_bytes = (int64_t)kvc_dtype_size_bytes(dst->dtype);
    const int64_t src_bytes = (int64_t)kvc_dtype_size_bytes(src->dtype);
    const int inner = p.ndim - 1, rows = p.ndim - 2; /* dimensions before these: the odometer's */
    row r = {p.shape[inner], p.dst_strides[inner], p.src_strides[inner], dst->dtype, src->dtype, 0};
    const bool same = dst->dtype == src->dtype;
    if (same && r.dst_stride == 1 && r.src_stride == 1) r.whole_bytes = (size_t)(r.n * dst_bytes);
    const row_fn copy_row =
        same ? same_row_of(&r, (size_t)dst_bytes) : converting_row_of(dst->dtype, src->dtype);

    int64_t at[KVC_MAX_DIMS + 1] = {0};
    char *d = dst->data;
    const char *s = src->data;
    for (;;) {
        for (int64_t i = 0; i < p.shape[rows]; i++)
            copy_row(d + i * p.dst_strides[rows] * dst_bytes,
                     s + i * p.src_strides[rows] * src_bytes, &r);
        int i = rows - 1;
        for (; i >= 0; i--) {
            d += p.dst_strides[i] * dst_bytes;
            s += p.src_strides[i] * src_bytes;
            if (++at[i] < p.shape[i]) break;
            d -= p.shape[i] * p.dst_strides[i] * dst_bytes;
            s -= p.shape[i] * p.src_strides[i] * src_bytes;
            at[i] = 0;
        }
        if (i < 0) return;
    }
}

void kvc__convert_fill(void *dst, kvc_dtype dtype, int64_t count, double value) {
    if (count <= 0) return;
    const size_t bytes = kvc_dtype_size_bytes(dtype);
    const row r = {.n = count, .dst_stride = 1};
    uint32_t one = 0; /* the element's bytes, from the first on */
    store(&one, dtype, value);
    if (one == 0 || bytes == 1) memset(dst, (int)(one & 0xffu), (size_t)count * bytes);
    else same_row_of(&r, bytes)(dst, &one, &r);
}
