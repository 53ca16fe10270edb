#include "tier_option.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/tier_disk.h>
#include <kvcache/tier_redis.h>

#include "cli.h"
#include "scratch.h"

static const char disk[] = "disk:";

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_redis(const char *text) {
    return begins(text, "redis://") || begins(text, "rediss://");
}

bool tier_option_take(tier_options *out, const char *text) {
    const bool is_disk = begins(text, disk) && text[strlen(disk)];
    if (!is_disk && !is_redis(text)) {
        (void)cli_usage("--tier: '%s' given, disk:FOLDER or redis://HOST[:PORT] wanted", text);
        return false;
    }
#ifndef KVC_TOOL_REDIS
    if (is_redis(text)) {
        (void)cli_usage("--tier: redis:// given to a program that was built without "
                        "libkvcache-redis; disk:FOLDER wanted");
        return false;
    }
#endif
    if (out->count == KVC_SPILL_TIERS_MAX) {
        (void)cli_usage("--tier: given more than %d times", KVC_SPILL_TIERS_MAX);
        return false;
    }
    out->texts[out->count++] = text;
    return true;
}

const char *tier_option_folder(const char *text) {
    return is_redis(text) ? NULL : text + strlen(disk);
}

const char *tier_option_kind(const char *text) {
    return is_redis(text) ? "redis" : "disk";
}

int tier_option_scratch(char *out, char *folder, size_t room, const char *text) {
    const char *parent = tier_option_folder(text);
    *folder = '\0';
    if (parent && scratch_make(folder, room, "--tier", parent) != CLI_DONE) return CLI_FAILED;
    (void)snprintf(out, PATH_MAX, parent ? "disk:%s/tier" : "%s", parent ? folder : text);
    return CLI_DONE;
}

static kvc_status open_tier(kvc_tier **out, const char *text, const kvc_tier_desc *desc,
                            int64_t seconds) {
#ifdef KVC_TOOL_REDIS
    const kvc_tier_redis_desc redis_desc = {
        .struct_size = sizeof redis_desc, .url = text, .lifetime_seconds = seconds};
    if (is_redis(text)) return kvc_tier_redis_new(out, desc, &redis_desc);
#endif
    (void)seconds;
    const kvc_tier_disk_desc disk_desc = {.struct_size = sizeof disk_desc,
                                          .folder = tier_option_folder(text)};
    return kvc_tier_disk_new(out, desc, &disk_desc);
}

int tier_option_open(kvc_tier **out, const char *text, const kvc_tier_desc *desc, int64_t seconds) {
    return open_tier(out, text, desc, seconds) == KVC_OK ? CLI_DONE : cli_fail_library("--tier");
}
