#include "attention/schedule.h"

#include <math.h>
#include <stdatomic.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/error.h"

enum {
    PARTS_A_THREAD = 8, /* about: threads then end within an eighth of each other */
    LEAST = 512,        /* positions that a part has, unless threads would be idle: it costs about
                           as much as 30 of them to begin, end and merge */
    STEP = 64,          /* positions by which ranges are cut */
    CLASSES = 64        /* of equal width, by which sequences are sorted */
};

static int64_t divide_up(int64_t n, int64_t by) {
    return n / by + (n % by != 0);
}

kvc_status kvc__schedule_size(kvc__schedule *s) {
    const int64_t threads = s->executor.threads;
    /* A sequence is cut where it is longer than a chunk, and all together make no more chunks than
     * parts are wanted. One of x > 1 chunks becomes fewer than x + 1 < 2 x parts. */
    s->slots = threads == 1 ? 0 : 2 * threads * PARTS_A_THREAD;
    size_t workers, slots, floats, shares, counts;
    if (kvc__mul(&workers, s->worker_floats, (size_t)threads) &&
        kvc__mul(&slots, s->slot_floats, (size_t)s->slots) && kvc__add(&floats, workers, slots) &&
        kvc__mul(&floats, floats, sizeof(float)) &&
        kvc__mul(&shares, (size_t)s->batch, sizeof(kvc__share)) &&
        kvc__mul(&counts, (size_t)s->slots, sizeof(_Atomic int)) &&
        kvc__add(&s->bytes, floats, shares) && kvc__add(&s->bytes, s->bytes, counts))
        return KVC_OK;
    return kvc__fail(KVC_E_RANGE, "desc: scratch for a batch of %lld on %lld threads overflows",
                     (long long)s->batch, (long long)threads);
}

/* What a part of a sequence costs that is not cut, about: the positions that its rows see. */
static int64_t span_of(const kvc__job *job, int64_t sequence) {
    const kvc__range all = kvc__reach(job, sequence, 0, job->queries - 1);
    return all.end - all.begin;
}

/* Positions of a part: at most as many as the longest sequence has. */
static int64_t choose_chunk(const kvc__division *d, int threads, int64_t longest) {
    if (threads == 1) return longest;
    double positions = 0;
    for (int64_t b = 0; b < d->job->batch; b++) positions += (double)span_of(d->job, b);
    const double share =
        positions * (double)d->job->kv_heads * (double)d->row_blocks / (double)threads;
    const double even = fmax(share / PARTS_A_THREAD, fmin(share, LEAST));
    if (even >= (double)longest) return longest;
    return (int64_t)fmax(ceil(even / STEP), 1) * STEP;
}

/* Puts sequences in order, longest first to within a 64th of the longest: a counting sort. */
static void sort_shares(const kvc__division *d, int64_t longest) {
    const kvc__job *job = d->job;
    const int64_t width = longest / CLASSES + 1;
    int64_t before[CLASSES + 1] = {0};
    for (int64_t b = 0; b < job->batch; b++) before[CLASSES - span_of(job, b) / width]++;
    for (int64_t c = 1; c <= CLASSES; c++) before[c] += before[c - 1];
    for (int64_t b = job->batch - 1; b >= 0; b--)
        d->shares[--before[CLASSES - span_of(job, b) / width]].sequence = b;
}

kvc__division kvc__divide(const kvc__job *job, const kvc__schedule *schedule, int64_t part_rows,
                          void *scratch) {
    kvc__division d = {.job = job,
                       .part_rows = part_rows,
                       .row_blocks = divide_up(job->group * job->queries, part_rows),
                       .workers = scratch};
    d.slots = d.workers + schedule->worker_floats * (size_t)schedule->executor.threads;
    void *end = d.slots + schedule->slot_floats * (size_t)schedule->slots;
    d.shares = end;
    end = d.shares + schedule->batch;
    d.left = end;

    int64_t longest = 1, slots = 0;
    for (int64_t b = 0; b < job->batch; b++)
        if (span_of(job, b) > longest) longest = span_of(job, b);
    const int64_t chunk = choose_chunk(&d, schedule->executor.threads, longest);
    KVC_ASSERT(chunk > 0);
    sort_shares(&d, longest);
    for (int64_t i = 0; i < job->batch; i++) {
        kvc__share *share = &d.shares[i];
        const int64_t span = span_of(job, share->sequence);
        share->splits = span > chunk ? divide_up(span, chunk) : 1;
        share->first_part = d.parts;
        share->first_slot = slots;
        const int64_t parts = job->kv_heads * share->splits * d.row_blocks;
        d.parts += parts;
        if (share->splits == 1) continue;
        for (int64_t p = 0; p < parts; p++) atomic_init(&d.left[slots + p], (int)share->splits);
        slots += parts;
    }
    KVC_ASSERT(slots <= schedule->slots);
    return d;
}

static const kvc__share *find_share(const kvc__division *d, int64_t part) {
    int64_t low = 0, high = d->job->batch; /* shares[low].first_part <= part < shares[high]'s */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (d->shares[middle].first_part <= part) low = middle;
        else high = middle;
    }
    return &d->shares[low];
}

kvc__part kvc__division_part(const kvc__division *d, int64_t index) {
    const kvc__job *job = d->job;
    const kvc__share *share = find_share(d, index);
    /* Blocks of rows that read the same keys and values follow each other, so that threads read
     * them at about the same time; the last, which sees most, comes first. */
    const int64_t local = index - share->first_part;
    const int64_t block = d->row_blocks - 1 - local % d->row_blocks;
    const int64_t split = local / d->row_blocks % share->splits;
    kvc__part part = {.sequence = share->sequence,
                      .kv_head = local / d->row_blocks / share->splits,
                      .row = block * d->part_rows,
                      .split = split,
                      .splits = share->splits,
                      .slot = share->first_slot + local,
                      .step = d->row_blocks};
    part.first_slot = part.slot - split * part.step;
    part.rows = kvc__smaller(d->part_rows, job->group * job->queries - part.row);
    const kvc__range seen = kvc__reach(job, part.sequence, part.row / job->group,
                                       (part.row + part.rows - 1) / job->group);
    const int64_t even = divide_up(seen.end - seen.begin, part.splits);
    const int64_t range = divide_up(even, STEP) * STEP;
    part.begin = kvc__smaller(seen.end, seen.begin + split * range);
    part.end = kvc__smaller(seen.end, part.begin + range);
    part.kept = split == 0 ? kvc__kept_besides(job, seen) : 0; /* once, as sinks */
    return part;
}
