#include <stdio.h>

#include <kvcache/cuda_rule.h>

#include "base/checked.h"
#include "base/error.h"

/* How far mlx-lm grows its caches at a time; MLX takes a multiple for the sign of such a cache. */
#define CHUNK 256

#define WRITE(text, ...) ((void)snprintf(text, sizeof(text), __VA_ARGS__))

const char *kvc_cuda_kernel_name(kvc_cuda_kernel kernel) {
    switch (kernel) {
    case KVC_CUDA_CUDNN: return "cudnn";
    case KVC_CUDA_VECTOR: return "vector";
    case KVC_CUDA_VECTOR_TWO: return "vector-two-pass";
    case KVC_CUDA_UNFUSED: return "unfused";
    }
    return "?";
}

static kvc_status validate(const kvc_cuda_shape *s) {
    const struct {
        const char *name;
        int64_t given, least;
    } fields[] = {
        {"q_len", s->q_len, 0},
        {"kv_heads", s->kv_heads, 1},
        {"batch", s->batch, 0},
        {"key_dim", s->key_dim, 1},
        {"value_dim", s->value_dim, 0},
        {"capacity", s->capacity, 0},
        {"length", s->length, 0},
        {"buffer_elements", s->buffer_elements, 0},
        {"value_buffer_elements", s->value_buffer_elements, 0},
        {"alignment_bytes", s->alignment_bytes, 0},
        {"compute_capability", s->compute_capability, 0},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given < fields[i].least)
            return kvc__fail(KVC_E_INVALID, "shape.%s: %lld given, at least %lld wanted",
                             fields[i].name, (long long)fields[i].given,
                             (long long)fields[i].least);
    if (s->dtype != KVC_F32 && s->dtype != KVC_F16 && s->dtype != KVC_BF16)
        return kvc__fail(KVC_E_INVALID, "shape.dtype: %s given, f32, f16 or bf16 wanted",
                         kvc_dtype_name(s->dtype));
    if (s->length > s->capacity)
        return kvc__fail(KVC_E_INVALID,
                         "shape.length: %lld given, at most shape.capacity, %lld, wanted",
                         (long long)s->length, (long long)s->capacity);
    return KVC_OK;
}

/* Elements of a buffer that holds exactly the cache's keys or values. */
static kvc_status exact_elements(int64_t *out, const kvc_cuda_shape *s, const char *name,
                                 int64_t dim) {
    if (kvc__mul_i64(out, s->batch, s->kv_heads) && kvc__mul_i64(out, *out, s->capacity) &&
        kvc__mul_i64(out, *out, dim))
        return KVC_OK;
    return kvc__fail(KVC_E_RANGE,
                     "shape: batch %lld x kv_heads %lld x capacity %lld x %s %lld is more "
                     "elements than an int64_t can count",
                     (long long)s->batch, (long long)s->kv_heads, (long long)s->capacity, name,
                     (long long)dim);
}

/* Fills in what 0 stands for. *keys, *values: the elements that the buffers should hold. */
static kvc_status complete(kvc_cuda_shape *s, int64_t *keys, int64_t *values) {
    if (s->q_len == 0) s->q_len = 1;
    if (s->batch == 0) s->batch = 1;
    if (s->value_dim == 0) s->value_dim = s->key_dim;
    if (s->last_stride == 0) s->last_stride = 1;
    if (s->alignment_bytes == 0) s->alignment_bytes = 64;
    if (s->compute_capability == 0) s->compute_capability = 80;
    KVC_TRY(exact_elements(keys, s, "key_dim", s->key_dim));
    KVC_TRY(exact_elements(values, s, "value_dim", s->value_dim));
    if (s->buffer_elements == 0) s->buffer_elements = *keys;
    if (s->value_buffer_elements == 0) s->value_buffer_elements = *values;
    return KVC_OK;
}

static kvc_cuda_check *add(kvc_cuda_report *report, const char *name, bool ok) {
    kvc_cuda_check *check = &report->checks[report->count++];
    check->name = name;
    check->ok = ok;
    return check;
}

static void check_dim(kvc_cuda_report *report, const char *name, int64_t dim) {
    kvc_cuda_check *c = add(report, name, dim % 8 == 0 && dim <= 128);
    WRITE(c->given, "%s %lld", name, (long long)dim);
    WRITE(c->wanted, "a multiple of 8, at most 128");
    if (!c->ok) WRITE(c->remedy, "none in the cache: the model's heads are that wide");
}

/* What no cache can change comes first: where it fails, there is no use in mending the rest. */
static void check_model(kvc_cuda_report *report, const kvc_cuda_shape *s) {
    kvc_cuda_check *c = add(report, "compute_capability", s->compute_capability >= 80);
    WRITE(c->given, "compute capability %d.%d", s->compute_capability / 10,
          s->compute_capability % 10);
    WRITE(c->wanted, "8.0 or more");
    if (!c->ok) WRITE(c->remedy, "run on an Ampere GPU or a later one");

    c = add(report, "dtype", s->dtype != KVC_F32);
    WRITE(c->given, "dtype %s", kvc_dtype_name(s->dtype));
    WRITE(c->wanted, "f16 or bf16");
    if (!c->ok) WRITE(c->remedy, "keep queries, keys and values in bf16 or f16");

    check_dim(report, "key_dim", s->key_dim);
    check_dim(report, "value_dim", s->value_dim);
}

static void check_queries(kvc_cuda_report *report, const kvc_cuda_shape *s) {
    const bool decode = s->q_len == 1;
    /* A mask array takes the place of the causal flag, with which cuDNN refuses more queries than
     * keys. */
    kvc_cuda_check *c = add(report, "q_len", decode || s->array_mask || s->q_len <= s->length);
    WRITE(c->given, "q_len %lld", (long long)s->q_len);
    if (decode) WRITE(c->wanted, "1 (decode: mask and layout of the cache count)");
    else
        WRITE(c->wanted, "at most length %lld (causal prefill: no layout counts)",
              (long long)s->length);
    if (!c->ok) WRITE(c->remedy, "append the keys and values of all queries before attending");
}

static void check_mask_and_layout(kvc_cuda_report *report, const kvc_cuda_shape *s) {
    kvc_cuda_check *c = add(report, "mask", !s->array_mask);
    WRITE(c->given, s->array_mask ? "a mask array" : "no mask array");
    WRITE(c->wanted, "no mask array");
    if (!c->ok) WRITE(c->remedy, "pass no mask: a single query may see every position in use");

    c = add(report, "last_stride", s->last_stride == 1);
    WRITE(c->given, "last stride %lld", (long long)s->last_stride);
    WRITE(c->wanted, "last stride 1");
    if (!c->ok) WRITE(c->remedy, "keep each head contiguous: MLX copies keys and values otherwise");

    c = add(report, "alignment", s->alignment_bytes % 16 == 0);
    WRITE(c->given, "alignment of %lld bytes", (long long)s->alignment_bytes);
    WRITE(c->wanted, "a multiple of 16 bytes");
    if (!c->ok)
        WRITE(c->remedy, "begin at a multiple of 16 bytes: MLX copies keys and values otherwise");
}

static void check_buffer(kvc_cuda_report *report, const char *name, const char *dim,
                         int64_t elements, int64_t exact) {
    kvc_cuda_check *c = add(report, name, elements == exact);
    WRITE(c->given, "a buffer of %lld elements", (long long)elements);
    WRITE(c->wanted, "exactly %lld: batch x kv_heads x capacity x %s", (long long)exact, dim);
    if (elements > exact)
        WRITE(c->remedy, "clear the pool before the cache takes its buffer: it was given a larger "
                         "one that had been used before");
    else if (!c->ok) WRITE(c->remedy, "tell the elements of the whole buffer, not of the slice");
}

/* The slice [0, length) of a cache, which cuDNN is given whole, with the length beside it. */
static void check_cache(kvc_cuda_report *report, const kvc_cuda_shape *s, int64_t keys,
                        int64_t values) {
    kvc_cuda_check *c = add(report, "capacity", s->capacity % CHUNK == 0);
    WRITE(c->given, "capacity %lld", (long long)s->capacity);
    WRITE(c->wanted, "a multiple of %d", CHUNK);
    if (!c->ok)
        WRITE(c->remedy, "use growth chunk %d, which keeps it a multiple: %llu", CHUNK,
              ((unsigned long long)s->capacity / CHUNK + 1) * CHUNK);

    check_buffer(report, "buffer", "key_dim", s->buffer_elements, keys);
    check_buffer(report, "value_buffer", "value_dim", s->value_buffer_elements, values);

    c = add(report, "length", s->length >= CHUNK);
    WRITE(c->given, "length %lld", (long long)s->length);
    WRITE(c->wanted, "at least %d positions in use", CHUNK);
    if (!c->ok)
        WRITE(c->remedy, "nothing to change: it holds %lld positions further on",
              (long long)(CHUNK - s->length));
}

static kvc_cuda_kernel without_cudnn(const kvc_cuda_shape *s) {
    const bool has_dims =
        s->key_dim == s->value_dim && (s->key_dim == 64 || s->key_dim == 96 || s->key_dim == 128);
    if (!has_dims || s->q_len >= 4 || s->array_mask) return KVC_CUDA_UNFUSED;
    return s->length > 1024 ? KVC_CUDA_VECTOR_TWO : KVC_CUDA_VECTOR;
}

static void decide(kvc_cuda_report *report, const kvc_cuda_shape *s) {
    size_t first = 0;
    while (first < report->count && report->checks[first].ok) first++;
    if (first == report->count) {
        report->kernel = KVC_CUDA_CUDNN;
        WRITE(report->reason, "cudnn: all %zu conditions of its %s hold", report->count,
              s->q_len == 1 ? "decode" : "prefill");
        return;
    }
    const kvc_cuda_check *c = &report->checks[first];
    report->kernel = without_cudnn(s);
    WRITE(report->reason, "%s: %.78s, cudnn wants %.78s", kvc_cuda_kernel_name(report->kernel),
          c->given, c->wanted);
}

kvc_status kvc_cuda_explain(kvc_cuda_report *out, const kvc_cuda_shape *shape) {
    kvc_cuda_report report = {.count = 0};
    kvc_cuda_shape s;
    int64_t keys, values;
    KVC_TRY(kvc__struct_out(out, &report, sizeof report, "kvc_cuda_report"));
    KVC_TRY(kvc__struct_in(&s, sizeof s, shape, "kvc_cuda_shape"));
    KVC_TRY(validate(&s));
    KVC_TRY(complete(&s, &keys, &values));
    check_model(&report, &s);
    check_queries(&report, &s);
    if (s.q_len == 1) {
        check_mask_and_layout(&report, &s);
        check_cache(&report, &s, keys, values);
    }
    decide(&report, &s);
    return kvc__struct_out(out, &report, sizeof report, "kvc_cuda_report");
}
