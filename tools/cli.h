/** @file
 * What every command of the program shares: how it is found, how options and their values are read,
 * how it fails, and how it tells that it is still at work.
 *
 * Exit status: 0 done, 1 failed (CLI_FAILED), 2 asked for wrongly (CLI_USAGE). Every failure is one
 * line on stderr that names what was given, what was wanted and what to try. */
#ifndef KVCACHE_TOOLS_CLI_H
#define KVCACHE_TOOLS_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/dtype.h>

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/** One command, or one command of a command. */
typedef struct cli_command {
    const char *name;
    const char *summary; /**< one line, no full stop */
    int (*run)(int argc, char **argv);
} cli_command;

/** Runs the command that argv[1] names, with its own name as argv[0]. Answers --help, and
 * `help COMMAND` as `COMMAND --help`; with `version` set, --version too.
 * @param about     one or more lines that open the help
 * @param commands  [count]
 * @return the exit status */
int cli_dispatch(const char *about, const char *version, const cli_command *commands, size_t count,
                 int argc, char **argv);

/** Prints one line: the command, the sentence, "try '… --help'". Returns CLI_USAGE. */
__attribute__((format(printf, 1, 2))) int cli_usage(const char *format, ...);

/** Prints one line: the command and the sentence. Returns CLI_FAILED. */
__attribute__((format(printf, 1, 2))) int cli_fail(const char *format, ...);

/** Prints one line: the command, `what`, and the library's sentence (kvc_last_error). Returns
 * CLI_FAILED. */
int cli_fail_library(const char *what);

/** Flushes stdout. Returns status, or CLI_FAILED with a line when what was printed did not arrive
 * (closed pipe, full disk); after another failure there is no second line. */
int cli_flush(int status);

/** What cli_next returns beside the options' own values, which start at CLI_FIRST. */
enum { CLI_END = -1, CLI_BAD = '?', CLI_HELP = 'h', CLI_FIRST = 256 };

/** Ends a table of options and gives it --help. */
#define CLI_OPTIONS_END                                                                            \
    {"help", no_argument, NULL, CLI_HELP}, {                                                       \
        NULL, 0, NULL, 0                                                                           \
    }

/** Takes the next option: its value, CLI_HELP (-h too), CLI_END, or CLI_BAD after the error has
 * been told. The argument is in optarg. Call until CLI_END; operands may stand between options.
 * @param options  ends with CLI_OPTIONS_END */
int cli_next(int argc, char **argv, const struct option *options);

/** Takes the operands that cli_next left: exactly `count` of them, into out[count].
 * @param what  what they are, for the error: "MODEL"; NULL when none is taken */
bool cli_operands(int argc, char **argv, const char **out, int count, const char *what);

/* Readers of values. Each returns true, or false after telling the option (name, such as
 * "--steps"), what was given and what is wanted; *out is then unchanged. */

/** A whole number, min ≤ *out ≤ max. */
bool cli_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out);

/** A finite number, min ≤ *out ≤ max. */
bool cli_double(const char *name, const char *text, double min, double max, double *out);

/** A dtype that a cache can hold: f32, f16 or bf16. */
bool cli_dtype(const char *name, const char *text, kvc_dtype *out);

/** "32/8": query heads, kv heads that divide them. Both from 1 to 65536. */
bool cli_heads(const char *name, const char *text, int64_t *q_heads, int64_t *kv_heads);

/** "512,1024,4096": different whole numbers, each min ≤ n ≤ max.
 * @param out  [room]; unchanged on error */
bool cli_list_int64(const char *name, const char *text, int64_t min, int64_t max, int64_t *out,
                    size_t room, size_t *count);

/** One of names[count]; *out is its index. */
bool cli_choice(const char *name, const char *text, const char *const *names, size_t count,
                size_t *out);

/** Comma-separated ones of names[count], each at most once: sets chosen[i] for those given and
 * clears the others. */
bool cli_choices(const char *name, const char *text, const char *const *names, size_t count,
                 bool *chosen);

/** Takes the next part of a list with commas between its parts, for readers of other lists: an
 * empty text has one part, which is empty.
 * @param at    points to the text, or to where the last call stopped
 * @param part  receives it, cut off at room - 1 bytes
 * @return      false when there was none left */
bool cli_list_part(const char **at, char *part, size_t room);

/** Shows a line of progress in place, on stderr, when that is a terminal and the program has run
 * for more than a second; at most ten times a second. */
__attribute__((format(printf, 1, 2))) void cli_progress(const char *format, ...);

/** Begins another piece of work, which may take a second of its own before progress is shown. */
void cli_progress_begin(void);

/** Has the next line shown although one was a moment ago: one that will stand for long. */
void cli_progress_at_once(void);

/** Removes the line of progress. */
void cli_progress_end(void);

#endif
