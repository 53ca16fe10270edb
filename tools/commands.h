/** @file
 * The commands of the program. Each gets its own name as argv[0] and returns the exit status. */
#ifndef KVCACHE_TOOLS_COMMANDS_H
#define KVCACHE_TOOLS_COMMANDS_H

int kvc_tool_bench(int argc, char **argv);
int kvc_tool_convert(int argc, char **argv);
int kvc_tool_explain(int argc, char **argv);
int kvc_tool_generate(int argc, char **argv);
int kvc_tool_inspect(int argc, char **argv);

/* Of bench. */
int kvc_tool_bench_append(int argc, char **argv);
int kvc_tool_bench_attend(int argc, char **argv);
int kvc_tool_bench_fork(int argc, char **argv);
int kvc_tool_bench_pool(int argc, char **argv);
int kvc_tool_bench_prefix(int argc, char **argv);
int kvc_tool_bench_tier(int argc, char **argv);

#endif
