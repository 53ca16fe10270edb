/** @file
 * The floor under a snapshot: the same bytes written and read by write(2) and read(2), one thread,
 * no checks. */
#ifndef KVCACHE_TOOLS_SNAPSHOT_PLAIN_H
#define KVCACHE_TOOLS_SNAPSHOT_PLAIN_H

#include <stdbool.h>
#include <stddef.h>

/** Writes a file as kvc_snapshot_save does: another one in its folder, flushed, renamed to it, and
 * the folder flushed.
 * @param folder  of the file
 * @return        false where the system refuses; errno tells why */
bool snapshot_plain_write(const char *folder, const char *name, const char *data, size_t bytes);

/** Reads the first `bytes` of a file into memory that holds them all.
 * @return  as above; also where the file is shorter */
bool snapshot_plain_read(const char *path, char *into, size_t bytes);

/** The buffer of the next one: it stays in the second level of most CPUs' caches. */
enum { SNAPSHOT_PLAIN_BUFFER = 1 << 18 };

/** Reads likewise, but through a buffer: what was read before is overwritten.
 * @param buffer  [SNAPSHOT_PLAIN_BUFFER] */
bool snapshot_plain_read_through(const char *path, char *buffer, size_t bytes);

#endif
