#include <math.h>
#include <stdio.h>

#include "attention/plan.h"
#include "attention/row.h"
#include "base/error.h"

/* Dims of a row summed up at a time, on the stack. */
enum { SLICE = 128 };

/* Partial results of the same queries. */
typedef struct parts {
    const kvc_array *outs, *lses;
    size_t count;
} parts;

static kvc_status check_out(const kvc_array *out, const char *name, const int64_t shape[4]) {
    KVC_TRY(kvc__attention_check(out, name, 4, shape));
    if (out->dtype != KVC_F32 && out->dtype != KVC_F16 && out->dtype != KVC_BF16)
        return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32, f16 or bf16 wanted", name,
                         kvc_dtype_name(out->dtype));
    if (shape[3] > 1 && out->strides[3] != 1)
        return kvc__fail(KVC_E_SHAPE, "%s: last stride %lld given, 1 wanted", name,
                         (long long)out->strides[3]);
    return KVC_OK;
}

static kvc_status check_lse(const kvc_array *lse, const char *name, const int64_t shape[4]) {
    KVC_TRY(kvc__attention_check(lse, name, 3, shape));
    if (lse->dtype == KVC_F32) return KVC_OK;
    return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32 wanted", name,
                     kvc_dtype_name(lse->dtype));
}

static kvc_status check(const kvc_array *out, const kvc_array *lse, const parts *p) {
    char name[32];
    if (!out || out->ndim != 4)
        return kvc__fail(KVC_E_SHAPE,
                         "out: %d dimensions given, [batch][q_heads][n][value_dim] wanted",
                         out ? out->ndim : 0);
    KVC_TRY(check_out(out, "out", out->shape));
    if (lse) KVC_TRY(check_lse(lse, "lse", out->shape));
    if (p->count == 0 || !p->outs || !p->lses)
        return kvc__fail(KVC_E_INVALID,
                         "parts: count %zu, outs %s, lses %s given, at least 1 of both wanted",
                         p->count, p->outs ? "set" : "NULL", p->lses ? "set" : "NULL");
    for (size_t i = 0; i < p->count; i++) {
        (void)snprintf(name, sizeof name, "outs[%zu]", i);
        KVC_TRY(check_out(&p->outs[i], name, out->shape));
        (void)snprintf(name, sizeof name, "lses[%zu]", i);
        KVC_TRY(check_lse(&p->lses[i], name, out->shape));
    }
    return KVC_OK;
}

/* A row of dims, or the one element of a log-sum-exp. */
static void *row_of(const kvc_array *a, const int64_t at[3]) {
    const int64_t element = at[0] * a->strides[0] + at[1] * a->strides[1] + at[2] * a->strides[2];
    return (char *)a->data + element * (int64_t)kvc_dtype_size_bytes(a->dtype);
}

static double lse_of(const parts *p, size_t i, const int64_t at[3]) {
    return (double)*(const float *)row_of(&p->lses[i], at);
}

/* Σ exp(lse) over the parts as sum · exp(max), so that nothing overflows. */
typedef struct weight {
    double max, sum;
} weight;

static weight weigh(const parts *p, const int64_t at[3]) {
    weight all = {-INFINITY, 0};
    for (size_t i = 0; i < p->count; i++) all.max = fmax(all.max, lse_of(p, i, at));
    for (size_t i = 0; i < p->count; i++) {
        const double lse = lse_of(p, i, at);
        all.sum += lse == -INFINITY ? 0 : exp(lse - all.max); /* -inf - -inf would be NaN */
    }
    return all;
}

static void merge_row(const kvc_array *out, const parts *p, weight all, const int64_t at[3]) {
    const int64_t dim = out->shape[3];
    for (int64_t start = 0; start < dim; start += SLICE) {
        const int64_t n = dim - start < SLICE ? dim - start : SLICE;
        double sums[SLICE] = {0};
        float row[SLICE];
        for (size_t i = 0; i < p->count; i++) {
            const double lse = lse_of(p, i, at);
            if (lse == -INFINITY) continue; /* whatever its row holds */
            const double share = exp(lse - all.max) / all.sum;
            const kvc_array *from = &p->outs[i];
            kvc__row_load(row, row_of(from, at), from->dtype, start, n);
            for (int64_t d = 0; d < n; d++) sums[d] += share * (double)row[d];
        }
        for (int64_t d = 0; d < n; d++) row[d] = (float)sums[d];
        kvc__row_store(row_of(out, at), out->dtype, start, n, row);
    }
}

kvc_status kvc_attention_merge(kvc_array *out, kvc_array *lse, const kvc_array *outs,
                               const kvc_array *lses, size_t count) {
    const parts p = {outs, lses, count};
    KVC_TRY(check(out, lse, &p));
    int64_t at[3];
    for (at[0] = 0; at[0] < out->shape[0]; at[0]++)
        for (at[1] = 0; at[1] < out->shape[1]; at[1]++)
            for (at[2] = 0; at[2] < out->shape[2]; at[2]++) {
                const weight all = weigh(&p, at);
                merge_row(out, &p, all, at);
                if (lse) *(float *)row_of(lse, at) = (float)(all.max + log(all.sum));
            }
    return KVC_OK;
}
