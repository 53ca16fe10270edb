/** @file
 * Snapshots loaded by all CPUs. */
#ifndef KVCACHE_TOOLS_LOAD_H
#define KVCACHE_TOOLS_LOAD_H

#include <kvcache/snapshot.h>

/** kvc_snapshot_restore on a thread a CPU; on this one alone where the system starts no others.
 * @param options  executor is set */
kvc_status load_snapshot(kvc_cache **out, kvc_pool *pool, const kvc_snapshot *snapshot,
                         kvc_snapshot_options options);

#endif
