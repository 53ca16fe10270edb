/* The program `kvcache`: finds the command and runs it. */

#include <signal.h>

#include <kvcache/version.h>

#include "cli.h"
#include "commands.h"

static const char about[] =
    "kvcache stores the keys and values of autoregressive generation: it measures how fast they\n"
    "are appended and attended over, explains which path runs, and generates text with a model.\n";

static const cli_command commands[] = {
    {"bench", "measure appending, attention and the buffer pool", kvc_tool_bench},
    {"convert", "write a snapshot again as one of another kind of cache", kvc_tool_convert},
    {"explain", "tell which attention path a cache gets, why, and what to change",
     kvc_tool_explain},
    {"generate", "continue a prompt with a Llama model in llama2.c's format", kvc_tool_generate},
    {"inspect", "tell what a snapshot of a cache holds", kvc_tool_inspect},
};

int main(int argc, char **argv) {
    /* A closed pipe is an error of write, told in one line, not a death without a word. */
    (void)signal(SIGPIPE, SIG_IGN);
    return cli_flush(cli_dispatch(about, kvc_version(), commands,
                                  sizeof commands / sizeof *commands, argc, argv));
}
