#include "support/pool_fixture.h"

int pool_fixture_setup(void **state) {
    static pool_fixture fixture; /* the device is large */
    test_device_init(&fixture.device);
    test_allocator_use(true);
    fixture.held_before = test_allocator_held();
    assert_ok(kvc_pool_new(&fixture.pool, &fixture.device.table));
    *state = &fixture;
    return 0;
}

int pool_fixture_teardown(void **state) {
    pool_fixture *f = *state;
    kvc_pool_free(f->pool);
    test_device_deinit(&f->device);
    assert_int_equal(test_allocator_held(), f->held_before);
    test_allocator_use(false);
    return 0;
}

kvc_pool_stats pool_stats(kvc_pool *pool) {
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(pool, &stats));
    return stats;
}

kvc_buffer *pool_take(kvc_pool *pool, size_t bytes) {
    kvc_buffer *buffer;
    assert_ok(kvc_buffer_new(&buffer, pool, bytes));
    assert_true(kvc_buffer_capacity_bytes(buffer) >= bytes);
    assert_true(kvc_buffer_is_sole(buffer));
    return buffer;
}

void pool_keep(kvc_pool *pool, size_t bytes) {
    kvc_buffer_release(pool_take(pool, bytes));
}

bool pool_serves(kvc_pool *pool, size_t bytes) {
    const uint64_t hits = pool_stats(pool).hits;
    pool_keep(pool, bytes);
    return pool_stats(pool).hits != hits;
}
