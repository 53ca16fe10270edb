/* `kvcache bench`: finds the measurement and runs it. */

#include "cli.h"
#include "commands.h"

static const char about[] =
    "Measures the library beside the floor that no library can beat, in the same run.\n";

static const cli_command commands[] = {
    {"append", "append one position a step to many caches: the seed's table",
     kvc_tool_bench_append},
    {"attend", "attend over long caches: decoding, verification, prefill", kvc_tool_bench_attend},
    {"fork", "fork a sequence in blocks, and copy it", kvc_tool_bench_fork},
    {"pool", "take buffers from the pool, and from the driver", kvc_tool_bench_pool},
    {"prefix", "find, insert and evict blocks of a prefix tree", kvc_tool_bench_prefix},
    {"snapshot", "save a cache, and restore it by reading and by mapping", kvc_tool_bench_snapshot},
    {"tier", "put blocks to tiers below memory, and get them back", kvc_tool_bench_tier},
};

int kvc_tool_bench(int argc, char **argv) {
    return cli_dispatch(about, NULL, commands, sizeof commands / sizeof *commands, argc, argv);
}
