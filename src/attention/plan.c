#include "attention/plan.h"

#include <math.h>

#include "array/pack.h"
#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

const char *kvc_path_name(kvc_path path) {
    switch (path) {
    case KVC_PATH_AUTO: return "auto";
    case KVC_PATH_REFERENCE: return "reference";
    case KVC_PATH_FUSED: return "fused";
    }
    return "?";
}

kvc_status kvc_attention_desc_for(kvc_attention_desc *out, const kvc_cache *cache, int64_t layer) {
    kvc_attention_desc desc = {0};
    kvc__layer_view view;
    KVC_TRY(kvc__struct_out(out, &desc, sizeof desc, "kvc_attention_desc"));
    KVC_TRY(kvc__cache_layer_view(&view, cache, layer));
    desc.batch = view.batch;
    desc.kv_heads = view.spec.kv_heads;
    desc.key_dim = view.spec.key_dim;
    desc.value_dim = view.spec.value_dim;
    desc.kv_dtype = view.spec.dtype;
    desc.kv_bits = view.spec.kv_bits;
    desc.kv_group = view.spec.kv_group;
    desc.kv_keys_per_channel = view.spec.keys_per_channel;
    desc.kv_rotated = view.spec.rotated;
    desc.window = view.spec.window;
    desc.keep = view.spec.keep;
    return kvc__struct_out(out, &desc, sizeof desc, "kvc_attention_desc");
}

static kvc_status validate_packing(const kvc_attention_desc *d) {
    if (d->kv_bits == 0 && (d->kv_keys_per_channel || d->kv_rotated))
        return kvc__fail(KVC_E_INVALID,
                         "desc.%s: given with kv_bits 0, packed keys and values "
                         "wanted",
                         d->kv_rotated ? "kv_rotated" : "kv_keys_per_channel");
    if (d->kv_bits == 0) return KVC_OK;
    KVC_TRY(kvc__packing_check(d->kv_bits, d->kv_group));
    const int64_t value_dim = d->value_dim ? d->value_dim : d->key_dim;
    if (d->key_dim % d->kv_group == 0 && value_dim % d->kv_group == 0) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.kv_group: %d given for key_dim %lld and value_dim %lld, multiples of it "
                     "wanted",
                     d->kv_group, (long long)d->key_dim, (long long)value_dim);
}

static kvc_status validate(const kvc_attention_desc *d) {
    const struct {
        const char *name;
        int64_t given, least;
    } fields[] = {
        {"batch", d->batch, 0},     {"q_heads", d->q_heads, 1},     {"kv_heads", d->kv_heads, 1},
        {"key_dim", d->key_dim, 1}, {"value_dim", d->value_dim, 0}, {"max_q_len", d->max_q_len, 0},
        {"window", d->window, 0},   {"keep", d->keep, 0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given < fields[i].least)
            return kvc__fail(KVC_E_INVALID, "desc.%s: %lld given, at least %lld wanted",
                             fields[i].name, (long long)fields[i].given,
                             (long long)fields[i].least);
    if (d->window > 0 && d->not_causal)
        return kvc__fail(KVC_E_INVALID,
                         "desc.window: %lld given with desc.not_causal, and a window looks back "
                         "from its query; 0 wanted, or a causal plan",
                         (long long)d->window);
    if (d->keep > 0 && d->keep >= d->window)
        return kvc__fail(
            KVC_E_INVALID,
            "desc.keep: %lld given for desc.window %lld, of which it is a part and "
            "leaves a query its own position; 0 to window - 1 wanted, or 0 without one",
            (long long)d->keep, (long long)d->window);
    if (d->q_heads % d->kv_heads != 0)
        return kvc__fail(KVC_E_INVALID,
                         "desc.q_heads: %lld given, a multiple of kv_heads %lld wanted",
                         (long long)d->q_heads, (long long)d->kv_heads);
    if (d->kv_dtype != KVC_F32 && d->kv_dtype != KVC_F16 && d->kv_dtype != KVC_BF16)
        return kvc__fail(KVC_E_INVALID, "desc.kv_dtype: %s given, f32, f16 or bf16 wanted",
                         kvc_dtype_name(d->kv_dtype));
    KVC_TRY(validate_packing(d));
    if (!isfinite(d->scale))
        return kvc__fail(KVC_E_INVALID, "desc.scale: %g given, a finite number wanted",
                         (double)d->scale);
    if (d->softcap != 0 && !(isnormal(d->softcap) && d->softcap > 0))
        return kvc__fail(KVC_E_INVALID, "desc.softcap: %g given, 0 or a normal number above wanted",
                         (double)d->softcap);
    if (d->path != KVC_PATH_AUTO && d->path != KVC_PATH_REFERENCE && d->path != KVC_PATH_FUSED)
        return kvc__fail(KVC_E_INVALID, "desc.path: %d given, a kvc_path wanted", (int)d->path);
    return KVC_OK;
}

static void complete(kvc_attention_desc *d) {
    if (d->batch == 0) d->batch = 1;
    if (d->value_dim == 0) d->value_dim = d->key_dim;
    if (d->max_q_len == 0) d->max_q_len = 1;
    if (d->scale == 0) d->scale = (float)(1 / sqrt((double)d->key_dim));
}

static kvc_status choose_path(kvc_path *out, const kvc_attention_desc *d) {
    const bool fits = d->key_dim <= KVC__FUSED_MAX_DIM && d->value_dim <= KVC__FUSED_MAX_DIM;
    *out = fits && d->path != KVC_PATH_REFERENCE ? KVC_PATH_FUSED : KVC_PATH_REFERENCE;
    if (d->path == KVC_PATH_FUSED && !fits)
        return kvc__fail(KVC_E_INVALID,
                         "desc.path: fused given, which takes dims up to %d; key_dim is %lld, "
                         "value_dim %lld",
                         KVC__FUSED_MAX_DIM, (long long)d->key_dim, (long long)d->value_dim);
    if (d->strict && *out == KVC_PATH_REFERENCE)
        return kvc__fail(KVC_E_SLOW,
                         d->path == KVC_PATH_REFERENCE
                             ? "desc.strict: given with desc.path reference, which is slow"
                             : "desc.strict: given, and dims of more than %d have the reference "
                               "path alone; key_dim is %lld, value_dim %lld",
                         KVC__FUSED_MAX_DIM, (long long)d->key_dim, (long long)d->value_dim);
    return KVC_OK;
}

/* Divides the work of the fused path, and tells the scratch: enough for it and for the reference,
 * which keys and values may fall back to. */
static kvc_status schedule(kvc__schedule *out, size_t *bytes, const kvc_attention_desc *d,
                           const kvc_executor *executor, kvc_path path) {
    *out = (kvc__schedule){.executor = {.threads = 1}};
    if (!kvc__add(bytes, (size_t)d->key_dim, (size_t)d->value_dim) ||
        !kvc__mul(bytes, *bytes, sizeof(double)))
        return kvc__fail(KVC_E_RANGE,
                         "desc: key_dim %lld and value_dim %lld are more than a size can hold",
                         (long long)d->key_dim, (long long)d->value_dim);
    if (path != KVC_PATH_FUSED) return KVC_OK;
    int64_t rows;
    const kvc__format format = {d->kv_dtype, d->kv_bits, d->kv_group, d->kv_keys_per_channel,
                                d->kv_rotated};
    if (!kvc__mul_i64(&rows, d->q_heads / d->kv_heads, d->max_q_len)) rows = INT64_MAX;
    KVC_TRY(kvc__schedule_init(out, executor, format, d->batch, rows, d->key_dim, d->value_dim));
    if (*bytes < out->bytes) *bytes = out->bytes;
    return KVC_OK;
}

/* Takes in the caller's executor: NULL stays the calling thread. */
static kvc_status check_executor(kvc_executor *out, const kvc_executor *given) {
    if (!given) return KVC_OK;
    KVC_TRY(kvc__struct_in(out, sizeof *out, given, "kvc_executor"));
    if (out->threads >= 1 && out->parallel_for) return KVC_OK;
    return kvc__fail(KVC_E_INVALID,
                     "desc.executor: %d threads and parallel_for %s given, at least 1 thread and a "
                     "function wanted",
                     out->threads, out->parallel_for ? "set" : "NULL");
}

kvc_status kvc_attention_plan(kvc_attention **out, const kvc_attention_desc *desc) {
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given, where to put the plan wanted");
    *out = NULL;
    kvc_attention_desc d;
    kvc_executor executor;
    kvc__schedule parts;
    kvc_path path;
    size_t bytes;
    void *memory;
    KVC_TRY(kvc__struct_in(&d, sizeof d, desc, "kvc_attention_desc"));
    KVC_TRY(validate(&d));
    complete(&d);
    KVC_TRY(choose_path(&path, &d));
    KVC_TRY(check_executor(&executor, d.executor));
    KVC_TRY(schedule(&parts, &bytes, &d, d.executor ? &executor : NULL, path));
    if (!kvc__add(&bytes, bytes, sizeof(kvc_attention) + KVC_ALIGNMENT_BYTES))
        return kvc__fail(KVC_E_RANGE, "desc.value_dim: %lld sums are more than a size can hold",
                         (long long)d.value_dim);
    KVC_TRY(kvc__calloc(&memory, 1, bytes, "attention plan"));

    kvc_attention *plan = memory;
    const uintptr_t end = (uintptr_t)memory + sizeof *plan;
    const size_t gap = -end % KVC_ALIGNMENT_BYTES;
    plan->desc = d;
    plan->desc.executor = NULL; /* copied: the caller's struct may go */
    plan->path = path;
    plan->schedule = parts;
    plan->bytes = bytes;
    plan->scratch = (char *)memory + sizeof *plan + gap;
    *out = plan;
    return KVC_OK;
}

void kvc_attention_free(kvc_attention *plan) {
    if (plan) kvc__free(plan, 1, plan->bytes);
}

kvc_status kvc_attention_stats_get(const kvc_attention *plan, kvc_attention_stats *out) {
    const kvc_attention_stats zero = {0};
    KVC_TRY(kvc__struct_out(out, &zero, sizeof zero, "kvc_attention_stats"));
    if (!plan) return kvc__fail(KVC_E_INVALID, "plan: NULL given");
    return kvc__struct_out(out, &plan->stats, sizeof plan->stats, "kvc_attention_stats");
}
