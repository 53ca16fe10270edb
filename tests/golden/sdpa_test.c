/* Attention as another system computed it, in f32 from the same stored inputs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/attend.h"
#include "support/safetensors.h"
#include "support/support.h"

/* The largest |out - wanted|, in parts of the largest |wanted|. */
static double relative_error(const kvc_array *out, const kvc_array *wanted) {
    const float *given = out->data, *right = wanted->data;
    double error = 0, largest = 0;
    for (int64_t i = 0; i < kvc_array_size(wanted); i++) {
        const double difference = fabs((double)given[i] - (double)right[i]);
        if (!(difference <= error)) error = difference; /* NaN stays */
        largest = fmax(largest, fabs((double)right[i]));
    }
    return error / largest;
}

/* by_mask: a window comes as its mask too, by which it was computed. */
static void check_path(const test_safetensors *file, kvc_path path, bool by_mask) {
    kvc_array q = test_safetensors_tensor(file, "q");
    kvc_array k = test_safetensors_tensor(file, "k");
    kvc_array v = test_safetensors_tensor(file, "v");
    kvc_array wanted = test_safetensors_tensor(file, "out_f32");
    test_tensor out = test_tensor_new(KVC_F32, TEST_HEAD_MAJOR, wanted.shape[0], wanted.shape[1],
                                      wanted.shape[2], wanted.shape[3]);
    const char *mask = test_safetensors_metadata(file, "mask");
    const bool window = strncmp(mask, "window", 6) == 0;
    const kvc_attention_desc desc = {
        .struct_size = sizeof desc,
        .batch = q.shape[0],
        .q_heads = q.shape[1],
        .kv_heads = k.shape[1],
        .key_dim = k.shape[3],
        .value_dim = v.shape[3],
        .max_q_len = q.shape[2],
        .kv_dtype = k.dtype,
        .scale = strtof(test_safetensors_metadata(file, "scale"), NULL),
        .not_causal = strcmp(mask, "causal") != 0 && !window,
        .window = window && !by_mask ? strtol(mask + 6, NULL, 10) : 0,
        .path = path,
    };
    kvc_array sinks = {.data = NULL}, kept = {.data = NULL};
    kvc_attention_extras extras = {.struct_size = sizeof extras};
    if (test_safetensors_has(file, "sinks")) {
        sinks = test_safetensors_tensor(file, "sinks");
        extras.sinks = &sinks;
    }
    if (test_safetensors_has(file, "mask")) {
        kept = test_safetensors_tensor(file, "mask");
        if (!window || by_mask) extras.mask = &kept;
    }
    kvc_attention *plan;
    assert_ok(kvc_attention_plan(&plan, &desc));
    assert_ok(kvc_attention_run_kv(plan, &k, &v, &q, &out.array, &extras));
    const double error = relative_error(&out.array, &wanted);
    print_message("  %s: relative error %.2g\n", kvc_path_name(path), error);
    if (!(error <= 1e-5))
        fail_msg("%s: relative error %g, 1e-5 wanted", kvc_path_name(path), error);
    kvc_attention_free(plan);
    test_tensor_free(&out);
    free(sinks.data);
    free(kept.data);
    free(q.data);
    free(k.data);
    free(v.data);
    free(wanted.data);
}

static void sdpa__is_as_mlx_computes_it(void **state) {
    char name[128];
    (void)snprintf(name, sizeof name, "golden/sdpa/sdpa_%s.safetensors", (const char *)*state);
    test_safetensors file = test_safetensors_open(test_shared_path(name));
    check_path(&file, KVC_PATH_REFERENCE, false);
    check_path(&file, KVC_PATH_AUTO, false);
    check_path(&file, KVC_PATH_REFERENCE, true);
    check_path(&file, KVC_PATH_AUTO, true);
    test_safetensors_close(&file);
}

#define VECTOR(name)                                                                               \
    { "sdpa__" name, sdpa__is_as_mlx_computes_it, NULL, NULL, name }

int main(void) {
    const struct CMUnitTest tests[] = {
        VECTOR("one_position_f32"),
        VECTOR("mha_decode_f32"),
        VECTOR("mqa_decode_f32"),
        VECTOR("vdim_f32"),
        VECTOR("gqa_decode_f16"),
        VECTOR("gqa_decode_bf16"),
        VECTOR("prefill_causal_square_f32"),
        VECTOR("prefill_causal_bf16"),
        VECTOR("additive_mask_f32"),
        VECTOR("bool_mask_f32"),
        VECTOR("window_bf16"),
        VECTOR("window_prefill_f32"),
        VECTOR("sinks_decode_bf16"),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
