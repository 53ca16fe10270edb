/** @file
 * What a writer holds, and the two halves of it: writer.c collects, save.c writes. */
#ifndef KVC_STORE_WRITER_H
#define KVC_STORE_WRITER_H

#include <jansson.h>

#include <kvcache/safetensors.h>
#include <kvcache/snapshot.h>

#include "store/format.h"

/** A tensor to be written. */
typedef struct kvc__entry {
    const char *name; /* the key of the writer's json `names` */
    const kvc__format_dtype *dtype;
    int ndim;
    int64_t shape[KVC_MAX_DIMS];
    size_t bytes;
    kvc_array array;              /* where fill is NULL: holds a reference */
    kvc_safetensors_fill_fn fill; /* else this gives the bytes */
    void *context;
} kvc__entry;

struct kvc_safetensors_writer {
    const char *prefix; /* "", "1.", or NULL for no checksums */
    json_t *metadata;   /* of the caller: key → text */
    json_t *names;      /* name → null, of every entry */
    kvc__entry *entries;
    size_t count, room;
    kvc_snapshot_progress_fn progress; /* of a snapshot's save, or NULL */
    void *progress_context;
};

#endif
