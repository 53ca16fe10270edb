/* Continues a prompt: generate CHECKPOINT TOKENIZER [PROMPT]. The whole engine at a glance; the
 * program `kvcache generate` is the same with options and figures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"

static bool print(void *context, span text, failure *error) {
    (void)context;
    if (fwrite(text.bytes, 1, text.length, stdout) == text.length && fflush(stdout) == 0)
        return true;
    return failure_set(error, "stdout: the text cannot be written");
}

/* Everything after the files. */
static bool run(const checkpoint *model, const tokenizer *tokens, kvc_pool *pool, span prompt,
                failure *error) {
    const transformer_options options = {.kv_dtype = KVC_BF16, .max_positions = model->seq_len};
    transformer t = {0};
    sampler s = {0};
    int32_t *ids = NULL;
    int64_t count = 0;
    bool done = tokenizer_encode(tokens, prompt, &ids, &count, error) &&
                transformer_init(&t, model, pool, &options, error) &&
                sampler_init(&s, model->vocab_size, 1.0f, 0.9f, 1, error);
    if (done) {
        const generation wanted = {
            .prompt = ids, .prompt_count = count, .steps = model->seq_len, .text = print};
        generation_figures figures;
        done = generate(&t, tokens, &s, &wanted, &figures, error);
    }
    if (done) (void)puts("");
    sampler_deinit(&s);
    transformer_deinit(&t);
    free(ids);
    return done;
}

int main(int argc, char **argv) {
    checkpoint model = {0};
    tokenizer tokens = {0};
    kvc_pool *pool = NULL;
    failure error = {"usage: generate CHECKPOINT TOKENIZER [PROMPT]"};
    const char *prompt = argc > 3 ? argv[3] : "";
    const bool done =
        argc >= 3 && checkpoint_init(&model, argv[1], &error) &&
        tokenizer_init(&tokens, argv[2], model.vocab_size, &error) &&
        (kvc_pool_new(&pool, kvc_device_cpu()) == KVC_OK || failure_set_library(&error, "pool")) &&
        run(&model, &tokens, pool, (span){prompt, strlen(prompt)}, &error);
    kvc_pool_free(pool);
    tokenizer_deinit(&tokens);
    checkpoint_deinit(&model);
    if (!done) (void)fprintf(stderr, "generate: %s\n", error.sentence);
    return done ? 0 : 1;
}
