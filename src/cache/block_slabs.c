#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "cache/blocks.h"

void kvc__blocks_lock(kvc_blocks *blocks) {
    (void)pthread_mutex_lock(&blocks->lock);
}

static void unlink_slab(kvc__slab *slab) {
    if (!slab->list) return;
    if (slab->prev) slab->prev->next = slab->next;
    else *slab->list = slab->next;
    if (slab->next) slab->next->prev = slab->prev;
    slab->list = NULL;
    slab->prev = slab->next = NULL;
}

static void link_slab(kvc__slab *slab, kvc__slab **list) {
    if (slab->list == list) return;
    unlink_slab(slab);
    slab->list = list;
    slab->next = *list;
    if (slab->next) slab->next->prev = slab;
    *list = slab;
}

/* Takes the memory of an empty slab. */
static kvc_buffer *retire(kvc_blocks *blocks, kvc__slab *slab) {
    kvc_buffer *buffer = slab->buffer;
    link_slab(slab, &blocks->retired);
    slab->buffer = NULL;
    blocks->bases[slab->index] = NULL;
    blocks->empties--;
    blocks->free_blocks -= slab->count;
    blocks->resident_bytes -= kvc_buffer_capacity_bytes(buffer);
    return buffer;
}

static void revive(kvc_blocks *blocks, kvc__slab *slab, kvc_buffer *buffer) {
    slab->buffer = buffer;
    blocks->bases[slab->index] = kvc_buffer_data(buffer);
    blocks->empties++;
    blocks->free_blocks += slab->count;
    blocks->resident_bytes += kvc_buffer_capacity_bytes(buffer);
    link_slab(slab, &blocks->empty);
}

void kvc__blocks_unlock(kvc_blocks *blocks) {
    for (;;) { /* the buffer pool may call the system: not with the lock held */
        kvc_buffer *buffer = blocks->empties > 1 ? retire(blocks, blocks->empty) : NULL;
        (void)pthread_mutex_unlock(&blocks->lock);
        if (!buffer) return;
        kvc_buffer_release(buffer);
        kvc__blocks_lock(blocks);
    }
}

void kvc__blocks_free_slabs(kvc_blocks *blocks) {
    for (int64_t i = 0; i < blocks->made; i++) {
        kvc__slab *slab = blocks->slabs[i];
        kvc_buffer_release(slab->buffer);
        kvc__free(slab, 1, sizeof *slab + (size_t)slab->count * sizeof *slab->blocks);
    }
}

kvc__block *kvc__blocks_find(const kvc_blocks *blocks, int32_t id) {
    if (id < 0 || id >> blocks->slab_shift >= blocks->made) return NULL;
    kvc__slab *slab = blocks->slabs[id >> blocks->slab_shift];
    const int32_t place = id - (int32_t)((int64_t)slab->index << blocks->slab_shift);
    return slab->buffer && place < slab->count ? &slab->blocks[place] : NULL;
}

/* Makes a slab without memory. */
static kvc_status make_slab(kvc_blocks *blocks) {
    void *memory;
    const int64_t first = blocks->made << blocks->slab_shift;
    int64_t count = (int64_t)1 << blocks->slab_shift;
    if (count > blocks->most_blocks - first) count = blocks->most_blocks - first;
    KVC_TRY(
        kvc__calloc(&memory, 1, sizeof(kvc__slab) + (size_t)count * sizeof(kvc__block), "slab"));
    kvc__slab *slab = memory;
    slab->index = (int32_t)blocks->made;
    slab->count = (int32_t)count;
    for (int32_t i = 0; i < slab->count; i++)
        slab->blocks[i].next_free = i + 1 < slab->count ? i + 1 : -1;
    blocks->slabs[blocks->made++] = slab;
    link_slab(slab, &blocks->retired);
    return KVC_OK;
}

/* Gets memory for one more slab, or waits for the last one if another thread is at it. Lets the
 * lock go meanwhile: the buffer pool may call the system, and whom it asks under pressure may
 * release blocks. */
static kvc_status add_slab(kvc_blocks *blocks) {
    kvc_buffer *buffer;
    if (!blocks->retired && blocks->made == blocks->most_slabs && blocks->coming) {
        (void)pthread_cond_wait(&blocks->arrival, &blocks->lock);
        return KVC_OK;
    }
    if (!blocks->retired && blocks->made == blocks->most_slabs)
        return kvc__fail(KVC_E_LIMIT,
                         "blocks: all %lld under the limit of %llu bytes are held; release some or "
                         "make the pool of blocks with a higher desc.limit_bytes",
                         (long long)blocks->most_blocks,
                         (unsigned long long)blocks->desc.limit_bytes);
    if (!blocks->retired) KVC_TRY(make_slab(blocks));
    kvc__slab *slab = blocks->retired;
    KVC_ASSERT(slab);
    unlink_slab(slab);
    blocks->coming++;
    (void)pthread_mutex_unlock(&blocks->lock);
    const kvc_status status =
        kvc_buffer_new(&buffer, blocks->pool, (size_t)slab->count * blocks->block_bytes);
    kvc__blocks_lock(blocks);
    if (status == KVC_OK) revive(blocks, slab, buffer);
    else link_slab(slab, &blocks->retired);
    blocks->coming--;
    (void)pthread_cond_broadcast(&blocks->arrival);
    return status;
}

/* Sees to n free blocks: memory first, then, where there is no more, what only the tree holds. */
static kvc_status make_free(kvc_blocks *blocks, int64_t n) {
    while (blocks->free_blocks < n) {
        const int64_t reachable =
            blocks->most_blocks - blocks->used_blocks + blocks->tree.idle_blocks;
        if (n > reachable)
            return kvc__fail(KVC_E_LIMIT,
                             "n: %lld given, %lld can be had under the limit of %llu bytes (%lld "
                             "blocks)",
                             (long long)n, (long long)reachable,
                             (unsigned long long)blocks->desc.limit_bytes,
                             (long long)blocks->most_blocks);
        const kvc_status status = add_slab(blocks);
        if (status == KVC_OK) continue;
        if (n > blocks->free_blocks + blocks->tree.idle_blocks) return status;
        while (blocks->free_blocks < n) (void)blocks->tree.evict(blocks->tree.tree);
    }
    return KVC_OK;
}

static int32_t take_one(kvc_blocks *blocks) {
    kvc__slab *slab = blocks->open ? blocks->open : blocks->empty;
    KVC_ASSERT(slab);
    const int32_t place = slab->first_free;
    kvc__block *block = &slab->blocks[place];
    slab->first_free = block->next_free;
    block->references = 1;
    block->node = -1;
    if (slab->used++ == 0) blocks->empties--;
    if (slab->used == slab->count) unlink_slab(slab);
    else link_slab(slab, &blocks->open);
    blocks->free_blocks--;
    blocks->used_blocks++;
    return (int32_t)((int64_t)slab->index << blocks->slab_shift) + place;
}

static void free_one(kvc_blocks *blocks, int32_t id) {
    kvc__slab *slab = blocks->slabs[id >> blocks->slab_shift];
    const int32_t place = id - (int32_t)((int64_t)slab->index << blocks->slab_shift);
    slab->blocks[place].next_free = slab->first_free;
    slab->first_free = place;
    if (--slab->used == 0) blocks->empties++;
    link_slab(slab, slab->used ? &blocks->open : &blocks->empty);
    blocks->free_blocks++;
    blocks->used_blocks--;
}

void kvc__blocks_drop(kvc_blocks *blocks, int32_t id) {
    kvc__block *block = kvc__blocks_find(blocks, id);
    const int32_t node = block->node;
    if (--block->references == 0) free_one(blocks, id);
    else if (block->references == 1 && node >= 0) blocks->tree.idle(blocks->tree.tree, node);
}

static kvc_status check_list(const kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    KVC_TRY(kvc__blocks_given(blocks));
    if (n < 0 || (n > 0 && !ids))
        return kvc__fail(KVC_E_INVALID, "%s given, at least 0 and a list of as many ids wanted",
                         n < 0 ? "n: less than 0" : "ids: NULL");
    return KVC_OK;
}

kvc_status kvc_blocks_take(kvc_blocks *blocks, int64_t n, int32_t *ids) {
    KVC_TRY(check_list(blocks, ids, n));
    kvc__blocks_lock(blocks);
    const kvc_status status = make_free(blocks, n);
    for (int64_t i = 0; i < n; i++) ids[i] = status == KVC_OK ? take_one(blocks) : KVC_BLOCK_NONE;
    if (blocks->used_blocks > blocks->peak_blocks) blocks->peak_blocks = blocks->used_blocks;
    kvc__blocks_unlock(blocks);
    return status;
}

static kvc_status refuse(int32_t id, int64_t index) {
    return kvc__fail(KVC_E_INVALID, "ids[%lld]: %d given, a block that the caller holds wanted",
                     (long long)index, id);
}

kvc_status kvc_blocks_retain(kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    KVC_TRY(check_list(blocks, ids, n));
    kvc_status status = KVC_OK;
    kvc__blocks_lock(blocks);
    for (int64_t i = 0; i < n && status == KVC_OK; i++)
        if (!kvc__block_is_lent(kvc__blocks_find(blocks, ids[i]))) status = refuse(ids[i], i);
    for (int64_t i = 0; i < n && status == KVC_OK; i++)
        kvc__blocks_find(blocks, ids[i])->references++;
    kvc__blocks_unlock(blocks);
    return status;
}

/* Verifies that references can be dropped: by dropping them, as one block may come several times,
 * and adding them again. */
static kvc_status check_release(const kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    int64_t i = 0;
    while (i < n && kvc__block_is_lent(kvc__blocks_find(blocks, ids[i])))
        kvc__blocks_find(blocks, ids[i++])->references--;
    const kvc_status status = i == n ? KVC_OK : refuse(ids[i], i);
    while (i-- > 0) kvc__blocks_find(blocks, ids[i])->references++;
    return status;
}

kvc_status kvc_blocks_release(kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    KVC_TRY(check_list(blocks, ids, n));
    kvc__blocks_lock(blocks);
    const kvc_status status = check_release(blocks, ids, n);
    if (status == KVC_OK)
        for (int64_t i = 0; i < n; i++) kvc__blocks_drop(blocks, ids[i]);
    kvc__blocks_unlock(blocks);
    return status;
}

static kvc_status check_slab(const kvc_blocks *blocks, const kvc__slab *slab) {
    const kvc__slab *const *list = (const kvc__slab *const *)slab->list;
    int32_t used = 0, chained = 0;
    for (int32_t i = 0; i < slab->count; i++) used += slab->blocks[i].references > 0;
    for (int32_t i = slab->first_free; i >= 0 && chained <= slab->count; chained++) {
        if (i >= slab->count || slab->blocks[i].references)
            return kvc__fail(KVC_E_CORRUPT, "slab %d: its free blocks have one that is not",
                             slab->index);
        i = slab->blocks[i].next_free;
    }
    if (used != slab->used || used + chained != slab->count)
        return kvc__fail(KVC_E_CORRUPT, "slab %d: %d of %d blocks are held, %d counted, %d free",
                         slab->index, used, slab->count, slab->used, chained);
    const kvc__slab *const *wanted = (const kvc__slab *const *)(!slab->buffer  ? &blocks->retired
                                                                : used == 0    ? &blocks->empty
                                                                : chained == 0 ? NULL
                                                                               : &blocks->open);
    /* A retired slab is in no list while another thread gets memory for it. */
    if (list != wanted && (slab->buffer || list))
        return kvc__fail(KVC_E_CORRUPT, "slab %d: in the wrong list", slab->index);
    if ((slab->buffer ? kvc_buffer_data(slab->buffer) : NULL) != blocks->bases[slab->index])
        return kvc__fail(KVC_E_CORRUPT, "slab %d: the kernels' table has other memory",
                         slab->index);
    return KVC_OK;
}

kvc_status kvc__blocks_check_slabs(const kvc_blocks *blocks) {
    int64_t used = 0, spare = 0, empties = 0;
    size_t bytes = 0;
    for (int64_t i = 0; i < blocks->made; i++) {
        const kvc__slab *slab = blocks->slabs[i];
        KVC_TRY(check_slab(blocks, slab));
        used += slab->used;
        if (!slab->buffer) continue;
        spare += slab->count - slab->used;
        empties += slab->used == 0;
        bytes += kvc_buffer_capacity_bytes(slab->buffer);
    }
    if (used != blocks->used_blocks || spare != blocks->free_blocks || empties != blocks->empties ||
        bytes != blocks->resident_bytes || used > blocks->peak_blocks ||
        blocks->peak_blocks > blocks->most_blocks)
        return kvc__fail(KVC_E_CORRUPT,
                         "blocks: %lld held, %lld free, %lld slabs empty; %lld, %lld, %lld counted",
                         (long long)used, (long long)spare, (long long)empties,
                         (long long)blocks->used_blocks, (long long)blocks->free_blocks,
                         (long long)blocks->empties);
    return KVC_OK;
}
