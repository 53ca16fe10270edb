/* The cpu's copy against a naive one: every pair of dtypes, any shape and strides, memory between
 * pages that trap, and every byte that it must not write. */
#include <math.h>
#include <string.h>

#include <kvcache/device.h>

#include "support/guarded.h"
#include "support/reference.h"
#include "support/support.h"

enum { REGION_BYTES = 1 << 14, MOST_ELEMENTS = 300, CASES = 20000 };

/* One side of a copy and the memory that it lies in. */
typedef struct side {
    guarded memory;
    char *before; /* what the memory held */
    kvc_dtype dtype;
    int64_t strides[KVC_MAX_DIMS];
    char *data;
} side;

static int random_shape(uint64_t *random, int64_t *shape) {
    const int ndim = (int)test_below(random, KVC_MAX_DIMS + 1);
    const int64_t most[] = {2, 4, 8, 40};
    const int64_t extents = most[test_below(random, 4)];
    int64_t size = 1;
    for (int i = 0; i < ndim; i++) {
        shape[i] = 1 + test_below(random, extents);
        if (test_below(random, 4) == 0) shape[i] = 1;
        if (test_below(random, 60) == 0) shape[i] = 0;
        if (size * shape[i] > MOST_ELEMENTS) shape[i] = 1;
        size *= shape[i] ? shape[i] : 1;
    }
    return ndim;
}

/* Strides under which no two elements share a place: axes in any order, gaps, any sign. */
static void random_strides(uint64_t *random, int64_t *strides, int ndim, const int64_t *shape) {
    int order[KVC_MAX_DIMS];
    const bool row_major = test_below(random, 3) == 0, gaps = test_below(random, 2);
    for (int i = 0; i < ndim; i++) order[i] = ndim - 1 - i;
    for (int i = 0; i < ndim && !row_major; i++) {
        const int j = i + (int)test_below(random, ndim - i), axis = order[j];
        order[j] = order[i];
        order[i] = axis;
    }
    int64_t stride = 1;
    for (int i = 0; i < ndim; i++) {
        const int axis = order[i];
        if (gaps && test_below(random, 3) == 0) stride += test_below(random, 3);
        strides[axis] = !row_major && test_below(random, 3) == 0 ? -stride : stride;
        stride *= shape[axis] ? shape[axis] : 1;
    }
}

/* Lays a side at the first or the last byte of its memory, so that one element too many traps. */
static void place(side *s, int ndim, const int64_t *shape, bool at_end) {
    int64_t low = 0, high = 0;
    s->data = s->memory.data + (at_end ? (int64_t)s->memory.bytes : -1); /* nothing: it traps */
    for (int i = 0; i < ndim; i++) {
        if (shape[i] == 0) return;
        const int64_t way = (shape[i] - 1) * s->strides[i];
        if (way < 0) low += way;
        else high += way;
    }
    const int64_t size = (int64_t)kvc_dtype_size_bytes(s->dtype);
    s->data = guarded_place(&s->memory, (size_t)((high - low + 1) * size), at_end) - low * size;
}

/* Numbers that convert in every way: any bits, small ones, those that round, NaN. */
static void fill_randomly(side *s, uint64_t *random) {
    const size_t size = kvc_dtype_size_bytes(s->dtype);
    const double special[] = {(double)NAN,
                              (double)INFINITY,
                              -(double)INFINITY,
                              -0.0,
                              65519,
                              65520,
                              300,
                              -300,
                              0.5,
                              -0.5,
                              1e-7,
                              5e9};
    for (size_t at = 0; at < s->memory.bytes; at += size) {
        const uint64_t r = test_random(random);
        char *element = s->memory.data + at;
        if (r % 4 == 0) reference_store(element, s->dtype, (double)(int64_t)(r >> 40) / 256 - 4000);
        else if (r % 4 == 1) reference_store(element, s->dtype, special[r / 4 % 12]);
        else memcpy(element, (const char *)&r + 4, size);
    }
    memcpy(s->before, s->memory.data, s->memory.bytes);
}

/* Writes into dst->before what a copy should make of it; NaNs as the copy made them. */
static void copy_naively(const side *dst, const side *src, int ndim, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < ndim; i++) size *= shape[i];
    for (int64_t n = 0; n < size; n++) {
        int64_t rest = n, to = 0, from = 0;
        for (int i = ndim - 1; i >= 0; i--) {
            to += rest % shape[i] * dst->strides[i];
            from += rest % shape[i] * src->strides[i];
            rest /= shape[i];
        }
        const size_t bytes = kvc_dtype_size_bytes(dst->dtype);
        const char *given = dst->data + to * (int64_t)bytes;
        const char *element = src->data + from * (int64_t)kvc_dtype_size_bytes(src->dtype);
        char *wanted = dst->before + (given - dst->memory.data);
        if (dst->dtype == src->dtype) memcpy(wanted, element, bytes);
        else reference_store(wanted, dst->dtype, reference_load(element, src->dtype));
        if (dst->dtype != src->dtype && isnan(reference_load(wanted, dst->dtype)) &&
            isnan(reference_load(given, dst->dtype)))
            memcpy(wanted, given, bytes);
    }
}

static void copy_and_compare(side *dst, side *src, int ndim, const int64_t *shape) {
    const kvc_device *cpu = kvc_device_cpu();
    const kvc_strided to = {dst->data, dst->dtype, dst->strides};
    const kvc_strided from = {src->data, src->dtype, src->strides};
    assert_ok(cpu->copy(cpu->context, &to, &from, ndim, shape));
    copy_naively(dst, src, ndim, shape);
    assert_memory_equal(dst->memory.data, dst->before, dst->memory.bytes);
    assert_memory_equal(src->memory.data, src->before, src->memory.bytes);
}

static side side_new(void) {
    side s = {.memory = guarded_new(REGION_BYTES)};
    s.before = guarded_new(REGION_BYTES).data;
    return s;
}

static void side_free(side *s) {
    guarded before = {s->before, REGION_BYTES};
    guarded_free(&s->memory);
    guarded_free(&before);
}

static void copy__any_shape_strides_and_dtypes_come_out_as_in_a_naive_one(void **state) {
    (void)state;
    side dst = side_new(), src = side_new();
    uint64_t random = test_seed(4);
    const int cases = (int)(CASES * (test_seconds(1) < 1 ? 1 : test_seconds(1)));
    for (int i = 0; i < cases; i++) {
        int64_t shape[KVC_MAX_DIMS];
        if (i % 50 == 0) { /* new contents and dtypes */
            dst.dtype = reference_dtypes[i / 50 % 6];
            src.dtype = reference_dtypes[i / 300 % 6];
            fill_randomly(&src, &random);
            fill_randomly(&dst, &random);
        }
        const int ndim = random_shape(&random, shape);
        random_strides(&random, dst.strides, ndim, shape);
        random_strides(&random, src.strides, ndim, shape);
        for (int axis = 0; axis < ndim; axis++) /* a source may repeat and overlap itself */
            if (test_below(&random, 6) == 0) src.strides[axis] = test_below(&random, 9) - 4;
        place(&dst, ndim, shape, test_below(&random, 2));
        place(&src, ndim, shape, test_below(&random, 2));
        copy_and_compare(&dst, &src, ndim, shape);
    }
    side_free(&dst);
    side_free(&src);
}

/* Rows of every length, so that vector loops end in every way. */
static void copy__rows_of_every_length_are_exact(void **state) {
    (void)state;
    side dst = side_new(), src = side_new();
    uint64_t random = test_seed(5);
    for (size_t pair = 0; pair < 36; pair++) {
        dst.dtype = reference_dtypes[pair / 6];
        src.dtype = reference_dtypes[pair % 6];
        fill_randomly(&src, &random);
        fill_randomly(&dst, &random);
        for (int64_t n = 1; n < 150; n++) {
            const int64_t shape[] = {1, n};
            dst.strides[0] = src.strides[0] = INT64_MAX; /* of an axis that has one element */
            dst.strides[1] = n % 3 == 2 ? 2 : 1;
            src.strides[1] = n % 4 == 3 ? -1 : 1;
            place(&dst, 2, shape, n & 1);
            place(&src, 2, shape, n & 1);
            copy_and_compare(&dst, &src, 2, shape);
        }
    }
    side_free(&dst);
    side_free(&src);
}

/* Every 16-bit word and a walk over the 32-bit ones, into every dtype. */
static void copy__every_half_and_a_walk_over_words_convert_as_defined(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    const int64_t one = 1, n = 65536;
    static uint32_t from[65536], to[65536];
    for (size_t pair = 0; pair < 36; pair++) {
        const kvc_dtype out = reference_dtypes[pair / 6], in = reference_dtypes[pair % 6];
        const size_t size = kvc_dtype_size_bytes(in), out_size = kvc_dtype_size_bytes(out);
        for (size_t i = 0; i < 65536; i++) {
            const uint32_t word = (uint32_t)(i * (size == 4 ? 65537u + (i & 1) : 1u));
            memcpy((char *)from + i * size, &word, size); /* little-endian: the low bytes */
        }
        const kvc_strided d = {to, out, &one}, s = {from, in, &one};
        assert_ok(cpu->copy(cpu->context, &d, &s, 1, &n));
        for (size_t i = 0; i < 65536; i++) {
            const char *element = (const char *)from + i * size;
            const char *given = (const char *)to + i * out_size;
            uint32_t wanted;
            reference_store(&wanted, out, reference_load(element, in));
            if (!reference_same(given, &wanted, out))
                fail_msg("%s element %zu, %a, is wrong as %s", kvc_dtype_name(in), i,
                         reference_load(element, in), kvc_dtype_name(out));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy__any_shape_strides_and_dtypes_come_out_as_in_a_naive_one),
        cmocka_unit_test(copy__rows_of_every_length_are_exact),
        cmocka_unit_test(copy__every_half_and_a_walk_over_words_convert_as_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
