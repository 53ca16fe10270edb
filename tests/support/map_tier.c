#include "support/map_tier.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "support/tier_fixture.h"

enum { ROOM = 4096 };

typedef struct value {
    uint8_t key[KVC_BLOCK_KEY_BYTES];
    unsigned char *bytes; /* header, payload */
    size_t count;
} value;

struct test_map {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;
    uint64_t harm, random;
    size_t count;
    value values[ROOM];
};

test_map *test_map_new(void) {
    test_map *map = calloc(1, sizeof *map);
    assert_non_null(map);
    (void)pthread_mutex_init(&map->lock, NULL);
    (void)pthread_cond_init(&map->changed, NULL);
    map->random = 99;
    return map;
}

void test_map_clear(test_map *map) {
    (void)pthread_mutex_lock(&map->lock);
    while (map->count > 0) free(map->values[--map->count].bytes);
    (void)pthread_mutex_unlock(&map->lock);
}

void test_map_free(test_map *map) {
    test_map_clear(map);
    (void)pthread_cond_destroy(&map->changed);
    (void)pthread_mutex_destroy(&map->lock);
    free(map);
}

static value *find(test_map *map, const uint8_t *key) {
    for (size_t i = 0; i < map->count; i++)
        if (memcmp(map->values[i].key, key, KVC_BLOCK_KEY_BYTES) == 0) return &map->values[i];
    return NULL;
}

static void forget(test_map *map, value *v) {
    if (!v) return;
    free(v->bytes);
    *v = map->values[--map->count];
}

static void keep(test_map *map, kvc_tier_value *wanted) {
    forget(map, find(map, wanted->key));
    if (map->count == ROOM) {
        wanted->result = KVC_TIER_FAULT;
        wanted->fault = KVC_TIER_FULL;
        return;
    }
    value *v = &map->values[map->count++];
    memcpy(v->key, wanted->key, sizeof v->key);
    v->count = KVC_TIER_HEADER_BYTES + wanted->payload_bytes;
    v->bytes = malloc(v->count);
    if (!v->bytes) abort();
    memcpy(v->bytes, wanted->header, KVC_TIER_HEADER_BYTES);
    memcpy(v->bytes + KVC_TIER_HEADER_BYTES, wanted->payload, wanted->payload_bytes);
    wanted->result = KVC_TIER_HIT;
}

static void give(const value *v, kvc_tier_value *wanted) {
    if (!v) return;
    wanted->result = KVC_TIER_HIT;
    if (!wanted->payload) return; /* EXISTS */
    if (v->count != KVC_TIER_HEADER_BYTES + wanted->payload_bytes) {
        wanted->result = KVC_TIER_FAULT;
        wanted->fault = KVC_TIER_BAD_LENGTH;
        return;
    }
    memcpy(wanted->header, v->bytes, KVC_TIER_HEADER_BYTES);
    memcpy(wanted->payload, v->bytes + KVC_TIER_HEADER_BYTES, wanted->payload_bytes);
}

/* Harms what is kept or on its way, in one of the ways; true when it is done with. */
static bool harm(test_map *map, kvc_tier_value *wanted) {
    value *v = find(map, wanted->key);
    if (map->harm == 0 || test_below(&map->random, (int64_t)map->harm) != 0) return false;
    switch (test_below(&map->random, 5)) {
    case 0:
        wanted->result = KVC_TIER_FAULT;
        wanted->fault = KVC_TIER_SLOW;
        if (wanted->payload) memset(wanted->payload, 0xee, wanted->payload_bytes / 2);
        return true;
    case 1: forget(map, v); return false;
    case 2: /* not in the header, whose version tells others to leave the value alone */
        if (v && v->count > KVC_TIER_HEADER_BYTES)
            v->bytes[KVC_TIER_HEADER_BYTES +
                     test_below(&map->random, (int64_t)v->count - KVC_TIER_HEADER_BYTES)] ^= 0x10;
        return false;
    case 3:
        if (v) v->count -= 1;
        return false;
    default: /* another's */
        if (v && map->values[0].count == v->count) memcpy(v->bytes, map->values[0].bytes, v->count);
        return false;
    }
}

static void look_up(void *context, int worker, kvc_tier_value *values, int64_t count) {
    test_map *map = context;
    (void)worker;
    (void)pthread_mutex_lock(&map->lock);
    for (int64_t i = 0; i < count; i++)
        if (!harm(map, &values[i])) give(find(map, values[i].key), &values[i]);
    (void)pthread_mutex_unlock(&map->lock);
}

/* A put reads its buffer, so harm must not write to it: only to what was kept. */
static void put_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    test_map *map = context;
    (void)worker;
    (void)pthread_mutex_lock(&map->lock);
    while (map->held) (void)pthread_cond_wait(&map->changed, &map->lock);
    for (int64_t i = 0; i < count; i++) {
        void *payload = values[i].payload;
        keep(map, &values[i]);
        values[i].payload = NULL;
        (void)harm(map, &values[i]);
        values[i].payload = payload;
    }
    (void)pthread_mutex_unlock(&map->lock);
}

static void remove_one(void *context, int worker, const uint8_t *key) {
    test_map *map = context;
    (void)worker;
    (void)pthread_mutex_lock(&map->lock);
    forget(map, find(map, key));
    (void)pthread_mutex_unlock(&map->lock);
}

static void end(void *context) {
    (void)context;
}

kvc_tier *test_map_open(test_map *map) {
    kvc_tier *tier;
    const kvc_tier_desc desc = test_tier_desc();
    const kvc_tier_backend backend = {.struct_size = sizeof backend,
                                      .name = "map",
                                      .context = map,
                                      .workers = 2,
                                      .most_values = 4,
                                      .exists_many = look_up,
                                      .get_into_many = look_up,
                                      .put_many = put_many,
                                      .remove = remove_one,
                                      .free = end};
    assert_ok(kvc_tier_new(&tier, &backend, &desc));
    return tier;
}

void test_map_hold(test_map *map, bool held) {
    (void)pthread_mutex_lock(&map->lock);
    map->held = held;
    (void)pthread_cond_broadcast(&map->changed);
    (void)pthread_mutex_unlock(&map->lock);
}

void test_map_harm(test_map *map, uint64_t one_in) {
    (void)pthread_mutex_lock(&map->lock);
    map->harm = one_in;
    (void)pthread_mutex_unlock(&map->lock);
}

size_t test_map_count(test_map *map) {
    (void)pthread_mutex_lock(&map->lock);
    const size_t count = map->count;
    (void)pthread_mutex_unlock(&map->lock);
    return count;
}
