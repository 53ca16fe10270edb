/* The checkpoint reader on any bytes: it refuses them in a sentence, or every weight is there. */
#include <stdint.h>
#include <string.h>

#include "fuzz.h"
#include "generate/checkpoint.h"

static volatile float seen;

/* Touches both ends of a weight: outside the input, the sanitizer stops here. */
static void touch(const float *weights, int64_t count) {
    seen = weights[0];
    seen = weights[count - 1];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    checkpoint m;
    failure error = {""};
    if (!checkpoint_init_memory(&m, "input", data, bytes, &error)) {
        FUZZ_WANT(strncmp(error.sentence, "input: ", 7) == 0 && !m.embedding);
        return 0;
    }
    FUZZ_WANT(m.heads * m.head_dim == m.dim && m.kv_heads * m.head_dim == m.kv_dim);
    FUZZ_WANT(m.heads % m.kv_heads == 0 && m.head_dim % 2 == 0 && m.seq_len > 0);
    touch(m.embedding, m.vocab_size * m.dim);
    touch(m.attention_norm, m.layers * m.dim);
    touch(m.wq, m.layers * m.dim * m.dim);
    touch(m.wk, m.layers * m.dim * m.kv_dim);
    touch(m.wv, m.layers * m.dim * m.kv_dim);
    touch(m.wo, m.layers * m.dim * m.dim);
    touch(m.ffn_norm, m.layers * m.dim);
    touch(m.w1, m.layers * m.dim * m.hidden_dim);
    touch(m.w2, m.layers * m.dim * m.hidden_dim);
    touch(m.w3, m.layers * m.dim * m.hidden_dim);
    touch(m.final_norm, m.dim);
    touch(m.classifier, m.vocab_size * m.dim);
    checkpoint_deinit(&m);
    return 0;
}
