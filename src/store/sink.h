/** @file
 * Data on its way to a file, written in blocks that begin and end at multiples of their size, as
 * far as it lies together in memory: the system then keeps each in one piece of its page cache, and
 * who maps the file faults once for a block, not for every 64 KiB of it. What lies well where it is
 * goes from there; all else finds room in the sink. */
#ifndef KVC_STORE_SINK_H
#define KVC_STORE_SINK_H

#include "store/alloc.h"
#include "store/file.h"

enum { KVC__SINK_BLOCK_BYTES = 1 << 20 };

/** A sink, zeroed before init. */
typedef struct kvc__sink {
    const kvc__file *file;
    kvc__piece block; /* as the file's block will be, where that has no other place */
    const char *data; /* what waits, */
    size_t bytes;     /* so much of it, */
    uint64_t at;      /* to be written here */
} kvc__sink;

/** Begins at a byte of a file, which is borrowed and need not be open yet.
 * @param bytes  that will be put, all together
 * @errors KVC_E_NOMEM */
kvc_status kvc__sink_init(kvc__sink *sink, const kvc__file *file, uint64_t at, uint64_t bytes);

/** Frees the room. What was not flushed is not written. */
void kvc__sink_deinit(kvc__sink *sink);

/** Returns room for the next bytes, valid until something else is put.
 * @param most  receives how many there are up to the end of the block, at least 1 */
char *kvc__sink_room(kvc__sink *sink, size_t *most);

/** Adds bytes, no more than that. They stay where they lie until they are flushed: with the end of
 * the block, or what does not lie behind them.
 * @errors KVC_E_IO */
kvc_status kvc__sink_put(kvc__sink *sink, const char *data, size_t bytes);

/** Writes what waits. @errors KVC_E_IO */
kvc_status kvc__sink_flush(kvc__sink *sink);

#endif
