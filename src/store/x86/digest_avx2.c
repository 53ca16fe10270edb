/* xxHash compiled for AVX2: twice to three times as fast as with SSE2, which x86-64 has at least.
 */
#include "store/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void kvc__digest_add_avx2(kvc__digest *d, const void *data, size_t bytes) {
    (void)XXH3_128bits_update((XXH3_state_t *)d->state, data, bytes);
}
