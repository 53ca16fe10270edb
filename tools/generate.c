/* kvcache generate: a model continues a prompt, or measures how well it predicts a text. The engine
 * is examples/generate; here are its errors and its figures. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/kvcache.h>

#include "cli.h"
#include "commands.h"
#include "generate_session.h"
#include "generate_snapshot.h"
#include "perplexity.h"
#include "report.h"
#include "trace.h"

enum { DEFAULT_STEPS = 256 };

/* Getting ready. */

/* By default a prompt is never cut off. */
static int64_t default_steps(int64_t prompt_count, int64_t context) {
    const int64_t steps =
        prompt_count < DEFAULT_STEPS ? DEFAULT_STEPS : prompt_count + DEFAULT_STEPS;
    return steps < context ? steps : context;
}

static bool make_engine(session *s, failure *error) {
    const generate_options *o = s->wanted;
    transformer_options wanted = o->engine;
    wanted.max_positions = s->steps;
    if (kvc_pool_new(&s->pool, kvc_device_cpu()) != KVC_OK)
        return failure_set_library(error, "the pool");
    if (!transformer_init(&s->transformer, &s->model, s->pool, &wanted, error)) return false;
    for (int64_t i = 0; i < o->parallel; i++)
        if (!sampler_init(&s->samplers[i], s->model.vocab_size, (float)o->temperature,
                          (float)o->top_p, (uint64_t)(o->seed + i), error))
            return false;
    return true;
}

/* Encodes the prompt, or the text to predict. */
static bool read_prompt(session *s, failure *error) {
    const generate_options *o = s->wanted;
    mapped_file file = {0};
    span text = {o->prompt, strlen(o->prompt)};
    if (o->perplexity) {
        if (!file_map(&file, o->perplexity, "a text", error)) return false;
        text = (span){file.data, file.bytes};
    }
    const bool done = tokenizer_encode(&s->tokens, text, &s->prompt, &s->prompt_count, error);
    file_unmap(&file);
    return done;
}

static int prepare(session *s) {
    const generate_options *o = s->wanted;
    failure error;
    if (!checkpoint_init(&s->model, o->model, &error)) return cli_fail("%s", error.sentence);
    if (o->steps > s->model.seq_len)
        return cli_usage("--steps: %lld given, 1 to the model's context of %lld wanted",
                         (long long)o->steps, (long long)s->model.seq_len);
    if (!tokenizer_init(&s->tokens, o->tokenizer, s->model.vocab_size, &error) ||
        !read_prompt(s, &error))
        return cli_fail("%s", error.sentence);
    if (!cache_kind_fits("--cache", &o->kind, s->model.head_dim)) return CLI_USAGE;
    s->steps = o->steps > 0    ? o->steps
               : o->perplexity ? s->model.seq_len
                               : default_steps(s->prompt_count, s->model.seq_len);
    if (!make_engine(s, &error)) return cli_fail("%s", error.sentence);
    if ((o->save_cache || o->tiers.count > 0) &&
        !(s->ids = calloc((size_t)s->steps, sizeof *s->ids)))
        return cli_fail("no memory for %lld tokens", (long long)s->steps);
    if (o->load_cache && snapshot_load(s) != CLI_DONE) return CLI_FAILED;
    const int status = generate_tiers_open(s);
    if (status != CLI_DONE) return status;
    return o->trace ? trace_open(o->trace, "the model's own arithmetic") : CLI_DONE;
}

static void end(session *s) {
    trace_discard();
    stats_free(&s->step_ns);
    for (int i = 0; i < TRANSFORMER_MOST; i++) sampler_deinit(&s->samplers[i]);
    generate_tiers_close(s);
    transformer_deinit(&s->transformer);
    kvc_pool_free(s->pool);
    free(s->ids);
    free(s->prompt);
    tokenizer_deinit(&s->tokens);
    checkpoint_deinit(&s->model);
}

/* Figures. */

void session_print_speed(const char *what, int64_t positions, uint64_t ns) {
    char ms[REPORT_ROOM], speed[REPORT_ROOM];
    (void)fprintf(stderr, "%-12s%lld positions in %s ms, %s positions/s", what,
                  (long long)positions, report_number(ms, 1e-6 * (double)ns),
                  report_number(speed, 1e9 * (double)positions / (double)ns));
}

void session_print_shares(const session *s, uint64_t ns) {
    const double append = 100 * (double)s->transformer.append_ns / (double)ns;
    const double attention = 100 * (double)s->transformer.attention_ns / (double)ns;
    (void)fprintf(stderr, "%-12sattention %.1f %%, append %.1f %%, rest of the model %.1f %%\n",
                  "time", attention, append, 100 - attention - append);
}

static void print_guesses(const generation_figures *f) {
    const int64_t positions = f->forwards + f->accepted;
    (void)fprintf(stderr,
                  "%-12s%lld of %lld drafted tokens accepted; %lld forwards for %lld "
                  "positions\n",
                  "speculation", (long long)f->accepted, (long long)f->drafted,
                  (long long)f->forwards, (long long)positions);
}

static void print_times(session *s) {
    char p50[REPORT_ROOM], p99[REPORT_ROOM];
    const stats_summary step = stats_summarise(&s->step_ns);
    const int64_t done = s->figures.positions;
    const int64_t in_prompt = done < s->prompt_count ? done : s->prompt_count;
    session_print_speed("prompt", in_prompt - s->ready, s->prompt_ns);
    if (s->wanted->load_cache) (void)fprintf(stderr, "; %lld from a file", (long long)s->ready);
    if (done < s->prompt_count - 1)
        (void)fprintf(stderr, "; --steps ended within its %lld tokens", (long long)s->prompt_count);
    (void)fputc('\n', stderr);
    if (step.count > 0) {
        session_print_speed("continued", done - s->prompt_count, s->continuation_ns);
        (void)fprintf(stderr, "; step p50 %s us, p99 %s us\n", report_number(p50, 1e-3 * step.p50),
                      report_number(p99, 1e-3 * step.p99));
    }
    if (s->wanted->speculate > 0) print_guesses(&s->figures);
    session_print_shares(s, s->prompt_ns + s->steps_ns);
}

static void print_cache(const session *s) {
    char used[REPORT_ROOM], resident[REPORT_ROOM];
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    kvc_explanation how = {.struct_size = sizeof how};
    const transformer *t = &s->transformer;
    if (kvc_cache_nbytes_get(t->cache, &nbytes) == KVC_OK)
        (void)fprintf(stderr, "%-12s%s, %s: %s used, %s resident\n", "cache", s->wanted->cache,
                      kvc_dtype_name(s->wanted->engine.kv_dtype),
                      report_bytes(used, (double)nbytes.used),
                      report_bytes(resident, (double)nbytes.resident));
    if (kvc_attention_explain(&how, t->step ? t->step : t->attention, t->cache, 0) == KVC_OK)
        (void)fprintf(stderr, "%-12s%s%s%s\n", "attention", how.reason, *how.remedy ? "; " : "",
                      how.remedy);
}

/* Generating. */

static bool print_text(void *context, span text, failure *error) {
    const session *s = context;
    if (s->shares_terminal) cli_progress_end();
    if (fwrite(text.bytes, 1, text.length, stdout) == text.length && fflush(stdout) == 0)
        return true;
    return failure_set(error, "stdout: %s", strerror(errno));
}

/* Returns the track of the forward that is next or at work. */
static const char *track(const session *s) {
    return s->done < s->prompt_count ? "prompt" : "step";
}

void session_forward_begins(void *context, int64_t done) {
    session *s = context;
    s->done = done;
    trace_step_begin(track(s));
    s->forward_ns = stats_now_ns();
}

static void trace_pool_use(session *s) {
    kvc_pool_stats now = {.struct_size = sizeof now};
    if (!s->wanted->trace || kvc_pool_stats_get(s->pool, &now) != KVC_OK) return;
    trace_pool(track(s), now.hits - s->pool_then.hits, now.misses - s->pool_then.misses);
    s->pool_then = now;
}

void session_forward_ended(void *context, int64_t done) {
    session *s = context;
    const uint64_t ns = stats_now_ns() - s->forward_ns;
    trace_step_end();
    trace_pool_use(s);
    const bool in_prompt = s->done < s->prompt_count;
    if (in_prompt) {
        s->prompt_ns += ns;
    } else {
        s->steps_ns += ns;
        (void)stats_add(&s->step_ns, (double)ns);
    }
    s->done = done;
    if (in_prompt && done >= s->prompt_count) generate_tiers_publish(s, s->prompt, s->prompt_count);
    if (in_prompt || !s->shares_terminal)
        cli_progress("%lld of %lld positions", (long long)done, (long long)s->steps);
}

static int continue_prompt(session *s) {
    const generation wanted = {.prompt = s->prompt,
                               .prompt_count = s->prompt_count,
                               .ready = s->ready,
                               .steps = s->steps,
                               .ids = s->ids,
                               .speculate = s->wanted->speculate,
                               .text = print_text,
                               .forward_begins = session_forward_begins,
                               .forward_ended = session_forward_ended,
                               .context = s};
    failure error;
    s->shares_terminal = isatty(STDOUT_FILENO) != 0;
    const uint64_t start_ns = stats_now_ns();
    trace_record(true);
    const bool done =
        generate(&s->transformer, &s->tokens, &s->samplers[0], &wanted, &s->figures, &error);
    trace_record(false);
    s->continuation_ns = stats_now_ns() - start_ns - s->prompt_ns;
    cli_progress_end();
    if (!done) return cli_fail("%s", error.sentence);
    generate_tiers_publish(s, s->ids, s->figures.positions);
    (void)putchar('\n');
    const int status = cli_flush(CLI_DONE);
    if (status == CLI_DONE && !s->wanted->quiet) print_times(s);
    return status;
}

/* Measuring a text. */

static int measure_text(session *s) {
    perplexity all;
    failure error;
    const uint64_t start_ns = stats_now_ns();
    trace_record(true);
    const bool done =
        perplexity_measure(&all, &s->transformer, s->prompt, s->prompt_count, s->steps, &error);
    trace_record(false);
    const uint64_t ns = stats_now_ns() - start_ns;
    cli_progress_end();
    if (!done) return cli_fail("%s", error.sentence);
    const double nats = all.nats / (double)all.tokens;
    printf("perplexity %.6f (%.6f nats a token) over %lld tokens in %lld windows of %lld\n",
           exp(nats), nats, (long long)all.tokens, (long long)all.windows, (long long)s->steps);
    const int status = cli_flush(CLI_DONE);
    if (status != CLI_DONE || s->wanted->quiet) return status;
    session_print_speed("predicted", all.tokens, ns);
    (void)fputc('\n', stderr);
    session_print_shares(s, ns);
    return CLI_DONE;
}

int kvc_tool_generate(int argc, char **argv) {
    generate_options wanted = {0};
    int status = generate_options_take(&wanted, argc, argv);
    if (status != CLI_DONE || !wanted.model) return status;
    session s = {.wanted = &wanted};
    status = prepare(&s);
    if (status == CLI_DONE) status = generate_tiers_restore(&s);
    if (status == CLI_DONE)
        status = wanted.perplexity     ? measure_text(&s)
                 : wanted.parallel > 1 ? session_continue_parallel(&s)
                                       : continue_prompt(&s);
    if (status == CLI_DONE && wanted.save_cache) status = snapshot_save(&s);
    if (status == CLI_DONE && !wanted.quiet) {
        print_cache(&s);
        generate_tiers_print(&s);
    }
    if (status == CLI_DONE) status = trace_close(stderr);
    end(&s);
    return status;
}
