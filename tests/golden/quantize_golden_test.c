/* Packed numbers as MLX packs them, bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/quantize.h>

#include "support/attend.h"
#include "support/safetensors.h"
#include "support/support.h"

static kvc_array tensor(const test_safetensors *file, int bits, const char *what) {
    char name[32];
    (void)snprintf(name, sizeof name, "q%d.%s", bits, what);
    return test_safetensors_tensor(file, name);
}

/* An array of the same shape and dtype, poisoned. */
static kvc_array like(const kvc_array *a) {
    kvc_array b = *a;
    b.data = malloc(kvc_array_nbytes(a));
    assert_non_null(b.data);
    memset(b.data, 0x5a, kvc_array_nbytes(a));
    return b;
}

static void expect_same(const kvc_array *given, const kvc_array *wanted) {
    assert_memory_equal(given->data, wanted->data, kvc_array_nbytes(wanted));
}

static void check_bits(const test_safetensors *file, int bits) {
    kvc_array x = test_safetensors_tensor(file, "x"), values = tensor(file, bits, "deq");
    kvc_quantized wanted = {.struct_size = sizeof wanted,
                            .bits = bits,
                            .group = 32,
                            .words = tensor(file, bits, "w"),
                            .scales = tensor(file, bits, "scales"),
                            .biases = tensor(file, bits, "biases")};
    kvc_quantized packed = wanted;
    packed.words = like(&wanted.words);
    packed.scales = like(&wanted.scales);
    packed.biases = like(&wanted.biases);
    kvc_array unpacked = like(&values);
    assert_ok(kvc_quantize(&packed, &x));
    expect_same(&packed.words, &wanted.words);
    expect_same(&packed.scales, &wanted.scales);
    expect_same(&packed.biases, &wanted.biases);
    assert_ok(kvc_dequantize(&unpacked, &wanted));
    expect_same(&unpacked, &values);
    kvc_array *all[] = {&x,
                        &values,
                        &wanted.words,
                        &wanted.scales,
                        &wanted.biases,
                        &packed.words,
                        &packed.scales,
                        &packed.biases,
                        &unpacked};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
}

static void quantize__packs_as_mlx_does(void **state) {
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    test_safetensors file =
        test_safetensors_open(test_shared_path("golden/mlx-lm/quantize_f32_g32.safetensors"));
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) check_bits(&file, bits[i]);
    test_safetensors_close(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantize__packs_as_mlx_does),
    };
    return cmocka_run_group_tests(tests, test_isa_setup, NULL);
}
