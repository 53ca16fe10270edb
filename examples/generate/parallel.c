#include "parallel.h"

#include "decoder.h"

/* Texts on their way. */
typedef struct writers {
    transformer *t;
    sampler *samplers;
    const parallel_generation *wanted;
    decoder text[TRANSFORMER_MOST];
    int32_t next[TRANSFORMER_MOST]; /* the token to compute, of those that go on */
    bool goes_on[TRANSFORMER_MOST];
    int64_t done; /* positions of those that go on */
    int64_t computed;
} writers;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static bool give(writers *w, int64_t sequence, int32_t id, failure *error) {
    return w->wanted->text(w->wanted->context, sequence, decoder_next(&w->text[sequence], id),
                           error);
}

static void begin(const writers *w) {
    if (w->wanted->forward_begins) w->wanted->forward_begins(w->wanted->context, w->done);
}

static void end(writers *w, int64_t rows, int64_t positions) {
    w->computed += rows;
    w->done += positions;
    if (w->wanted->forward_ended) w->wanted->forward_ended(w->wanted->context, w->done);
}

/* Computes what is not ready of the prompt, or the part of it that the steps allow, and gives the
 * prompt's text to all. */
static bool share_prompt(writers *w, failure *error) {
    const parallel_generation *wanted = w->wanted;
    const int64_t count = least(wanted->prompt_count, wanted->steps);
    while (w->done < count) {
        const int64_t n = least(count - w->done, TRANSFORMER_MOST);
        begin(w);
        if (!transformer_forward(w->t, wanted->prompt + w->done, n, 1, error)) return false;
        end(w, n, n);
    }
    for (int64_t i = 1; i < least(wanted->prompt_count, count + 1); i++)
        for (int64_t b = 0; b < w->t->sequences; b++)
            if (!give(w, b, wanted->prompt[i], error)) return false;
    return transformer_fork(w->t, error);
}

/* Draws the next token of a sequence from a row of logits; it may be the end. */
static bool draw(writers *w, int64_t sequence, int64_t row, failure *error) {
    const float *logits = w->t->logits + row * w->t->model->vocab_size;
    const int32_t id = sampler_next(&w->samplers[sequence], logits);
    if (id < 0)
        return failure_set(error, "the model gives logits that are no finite numbers: its weights "
                                  "are damaged");
    w->next[sequence] = id;
    w->goes_on[sequence] = id != TOKEN_BOS;
    return id == TOKEN_BOS || give(w, sequence, id, error);
}

static int64_t count_going(const writers *w) {
    int64_t count = 0;
    for (int64_t b = 0; b < w->t->sequences; b++) count += w->goes_on[b];
    return count;
}

/* Sequences that ended rest, until all have. */
static bool continue_texts(writers *w, failure *error) {
    for (int64_t b = 0; b < w->t->sequences; b++)
        if (!draw(w, b, 0, error)) return false;
    for (int64_t going; w->done < w->wanted->steps && (going = count_going(w)) > 0;) {
        begin(w);
        if (!transformer_step(w->t, w->next, w->goes_on, error)) return false;
        end(w, going, 1);
        for (int64_t b = 0; b < w->t->sequences; b++)
            if (w->goes_on[b] && !draw(w, b, b, error)) return false;
    }
    return true;
}

bool generate_parallel(transformer *t, const tokenizer *tokens, sampler *samplers,
                       const parallel_generation *wanted, int64_t *computed, failure *error) {
    const long long context = t->model->seq_len;
    writers w = {.t = t, .samplers = samplers, .wanted = wanted, .done = wanted->ready};
    *computed = 0;
    if (wanted->prompt_count < 1 || wanted->prompt_count > context || wanted->steps < 1 ||
        wanted->steps > context)
        return failure_set(error,
                           "%lld tokens and %lld steps given, 1 to the model's context of %lld "
                           "wanted",
                           (long long)wanted->prompt_count, (long long)wanted->steps, context);
    for (int64_t b = 0; b < t->sequences; b++)
        w.text[b] = (decoder){.tokens = tokens, .previous = wanted->prompt[0]};
    const bool done =
        share_prompt(&w, error) && (w.done < wanted->prompt_count || continue_texts(&w, error));
    *computed = w.computed;
    return done;
}
