/* kvcache generate: a model continues a prompt. The engine is examples/generate; here are its
 * options, its errors and its figures. */

#include "generate/generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/kvcache.h>

#include "cli.h"
#include "commands.h"
#include "report.h"
#include "stats.h"
#include "trace.h"

enum { DEFAULT_STEPS = 256 };

static const char help[] =
    "Continues a prompt with a Llama model. The text goes to stdout, figures go to stderr.\n"
    "\n"
    "Usage: kvcache generate MODEL --tokenizer FILE [OPTION]...\n"
    "\n"
    "MODEL is a checkpoint in llama2.c's format (version 0), FILE the tokenizer made for it.\n"
    "\n"
    "The text:\n"
    "  --prompt TEXT       what to continue; nothing by default\n"
    "  --steps N           positions to compute, the prompt's among them: 1 to the model's\n"
    "                      context; 256 by default, that many more after a longer prompt\n"
    "  --temperature T     0 always takes the likeliest token; 1 by default\n"
    "  --top-p P           draw from the likeliest tokens that together pass P; 0.9 by default,\n"
    "                      1 draws from all\n"
    "  --seed S            equal seeds give equal texts; 1 by default\n"
    "\n"
    "The cache:\n"
    "  --cache GROWTH      reserve (the default), chunk, or concat, which copies it at every step\n"
    "  --kv-dtype DTYPE    of its keys and values: f32 (the default), f16 or bf16\n"
    "  --chunk N           positions by which it grows; 256 by default\n"
    "  --strict            fail rather than take a slow path of attention\n"
    "\n"
    "The figures:\n"
    "  --trace FILE        write a profile for ui.perfetto.dev, and tell where the time went\n"
    "  --quiet             no figures, only the profile if one is wanted\n"
    "  --help              this text\n";

/* What was asked for. */
typedef struct request {
    const char *model, *tokenizer, *prompt, *trace;
    int64_t steps; /* 0: not given */
    int64_t chunk, seed;
    double temperature, top_p;
    size_t cache; /* a kvc_growth */
    kvc_dtype kv_dtype;
    bool strict, quiet;
} request;

/* All that a generation takes. Zeroed, it can be ended. */
typedef struct session {
    const request *wanted;
    checkpoint model;
    tokenizer tokens;
    int32_t *prompt; /* [prompt_count] BOS first */
    int64_t prompt_count, steps;
    kvc_pool *pool;
    transformer transformer;
    sampler sampler;
    bool shares_terminal;     /* text and progress would mix */
    int64_t done;             /* positions computed */
    kvc_pool_stats pool_then; /* at the end of the last forward, for the trace */
    stats_samples step_ns;    /* of each position after the prompt */
    uint64_t forward_ns;      /* when the forward at work began */
    uint64_t prompt_ns;       /* time of the prompt's forwards */
    uint64_t steps_ns;        /* time of the others */
    uint64_t continuation_ns; /* steps_ns, drawing tokens and printing */
} session;

/* Options. */

enum {
    OPTION_TOKENIZER = CLI_FIRST,
    OPTION_PROMPT,
    OPTION_STEPS,
    OPTION_TEMPERATURE,
    OPTION_TOP_P,
    OPTION_SEED,
    OPTION_CACHE,
    OPTION_KV_DTYPE,
    OPTION_CHUNK,
    OPTION_STRICT,
    OPTION_TRACE,
    OPTION_QUIET
};

static const struct option options[] = {
    {"tokenizer", required_argument, NULL, OPTION_TOKENIZER},
    {"prompt", required_argument, NULL, OPTION_PROMPT},
    {"steps", required_argument, NULL, OPTION_STEPS},
    {"temperature", required_argument, NULL, OPTION_TEMPERATURE},
    {"top-p", required_argument, NULL, OPTION_TOP_P},
    {"seed", required_argument, NULL, OPTION_SEED},
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"kv-dtype", required_argument, NULL, OPTION_KV_DTYPE},
    {"chunk", required_argument, NULL, OPTION_CHUNK},
    {"strict", no_argument, NULL, OPTION_STRICT},
    {"trace", required_argument, NULL, OPTION_TRACE},
    {"quiet", no_argument, NULL, OPTION_QUIET},
    CLI_OPTIONS_END};

/* By kvc_growth; the seed's word for the last. */
static const char *const caches[] = {
    [KVC_GROW_RESERVE] = "reserve", [KVC_GROW_CHUNK] = "chunk", [KVC_GROW_EXACT] = "concat"};

static bool take_option(request *r, int option, const char *value) {
    switch (option) {
    case OPTION_TOKENIZER: r->tokenizer = value; return true;
    case OPTION_PROMPT: r->prompt = value; return true;
    case OPTION_STEPS: return cli_int64("--steps", value, 1, INT32_MAX, &r->steps);
    case OPTION_TEMPERATURE: return cli_double("--temperature", value, 0, 100, &r->temperature);
    case OPTION_TOP_P: return cli_double("--top-p", value, 0, 1, &r->top_p);
    case OPTION_SEED: return cli_int64("--seed", value, 0, INT64_MAX, &r->seed);
    case OPTION_CACHE: return cli_choice("--cache", value, caches, 3, &r->cache);
    case OPTION_KV_DTYPE: return cli_dtype("--kv-dtype", value, &r->kv_dtype);
    case OPTION_CHUNK: return cli_int64("--chunk", value, 1, 1 << 20, &r->chunk);
    case OPTION_STRICT: r->strict = true; return true;
    case OPTION_TRACE: r->trace = value; return true;
    case OPTION_QUIET: r->quiet = true; return true;
    default: return false;
    }
}

/* Reads the command line into *out, zeroed. After --help there is no model. */
static int take_options(request *out, int argc, char **argv) {
    request r = {.prompt = "", .seed = 1, .temperature = 1, .top_p = 0.9, .kv_dtype = KVC_F32};
    for (int option; (option = cli_next(argc, argv, options)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!take_option(&r, option, optarg)) return CLI_USAGE;
    }
    if (!cli_operands(argc, argv, &r.model, 1, "MODEL")) return CLI_USAGE;
    if (!r.tokenizer) return cli_usage("--tokenizer is missing: the FILE made for MODEL wanted");
    *out = r;
    return CLI_DONE;
}

/* Getting ready. */

/* By default a prompt is never cut off. */
static int64_t default_steps(int64_t prompt_count, int64_t context) {
    const int64_t steps =
        prompt_count < DEFAULT_STEPS ? DEFAULT_STEPS : prompt_count + DEFAULT_STEPS;
    return steps < context ? steps : context;
}

static bool make_engine(session *s, failure *error) {
    const request *r = s->wanted;
    const transformer_options wanted = {.growth = (kvc_growth)r->cache,
                                        .kv_dtype = r->kv_dtype,
                                        .chunk = r->chunk,
                                        .max_positions = s->steps,
                                        .strict = r->strict};
    if (kvc_pool_new(&s->pool, kvc_device_cpu()) != KVC_OK)
        return failure_set_library(error, "the pool");
    return transformer_init(&s->transformer, &s->model, s->pool, &wanted, error) &&
           sampler_init(&s->sampler, s->model.vocab_size, (float)r->temperature, (float)r->top_p,
                        (uint64_t)r->seed, error);
}

static int prepare(session *s) {
    const request *r = s->wanted;
    failure error;
    if (!checkpoint_init(&s->model, r->model, &error)) return cli_fail("%s", error.sentence);
    if (r->steps > s->model.seq_len)
        return cli_usage("--steps: %lld given, 1 to the model's context of %lld wanted",
                         (long long)r->steps, (long long)s->model.seq_len);
    if (!tokenizer_init(&s->tokens, r->tokenizer, s->model.vocab_size, &error) ||
        !tokenizer_encode(&s->tokens, (span){r->prompt, strlen(r->prompt)}, &s->prompt,
                          &s->prompt_count, &error))
        return cli_fail("%s", error.sentence);
    s->steps = r->steps > 0 ? r->steps : default_steps(s->prompt_count, s->model.seq_len);
    if (!make_engine(s, &error)) return cli_fail("%s", error.sentence);
    return r->trace ? trace_open(r->trace, "the model's own arithmetic") : CLI_DONE;
}

static void end(session *s) {
    trace_discard();
    stats_free(&s->step_ns);
    sampler_deinit(&s->sampler);
    transformer_deinit(&s->transformer);
    kvc_pool_free(s->pool);
    free(s->prompt);
    tokenizer_deinit(&s->tokens);
    checkpoint_deinit(&s->model);
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

static void forward_begins(void *context, int64_t done) {
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

static void forward_ended(void *context, int64_t done) {
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
    if (in_prompt || !s->shares_terminal)
        cli_progress("%lld of %lld positions", (long long)done, (long long)s->steps);
}

static int run(session *s) {
    const generation wanted = {.prompt = s->prompt,
                               .prompt_count = s->prompt_count,
                               .steps = s->steps,
                               .text = print_text,
                               .forward_begins = forward_begins,
                               .forward_ended = forward_ended,
                               .context = s};
    failure error;
    s->shares_terminal = isatty(STDOUT_FILENO) != 0;
    const uint64_t start_ns = stats_now_ns();
    trace_record(true);
    const bool done = generate(&s->transformer, &s->tokens, &s->sampler, &wanted, &error);
    trace_record(false);
    s->continuation_ns = stats_now_ns() - start_ns - s->prompt_ns;
    cli_progress_end();
    if (!done) return cli_fail("%s", error.sentence);
    (void)putchar('\n');
    return cli_flush(CLI_DONE);
}

/* Figures. */

static void print_speed(const char *what, int64_t positions, uint64_t ns) {
    char ms[REPORT_ROOM], speed[REPORT_ROOM];
    (void)fprintf(stderr, "%-12s%lld positions in %s ms, %s positions/s", what,
                  (long long)positions, report_number(ms, 1e-6 * (double)ns),
                  report_number(speed, 1e9 * (double)positions / (double)ns));
}

static void print_times(session *s) {
    char p50[REPORT_ROOM], p99[REPORT_ROOM];
    const stats_summary step = stats_summarise(&s->step_ns);
    const int64_t in_prompt = s->done < s->prompt_count ? s->done : s->prompt_count;
    const double all = (double)(s->prompt_ns + s->steps_ns);
    const double append = 100 * (double)s->transformer.append_ns / all;
    const double attention = 100 * (double)s->transformer.attention_ns / all;
    print_speed("prompt", in_prompt, s->prompt_ns);
    if (s->done < s->prompt_count - 1)
        (void)fprintf(stderr, "; --steps ended within its %lld tokens", (long long)s->prompt_count);
    (void)fputc('\n', stderr);
    if (step.count > 0) {
        print_speed("continued", (int64_t)step.count, s->continuation_ns);
        (void)fprintf(stderr, "; step p50 %s us, p99 %s us\n", report_number(p50, 1e-3 * step.p50),
                      report_number(p99, 1e-3 * step.p99));
    }
    (void)fprintf(stderr, "%-12sattention %.1f %%, append %.1f %%, rest of the model %.1f %%\n",
                  "time", attention, append, 100 - attention - append);
}

static void print_cache(const session *s) {
    char used[REPORT_ROOM], resident[REPORT_ROOM];
    kvc_cache_nbytes nbytes = {.struct_size = sizeof nbytes};
    kvc_explanation how = {.struct_size = sizeof how};
    const transformer *t = &s->transformer;
    if (kvc_cache_nbytes_get(t->cache, &nbytes) == KVC_OK)
        (void)fprintf(stderr, "%-12s%s, %s: %s used, %s resident\n", "cache",
                      caches[s->wanted->cache], kvc_dtype_name(s->wanted->kv_dtype),
                      report_bytes(used, (double)nbytes.used),
                      report_bytes(resident, (double)nbytes.resident));
    if (kvc_attention_explain(&how, t->attention, t->cache, 0) == KVC_OK)
        (void)fprintf(stderr, "%-12s%s%s%s\n", "attention", how.reason, *how.remedy ? "; " : "",
                      how.remedy);
}

int kvc_tool_generate(int argc, char **argv) {
    request wanted = {0};
    int status = take_options(&wanted, argc, argv);
    if (status != CLI_DONE || !wanted.model) return status;
    session s = {.wanted = &wanted};
    status = prepare(&s);
    if (status == CLI_DONE) status = run(&s);
    if (status == CLI_DONE && !wanted.quiet) {
        print_times(&s);
        print_cache(&s);
    }
    if (status == CLI_DONE) status = trace_close(stderr);
    end(&s);
    return status;
}
