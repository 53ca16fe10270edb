#include "generate.h"

#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "draft.h"

/* A text on its way. */
typedef struct writer {
    transformer *t;
    sampler *s;
    const generation *wanted;
    generation_figures *figures;
    decoder text;
    int32_t *ids; /* [steps] what is computed, is next, and is guessed to come */
    int64_t done; /* positions after which the token is known */
} writer;

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
    if (wanted->cached < 0 || wanted->cached >= least(wanted->prompt_count, wanted->steps))
        return failure_set(error, "%lld positions cached, fewer than the prompt's %lld wanted",
                           (long long)wanted->cached, (long long)wanted->prompt_count);
    if (wanted->speculate < 0 || wanted->speculate >= TRANSFORMER_MOST)
        return failure_set(error, "%lld tokens to guess given, 0 to %d wanted",
                           (long long)wanted->speculate, TRANSFORMER_MOST - 1);
    return true;
}

/* Computes n tokens from position `at` on, with logits of the last `told`. */
static bool forward(writer *w, int64_t at, int64_t n, int64_t told, failure *error) {
    const generation *wanted = w->wanted;
    if (wanted->forward_begins) wanted->forward_begins(wanted->context, at);
    if (!transformer_forward(w->t, w->ids + at, n, told, error)) return false;
    w->figures->positions = at + n;
    if (wanted->forward_ended) wanted->forward_ended(wanted->context, at + n);
    return true;
}

/* Computes the prompt, or the part of it that the steps allow. */
static bool forward_prompt(writer *w, failure *error) {
    const int64_t count = least(w->wanted->prompt_count, w->wanted->steps);
    memcpy(w->ids, w->wanted->prompt, (size_t)count * sizeof *w->ids);
    for (int64_t at = w->wanted->cached, n; at < count; at += n) {
        n = least(count - at, TRANSFORMER_MOST);
        if (!forward(w, at, n, 1, error)) return false;
    }
    return true;
}

static bool give(writer *w, int32_t id, failure *error) {
    return w->wanted->text(w->wanted->context, decoder_next(&w->text, id), error);
}

/* Draws and gives the token after each of the last n positions computed, up to the first that is
 * not what was guessed, and takes from the cache the positions behind it: *next is the first token
 * that is not in the cache. */
static bool draw(writer *w, int64_t n, int32_t *next, failure *error) {
    const int64_t vocab_size = w->t->model->vocab_size;
    int64_t right = 0;
    do {
        *next = sampler_next(w->s, w->t->logits + right * vocab_size);
        if (*next < 0)
            return failure_set(error, "the model gives logits that are no finite numbers: its "
                                      "weights are damaged");
        if (*next != TOKEN_BOS && !give(w, *next, error)) return false;
        right++;
    } while (right < n && *next == w->ids[w->done + right]);
    w->done += right;
    w->figures->accepted += right - 1;
    w->figures->positions = w->done;
    if (kvc_cache_trim(w->t->cache, n - right) == KVC_OK) return true;
    return failure_set_library(error, "the cache");
}

/* Draws tokens, and computes them with guesses of what follows, until there is no more to do. */
static bool continue_text(writer *w, failure *error) {
    const int64_t steps = w->wanted->steps;
    int64_t n = 1; /* the prompt's last position */
    for (;;) {
        int32_t next;
        if (!draw(w, n, &next, error)) return false;
        if (next == TOKEN_BOS || w->done == steps) return true;
        w->ids[w->done] = next;
        const int64_t most = least(w->wanted->speculate, steps - w->done - 1);
        n = 1 + draft_propose(w->ids, w->done + 1, most);
        w->figures->forwards++;
        w->figures->drafted += n - 1;
        if (!forward(w, w->done, n, n, error)) return false;
    }
}

static bool write_text(writer *w, failure *error) {
    const generation *wanted = w->wanted;
    if (!forward_prompt(w, error)) return false;
    for (w->done = 0; w->done + 1 < wanted->prompt_count && w->done < wanted->steps; w->done++) {
        const int32_t next = wanted->prompt[w->done + 1];
        if (next == TOKEN_BOS) return true;
        if (!give(w, next, error)) return false;
    }
    return w->done == wanted->steps || continue_text(w, error);
}

bool generate(transformer *t, const tokenizer *tokens, sampler *s, const generation *wanted,
              generation_figures *figures, failure *error) {
    *figures = (generation_figures){0};
    if (!check(t, wanted, error)) return false;
    writer w = {.t = t,
                .s = s,
                .wanted = wanted,
                .figures = figures,
                .text = {.tokens = tokens, .previous = wanted->prompt[0]},
                .ids = calloc((size_t)wanted->steps, sizeof *w.ids)};
    if (!w.ids) return failure_set(error, "no memory for %lld tokens", (long long)wanted->steps);
    const bool done = write_text(&w, error);
    if (done && wanted->ids) memcpy(wanted->ids, w.ids, (size_t)figures->positions * sizeof *w.ids);
    free(w.ids);
    return done;
}
