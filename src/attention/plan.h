/** @file
 * The plan's insides: plan.c (life, figures), run.c (checks and runs), extras.c (what a run takes
 * besides), explain.c (sentences). */
#ifndef KVC_ATTENTION_PLAN_H
#define KVC_ATTENTION_PLAN_H

#include <kvcache/attention.h>

#include "attention/kernel.h"
#include "cache/view.h"

struct kvc_attention {
    kvc_attention_desc desc; /* complete: no field stands for its default any more */
    kvc_path path;           /* where the rows of keys and values are contiguous */
    kvc__schedule schedule;  /* of the fused path */
    kvc_attention_stats stats;
    size_t bytes;  /* of this allocation, scratch included */
    void *scratch; /* 64-byte aligned, for either kernel */
};

/** Verifies that a plan fits a layer, and describes the layer's keys and values to a kernel.
 * @param job  receives geometry, k, v, their map and lengths; q and out are left
 * @errors KVC_E_INVALID plan, cache or layer; KVC_E_SHAPE; KVC_E_UNSUPPORTED another device */
kvc_status kvc__attention_layer_job(kvc__job *job, const kvc_attention *plan,
                                    const kvc__layer_view *layer);

/** Verifies that the rings of a job's map hold what its queries see. */
kvc_status kvc__attention_check_held(const kvc__job *job);

/** Attends over a layer: kvc_attention_run, by what a cache says of itself.
 * @errors those of kvc_attention_run */
kvc_status kvc__attention_run_layer(kvc_attention *plan, const kvc__layer_view *layer,
                                    const kvc_array *q, kvc_array *out,
                                    const kvc_attention_extras *extras);

/** As kvc__attention_layer_job, for arrays. */
kvc_status kvc__attention_array_job(kvc__job *job, const kvc_attention *plan, const kvc_array *k,
                                    const kvc_array *v);

/** Verifies that a plan is not for packed keys and values.
 * @errors KVC_E_INVALID */
kvc_status kvc__attention_check_plain(const kvc_attention *plan);

/** Verifies an argument: its shape, memory of the cpu, data that is aligned to its dtype.
 * @errors KVC_E_INVALID, KVC_E_SHAPE, KVC_E_UNSUPPORTED; the sentence begins with name */
kvc_status kvc__attention_check(const kvc_array *a, const char *name, int ndim,
                                const int64_t *shape);

/** Verifies what a run takes and gives besides, and adds it to a job that has its queries.
 * @param extras  NULL for none */
kvc_status kvc__attention_add_extras(kvc__job *job, const kvc_attention_extras *extras);

/** Tells the path of a job: the plan's, or the reference where a row is not contiguous. */
kvc_path kvc__attention_path(const kvc_attention *plan, const kvc__job *job);

#endif
