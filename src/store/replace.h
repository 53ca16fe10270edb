/** @file
 * A file replaced whole or not at all: written beside the old one, flushed, renamed. */
#ifndef KVC_STORE_REPLACE_H
#define KVC_STORE_REPLACE_H

#include "store/file.h"

/** A file in the making: .kvc-<16 digits>.tmp in the folder, of a name that is the target's own,
 * and locked (flock). What a crash leaves the next one for the same target removes. Where two are
 * made at a time, or files cannot be locked, the name is a random one, and what is left stays. */
typedef struct kvc__replacement {
    kvc__file file;     /**< to be written; positions from 0 */
    const char *target; /**< borrowed */
    char *temporary;
    size_t temporary_bytes; /**< allocated */
} kvc__replacement;

/** Makes an empty file beside the target.
 * @param target  a path, borrowed until deinit
 * @errors KVC_E_INVALID what is there is no regular file; KVC_E_IO; KVC_E_NOMEM */
kvc_status kvc__replacement_init(kvc__replacement *r, const char *target);

/** Puts the file into the target's place, durably.
 * @errors KVC_E_IO. The target is as it was, but when only the flush of the folder failed: then it
 *         is the new one, and a loss of power may bring the old one back */
kvc_status kvc__replacement_commit(kvc__replacement *r);

/** Removes the file where it was not committed, and frees what init took. */
void kvc__replacement_deinit(kvc__replacement *r);

#endif
