/* A pool of blocks as attention sees it. */
#include <string.h>

#include "base/error.h"
#include "cache/blocks.h"
#include "cache/view.h"

kvc__map kvc__blocks_map(const kvc_blocks *blocks) {
    return (kvc__map){.slabs = blocks->bases,
                      .slab_shift = blocks->slab_shift,
                      .block_positions = blocks->desc.positions,
                      .block_bytes = blocks->block_bytes};
}

kvc_status kvc__blocks_layer_view(kvc__layer_view *out, const kvc_blocks *blocks, int64_t index) {
    *out = (kvc__layer_view){0};
    KVC_TRY(kvc__blocks_layer(blocks, index));
    const kvc__block_layer *layer = &blocks->layers[index];
    *out = (kvc__layer_view){.spec = blocks->specs[index],
                             .capacity = blocks->desc.positions,
                             .map = kvc__blocks_map(blocks),
                             .growth = KVC_GROW_PAGED,
                             .device = kvc_pool_device(blocks->pool)};
    memcpy(out->offset_bytes, layer->offset_bytes, sizeof out->offset_bytes);
    memcpy(out->rows, layer->rows, sizeof out->rows);
    return KVC_OK;
}

int64_t kvc__blocks_first_missing(const kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= blocks->most_blocks ||
            !blocks->bases[ids[i] >> blocks->slab_shift])
            return i;
    return n;
}
