#include "support/guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include "support/support.h"

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

guarded guarded_new(size_t bytes) {
    const size_t page = page_bytes(), whole = (bytes + page - 1) / page * page;
    char *memory = mmap(NULL, whole + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_msg("no memory for %zu bytes", whole);
    assert_int_equal(mprotect(memory + page, whole, PROT_READ | PROT_WRITE), 0);
    return (guarded){memory + page, whole};
}

void guarded_free(guarded *memory) {
    const size_t page = page_bytes();
    (void)munmap(memory->data - page, memory->bytes + 2 * page);
    *memory = (guarded){0};
}

char *guarded_place(const guarded *memory, size_t bytes, bool at_end) {
    assert_true(bytes <= memory->bytes);
    return at_end ? memory->data + memory->bytes - bytes : memory->data;
}
