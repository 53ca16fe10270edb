#include "store/sink.h"

#include "base/error.h"

kvc_status kvc__sink_init(kvc__sink *sink, const kvc__file *file, uint64_t at, uint64_t bytes) {
    const bool fits = at < KVC__SINK_BLOCK_BYTES && bytes < KVC__SINK_BLOCK_BYTES - at;
    *sink = (kvc__sink){.file = file, .at = at};
    return kvc__piece_init(&sink->block, fits ? (size_t)(at + bytes) : KVC__SINK_BLOCK_BYTES);
}

void kvc__sink_deinit(kvc__sink *sink) {
    kvc__piece_deinit(&sink->block);
}

char *kvc__sink_room(kvc__sink *sink, size_t *most) {
    const size_t past = (size_t)((sink->at + sink->bytes) % KVC__SINK_BLOCK_BYTES);
    *most = KVC__SINK_BLOCK_BYTES - past;
    return sink->block.data + past;
}

kvc_status kvc__sink_flush(kvc__sink *sink) {
    const kvc_status status = kvc__file_write(sink->file, sink->data, sink->bytes, sink->at);
    sink->at += sink->bytes;
    sink->bytes = 0;
    return status;
}

kvc_status kvc__sink_put(kvc__sink *sink, const char *data, size_t bytes) {
    if (sink->bytes && data != sink->data + sink->bytes) KVC_TRY(kvc__sink_flush(sink));
    if (sink->bytes == 0) sink->data = data;
    sink->bytes += bytes;
    return (sink->at + sink->bytes) % KVC__SINK_BLOCK_BYTES == 0 ? kvc__sink_flush(sink) : KVC_OK;
}
