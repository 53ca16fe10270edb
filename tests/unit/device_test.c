/* The table of a device: what the pool refuses, and that the cpu's calls keep their contract. The
 * cpu's copies have copy_test.c. */
#include <math.h>
#include <string.h>

#include <kvcache/device.h>
#include <kvcache/pool.h>

#include "support/guarded.h"
#include "support/pool_fixture.h"
#include "support/reference.h"

static void refused(kvc_device table, const char *word) {
    kvc_pool *pool = (kvc_pool *)&table;
    assert_fails(kvc_pool_new(&pool, &table), KVC_E_INVALID);
    assert_null(pool);
    if (!strstr(kvc_last_error(), word)) fail_msg("'%s' lacks '%s'", kvc_last_error(), word);
}

static void device__a_table_that_lacks_a_call_is_refused(void **state) {
    const kvc_device whole = ((pool_fixture *)*state)->device.table;
    kvc_device table = whole;
    table.allocate = NULL;
    refused(table, "allocate");
    table = whole;
    table.deallocate = NULL;
    refused(table, "deallocate");
    table = whole;
    table.copy = NULL;
    refused(table, "copy");
    table = whole;
    table.fill = NULL;
    refused(table, "fill");
    table = whole;
    table.transfer = NULL;
    refused(table, "transfer");
    table = whole;
    table.synchronize = NULL;
    refused(table, "synchronize");
}

static void device__reserve_commit_and_release_go_together(void **state) {
    const kvc_device whole = ((pool_fixture *)*state)->device.table;
    for (int mask = 1; mask < 7; mask++) {
        kvc_device table = whole;
        if (mask & 1) table.reserve = NULL;
        if (mask & 2) table.commit = NULL;
        if (mask & 4) table.release = NULL;
        refused(table, "reserve, commit and release");
    }
}

static void device__a_table_without_its_size_name_or_page_is_refused(void **state) {
    const kvc_device whole = ((pool_fixture *)*state)->device.table;
    kvc_device table = whole;
    table.struct_size = 0;
    refused(table, "struct_size");
    table.struct_size = sizeof table - 1;
    refused(table, "struct_size");
    const size_t pages[] = {0, 3, 4095, 4097, 6144};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        table = whole;
        table.page_bytes = pages[i];
        refused(table, "page_bytes");
    }
    table = whole;
    table.name = NULL;
    refused(table, "name");
}

static void device__the_cpu_has_every_call(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    assert_ptr_equal(cpu, kvc_device_cpu());
    assert_string_equal(cpu->name, "cpu");
    assert_int_equal(cpu->struct_size, sizeof *cpu);
    assert_true(cpu->page_bytes >= 4096 && cpu->memory_bytes > 0);
    assert_non_null(cpu->reserve);
    assert_ok(kvc_sync(cpu));
    assert_fails(kvc_sync(NULL), KVC_E_INVALID);
}

static void device__a_sync_that_fails_is_told_with_the_name(void **state) {
    pool_fixture *f = *state;
    assert_ok(kvc_sync(&f->device.table));
    assert_int_equal(f->device.calls[TEST_SYNCHRONIZE], 1);
    test_device_fail(&f->device, TEST_SYNCHRONIZE, 1, 1);
    assert_fails(kvc_sync(&f->device.table), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "'test'"));
    assert_non_null(strstr(kvc_last_error(), "synchronize"));
}

static void cpu__pages_keep_what_they_hold_when_others_are_committed(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    const size_t page = cpu->page_bytes, pages = 64;
    void *memory;
    assert_ok(cpu->reserve(cpu->context, &memory, pages * page));
    unsigned char *data = memory;
    assert_int_equal((uintptr_t)data % KVC_ALIGNMENT_BYTES, 0);
    for (size_t i = 0; i < pages; i += 3) {
        assert_ok(cpu->commit(cpu->context, data + i * page, page));
        memset(data + i * page, (int)i + 1, page);
    }
    assert_ok(cpu->commit(cpu->context, data, pages * page));
    for (size_t i = 0; i < pages * page; i++)
        assert_int_equal(data[i], i / page % 3 == 0 ? i / page + 1 : 0);
    cpu->release(cpu->context, memory, pages * page);
}

static void cpu__memory_can_be_written_from_end_to_end(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    const size_t sizes[] = {1, 63, 64, 65, 4096, 65535, 65536, 65537, 2097151, 2097152, 2097153};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory;
        assert_ok(cpu->allocate(cpu->context, &memory, sizes[i]));
        assert_int_equal((uintptr_t)memory % KVC_ALIGNMENT_BYTES, 0);
        memset(memory, 1, sizes[i]);
        cpu->deallocate(cpu->context, memory, sizes[i]);
    }
}

static void cpu__more_memory_than_an_address_holds_is_refused(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    const size_t sizes[] = {PTRDIFF_MAX, SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX - ((size_t)2 << 20)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = NULL;
        assert_int_equal(cpu->allocate(cpu->context, &memory, sizes[i]), KVC_E_NOMEM);
        assert_null(memory);
    }
}

static void cpu__transfer_moves_bytes_both_ways(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    const char there[] = "there and back";
    char here[sizeof there];
    assert_ok(cpu->transfer(cpu->context, here, there, sizeof there));
    assert_memory_equal(here, there, sizeof there);
}

static void fill_one(kvc_dtype dtype, double value) {
    const kvc_device *cpu = kvc_device_cpu();
    uint32_t given = 0, wanted = 0;
    assert_ok(cpu->fill(cpu->context, &given, dtype, 1, value));
    reference_store(&wanted, dtype, value);
    if (!reference_same(&given, &wanted, dtype))
        fail_msg("%a as %s is %08x, %08x wanted", value, kvc_dtype_name(dtype), given, wanted);
}

static void fill__a_double_near_a_tie_is_rounded_once(void **state) {
    (void)state;
    uint64_t random = test_seed(2);
    const kvc_dtype halves[] = {KVC_F16, KVC_BF16, KVC_F32};
    for (int i = 0; i < 150000; i++) {
        const kvc_dtype dtype = halves[i % 3];
        const size_t bytes = kvc_dtype_size_bytes(dtype);
        uint32_t word = (uint32_t)test_random(&random) & (bytes == 2 ? 0x7fffu : 0x7fffffffu);
        const double low = reference_load(&word, dtype);
        word++;
        const double high = reference_load(&word, dtype);
        if (!isfinite(low) || !isfinite(high)) continue;
        /* A float would take x for the tie itself, and the second rounding then goes astray. */
        const double tie = low + (high - low) / 2, sign = i & 8 ? -1 : 1;
        fill_one(dtype, sign * tie);
        fill_one(dtype, sign * nextafter(tie, high));
        fill_one(dtype, sign * nextafter(tie, low));
        fill_one(dtype, sign * (tie + ldexp(high - low, -20 - i % 30)));
        fill_one(dtype, sign * (tie - ldexp(high - low, -20 - i % 30)));
    }
}

static void fill__any_double_is_rounded_once(void **state) {
    (void)state;
    uint64_t random = test_seed(3);
    for (int i = 0; i < 300000; i++) {
        const uint64_t bits = test_random(&random);
        double x;
        memcpy(&x, &bits, sizeof x);
        /* Half of them where the halves have numbers. */
        if (i & 1) x = ldexp((double)(int64_t)bits, (int)(bits % 60) - 100);
        fill_one(reference_dtypes[i % 6], x);
    }
}

static void fill__the_edges_of_every_dtype_are_right(void **state) {
    (void)state;
    const double edges[] = {0,
                            -0.0,
                            0.5,
                            -0.5,
                            0.999,
                            -0.999,
                            1,
                            127,
                            127.9,
                            128,
                            -128,
                            -128.9,
                            -129,
                            255,
                            255.9,
                            256,
                            -1,
                            4294967295.0,
                            4294967295.9,
                            4294967296.0,
                            1e300,
                            -1e300,
                            65504,
                            65519.99,
                            65520,
                            -65520,
                            0x1.fep127,
                            0x1.feffp127,
                            0x1.ffp127,
                            0x1.fffffep127,
                            0x1.ffffffp127,
                            0x1p128,
                            0x1p-149,
                            0x1p-150,
                            0x1.8p-150,
                            0x1p-24,
                            0x1p-25,
                            0x1.8p-25,
                            0x1.000001p-25,
                            0x1p-133,
                            0x1p-134,
                            0x1.01p-134,
                            0x1p-1074,
                            -0x1p-1074,
                            (double)INFINITY,
                            -(double)INFINITY,
                            (double)NAN};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (size_t d = 0; d < 6; d++) fill_one(reference_dtypes[d], edges[i]);
}

static void fill__only_the_elements_counted_are_written(void **state) {
    (void)state;
    const kvc_device *cpu = kvc_device_cpu();
    guarded memory = guarded_new(8192);
    for (size_t d = 0; d < 6; d++) {
        const kvc_dtype dtype = reference_dtypes[d];
        const size_t size = kvc_dtype_size_bytes(dtype);
        for (int64_t count = 0; count < 70; count++) {
            memset(memory.data, TEST_POISON, memory.bytes);
            const size_t bytes = (size_t)count * size;
            char *data = guarded_place(&memory, bytes, count & 1);
            assert_ok(cpu->fill(cpu->context, data, dtype, count, 7));
            for (int64_t i = 0; i < count; i++)
                assert_true(reference_load(data + (size_t)i * size, dtype) == 7);
            for (size_t i = 0; i < memory.bytes; i++) {
                const char *at = memory.data + i;
                if (at < data || at >= data + bytes) assert_int_equal((uint8_t)*at, TEST_POISON);
            }
        }
    }
    guarded_free(&memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(device__a_table_that_lacks_a_call_is_refused),
        pool_test(device__reserve_commit_and_release_go_together),
        pool_test(device__a_table_without_its_size_name_or_page_is_refused),
        cmocka_unit_test(device__the_cpu_has_every_call),
        pool_test(device__a_sync_that_fails_is_told_with_the_name),
        cmocka_unit_test(cpu__pages_keep_what_they_hold_when_others_are_committed),
        cmocka_unit_test(cpu__memory_can_be_written_from_end_to_end),
        cmocka_unit_test(cpu__more_memory_than_an_address_holds_is_refused),
        cmocka_unit_test(cpu__transfer_moves_bytes_both_ways),
        cmocka_unit_test(fill__a_double_near_a_tie_is_rounded_once),
        cmocka_unit_test(fill__any_double_is_rounded_once),
        cmocka_unit_test(fill__the_edges_of_every_dtype_are_right),
        cmocka_unit_test(fill__only_the_elements_counted_are_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
