/** @file
 * A bar of progress for work on bytes. As cli_progress: on a terminal, after a second. */
#ifndef KVCACHE_TOOLS_PROGRESS_BAR_H
#define KVCACHE_TOOLS_PROGRESS_BAR_H

#include <stdint.h>

#include <kvcache/status.h>

/** Shows "reading    [######          ]  37 %  380 MiB of 1 GiB".
 * @param what  what is done, in ten letters at most */
void progress_bar(const char *what, uint64_t done_bytes, uint64_t total_bytes);

/** For kvc_snapshot_options and kvc_snapshot_info; the context is not used. When all is written,
 * the line says that the file is flushed, which may take as long again. */
kvc_status progress_bar_loading(void *context, uint64_t done_bytes, uint64_t total_bytes);
kvc_status progress_bar_saving(void *context, uint64_t done_bytes, uint64_t total_bytes);

#endif
