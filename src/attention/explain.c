#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "attention/plan.h"
#include "base/error.h"

#define WRITE(text, ...)  ((void)snprintf(text, sizeof(text), __VA_ARGS__))
#define APPEND(text, ...) append(text, sizeof(text), __VA_ARGS__)

/* What does not fit is left out. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t bytes,
                                                         const char *format, ...) {
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + used, bytes - used, format, arguments);
    va_end(arguments);
}

static void explain_reference(kvc_explanation *e, const kvc_attention *plan, const kvc__job *job) {
    const kvc_attention_desc *d = &plan->desc;
    const int64_t stride = job->k.last_stride != 1 ? job->k.last_stride : job->v.last_stride;
    if (d->path == KVC_PATH_REFERENCE) {
        WRITE(e->reason, "reference: the plan asks for it (desc.path)");
        WRITE(e->remedy, "plan with KVC_PATH_AUTO");
    } else if (plan->path == KVC_PATH_REFERENCE) {
        WRITE(e->reason,
              "reference: key_dim %lld, value_dim %lld, and the fused path takes dims up to %d",
              (long long)d->key_dim, (long long)d->value_dim, KVC__FUSED_MAX_DIM);
        WRITE(e->remedy, "split the heads: more heads of at most %d dims", KVC__FUSED_MAX_DIM);
    } else {
        WRITE(e->reason,
              "reference: the head dimension of %s is not contiguous (last stride %lld), so a row "
              "cannot be read in one go",
              job->k.last_stride != 1 ? "k" : "v", (long long)stride);
        WRITE(e->remedy, "copy keys and values with kvc_array_contiguous, or keep them in a "
                         "kvc_cache");
    }
}

/* What is done with packed keys and values. */
static void explain_packed(kvc_explanation *e, const kvc__job *job, const kvc__ops *ops) {
    const kvc__format f = job->format;
    const int64_t least = kvc__panel_least(ops, f, job->key_dim, job->value_dim);
    APPEND(e->reason, " of %d bits%s%s, ", f.bits, f.keys_per_channel ? ", keys per channel" : "",
           f.rotated ? ", rotated" : "");
    if (ops->score[KVC__OPS_Q8][0])
        APPEND(e->reason, "%smultiplied as integers, queries and weights rounded to %d bits",
               kvc__is_split(f) ? "split to bytes by blocks and " : "", f.bits == 4 ? 8 : 16);
    else
        APPEND(e->reason, "%sunpacked by blocks",
               f.keys_per_channel ? "keys multiplied channel by channel, values " : "");
    if (least < INT_MAX && (ops->score[KVC__OPS_Q8][0] || f.keys_per_channel))
        APPEND(e->reason, " (unpacked by blocks where a kv head has %lld rows or more)",
               (long long)least);
}

static void explain_fused(kvc_explanation *e, const kvc_attention *plan, const kvc__job *job) {
    const kvc__schedule *s = &plan->schedule;
    const kvc__isa_choice *choice = kvc__isa_best();
    const bool generic = choice->isa == KVC__ISA_GENERIC;
    const long long window = plan->desc.window, group = job->group;
    WRITE(e->reason, "fused: %s, one pass over keys and values",
          generic ? "portable C" : choice->name);
    const int bits = plan->desc.kv_bits;
    if (bits) explain_packed(e, job, s->ops);
    if (job->map.tables) APPEND(e->reason, ", through block tables");
    if (job->map.rings) APPEND(e->reason, ", in rings");
    if (window > 0) APPEND(e->reason, ", a window of %lld positions", window);
    if (plan->desc.softcap > 0)
        APPEND(e->reason, ", scores capped to %g", (double)plan->desc.softcap);
    if (s->executor.threads > 1) APPEND(e->reason, ", on up to %d threads", s->executor.threads);
    if (group > 1)
        APPEND(e->reason, "; each row is read once for its group of %lld query heads", group);
    if (!bits && s->ops->rounds[KVC__OPS_SLOT(plan->desc.kv_dtype)])
        APPEND(e->reason, "; with few rows, queries are rounded to bf16");
    if (*choice->limit) APPEND(e->reason, "; %s", choice->limit);
    if (*choice->remedy) WRITE(e->remedy, "%s", choice->remedy);
    else if (bits && bits != 8 && bits != 4)
        WRITE(e->remedy, "pack 4 or 8 bits: these are read where they lie");
    else if (generic) WRITE(e->remedy, "run on a CPU with AVX2, FMA and F16C, or on AArch64");
}

static kvc_status explain(kvc_explanation *out, const kvc_attention *plan, const kvc__job *job) {
    kvc_explanation e = {.path = kvc__attention_path(plan, job)};
    e.slow = e.path == KVC_PATH_REFERENCE;
    if (e.slow) explain_reference(&e, plan, job);
    else explain_fused(&e, plan, job);
    return kvc__struct_out(out, &e, sizeof e, "kvc_explanation");
}

/* Zeroes out, so that it is so where the call fails later. */
static kvc_status clear(kvc_explanation *out) {
    const kvc_explanation zero = {.path = KVC_PATH_AUTO};
    return kvc__struct_out(out, &zero, sizeof zero, "kvc_explanation");
}

kvc_status kvc_attention_explain(kvc_explanation *out, const kvc_attention *plan,
                                 const kvc_cache *cache, int64_t layer) {
    kvc__job job;
    KVC_TRY(clear(out));
    if (!plan) return kvc__fail(KVC_E_INVALID, "plan: NULL given");
    kvc__layer_view view = {
        /* of the plan itself, as if in a cache */
        .spec = {.kv_heads = plan->desc.kv_heads,
                 .key_dim = plan->desc.key_dim,
                 .value_dim = plan->desc.value_dim,
                 .dtype = plan->desc.kv_dtype,
                 .kv_bits = plan->desc.kv_bits,
                 .kv_group = plan->desc.kv_group,
                 .keys_per_channel = plan->desc.kv_keys_per_channel,
                 .rotated = plan->desc.kv_rotated},
        .batch = plan->desc.batch,
        .device = kvc_device_cpu(),
    };
    int planes;
    KVC_TRY(kvc__spec_rows(view.rows, &planes, &view.spec));
    if (cache) KVC_TRY(kvc__cache_layer_view(&view, cache, layer));
    KVC_TRY(kvc__attention_layer_job(&job, plan, &view));
    return explain(out, plan, &job);
}

kvc_status kvc_attention_explain_kv(kvc_explanation *out, const kvc_attention *plan,
                                    const kvc_array *k, const kvc_array *v) {
    kvc__job job;
    KVC_TRY(clear(out));
    KVC_TRY(kvc__attention_array_job(&job, plan, k, v));
    return explain(out, plan, &job);
}

/* The rule knows the capacity; the cache knows what made it so. */
static void name_the_policy(kvc_cuda_report *report, const kvc__layer_view *layer) {
    for (size_t i = 0; i < report->count; i++) {
        kvc_cuda_check *c = &report->checks[i];
        if (c->ok || strcmp(c->name, "capacity") != 0) continue;
        const long long chunk = layer->chunk;
        if (layer->growth == KVC_GROW_EXACT)
            WRITE(c->remedy, "growth exact has no spare positions: use reserve or chunk, with a "
                             "chunk of 256");
        else
            WRITE(c->remedy, "growth %s with chunk %lld: use chunk 256, which keeps it a multiple",
                  kvc_growth_name(layer->growth), chunk);
    }
}

kvc_status kvc_attention_explain_cuda(kvc_cuda_report *out, const kvc_attention *plan,
                                      const kvc_cache *cache, int64_t layer) {
    kvc_cuda_report report = {.count = 0};
    KVC_TRY(kvc__struct_out(out, &report, sizeof report, "kvc_cuda_report"));
    kvc__layer_view view;
    kvc__job job;
    KVC_TRY(kvc__cache_layer_view(&view, cache, layer));
    KVC_TRY(kvc__attention_check_plain(plan));
    KVC_TRY(kvc__attention_layer_job(&job, plan, &view));
    const kvc_cuda_shape shape = {
        .struct_size = sizeof shape,
        .batch = view.batch,
        .kv_heads = view.spec.kv_heads,
        .key_dim = view.spec.key_dim,
        .value_dim = view.spec.value_dim,
        .dtype = view.spec.dtype,
        .capacity = view.capacity,
        .length = view.length,
        .buffer_elements = (int64_t)(view.k_buffer_bytes / kvc_dtype_size_bytes(view.spec.dtype)),
        .value_buffer_elements =
            (int64_t)(view.v_buffer_bytes / kvc_dtype_size_bytes(view.spec.dtype)),
    };
    report.struct_size = sizeof report;
    KVC_TRY(kvc_cuda_explain(&report, &shape));
    name_the_policy(&report, &view);
    return kvc__struct_out(out, &report, sizeof report, "kvc_cuda_report");
}
