#include "load.h"

#include <kvcache/executor.h>

kvc_status load_snapshot(kvc_cache **out, kvc_pool *pool, const kvc_snapshot *snapshot,
                         kvc_snapshot_options options) {
    kvc_threads *threads = NULL;
    kvc_executor executor;
    options.executor = NULL;
    if (kvc_threads_new(&threads, 0) == KVC_OK) {
        executor = kvc_threads_executor(threads);
        options.executor = &executor;
    }
    const kvc_status status = kvc_snapshot_restore(out, pool, snapshot, &options);
    kvc_threads_free(threads);
    return status;
}
