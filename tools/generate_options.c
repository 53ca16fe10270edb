#include "generate_options.h"

#include <stdio.h>

#include "cli.h"

static const char help[] =
    "Continues a prompt with a Llama model, or measures how well it predicts a text. The text\n"
    "or the measure goes to stdout, figures go to stderr.\n"
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
    "  --speculate K       guess up to K tokens, as they followed the same words before, and\n"
    "                      check them in one forward: the same text; 0 to 63, 0 by default\n"
    "  --parallel N        N continuations of the prompt, which is computed and held once; the\n"
    "                      first has the seed S, the next S + 1, and so on; wants --cache paged\n"
    "\n"
    "Instead of a text:\n"
    "  --perplexity FILE   print the model's perplexity over the text in FILE, in windows of\n"
    "                      --steps tokens, the model's context by default\n"
    "\n"
    "The cache:\n"
    "  --cache KIND        how it grows: reserve (the default), chunk, paged[:BLOCK] in blocks of\n"
    "                      positions, or concat, which copies it at every step; what it keeps:\n"
    "                      window:W[:KEEP], the last W positions and of these the first KEEP for\n"
    "                      ever; how it is packed: qBITS[c][r][:GROUP], as q8, q4:32 or q4c, keys\n"
    "                      per channel, or q4r, rotated before. One of each may be joined by +, "
    "as\n"
    "                      q8:32+paged\n"
    "  --kv-dtype DTYPE    of its keys and values, where packed of their scales: f32 (the\n"
    "                      default), f16 or bf16\n"
    "  --chunk N           positions by which it grows; 256 by default\n"
    "  --tier TIER         look there for blocks of the prompt that were computed before, and "
    "keep\n"
    "                      those of the text: disk:FOLDER, or redis://HOST[:PORT]; may be given\n"
    "                      several times, the nearest first; wants --cache paged\n"
    "  --save-cache FILE   write it to a file at the end, with its tokens\n"
    "  --load-cache FILE   begin with one: what its tokens have in common with the prompt is not\n"
    "                      computed again\n"
    "  --map               map that file instead of reading it; wants --cache reserve\n"
    "  --strict            fail rather than take a slow path of attention\n"
    "\n"
    "The figures:\n"
    "  --trace FILE        write a profile for ui.perfetto.dev, and tell where the time went\n"
    "  --quiet             no figures, only the profile if one is wanted\n"
    "  --help              this text\n";

enum {
    OPTION_TOKENIZER = CLI_FIRST,
    OPTION_PROMPT,
    OPTION_STEPS,
    OPTION_TEMPERATURE,
    OPTION_TOP_P,
    OPTION_SEED,
    OPTION_SPECULATE,
    OPTION_PARALLEL,
    OPTION_PERPLEXITY,
    OPTION_CACHE,
    OPTION_KV_DTYPE,
    OPTION_CHUNK,
    OPTION_TIER,
    OPTION_SAVE_CACHE,
    OPTION_LOAD_CACHE,
    OPTION_MAP,
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
    {"speculate", required_argument, NULL, OPTION_SPECULATE},
    {"parallel", required_argument, NULL, OPTION_PARALLEL},
    {"perplexity", required_argument, NULL, OPTION_PERPLEXITY},
    {"cache", required_argument, NULL, OPTION_CACHE},
    {"kv-dtype", required_argument, NULL, OPTION_KV_DTYPE},
    {"chunk", required_argument, NULL, OPTION_CHUNK},
    {"tier", required_argument, NULL, OPTION_TIER},
    {"save-cache", required_argument, NULL, OPTION_SAVE_CACHE},
    {"load-cache", required_argument, NULL, OPTION_LOAD_CACHE},
    {"map", no_argument, NULL, OPTION_MAP},
    {"strict", no_argument, NULL, OPTION_STRICT},
    {"trace", required_argument, NULL, OPTION_TRACE},
    {"quiet", no_argument, NULL, OPTION_QUIET},
    CLI_OPTIONS_END};

static bool take_cache(generate_options *o, const char *value) {
    o->cache = value;
    return cache_kind_read("--cache", value, &o->kind);
}

static bool take(generate_options *o, int option, const char *value) {
    const int64_t most_guesses = TRANSFORMER_MOST - 1;
    switch (option) {
    case OPTION_TOKENIZER: o->tokenizer = value; return true;
    case OPTION_PROMPT: o->prompt = value; return true;
    case OPTION_STEPS: return cli_int64("--steps", value, 1, INT32_MAX, &o->steps);
    case OPTION_TEMPERATURE: return cli_double("--temperature", value, 0, 100, &o->temperature);
    case OPTION_TOP_P: return cli_double("--top-p", value, 0, 1, &o->top_p);
    case OPTION_SEED: return cli_int64("--seed", value, 0, INT64_MAX, &o->seed);
    case OPTION_SPECULATE: return cli_int64("--speculate", value, 0, most_guesses, &o->speculate);
    case OPTION_PARALLEL: return cli_int64("--parallel", value, 1, TRANSFORMER_MOST, &o->parallel);
    case OPTION_PERPLEXITY: o->perplexity = value; return true;
    case OPTION_CACHE: return take_cache(o, value);
    case OPTION_KV_DTYPE: return cli_dtype("--kv-dtype", value, &o->engine.kv_dtype);
    case OPTION_CHUNK: return cli_int64("--chunk", value, 1, 1 << 20, &o->engine.chunk);
    case OPTION_TIER: return tier_option_take(&o->tiers, value);
    case OPTION_SAVE_CACHE: o->save_cache = value; return true;
    case OPTION_LOAD_CACHE: o->load_cache = value; return true;
    case OPTION_MAP: o->map = true; return true;
    case OPTION_STRICT: o->engine.strict = true; return true;
    case OPTION_TRACE: o->trace = value; return true;
    case OPTION_QUIET: o->quiet = true; return true;
    default: return false;
    }
}

/* Returns an option that is about a text to be written; NULL for others. */
static const char *text_option(int option) {
    switch (option) {
    case OPTION_PROMPT: return "--prompt";
    case OPTION_TEMPERATURE: return "--temperature";
    case OPTION_TOP_P: return "--top-p";
    case OPTION_SEED: return "--seed";
    case OPTION_SPECULATE: return "--speculate";
    case OPTION_PARALLEL: return "--parallel";
    case OPTION_TIER: return "--tier";
    case OPTION_SAVE_CACHE: return "--save-cache";
    case OPTION_LOAD_CACHE: return "--load-cache";
    default: return NULL;
    }
}

static bool check_parallel(const generate_options *o) {
    if (o->parallel == 1) return true;
    if (o->speculate) (void)cli_usage("--speculate: given with --parallel; one of the two wanted");
    else if (o->kind.growth != KVC_GROW_PAGED)
        (void)cli_usage("--cache: '%s' given; --parallel shares blocks, paged[:BLOCK] wanted",
                        o->cache);
    return o->speculate == 0 && o->kind.growth == KVC_GROW_PAGED;
}

static bool check_tiers(const generate_options *o) {
    if (o->tiers.count == 0 || o->kind.growth == KVC_GROW_PAGED) return true;
    (void)cli_usage("--cache: '%s' given; --tier keeps blocks, paged[:BLOCK] wanted", o->cache);
    return false;
}

static bool check_files(const generate_options *o) {
    if ((o->save_cache || o->load_cache) && o->parallel > 1)
        (void)cli_usage("%s: given with --parallel; one of the two wanted",
                        o->save_cache ? "--save-cache" : "--load-cache");
    else if (o->load_cache && o->tiers.count > 0)
        (void)cli_usage("--tier: given with --load-cache; one of the two wanted");
    else if (o->map && !o->load_cache) (void)cli_usage("--map: a file by --load-cache wanted");
    else if (o->map && o->kind.growth != KVC_GROW_RESERVE)
        (void)cli_usage("--map: --cache '%s' given, reserve wanted", o->cache);
    else return true;
    return false;
}

/* What the engine is to be asked for. */
static void set_engine(generate_options *o) {
    o->engine.growth = o->kind.growth;
    o->engine.window = o->kind.window;
    o->engine.keep = o->kind.keep;
    o->engine.kv_bits = o->kind.bits;
    o->engine.kv_group = o->kind.group;
    o->engine.keys_per_channel = o->kind.keys_per_channel;
    o->engine.rotated = o->kind.rotated;
    o->engine.block = o->kind.block;
    o->engine.slack = o->speculate;
    o->engine.sequences = o->parallel;
}

int generate_options_take(generate_options *out, int argc, char **argv) {
    generate_options o = {.prompt = "",
                          .seed = 1,
                          .parallel = 1,
                          .temperature = 1,
                          .top_p = 0.9,
                          .cache = "reserve",
                          .engine.kv_dtype = KVC_F32};
    const char *of_text = NULL;
    for (int option; (option = cli_next(argc, argv, options)) != CLI_END;) {
        if (option == CLI_HELP) {
            (void)fputs(help, stdout);
            return CLI_DONE;
        }
        if (!take(&o, option, optarg)) return CLI_USAGE;
        if (text_option(option)) of_text = text_option(option);
    }
    if (!cli_operands(argc, argv, &o.model, 1, "MODEL")) return CLI_USAGE;
    if (!o.tokenizer) return cli_usage("--tokenizer is missing: the FILE made for MODEL wanted");
    if (o.perplexity && of_text)
        return cli_usage("%s: --perplexity writes no text; one of the two wanted", of_text);
    if (o.perplexity && o.steps == 1)
        return cli_usage("--steps: 1 given, 2 or more tokens wanted by --perplexity: BOS and one "
                         "that follows");
    if (!check_parallel(&o) || !check_tiers(&o) || !check_files(&o)) return CLI_USAGE;
    set_engine(&o);
    *out = o;
    return CLI_DONE;
}
