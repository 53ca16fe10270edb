#include "support/faulty_heap.h"

#include <stdlib.h>

#include <kvcache/allocator.h>

#include "support/support.h"

/* Lies before each block, so that a free with another size is seen. */
typedef struct header {
    _Alignas(max_align_t) size_t bytes;
} header;

static void *allocate(void *context, size_t bytes) {
    faulty_heap *heap = context;
    heap->calls++;
    if (heap->good_calls == 0) return NULL;
    if (heap->good_calls != UINT64_MAX) heap->good_calls--;
    header *h = malloc(sizeof *h + bytes);
    if (!h) return NULL;
    h->bytes = bytes;
    heap->live++;
    return h + 1;
}

static void deallocate(void *context, void *memory, size_t bytes) {
    faulty_heap *heap = context;
    header *h = (header *)memory - 1;
    assert_int_equal(bytes, h->bytes);
    heap->live--;
    free(h);
}

void faulty_heap_install(faulty_heap *heap) {
    *heap = (faulty_heap){.good_calls = UINT64_MAX};
    const kvc_allocator allocator = {allocate, deallocate, heap};
    kvc_allocator_set(&allocator);
}

void faulty_heap_fail_after(faulty_heap *heap, uint64_t good) {
    heap->good_calls = good;
}

void faulty_heap_uninstall(faulty_heap *heap) {
    kvc_allocator_set(NULL);
    assert_int_equal(heap->live, 0);
}
