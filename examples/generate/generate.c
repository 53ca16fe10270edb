#include "generate.h"

#include "decoder.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool check(const transformer *t, const generation *wanted, failure *error) {
    const long long context = t->model->seq_len;
    if (wanted->prompt_count > context)
        return failure_set(error,
                           "the prompt has %lld tokens, the model's context holds %lld: "
                           "shorten the prompt",
                           (long long)wanted->prompt_count, context);
    if (wanted->prompt_count < 1 || wanted->steps < 1 || wanted->steps > context)
        return failure_set(error,
                           "%lld tokens and %lld steps given, 1 to the model's context of %lld "
                           "wanted",
                           (long long)wanted->prompt_count, (long long)wanted->steps, context);
    return true;
}

/* Computes n tokens after `done` positions. */
static bool forward(transformer *t, const generation *wanted, const int32_t *tokens, int64_t n,
                    int64_t done, failure *error) {
    if (wanted->forward_begins) wanted->forward_begins(wanted->context, done);
    if (!transformer_forward(t, tokens, n, error)) return false;
    if (wanted->forward_ended) wanted->forward_ended(wanted->context, done + n);
    return true;
}

/* Computes the prompt, or the part of it that the steps allow. */
static bool forward_prompt(transformer *t, const generation *wanted, failure *error) {
    const int64_t count = least(wanted->prompt_count, wanted->steps);
    for (int64_t done = 0, n; done < count; done += n) {
        n = least(count - done, TRANSFORMER_MOST);
        if (!forward(t, wanted, wanted->prompt + done, n, done, error)) return false;
    }
    return true;
}

bool generate(transformer *t, const tokenizer *tokens, sampler *s, const generation *wanted,
              failure *error) {
    if (!check(t, wanted, error) || !forward_prompt(t, wanted, error)) return false;
    decoder text = {.tokens = tokens, .previous = wanted->prompt[0]};
    for (int64_t done = 1; done <= wanted->steps; done++) {
        /* Here `done` positions lead to the next token; those of the prompt are given. */
        const bool given = done < wanted->prompt_count;
        const int32_t next = given ? wanted->prompt[done] : sampler_next(s, t->logits);
        if (next < 0)
            return failure_set(error, "the model gives logits that are no finite numbers: its "
                                      "weights are damaged");
        if (next == TOKEN_BOS) return true;
        if (!wanted->text(wanted->context, decoder_next(&text, next), error)) return false;
        if (!given && done < wanted->steps && !forward(t, wanted, &next, 1, done, error))
            return false;
    }
    return true;
}
