#include "checkpoint.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weights are used as they lie");

enum { HEADER_BYTES = 7 * sizeof(int32_t), LATER_VERSION_MAGIC = 0x616b3432 };

static const char wanted[] = "a llama2.c checkpoint (version 0)";

/* Goes through the weights. `used` may pass `available`, and stays at UINT64_MAX once it would
 * overflow: then the file is too short, and no pointer is made. */
typedef struct cursor {
    const float *weights;
    uint64_t used, available; /* in floats */
} cursor;

static const float *take(cursor *at, int64_t a, int64_t b, int64_t c) {
    const uint64_t start = at->used;
    uint64_t count;
    if (__builtin_mul_overflow((uint64_t)a, (uint64_t)b, &count) ||
        __builtin_mul_overflow(count, (uint64_t)c, &count) ||
        __builtin_add_overflow(start, count, &at->used))
        at->used = UINT64_MAX;
    return at->used <= at->available ? at->weights + start : NULL;
}

static void take_all(checkpoint *m, cursor *at, bool own_classifier) {
    m->embedding = take(at, 1, m->vocab_size, m->dim);
    m->attention_norm = take(at, 1, m->layers, m->dim);
    m->wq = take(at, m->layers, m->dim, m->dim);
    m->wk = take(at, m->layers, m->kv_dim, m->dim);
    m->wv = take(at, m->layers, m->kv_dim, m->dim);
    m->wo = take(at, m->layers, m->dim, m->dim);
    m->ffn_norm = take(at, 1, m->layers, m->dim);
    m->w1 = take(at, m->layers, m->hidden_dim, m->dim);
    m->w2 = take(at, m->layers, m->dim, m->hidden_dim);
    m->w3 = take(at, m->layers, m->hidden_dim, m->dim);
    m->final_norm = take(at, 1, 1, m->dim);
    (void)take(at, 2, m->seq_len, m->head_dim / 2);
    m->classifier = own_classifier ? take(at, 1, m->vocab_size, m->dim) : m->embedding;
}

static bool check_sizes(const checkpoint *m, const char *name, failure *error) {
    const struct {
        const char *what;
        int64_t size;
    } sizes[] = {{"dim", m->dim},
                 {"hidden_dim", m->hidden_dim},
                 {"n_layers", m->layers},
                 {"n_heads", m->heads},
                 {"n_kv_heads", m->kv_heads},
                 {"seq_len", m->seq_len},
                 {"vocab_size", m->vocab_size}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size <= 0)
            return failure_set(
                error, "%s: %s is %lld in the header, more than 0 wanted: no llama2.c checkpoint",
                name, sizes[i].what, (long long)sizes[i].size);
    if (m->dim % (2 * m->heads) != 0)
        return failure_set(error,
                           "%s: dim is %lld in the header, a multiple of 2 * n_heads = %lld wanted",
                           name, (long long)m->dim, 2 * (long long)m->heads);
    if (m->heads % m->kv_heads != 0)
        return failure_set(error,
                           "%s: n_kv_heads is %lld in the header, a divisor of n_heads %lld "
                           "wanted",
                           name, (long long)m->kv_heads, (long long)m->heads);
    return true;
}

static bool check_length(const cursor *at, const char *name, size_t bytes, failure *error) {
    const uint64_t most = (UINT64_MAX - HEADER_BYTES) / sizeof(float);
    if (at->used > most)
        return failure_set(error,
                           "%s: its header asks for more weights than a file can hold, %s "
                           "wanted",
                           name, wanted);
    const uint64_t expected = HEADER_BYTES + at->used * sizeof(float);
    if (bytes == expected) return true;
    return failure_set(error, "%s: %zu bytes given, %llu wanted by its header: %s", name, bytes,
                       (unsigned long long)expected,
                       bytes < expected ? "truncated, or no llama2.c checkpoint"
                                        : "damaged, or no llama2.c checkpoint (version 0)");
}

bool checkpoint_init_memory(checkpoint *out, const char *name, const void *data, size_t bytes,
                            failure *error) {
    int32_t header[7];
    *out = (checkpoint){0};
    if (bytes < HEADER_BYTES)
        return failure_set(error, "%s: %zu bytes given, %s of at least %d bytes wanted", name,
                           bytes, wanted, HEADER_BYTES);
    if ((uintptr_t)data % _Alignof(float) != 0)
        return failure_set(error, "%s: memory aligned to %zu bytes wanted", name, _Alignof(float));
    memcpy(header, data, HEADER_BYTES);
    if (header[0] == LATER_VERSION_MAGIC)
        return failure_set(error,
                           "%s: a version %d checkpoint given, version 0 wanted: export it "
                           "again with --version 0",
                           name, header[1]);
    checkpoint model = {.dim = header[0],
                        .hidden_dim = header[1],
                        .layers = header[2],
                        .heads = header[3],
                        .kv_heads = header[4],
                        .vocab_size = header[5] < 0 ? -(int64_t)header[5] : header[5],
                        .seq_len = header[6]};
    if (!check_sizes(&model, name, error)) return false;
    model.head_dim = model.dim / model.heads;
    model.kv_dim = model.head_dim * model.kv_heads;
    cursor at = {.weights = (const float *)((const char *)data + HEADER_BYTES),
                 .available = (bytes - HEADER_BYTES) / sizeof(float)};
    take_all(&model, &at, header[5] < 0);
    if (!check_length(&at, name, bytes, error)) return false;
    *out = model;
    return true;
}

bool checkpoint_init(checkpoint *out, const char *path, failure *error) {
    mapped_file file;
    *out = (checkpoint){0};
    if (!file_map(&file, path, wanted, error)) return false;
    if (!checkpoint_init_memory(out, path, file.data, file.bytes, error)) {
        file_unmap(&file);
        return false;
    }
    out->file = file;
    return true;
}

void checkpoint_deinit(checkpoint *model) {
    file_unmap(&model->file);
    *model = (checkpoint){0};
}
