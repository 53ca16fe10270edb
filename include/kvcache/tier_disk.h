/** @file
 * A tier in a folder: a file a value, below two levels of folders, least recently used evicted.
 *
 * Several processes of one machine may use one folder at once: files appear whole, by a rename, and
 * the bytes in use are counted in a file that they share. What is evicted is decided by the times
 * of last use of all of them. A process may be killed at any point: at worst it leaves a temporary
 * file, removed when somebody opens the folder next, and bytes that are not counted until then, or
 * until the next scan for what is oldest. Nothing waits for another process longer than moments.
 *
 * Files are for their owner alone (mode 0600): what they hold can be turned back into text.
 * On a folder that cannot be written to, gets work and puts are refused. Shared over a network
 * between machines it works as well, but for the limit, which is then kept only roughly.
 * Of libkvcache-store. */
#ifndef KVCACHE_TIER_DISK_H
#define KVCACHE_TIER_DISK_H

#include <kvcache/export.h>
#include <kvcache/status.h>
#include <kvcache/tier.h>

/** Threads of a disk tier whose description says 0. */
#define KVC_TIER_DISK_THREADS_DEFAULT 2

/** What a disk tier is made with. Zero it, then fill it. */
typedef struct kvc_tier_disk_desc {
    size_t struct_size;   /**< sizeof(kvc_tier_disk_desc) */
    const char *folder;   /**< made when missing, but not those above it; borrowed for the call */
    uint64_t limit_bytes; /**< most bytes of files, but for those being written; 0: no limit */
    int threads;          /**< reads and writes at once, at most 64; 0: the default */
    bool flush;           /**< wait until a value is on the disk before it is kept: without, a crash
                             of the machine may leave values that are found to be damaged */
} kvc_tier_disk_desc;

KVC_BEGIN_DECLS

/** Opens a folder as a tier: O(1), or O(files) when nobody else has it open, to count them.
 * A put that needs room evicts, O(1) a file; what is oldest is found by a scan of all files once
 * as many were evicted, or used, as the last scan found.
 * @errors KVC_E_INVALID a description; KVC_E_IO the folder cannot be opened; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_tier_disk_new(kvc_tier **out, const kvc_tier_desc *tier,
                                                  const kvc_tier_disk_desc *desc);

KVC_END_DECLS

#endif
