/* In the place of tiers and of what measures files, where the program is built without
 * libkvcache-store: no tier is ever wanted, as the option is refused. */
#include "cli.h"
#include "commands.h"
#include "generate_tiers.h"
#include "tier_option.h"

static const char sentence[] = "--tier: this program was built without libkvcache-store";

int kvc_tool_bench_snapshot(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return cli_usage("this program was built without libkvcache-store");
}

int kvc_tool_bench_tier(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return cli_usage("%s", sentence);
}

bool tier_option_take(tier_options *out, const char *text) {
    (void)out;
    (void)text;
    (void)cli_usage("%s", sentence);
    return false;
}

int generate_tiers_open(struct session *s) {
    (void)s;
    return CLI_DONE;
}

int generate_tiers_restore(struct session *s) {
    (void)s;
    return CLI_DONE;
}

void generate_tiers_publish(struct session *s, const int32_t *ids, int64_t n) {
    (void)s;
    (void)ids;
    (void)n;
}

void generate_tiers_print(const struct session *s) {
    (void)s;
}

void generate_tiers_close(struct session *s) {
    (void)s;
}
