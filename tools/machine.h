/** @file
 * What a measurement ran on: the part of every result that figures cannot be read without. Names
 * hardware and kernel, never the host. */
#ifndef KVCACHE_TOOLS_MACHINE_H
#define KVCACHE_TOOLS_MACHINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The machine; "unknown" and 0 where the system does not say. */
typedef struct machine {
    char cpu[96];        /**< "AMD EPYC 9654 96-Core Processor" */
    char kernel[64];     /**< "Linux 6.1.0" */
    char thp[16];        /**< transparent huge pages: "always", "madvise", "never" */
    char thp_defrag[24]; /**< "madvise", "defer+madvise", … */
    int64_t cores;       /**< that this process may run on */
    uint64_t l1d_bytes, l2_bytes;
    uint64_t llc_bytes; /**< of the last-level cache that the first core sees */
    uint64_t page_bytes, memory_bytes;
    uint64_t available_bytes; /**< memory that can be taken now, a container's limit included */
    double timer_ns;          /**< what reading the clock adds to each sample */
} machine;

/** Reads all of it. Never fails. */
void machine_read(machine *out);

/** Returns a new "machine" object for --json; NULL when there is no memory. */
json_t *machine_json(const machine *m);

/** Returns the bytes of this process that huge pages hold; 0 where the system does not say. */
uint64_t machine_huge_bytes(void);

/** Writes one line for people: CPU, cores, last-level cache, memory, page settings. */
void machine_line(char *out, size_t room, const machine *m);

/** Tells whether `bytes` can be taken; if not, prints one line that says what they are for and what
 * to make smaller.
 * @param what    "context 16384"
 * @param reduce  "--contexts, --caches or --strategies" */
bool machine_has_room(const machine *m, uint64_t bytes, const char *what, const char *reduce);

#endif
