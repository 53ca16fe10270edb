/* The queue and the threads of every tier, its figures, and what it tells of faults. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <kvcache/tier.h>

#include "base/client.h"
#include "store/tier_value.h"

enum { MOST_WORKERS = 64, MOST_VALUES = 64 };

typedef struct worker {
    kvc_tier *tier;
    pthread_t handle;
    int number;
    uint8_t headers[MOST_VALUES][KVC_TIER_HEADER_BYTES];
} worker;

struct kvc_tier {
    kvc_tier_backend backend;
    kvc_tier_desc desc;

    pthread_mutex_t lock; /* of what follows, and of each batch's own fields */
    pthread_cond_t work;  /* workers: a batch waits, or all shall end */
    pthread_cond_t ended; /* callers: a batch has ended */
    kvc_tier_batch *first, *last;
    int started;
    bool stop;
    kvc_tier_stats stats;
    uint32_t told; /* bit f: fault f was */

    worker workers[]; /* [backend.workers] */
};

const char *kvc_tier_fault_name(kvc_tier_fault fault) {
    switch (fault) {
#define CASE(name, value, text)                                                                    \
    case name: return #name;
        KVC_TIER_FAULT_LIST(CASE)
#undef CASE
    }
    return "KVC_TIER_?";
}

const char *kvc_tier_fault_text(kvc_tier_fault fault) {
    switch (fault) {
#define CASE(name, value, text)                                                                    \
    case name: return text;
        KVC_TIER_FAULT_LIST(CASE)
#undef CASE
    }
    return "an unknown fault";
}

/* Takes the next items of the oldest batch: at most a worker's share of it, so that all have some.
 * Waits for one; false when there is none and all shall end. */
static bool take(kvc_tier *tier, kvc_tier_batch **batch, int64_t *first, int64_t *count) {
    while (!tier->first && !tier->stop) (void)pthread_cond_wait(&tier->work, &tier->lock);
    kvc_tier_batch *b = tier->first;
    if (!b) return false;
    const int64_t workers = tier->backend.workers, share = (b->count + workers - 1) / workers;
    const int64_t most = share < tier->backend.most_values ? share : tier->backend.most_values;
    const int64_t left = b->count - b->taken;
    *batch = b;
    *first = b->taken;
    *count = left < most ? left : most;
    b->taken += *count;
    if (b->taken == b->count) tier->first = b->behind;
    return true;
}

static kvc_tier_fault verify(const kvc_tier *tier, const kvc_tier_value *value) {
    return kvc__tier_value_check(value->header, tier->desc.fingerprint, value->key, value->payload,
                                 value->payload_bytes);
}

/* A whole value of another version or model may be right for somebody else. */
static bool is_damage(kvc_tier_fault fault) {
    return fault == KVC_TIER_BAD_MAGIC || fault == KVC_TIER_BAD_LENGTH ||
           fault == KVC_TIER_BAD_KEY || fault == KVC_TIER_BAD_CHECKSUM;
}

static void get(worker *self, kvc_tier_value *values, int64_t count) {
    const kvc_tier *tier = self->tier;
    const kvc_tier_backend *backend = &tier->backend;
    backend->get_into_many(backend->context, self->number, values, count);
    for (int64_t i = 0; i < count; i++) {
        kvc_tier_value *value = &values[i];
        if (value->result == KVC_TIER_HIT) {
            value->fault = verify(tier, value);
            if (value->fault) value->result = KVC_TIER_FAULT;
        }
        if (value->result == KVC_TIER_FAULT && is_damage(value->fault))
            backend->remove(backend->context, self->number, value->key);
    }
}

static void put(worker *self, kvc_tier_value *values, int64_t count) {
    const kvc_tier *tier = self->tier;
    for (int64_t i = 0; i < count; i++)
        kvc__tier_value_seal(values[i].header, tier->desc.fingerprint, values[i].key,
                             values[i].payload, values[i].payload_bytes);
    tier->backend.put_many(tier->backend.context, self->number, values, count);
}

/* A backend may be anyone's: a fault without a known kind is one of the system. */
static kvc_tier_fault fault_of(const kvc_tier_value *value) {
    const int fault = (int)value->fault;
    if (value->result != KVC_TIER_FAULT) return KVC_TIER_FINE;
    return fault > KVC_TIER_FINE && fault < KVC_TIER_FAULTS_MAX ? value->fault : KVC_TIER_IO;
}

static void ask(worker *self, kvc_tier_op op, kvc_tier_item *items, int64_t count) {
    kvc_tier_value values[MOST_VALUES];
    const kvc_tier_backend *backend = &self->tier->backend;
    for (int64_t i = 0; i < count; i++) {
        values[i] = (kvc_tier_value){.key = items[i].key};
        if (op == KVC_TIER_EXISTS) continue; /* whatever its buffer is, a backend sees none */
        values[i].header = self->headers[i];
        values[i].payload = items[i].data;
        values[i].payload_bytes = items[i].size_bytes;
    }
    switch (op) {
    case KVC_TIER_EXISTS:
        backend->exists_many(backend->context, self->number, values, count);
        break;
    case KVC_TIER_GET: get(self, values, count); break;
    case KVC_TIER_PUT: put(self, values, count); break;
    }
    for (int64_t i = 0; i < count; i++) {
        items[i].result = values[i].result;
        items[i].fault = fault_of(&values[i]);
    }
}

/* Adds items to the figures; returns the faults seen for the first time, a bit each. */
static uint32_t count_items(kvc_tier *tier, kvc_tier_op op, const kvc_tier_item *items,
                            int64_t count) {
    kvc_tier_stats *stats = &tier->stats;
    uint32_t seen = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool hit = items[i].result == KVC_TIER_HIT;
        const uint64_t bytes = hit ? items[i].size_bytes : 0;
        stats->asked += op == KVC_TIER_EXISTS;
        stats->found += op == KVC_TIER_EXISTS && hit;
        stats->gets += op == KVC_TIER_GET;
        stats->hits += op == KVC_TIER_GET && hit;
        stats->misses += op == KVC_TIER_GET && !hit;
        stats->puts += op == KVC_TIER_PUT;
        stats->kept += op == KVC_TIER_PUT && hit;
        if (op == KVC_TIER_GET) stats->bytes_read += bytes;
        if (op == KVC_TIER_PUT) stats->bytes_written += bytes;
        if (!items[i].fault) continue;
        stats->faults[items[i].fault]++;
        seen |= UINT32_C(1) << items[i].fault;
    }
    const uint32_t fresh = seen & ~tier->told;
    tier->told |= seen;
    return fresh;
}

static void tell(const kvc_tier *tier, uint32_t faults) {
    char sentence[256];
    for (int f = 1; tier->desc.log && f < KVC_TIER_FAULTS_MAX; f++) {
        if (!(faults >> f & 1)) continue;
        (void)snprintf(sentence, sizeof sentence,
                       "%s: %s: a miss, as are others of this kind from now on", tier->backend.name,
                       kvc_tier_fault_text((kvc_tier_fault)f));
        tier->desc.log(tier->desc.log_context, (kvc_tier_fault)f, sentence);
    }
}

static void *run(void *argument) {
    worker *self = argument;
    kvc_tier *tier = self->tier;
    kvc_tier_batch *batch;
    int64_t first, count;
    (void)pthread_mutex_lock(&tier->lock);
    while (take(tier, &batch, &first, &count)) {
        kvc_tier_item *items = batch->items + first;
        const kvc_tier_op op = batch->op;
        (void)pthread_mutex_unlock(&tier->lock);
        ask(self, op, items, count);
        (void)pthread_mutex_lock(&tier->lock);
        const uint32_t fresh = count_items(tier, op, items, count);
        if (fresh) { /* before the batch ends, so that its caller finds it told */
            (void)pthread_mutex_unlock(&tier->lock);
            tell(tier, fresh);
            (void)pthread_mutex_lock(&tier->lock);
        }
        batch->ended += count;
        if (batch->ended == batch->count) (void)pthread_cond_broadcast(&tier->ended);
    }
    (void)pthread_mutex_unlock(&tier->lock);
    return NULL;
}

static void stop(kvc_tier *tier) {
    (void)pthread_mutex_lock(&tier->lock);
    tier->stop = true;
    (void)pthread_cond_broadcast(&tier->work);
    (void)pthread_mutex_unlock(&tier->lock);
    for (int i = 0; i < tier->started; i++) (void)pthread_join(tier->workers[i].handle, NULL);
    (void)pthread_cond_destroy(&tier->ended);
    (void)pthread_cond_destroy(&tier->work);
    (void)pthread_mutex_destroy(&tier->lock);
}

static kvc_status start(kvc_tier *tier) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    int error = 0;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&tier->lock, NULL);
    (void)pthread_cond_init(&tier->work, NULL);
    (void)pthread_cond_init(&tier->ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < tier->backend.workers && !error; i++) {
        tier->workers[i].tier = tier;
        tier->workers[i].number = i;
        error = pthread_create(&tier->workers[i].handle, NULL, run, &tier->workers[i]);
        tier->started += !error;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return KVC_OK;
    stop(tier);
    return kvc__fail(KVC_E_NOMEM, "%s: %d threads wanted: %s", tier->backend.name,
                     tier->backend.workers, strerror(error));
}

static kvc_status check_backend(const kvc_tier_backend *b) {
    if (!b->exists_many || !b->get_into_many || !b->put_many || !b->remove || !b->free || !b->name)
        return kvc__fail(KVC_E_INVALID, "backend: a call or the name is NULL");
    if (b->workers < 1 || b->workers > MOST_WORKERS)
        return kvc__fail(KVC_E_INVALID, "backend.workers: %d given, 1 to %d wanted", b->workers,
                         MOST_WORKERS);
    if (b->most_values < 1 || b->most_values > MOST_VALUES)
        return kvc__fail(KVC_E_INVALID, "backend.most_values: %lld given, 1 to %d wanted",
                         (long long)b->most_values, MOST_VALUES);
    return KVC_OK;
}

static size_t size_of(int workers) {
    return sizeof(kvc_tier) + (size_t)workers * sizeof(worker);
}

kvc_status kvc_tier_new(kvc_tier **out, const kvc_tier_backend *backend,
                        const kvc_tier_desc *desc) {
    kvc_tier_backend calls;
    kvc_tier_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__client_struct_in(&calls, sizeof calls, backend, "kvc_tier_backend"));
    KVC_TRY(kvc__client_struct_in(&full, sizeof full, desc, "kvc_tier_desc"));
    KVC_TRY(check_backend(&calls));
    KVC_TRY(kvc__client_calloc(&memory, 1, size_of(calls.workers), "tier"));
    kvc_tier *tier = memory;
    tier->backend = calls;
    tier->desc = full;
    tier->stats.struct_size = sizeof tier->stats;
    const kvc_status status = start(tier);
    if (status == KVC_OK) *out = tier;
    else kvc__client_free(tier, 1, size_of(calls.workers));
    return status;
}

void kvc_tier_free(kvc_tier *tier) {
    if (!tier) return;
    stop(tier);
    tier->backend.free(tier->backend.context);
    kvc__client_free(tier, 1, size_of(tier->backend.workers));
}

static kvc_status check_batch(const kvc_tier *tier, const kvc_tier_batch *batch) {
    if (!tier || !batch) return kvc__fail(KVC_E_INVALID, "%s: NULL given", tier ? "batch" : "tier");
    if (batch->struct_size < sizeof *batch)
        return kvc__fail(KVC_E_INVALID, "batch.struct_size: %zu given, %zu wanted",
                         batch->struct_size, sizeof *batch);
    if ((int)batch->op < KVC_TIER_EXISTS || batch->op > KVC_TIER_PUT)
        return kvc__fail(KVC_E_INVALID, "batch.op: %d given, a kvc_tier_op wanted", (int)batch->op);
    if (batch->count < 0 || (batch->count > 0 && !batch->items))
        return kvc__fail(KVC_E_INVALID, "batch: %lld items given%s", (long long)batch->count,
                         batch->count < 0 ? "" : ", and NULL for them");
    for (int64_t i = 0; i < batch->count; i++) {
        const kvc_tier_item *item = &batch->items[i];
        if (!item->key || (batch->op != KVC_TIER_EXISTS && !item->data && item->size_bytes))
            return kvc__fail(KVC_E_INVALID, "batch.items[%lld].%s: NULL given", (long long)i,
                             item->key ? "data" : "key");
    }
    return KVC_OK;
}

kvc_status kvc_tier_submit(kvc_tier *tier, kvc_tier_batch *batch) {
    KVC_TRY(check_batch(tier, batch));
    batch->taken = batch->ended = 0;
    batch->behind = NULL;
    if (batch->count == 0) return KVC_OK;
    (void)pthread_mutex_lock(&tier->lock);
    if (tier->first) tier->last->behind = batch;
    else tier->first = batch;
    tier->last = batch;
    (void)pthread_cond_broadcast(&tier->work);
    (void)pthread_mutex_unlock(&tier->lock);
    return KVC_OK;
}

bool kvc_tier_wait(kvc_tier *tier, const kvc_tier_batch *batch, uint64_t timeout_ns) {
    const uint64_t second = 1000000000, now = kvc__client_now_ns();
    const uint64_t until = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    const struct timespec at = {(time_t)(until / second), (long)(until % second)};
    if (!tier || !batch) return true;
    (void)pthread_mutex_lock(&tier->lock);
    int error = 0;
    while (batch->ended < batch->count && error != ETIMEDOUT && timeout_ns)
        error = until == UINT64_MAX ? pthread_cond_wait(&tier->ended, &tier->lock)
                                    : pthread_cond_timedwait(&tier->ended, &tier->lock, &at);
    const bool has_ended = batch->ended == batch->count;
    (void)pthread_mutex_unlock(&tier->lock);
    return has_ended;
}

static kvc_status submit_and_wait(kvc_tier *tier, kvc_tier_op op, kvc_tier_item *items,
                                  int64_t count) {
    kvc_tier_batch batch = {.struct_size = sizeof batch, .op = op, .items = items, .count = count};
    KVC_TRY(kvc_tier_submit(tier, &batch));
    (void)kvc_tier_wait(tier, &batch, UINT64_MAX);
    return KVC_OK;
}

kvc_status kvc_tier_exists_many(kvc_tier *tier, kvc_tier_item *items, int64_t count) {
    return submit_and_wait(tier, KVC_TIER_EXISTS, items, count);
}

kvc_status kvc_tier_get_into_many(kvc_tier *tier, kvc_tier_item *items, int64_t count) {
    return submit_and_wait(tier, KVC_TIER_GET, items, count);
}

kvc_status kvc_tier_put_many(kvc_tier *tier, kvc_tier_item *items, int64_t count) {
    return submit_and_wait(tier, KVC_TIER_PUT, items, count);
}

kvc_status kvc_tier_stats_get(kvc_tier *tier, kvc_tier_stats *out) {
    if (!tier) return kvc__fail(KVC_E_INVALID, "tier: NULL given, a tier wanted");
    (void)pthread_mutex_lock(&tier->lock);
    const kvc_tier_stats stats = tier->stats;
    (void)pthread_mutex_unlock(&tier->lock);
    return kvc__client_struct_out(out, &stats, sizeof stats, "kvc_tier_stats");
}
