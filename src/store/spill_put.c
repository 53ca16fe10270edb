/* Blocks on their way to the tiers. One thread asks every tier what it lacks of a few blocks, puts
 * these, and lets go of the blocks: a few at a time, so that a match that waits for the same tier
 * waits for no more than that. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/client.h"
#include "store/spill.h"

enum { PUT_MOST = 8 };

/* The same blocks, as each tier is asked for them. */
typedef struct round {
    kvc_tier_item items[KVC_SPILL_TIERS_MAX][PUT_MOST];
    kvc_tier_batch batches[KVC_SPILL_TIERS_MAX];
} round;

/* Submits a batch to every tier, and waits for all: from then on nobody reads the blocks. */
static void ask_all(const kvc_spill *spill, round *r, kvc_tier_op op) {
    for (int64_t t = 0; t < spill->tier_count; t++) {
        r->batches[t].struct_size = sizeof r->batches[t];
        r->batches[t].op = op;
        r->batches[t].items = r->items[t];
        (void)!kvc_tier_submit(spill->tiers[t], &r->batches[t]); /* well-formed */
    }
    for (int64_t t = 0; t < spill->tier_count; t++)
        (void)kvc_tier_wait(spill->tiers[t], &r->batches[t], UINT64_MAX);
}

/* Leaves of a tier's items those that it said it lacks, to be put. */
static void keep_missing(kvc_tier_batch *batch, kvc_spill_tier_stats *stats) {
    int64_t missing = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        stats->had_blocks += batch->items[i].result == KVC_TIER_HIT;
        stats->fault_blocks += batch->items[i].result == KVC_TIER_FAULT;
        if (batch->items[i].result == KVC_TIER_MISS) batch->items[missing++] = batch->items[i];
    }
    batch->count = missing;
}

static void put_few(kvc_spill *spill, uint8_t (*keys)[KVC_BLOCK_KEY_BYTES], const int32_t *ids,
                    int64_t count) {
    round r = {.batches = {{0}}};
    kvc_spill_tier_stats more[KVC_SPILL_TIERS_MAX] = {{0}};
    for (int64_t t = 0; t < spill->tier_count; t++) {
        r.batches[t].count = count;
        for (int64_t i = 0; i < count; i++)
            r.items[t][i] = (kvc_tier_item){.key = keys[i],
                                            .data = kvc__spill_memory(spill, ids[i]),
                                            .size_bytes = spill->layout.block_bytes};
    }
    ask_all(spill, &r, KVC_TIER_EXISTS);
    for (int64_t t = 0; t < spill->tier_count; t++) keep_missing(&r.batches[t], &more[t]);
    ask_all(spill, &r, KVC_TIER_PUT);
    (void)pthread_mutex_lock(&spill->lock);
    for (int64_t t = 0; t < spill->tier_count; t++) {
        kvc_spill_tier_stats *stats = &spill->stats.tiers[t];
        uint64_t kept = 0;
        for (int64_t i = 0; i < r.batches[t].count; i++)
            kept += r.items[t][i].result == KVC_TIER_HIT;
        stats->put_blocks += kept;
        stats->had_blocks += more[t].had_blocks;
        stats->fault_blocks += more[t].fault_blocks + (uint64_t)r.batches[t].count - kept;
    }
    (void)pthread_mutex_unlock(&spill->lock);
}

/* Lets go of blocks, and tells who waits for it. */
static void let_go(kvc_spill *spill, const int32_t *ids, int64_t count) {
    (void)kvc_blocks_release(spill->blocks, ids, count);
    (void)pthread_mutex_lock(&spill->lock);
    spill->stats.in_flight_blocks -= (uint64_t)count;
    if (spill->stats.in_flight_blocks == 0) (void)pthread_cond_broadcast(&spill->done);
    (void)pthread_mutex_unlock(&spill->lock);
}

static kvc__spill_job *next_job(kvc_spill *spill) {
    (void)pthread_mutex_lock(&spill->lock);
    while (!spill->first && !spill->stop) (void)pthread_cond_wait(&spill->work, &spill->lock);
    kvc__spill_job *job = spill->first;
    if (job) spill->first = job->behind;
    (void)pthread_mutex_unlock(&spill->lock);
    return job;
}

static void *run(void *argument) {
    kvc_spill *spill = argument;
    for (kvc__spill_job *job; (job = next_job(spill)); kvc__client_free(job, 1, job->bytes)) {
        for (int64_t i = 0, n; i < job->count; i += n) {
            n = job->count - i < PUT_MOST ? job->count - i : PUT_MOST;
            put_few(spill, job->keys + i, job->ids + i, n);
            let_go(spill, job->ids + i, n);
        }
    }
    return NULL;
}

kvc_status kvc__spill_start(kvc_spill *spill) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&spill->lock, NULL);
    (void)pthread_cond_init(&spill->work, NULL);
    (void)pthread_cond_init(&spill->done, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&spill->thread, NULL, run, spill);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) return KVC_OK;
    (void)pthread_cond_destroy(&spill->done);
    (void)pthread_cond_destroy(&spill->work);
    (void)pthread_mutex_destroy(&spill->lock);
    return kvc__fail(KVC_E_NOMEM, "spill: a thread wanted: %s", strerror(error));
}

void kvc__spill_stop(kvc_spill *spill) {
    (void)pthread_mutex_lock(&spill->lock);
    spill->stop = true;
    (void)pthread_cond_broadcast(&spill->work);
    (void)pthread_mutex_unlock(&spill->lock);
    (void)pthread_join(spill->thread, NULL);
    (void)pthread_cond_destroy(&spill->done);
    (void)pthread_cond_destroy(&spill->work);
    (void)pthread_mutex_destroy(&spill->lock);
}

/* Takes room in flight: for how many of so many blocks. */
static int64_t claim(kvc_spill *spill, int64_t count) {
    (void)pthread_mutex_lock(&spill->lock);
    kvc_spill_stats *stats = &spill->stats;
    const uint64_t room = spill->most_in_flight - stats->in_flight_blocks;
    const int64_t taken = (uint64_t)count < room ? count : (int64_t)room;
    stats->in_flight_blocks += (uint64_t)taken;
    stats->skipped_blocks += (uint64_t)(count - taken);
    (void)pthread_mutex_unlock(&spill->lock);
    return taken;
}

static void give_up(kvc_spill *spill, int64_t count) {
    (void)pthread_mutex_lock(&spill->lock);
    spill->stats.in_flight_blocks -= (uint64_t)count;
    spill->stats.skipped_blocks += (uint64_t)count;
    if (spill->stats.in_flight_blocks == 0) (void)pthread_cond_broadcast(&spill->done);
    (void)pthread_mutex_unlock(&spill->lock);
}

static kvc_status make_job(kvc__spill_job **out, uint8_t (*keys)[KVC_BLOCK_KEY_BYTES],
                           const int32_t *ids, int64_t count) {
    const size_t n = (size_t)count, each = sizeof *keys + sizeof *ids;
    const size_t bytes = sizeof **out + n * each; /* the caller's own lists are as long */
    void *memory;
    KVC_TRY(kvc__client_calloc(&memory, 1, bytes, "blocks to be put"));
    kvc__spill_job *job = *out = memory;
    job->bytes = bytes;
    job->count = count;
    job->ids = (int32_t *)(job + 1);
    job->keys = (uint8_t(*)[KVC_BLOCK_KEY_BYTES])(job->ids + n);
    memcpy(job->ids, ids, n * sizeof *ids);
    memcpy(job->keys, keys, n * sizeof *keys);
    return KVC_OK;
}

void kvc__spill_put(kvc_spill *spill, uint8_t (*keys)[KVC_BLOCK_KEY_BYTES], const int32_t *ids,
                    int64_t count) {
    kvc__spill_job *job;
    count = claim(spill, count);
    if (count == 0) return;
    if (make_job(&job, keys, ids, count) != KVC_OK) {
        give_up(spill, count);
        return;
    }
    if (kvc_blocks_retain(spill->blocks, ids, count) != KVC_OK) { /* not the caller's */
        kvc__client_free(job, 1, job->bytes);
        give_up(spill, count);
        return;
    }
    (void)pthread_mutex_lock(&spill->lock);
    if (spill->first) spill->last->behind = job;
    else spill->first = job;
    spill->last = job;
    (void)pthread_cond_signal(&spill->work);
    (void)pthread_mutex_unlock(&spill->lock);
}

bool kvc_spill_wait(kvc_spill *spill, uint64_t timeout_ns) {
    const uint64_t second = 1000000000, now = kvc__client_now_ns();
    const uint64_t until = timeout_ns < UINT64_MAX - now ? now + timeout_ns : UINT64_MAX;
    const struct timespec at = {(time_t)(until / second), (long)(until % second)};
    int error = 0;
    if (!spill) return true;
    (void)pthread_mutex_lock(&spill->lock);
    while (spill->stats.in_flight_blocks && error != ETIMEDOUT && timeout_ns)
        error = until == UINT64_MAX ? pthread_cond_wait(&spill->done, &spill->lock)
                                    : pthread_cond_timedwait(&spill->done, &spill->lock, &at);
    const bool is_done = spill->stats.in_flight_blocks == 0;
    (void)pthread_mutex_unlock(&spill->lock);
    return is_done;
}
