#include "array/view.h"
#include "attention/plan.h"
#include "base/error.h"

/* A mask repeats along missing leading dimensions and those of 1: with a stride of 0. */
static kvc_status add_mask(kvc__job *job, const kvc_array *mask) {
    const int64_t shape[4] = {job->batch, job->kv_heads * job->group, job->queries, job->length};
    char given[KVC__SHAPE_TEXT], wanted[KVC__SHAPE_TEXT];
    int64_t strides[4] = {0};
    KVC_TRY(kvc__array_check(mask, "extras.mask"));
    bool fits = mask->ndim >= 1 && mask->ndim <= 4;
    for (int d = 0; fits && d < mask->ndim; d++) {
        const int at = 4 - mask->ndim + d;
        if (mask->shape[d] != 1) strides[at] = mask->strides[d];
        fits = mask->shape[d] == 1 || mask->shape[d] == shape[at];
    }
    if (!fits)
        return kvc__fail(
            KVC_E_SHAPE, "extras.mask: shape %s given, one that broadcasts to %s wanted",
            kvc__shape_text(given, mask->ndim, mask->shape), kvc__shape_text(wanted, 4, shape));
    if (mask->dtype != KVC_U8 && mask->dtype != KVC_F32 && mask->dtype != KVC_F16 &&
        mask->dtype != KVC_BF16)
        return kvc__fail(KVC_E_SHAPE, "extras.mask: dtype %s given, u8, f32, f16 or bf16 wanted",
                         kvc_dtype_name(mask->dtype));
    KVC_TRY(kvc__attention_check(mask, "extras.mask", mask->ndim, mask->shape));
    job->mask = (kvc__rows){.data = mask->data,
                            .dtype = mask->dtype,
                            .batch_stride = strides[0],
                            .head_stride = strides[1],
                            .position_stride = strides[2],
                            .last_stride = strides[3]};
    return KVC_OK;
}

/* One float for each query head. */
static kvc_status add_heads(kvc__rows *out, const kvc__job *job, const kvc_array *a,
                            const char *name) {
    const int64_t shape[1] = {job->kv_heads * job->group};
    KVC_TRY(kvc__attention_check(a, name, 1, shape));
    if (a->dtype != KVC_F32 && a->dtype != KVC_F16 && a->dtype != KVC_BF16)
        return kvc__fail(KVC_E_SHAPE, "%s: dtype %s given, f32, f16 or bf16 wanted", name,
                         kvc_dtype_name(a->dtype));
    *out = (kvc__rows){.data = a->data, .dtype = a->dtype, .head_stride = a->strides[0]};
    return KVC_OK;
}

static kvc_status add_lse(kvc__job *job, const kvc_array *lse) {
    const int64_t shape[3] = {job->batch, job->kv_heads * job->group, job->queries};
    KVC_TRY(kvc__attention_check(lse, "extras.lse", 3, shape));
    if (lse->dtype != KVC_F32)
        return kvc__fail(KVC_E_SHAPE, "extras.lse: dtype %s given, f32 wanted",
                         kvc_dtype_name(lse->dtype));
    job->lse = (kvc__rows){
        .data = lse->data,
        .dtype = KVC_F32,
        .batch_stride = lse->strides[0],
        .head_stride = lse->strides[1],
        .position_stride = lse->strides[2],
    };
    return KVC_OK;
}

static kvc_status add_lengths(kvc__job *job, const int64_t *lengths) {
    for (int64_t b = 0; b < job->batch; b++)
        if (lengths[b] < 0 || lengths[b] > kvc__length(job, b))
            return kvc__fail(
                KVC_E_RANGE,
                "extras.lengths[%lld]: %lld given, 0 to %lld, the positions that there "
                "are, wanted",
                (long long)b, (long long)lengths[b], (long long)kvc__length(job, b));
    job->lengths = lengths;
    return KVC_OK;
}

kvc_status kvc__attention_add_extras(kvc__job *job, const kvc_attention_extras *extras) {
    kvc_attention_extras e;
    if (!extras) return KVC_OK;
    KVC_TRY(kvc__struct_in(&e, sizeof e, extras, "kvc_attention_extras"));
    if (e.mask) KVC_TRY(add_mask(job, e.mask));
    if (e.sinks) KVC_TRY(add_heads(&job->sinks, job, e.sinks, "extras.sinks"));
    if (e.slopes) KVC_TRY(add_heads(&job->slopes, job, e.slopes, "extras.slopes"));
    if (e.lse) KVC_TRY(add_lse(job, e.lse));
    if (e.lengths) KVC_TRY(add_lengths(job, e.lengths));
    return KVC_OK;
}
