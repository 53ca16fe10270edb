/* The queue of tiers, over a backend that keeps one value and does what it is told. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/tier.h>

#include "store/digest.h"
#include "support/support.h"
#include "support/tier_fixture.h"

enum { ROOM = 256, SLOTS = 64 };

/* A value by the first byte of its key. */
typedef struct memory {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held; /* calls wait */
    int calls, workers_seen[8], removed, freed;
    kvc_tier_fault fault; /* of every value, when set */
    bool is_there[SLOTS];
    unsigned char bytes[SLOTS][KVC_TIER_HEADER_BYTES + ROOM];
} memory;

static void enter(memory *m, int worker) {
    (void)pthread_mutex_lock(&m->lock);
    while (m->held) (void)pthread_cond_wait(&m->changed, &m->lock);
    m->calls++;
    m->workers_seen[worker]++;
}

static void hold(memory *m, bool held) {
    (void)pthread_mutex_lock(&m->lock);
    m->held = held;
    (void)pthread_cond_broadcast(&m->changed);
    (void)pthread_mutex_unlock(&m->lock);
}

static void each(memory *m, int worker, kvc_tier_value *values, int64_t count, kvc_tier_op op) {
    enter(m, worker);
    for (int64_t i = 0; i < count; i++) {
        kvc_tier_value *value = &values[i];
        const int slot = value->key[0] % SLOTS;
        value->result = m->is_there[slot] || op == KVC_TIER_PUT ? KVC_TIER_HIT : KVC_TIER_MISS;
        assert_true(op != KVC_TIER_EXISTS || (!value->header && !value->payload));
        if (m->fault) value->result = KVC_TIER_FAULT;
        value->fault = m->fault;
        if (value->result != KVC_TIER_HIT || op == KVC_TIER_EXISTS) continue;
        unsigned char *kept = m->bytes[slot];
        if (op == KVC_TIER_PUT) {
            memcpy(kept, value->header, KVC_TIER_HEADER_BYTES);
            memcpy(kept + KVC_TIER_HEADER_BYTES, value->payload, value->payload_bytes);
            m->is_there[slot] = true;
        } else {
            memcpy(value->header, kept, KVC_TIER_HEADER_BYTES);
            memcpy(value->payload, kept + KVC_TIER_HEADER_BYTES, value->payload_bytes);
        }
    }
    (void)pthread_mutex_unlock(&m->lock);
}

static void exists_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    each(context, worker, values, count, KVC_TIER_EXISTS);
}

static void get_into_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    each(context, worker, values, count, KVC_TIER_GET);
}

static void put_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    each(context, worker, values, count, KVC_TIER_PUT);
}

static void remove_one(void *context, int worker, const uint8_t *key) {
    memory *m = context;
    enter(m, worker);
    m->is_there[key[0] % SLOTS] = false;
    m->removed++;
    (void)pthread_mutex_unlock(&m->lock);
}

static void free_memory(void *context) {
    memory *m = context;
    m->freed++;
}

static kvc_tier_backend backend_of(memory *m) {
    return (kvc_tier_backend){.struct_size = sizeof(kvc_tier_backend),
                              .name = "memory",
                              .context = m,
                              .workers = 2,
                              .most_values = 4,
                              .exists_many = exists_many,
                              .get_into_many = get_into_many,
                              .put_many = put_many,
                              .remove = remove_one,
                              .free = free_memory};
}

static memory *memory_new(void) {
    memory *m = calloc(1, sizeof *m);
    assert_non_null(m);
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_cond_init(&m->changed, NULL);
    return m;
}

static kvc_tier *tier_new(memory *m) {
    kvc_tier *tier;
    const kvc_tier_desc desc = test_tier_desc();
    const kvc_tier_backend backend = backend_of(m);
    assert_ok(kvc_tier_new(&tier, &backend, &desc));
    return tier;
}

static void finish(kvc_tier *tier, memory *m) {
    kvc_tier_free(tier);
    assert_int_equal(m->freed, 1);
    free(m);
}

static void tier__a_value_comes_back_and_is_counted(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    assert_int_equal(test_tier_get(tier, 1, 7, 100), KVC_TIER_MISS);
    assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_MISS);
    assert_int_equal(test_tier_put(tier, 1, 7, 100), KVC_TIER_HIT);
    assert_int_equal(test_tier_exists(tier, 1), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 7, 100), KVC_TIER_HIT);
    const kvc_tier_stats stats = test_tier_stats(tier);
    assert_int_equal(stats.asked, 2);
    assert_int_equal(stats.found, 1);
    assert_int_equal(stats.gets, 2);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.puts, 1);
    assert_int_equal(stats.kept, 1);
    assert_int_equal(stats.bytes_read, 100);
    assert_int_equal(stats.bytes_written, 100);
    finish(tier, m);
}

static void tier__a_flipped_bit_anywhere_is_a_miss_and_is_removed(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    test_tier_key(key, 1);
    unsigned char *kept = m->bytes[key[0] % SLOTS];
    for (int bit = 0; bit < (KVC_TIER_HEADER_BYTES + 24) * 8; bit++) {
        assert_int_equal(test_tier_put(tier, 1, 7, 24), KVC_TIER_HIT);
        kept[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(test_tier_get(tier, 1, 7, 24), KVC_TIER_FAULT);
        assert_int_equal(m->removed, bit + 1);
        assert_int_equal(test_tier_fault(), bit < 64 ? KVC_TIER_BAD_MAGIC : KVC_TIER_BAD_CHECKSUM);
    }
    assert_int_equal(test_tier_logged(KVC_TIER_BAD_CHECKSUM), 1);
    finish(tier, m);
}

/* What a later library might keep here is not ours to remove. */
static void tier__a_whole_value_of_another_version_is_a_miss_and_stays(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    kvc__digest digest;
    test_tier_key(key, 1);
    unsigned char *kept = m->bytes[key[0] % SLOTS];
    assert_int_equal(test_tier_put(tier, 1, 7, 24), KVC_TIER_HIT);
    kept[8] = 2;
    kvc__digest_init(&digest);
    kvc__digest_add(&digest, kept, KVC_TIER_HEADER_BYTES - 16);
    kvc__digest_bytes(&digest, kept + KVC_TIER_HEADER_BYTES - 16);
    assert_int_equal(test_tier_get(tier, 1, 7, 24), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_VERSION);
    assert_int_equal(m->removed, 0);
    finish(tier, m);
}

static void tier__a_good_value_of_another_key_model_or_size_is_a_miss(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m), *other;
    uint8_t one[KVC_BLOCK_KEY_BYTES], two[KVC_BLOCK_KEY_BYTES];
    test_tier_key(one, 1);
    test_tier_key(two, 2);
    assert_int_not_equal(one[0] % SLOTS, two[0] % SLOTS);
    assert_int_equal(test_tier_put(tier, 1, 7, 24), KVC_TIER_HIT);
    memcpy(m->bytes[two[0] % SLOTS], m->bytes[one[0] % SLOTS], sizeof m->bytes[0]);
    m->is_there[two[0] % SLOTS] = true;
    assert_int_equal(test_tier_get(tier, 2, 7, 24), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_KEY);
    assert_int_equal(m->removed, 1);

    kvc_tier_desc desc = test_tier_desc();
    desc.fingerprint[31] ^= 1;
    const kvc_tier_backend backend = backend_of(m);
    assert_ok(kvc_tier_new(&other, &backend, &desc));
    assert_int_equal(test_tier_get(other, 1, 7, 24), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_FINGERPRINT);
    assert_int_equal(m->removed, 1); /* it is right for the first tier */
    kvc_tier_free(other);
    m->freed = 0;
    assert_int_equal(test_tier_get(tier, 1, 7, 24), KVC_TIER_HIT);
    assert_int_equal(test_tier_get(tier, 1, 7, 25), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_BAD_LENGTH);
    finish(tier, m);
}

static void tier__each_kind_of_fault_is_told_once_and_counted_always(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    for (int f = KVC_TIER_REFUSED; f <= KVC_TIER_PAUSED; f++) {
        m->fault = (kvc_tier_fault)f;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(test_tier_get(tier, 1, 7, 24), KVC_TIER_FAULT);
            assert_int_equal(test_tier_put(tier, 1, 7, 24), KVC_TIER_FAULT);
            assert_int_equal(test_tier_fault(), f);
        }
        assert_int_equal(test_tier_logged((kvc_tier_fault)f), 1);
        assert_int_equal(test_tier_stats(tier).faults[f], 6);
        assert_string_not_equal(kvc_tier_fault_name((kvc_tier_fault)f), "KVC_TIER_?");
    }
    assert_int_equal(test_tier_stats(tier).misses, test_tier_stats(tier).gets);
    assert_int_equal(m->removed, 0);
    m->fault = (kvc_tier_fault)999; /* a backend may be anyone's */
    assert_int_equal(test_tier_get(tier, 1, 7, 24), KVC_TIER_FAULT);
    assert_int_equal(test_tier_fault(), KVC_TIER_IO);
    finish(tier, m);
}

static void tier__a_batch_is_its_token_and_ends_when_its_calls_do(void **state) {
    (void)state;
    enum { ITEMS = 33 };
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    uint8_t keys[ITEMS][KVC_BLOCK_KEY_BYTES];
    char data[ITEMS][8];
    kvc_tier_item items[ITEMS];
    kvc_tier_batch batch = {.struct_size = sizeof batch, .op = KVC_TIER_PUT, .items = items};
    batch.count = ITEMS;
    for (uint64_t i = 0; i < ITEMS; i++) {
        test_tier_key(keys[i], i);
        keys[i][0] = (uint8_t)i;
        test_tier_payload(data[i], sizeof data[i], i);
        items[i] = (kvc_tier_item){.key = keys[i], .data = data[i], .size_bytes = sizeof data[i]};
    }
    hold(m, true);
    assert_ok(kvc_tier_submit(tier, &batch));
    assert_false(kvc_tier_wait(tier, &batch, 0));
    assert_false(kvc_tier_wait(tier, &batch, 1000000));
    hold(m, false);
    assert_true(kvc_tier_wait(tier, &batch, UINT64_MAX));
    assert_true(kvc_tier_wait(tier, &batch, 0));
    assert_true(m->calls >= ITEMS / 4);
    memset(data, 0, sizeof data);
    assert_ok(kvc_tier_get_into_many(tier, items, ITEMS));
    for (uint64_t i = 0; i < ITEMS; i++) {
        char right[8];
        test_tier_payload(right, sizeof right, i);
        assert_int_equal(items[i].result, KVC_TIER_HIT);
        assert_memory_equal(data[i], right, sizeof right);
    }
    finish(tier, m);
}

static void tier__free_waits_for_what_was_submitted(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    uint8_t key[KVC_BLOCK_KEY_BYTES] = {3};
    kvc_tier_item items[9];
    kvc_tier_batch batches[9] = {{0}};
    for (int i = 0; i < 9; i++) {
        items[i] = (kvc_tier_item){.key = key, .data = key, .size_bytes = sizeof key};
        batches[i] = (kvc_tier_batch){.struct_size = sizeof *batches,
                                      .op = i % 2 ? KVC_TIER_EXISTS : KVC_TIER_PUT,
                                      .items = &items[i],
                                      .count = 1};
        assert_ok(kvc_tier_submit(tier, &batches[i]));
    }
    kvc_tier_free(tier);
    assert_int_equal(m->calls, 9);
    for (int i = 0; i < 9; i += 2) assert_int_equal(items[i].result, KVC_TIER_HIT);
    free(m);
}

typedef struct user {
    kvc_tier *tier;
    uint64_t first;
    int hits;
} user;

static void *put_and_get(void *argument) {
    user *u = argument;
    for (uint64_t i = 0; i < 200; i++) {
        const uint64_t number = u->first + i % 7;
        if (test_tier_put(u->tier, number, number, 64) == KVC_TIER_HIT &&
            test_tier_get(u->tier, number, number, 64) == KVC_TIER_HIT)
            u->hits++;
    }
    return NULL;
}

static void tier__threads_share_one(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier = tier_new(m);
    user users[2] = {{tier, 0, 0}, {tier, 100, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_get, &users[i]), 0);
    for (int i = 0; i < 2; i++) (void)pthread_join(threads[i], NULL);
    assert_true(users[0].hits > 0 && users[1].hits > 0); /* slots may be shared, bytes may not */
    assert_int_equal(test_tier_stats(tier).puts, 400);
    finish(tier, m);
}

static void tier__what_makes_no_sense_is_refused(void **state) {
    (void)state;
    memory *m = memory_new();
    kvc_tier *tier, *none;
    kvc_tier_desc desc = test_tier_desc();
    kvc_tier_backend backend = backend_of(m);
    backend.workers = 65;
    assert_fails(kvc_tier_new(&none, &backend, &desc), KVC_E_INVALID);
    assert_null(none);
    backend = backend_of(m);
    backend.most_values = 0;
    assert_fails(kvc_tier_new(&none, &backend, &desc), KVC_E_INVALID);
    backend = backend_of(m);
    backend.put_many = NULL;
    assert_fails(kvc_tier_new(&none, &backend, &desc), KVC_E_INVALID);
    desc.struct_size = 0;
    backend = backend_of(m);
    assert_fails(kvc_tier_new(&none, &backend, &desc), KVC_E_INVALID);
    assert_int_equal(m->freed, 0);

    tier = tier_new(m);
    uint8_t key[KVC_BLOCK_KEY_BYTES] = {0};
    kvc_tier_item item = {.key = key, .size_bytes = 1};
    assert_fails(kvc_tier_get_into_many(tier, &item, 1), KVC_E_INVALID);
    assert_fails(kvc_tier_get_into_many(tier, NULL, 1), KVC_E_INVALID);
    assert_fails(kvc_tier_put_many(tier, &item, -1), KVC_E_INVALID);
    assert_fails(kvc_tier_put_many(NULL, &item, 1), KVC_E_INVALID);
    item.key = NULL;
    assert_fails(kvc_tier_exists_many(tier, &item, 1), KVC_E_INVALID);
    assert_ok(kvc_tier_exists_many(tier, NULL, 0));
    kvc_tier_batch batch = {.struct_size = sizeof batch, .op = (kvc_tier_op)3};
    assert_fails(kvc_tier_submit(tier, &batch), KVC_E_INVALID);
    batch.struct_size = 8;
    assert_fails(kvc_tier_submit(tier, &batch), KVC_E_INVALID);
    kvc_tier_free(NULL);
    finish(tier, m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tier__a_value_comes_back_and_is_counted),
        cmocka_unit_test(tier__a_flipped_bit_anywhere_is_a_miss_and_is_removed),
        cmocka_unit_test(tier__a_whole_value_of_another_version_is_a_miss_and_stays),
        cmocka_unit_test(tier__a_good_value_of_another_key_model_or_size_is_a_miss),
        cmocka_unit_test(tier__each_kind_of_fault_is_told_once_and_counted_always),
        cmocka_unit_test(tier__a_batch_is_its_token_and_ends_when_its_calls_do),
        cmocka_unit_test(tier__free_waits_for_what_was_submitted),
        cmocka_unit_test(tier__threads_share_one),
        cmocka_unit_test(tier__what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests_name("tier", tests, NULL, NULL);
}
