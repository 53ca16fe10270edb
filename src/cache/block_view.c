/* A pool of blocks as attention sees it. */
#include "base/error.h"
#include "cache/blocks.h"
#include "cache/view.h"

kvc_status kvc__blocks_layer_view(kvc__layer_view *out, const kvc_blocks *blocks, int64_t index) {
    kvc_blocks_layout layout = {.struct_size = sizeof layout};
    *out = (kvc__layer_view){0};
    KVC_TRY(kvc_blocks_layout_get(blocks, index, &layout));
    const kvc__block_layer *layer = &blocks->layers[index];
    *out = (kvc__layer_view){
        .spec = blocks->specs[index],
        .device = kvc_pool_device(blocks->pool),
        .map = {.slabs = layout.slabs,
                .slab_shift = layout.slab_shift,
                .block_positions = layout.positions,
                .block_bytes = layout.block_bytes},
    };
    for (int p = 0; p < layer->planes_used; p++) {
        out->rows[p] = layer->rows[p];
        out->offset_bytes[p] = layer->offset_bytes[p];
    }
    return KVC_OK;
}

int64_t kvc__blocks_first_missing(const kvc_blocks *blocks, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= blocks->most_blocks ||
            !blocks->bases[ids[i] >> blocks->slab_shift])
            return i;
    return n;
}
