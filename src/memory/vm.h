/** @file
 * The one door to the operating system's memory. Addresses and sizes of reserve, commit and unmap
 * are multiples of the page, sizes are not 0. No call prints, aborts or sets kvc_last_error. */
#ifndef KVC_MEMORY_VM_H
#define KVC_MEMORY_VM_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/status.h>

/** Returns the size of a small page. */
size_t kvc__vm_page_bytes(void);

/** Returns the machine's memory; 0 when the system does not tell. */
size_t kvc__vm_memory_bytes(void);

/** Maps memory and makes it resident at once, so that want is told here and not by a later kill.
 * From one huge page on it starts on a huge page's boundary and asks for them: the pages in whole
 * huge pages only, so that nothing is wasted.
 * @param bytes  any size, rounded up to pages; give kvc__vm_unmap the same
 * @errors KVC_E_NOMEM */
kvc_status kvc__vm_map(void **out, size_t bytes);

/** Takes address space without memory, in small pages: a range fills slowly, and a huge page a
 * head would waste up to 2 MiB each.
 * @errors KVC_E_NOMEM no such space, or the system counts reserved space as used */
kvc_status kvc__vm_reserve(void **out, size_t bytes);

/** Makes pages of a reserved range resident; what they hold stays.
 * @errors KVC_E_NOMEM */
kvc_status kvc__vm_commit(void *memory, size_t bytes);

/** Gives back the memory of whole pages of a reserved range, and keeps its address space. */
void kvc__vm_decommit(void *memory, size_t bytes);

/** Puts pages of a file in the place of those of a reserved range. Reading brings them in, shared
 * with all who read the file; writing makes a copy of the page that nobody else sees.
 * @param offset  in the file, a multiple of the page
 * @errors KVC_E_IO the system refused; the range is as it was */
kvc_status kvc__vm_map_file(void *memory, size_t bytes, int fd, uint64_t offset);

/** Moves pages of a file, written ones with what is written, into the place of those of a reserved
 * range. The file stays mapped where they were, with nothing written.
 * @errors KVC_E_UNSUPPORTED Linux before 5.13; KVC_E_NOMEM the system has no room for more
 * mappings. Nothing changed */
kvc_status kvc__vm_move_file(void *to, void *from, size_t bytes);

/** Gives back what map or reserve gave, rounded up to pages. */
void kvc__vm_unmap(void *memory, size_t bytes);

#endif
