#include "attention/plan.h"
#include "base/error.h"

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
        if (lengths[b] < 0 || lengths[b] > job->length)
            return kvc__fail(
                KVC_E_RANGE,
                "extras.lengths[%lld]: %lld given, 0 to %lld, the positions that there "
                "are, wanted",
                (long long)b, (long long)lengths[b], (long long)job->length);
    job->lengths = lengths;
    return KVC_OK;
}

kvc_status kvc__attention_add_extras(kvc__job *job, const kvc_attention_extras *extras) {
    kvc_attention_extras e;
    if (!extras) return KVC_OK;
    KVC_TRY(kvc__struct_in(&e, sizeof e, extras, "kvc_attention_extras"));
    if (e.lse) KVC_TRY(add_lse(job, e.lse));
    if (e.lengths) KVC_TRY(add_lengths(job, e.lengths));
    return KVC_OK;
}
