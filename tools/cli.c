#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/status.h>

/* The words that led to the command at work, such as "kvcache bench append". */
static char command_path[64] = "kvcache";

static struct {
    bool shown;
    double start, last; /* seconds */
} progress;

static double now_seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Failing. */

/* Prints command, sentence and end as one line, whatever the user's words in it hold. */
static void print_error(const char *format, va_list arguments, const char *end) {
    char sentence[2048];
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    for (char *c = sentence; *c; c++)
        if (iscntrl((unsigned char)*c)) *c = '?';
    cli_progress_end();
    (void)fprintf(stderr, "%s: %s%s\n", command_path, sentence, end);
}

int cli_usage(const char *format, ...) {
    char end[96];
    va_list arguments;
    (void)snprintf(end, sizeof end, "; try '%s --help'", command_path);
    va_start(arguments, format);
    print_error(format, arguments, end);
    va_end(arguments);
    return CLI_USAGE;
}

int cli_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_error(format, arguments, "");
    va_end(arguments);
    return CLI_FAILED;
}

int cli_fail_library(const char *what) {
    return cli_fail("%s: %s", what, kvc_last_error());
}

int cli_flush(int status) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status != CLI_DONE) return status; /* one line is told already */
    return cli_fail("stdout: %s", errno ? strerror(errno) : "not everything could be written");
}

/* "a, b or c" of names[count]; cut off when it does not fit. */
static void join_names(char *out, size_t room, const char *const *names, size_t count) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < count && used < room; i++) {
        const char *between = i == 0 ? "" : i + 1 == count ? " or " : ", ";
        used += (size_t)snprintf(out + used, room - used, "%s%s", between, names[i]);
    }
}

/* Finding the command. */

static void print_help(const char *about, bool version, const cli_command *commands, size_t count) {
    printf("%s\nUsage: %s COMMAND [OPTION]...\n\nCommands:\n", about, command_path);
    for (size_t i = 0; i < count; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\nOptions:\n  %-10s this text; '%s COMMAND --help' tells a command's options\n",
           "--help", command_path);
    if (version) printf("  %-10s the version of the program and its library\n", "--version");
}

static int fail_unknown(const char *given, const cli_command *commands, size_t count) {
    const char *names[16];
    char known[256];
    for (size_t i = 0; i < count && i < sizeof names / sizeof *names; i++)
        names[i] = commands[i].name;
    join_names(known, sizeof known, names, count);
    if (!given) return cli_usage("no command given: %s wanted", known);
    return cli_usage("unknown command '%s': %s wanted", given, known);
}

/* Rewrites `parent help a b` to `parent a b --help`, in place: the count of words stays. */
static void turn_help_around(int argc, char **argv) {
    static char help[] = "--help";
    for (int i = 1; i + 1 < argc; i++) argv[i] = argv[i + 1];
    argv[argc - 1] = help;
}

int cli_dispatch(const char *about, const char *version, const cli_command *commands, size_t count,
                 int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "help") == 0) turn_help_around(argc, argv);
    if (argc < 2) return fail_unknown(NULL, commands, count);
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        print_help(about, version != NULL, commands, count);
        return CLI_DONE;
    }
    if (version && strcmp(word, "--version") == 0) {
        printf("kvcache %s\n", version);
        return CLI_DONE;
    }
    if (word[0] == '-') return cli_usage("unknown option '%s'", word);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, commands[i].name) != 0) continue;
        const size_t used = strlen(command_path);
        (void)snprintf(command_path + used, sizeof command_path - used, " %s", word);
        return commands[i].run(argc - 1, argv + 1);
    }
    return fail_unknown(word, commands, count);
}

/* Options. */

/* Tells whether a word such as --st=3 could begin several options. */
static bool is_ambiguous(const char *word, const struct option *options) {
    if (strncmp(word, "--", 2) != 0) return false;
    const size_t length = strcspn(word + 2, "=");
    int matches = 0;
    for (const struct option *o = options; o->name; o++)
        matches += strncmp(o->name, word + 2, length) == 0;
    return matches > 1;
}

static const char *option_name(int value, const struct option *options) {
    for (const struct option *o = options; o->name; o++)
        if (o->val == value) return o->name;
    return "?";
}

int cli_next(int argc, char **argv, const struct option *options) {
    opterr = 0;
    const int next = getopt_long(argc, argv, ":h", options, NULL);
    if (next == ':') {
        (void)cli_usage("--%s: a value is wanted, none given", option_name(optopt, options));
        return CLI_BAD;
    }
    if (next != CLI_BAD) return next;
    const char *word = argv[optind - 1];
    if (optopt >= CLI_FIRST || (optopt == CLI_HELP && strncmp(word, "--", 2) == 0))
        (void)cli_usage("--%s: takes no value, '%s' given", option_name(optopt, options), word);
    else if (optopt != 0) (void)cli_usage("unknown option '-%c'", optopt);
    else if (is_ambiguous(word, options)) (void)cli_usage("option '%s' could be several", word);
    else (void)cli_usage("unknown option '%s'", word);
    return CLI_BAD;
}

bool cli_operands(int argc, char **argv, const char **out, int count, const char *what) {
    const int given = argc - optind;
    if (given > count) {
        const char *stray = argv[optind + count];
        if (what) (void)cli_usage("unexpected argument '%s' after %s", stray, what);
        else (void)cli_usage("unexpected argument '%s'; options begin with --", stray);
        return false;
    }
    if (given < count) {
        (void)cli_usage("%s is missing", what);
        return false;
    }
    for (int i = 0; i < count; i++) out[i] = argv[optind + i];
    return true;
}

/* Values. */

/* Reads digits up to *end. False when there is no number or it does not fit. */
static bool parse_int64(const char *text, const char **end, int64_t *out) {
    const char *digits = text + (*text == '-');
    if (*digits < '0' || *digits > '9') return false;
    char *stop;
    errno = 0;
    const long long value = strtoll(text, &stop, 10);
    if (errno != 0) return false;
    *end = stop;
    *out = value;
    return true;
}

bool cli_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out) {
    const char *end;
    int64_t value;
    if (parse_int64(text, &end, &value) && *end == '\0' && value >= min && value <= max) {
        *out = value;
        return true;
    }
    (void)cli_usage("%s: '%s' given, a whole number from %lld to %lld wanted", name, text,
                    (long long)min, (long long)max);
    return false;
}

bool cli_double(const char *name, const char *text, double min, double max, double *out) {
    char *end;
    const double value = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(value) && value >= min && value <= max) {
        *out = value;
        return true;
    }
    (void)cli_usage("%s: '%s' given, a number from %g to %g wanted", name, text, min, max);
    return false;
}

bool cli_dtype(const char *name, const char *text, kvc_dtype *out) {
    static const kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
    static const char *const names[] = {"f32", "f16", "bf16"};
    size_t index;
    if (!cli_choice(name, text, names, sizeof names / sizeof *names, &index)) return false;
    *out = dtypes[index];
    return true;
}

bool cli_heads(const char *name, const char *text, int64_t *q_heads, int64_t *kv_heads) {
    const int64_t most = 65536;
    const char *slash = text, *end = text;
    int64_t q = 0, kv = 0;
    const bool read = parse_int64(text, &slash, &q) && *slash == '/' &&
                      parse_int64(slash + 1, &end, &kv) && *end == '\0';
    if (read && q >= 1 && q <= most && kv >= 1 && kv <= most && q % kv == 0) {
        *q_heads = q;
        *kv_heads = kv;
        return true;
    }
    (void)cli_usage("%s: '%s' given, Q/KV such as 32/8 wanted: query heads, then kv heads that "
                    "divide them, from 1 to %lld",
                    name, text, (long long)most);
    return false;
}

static bool has_value(const int64_t *values, size_t count, int64_t value) {
    for (size_t i = 0; i < count; i++)
        if (values[i] == value) return true;
    return false;
}

bool cli_list_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
                    size_t room, size_t *count) {
    int64_t values[64];
    size_t n = 0;
    if (room > sizeof values / sizeof *values) room = sizeof values / sizeof *values;
    for (const char *at = text;;) {
        const char *end;
        int64_t value;
        if (n == room || !parse_int64(at, &end, &value) || value < min || value > max ||
            has_value(values, n, value))
            break;
        values[n++] = value;
        if (*end == '\0') {
            memcpy(out, values, n * sizeof *values);
            *count = n;
            return true;
        }
        if (*end != ',') break;
        at = end + 1;
    }
    (void)cli_usage("%s: '%s' given, up to %zu different whole numbers from %lld to %lld wanted, "
                    "with commas between",
                    name, text, room, (long long)min, (long long)max);
    return false;
}

static bool find_name(const char *word, size_t length, const char *const *names, size_t count,
                      size_t *out) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(names[i]) != length || strncmp(word, names[i], length) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

bool cli_choice(const char *name, const char *text, const char *const *names, size_t count,
                size_t *out) {
    char wanted[256];
    if (find_name(text, strlen(text), names, count, out)) return true;
    join_names(wanted, sizeof wanted, names, count);
    (void)cli_usage("%s: '%s' given, %s wanted", name, text, wanted);
    return false;
}

bool cli_choices(const char *name, const char *text, const char *const *names, size_t count,
                 bool *chosen) {
    char wanted[256];
    bool found[64] = {false};
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        size_t index;
        if (count > sizeof found || !find_name(at, length, names, count, &index) || found[index])
            break;
        found[index] = true;
        at += length;
        if (*at != '\0') continue;
        memcpy(chosen, found, count * sizeof *found);
        return true;
    }
    join_names(wanted, sizeof wanted, names, count);
    (void)cli_usage("%s: '%s' given, different ones of %s wanted, with commas between", name, text,
                    wanted);
    return false;
}

bool cli_list_part(const char **at, char *part, size_t room) {
    if (!*at) return false;
    const size_t length = strcspn(*at, ",");
    (void)snprintf(part, room, "%.*s", (int)(length < room ? length : room), *at);
    *at = (*at)[length] ? *at + length + 1 : NULL;
    return true;
}

/* Progress. */

void cli_progress(const char *format, ...) {
    const double now = now_seconds();
    if (progress.start == 0) progress.start = now;
    if (now - progress.start < 1 || now - progress.last < 0.1 || !isatty(STDERR_FILENO)) return;
    va_list arguments;
    progress.last = now;
    progress.shown = true;
    (void)fputs("\r\033[K", stderr);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fflush(stderr);
}

void cli_progress_begin(void) {
    progress.start = now_seconds();
}

void cli_progress_at_once(void) {
    progress.last = 0;
}

void cli_progress_end(void) {
    if (!progress.shown) return;
    progress.shown = false;
    (void)fputs("\r\033[K", stderr);
    (void)fflush(stderr);
}
