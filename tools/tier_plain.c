#include "tier_plain.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef KVC_TOOL_REDIS
#include <hiredis.h>
#endif

#include "cli.h"

enum { PIPELINED = 16 };

struct tier_plain {
    int folder; /* -1: Redis */
#ifdef KVC_TOOL_REDIS
    redisContext *context;
#endif
};

#ifdef KVC_TOOL_REDIS
static int connect_plainly(tier_plain *plain, const char *text) {
    static const char scheme[] = "redis://";
    char host[256], *end = NULL;
    long port = 6379;
    const char *from = text + strlen(scheme);
    const size_t length = strcspn(from, ":/@");
    const bool is_plain = strncmp(text, scheme, strlen(scheme)) == 0 && length < sizeof host;
    (void)snprintf(host, sizeof host, "%.*s", (int)length, is_plain ? from : "");
    if (is_plain && from[length] == ':') port = strtol(from + length + 1, &end, 10);
    if (!is_plain || *(end ? end : from + length) || port < 1 || port > 65535)
        return cli_usage("--tier: for plain hiredis redis://HOST[:PORT] wanted, without the rest");
    plain->context = redisConnect(host, (int)port);
    if (plain->context && !plain->context->err) return CLI_DONE;
    return cli_fail("--tier: %s: %s", text, plain->context ? plain->context->errstr : "no memory");
}

/* Takes replies of commands that were sent; copies strings to data, where it is not NULL. */
static bool take_replies(redisContext *context, char *data, int64_t count, size_t bytes) {
    bool good = true;
    for (int64_t i = 0; i < count; i++) {
        void *taken = NULL;
        if (redisGetReply(context, &taken) != REDIS_OK) return false;
        const redisReply *reply = taken;
        good = good && reply->type == (data ? REDIS_REPLY_STRING : REDIS_REPLY_STATUS) &&
               (!data || reply->len == bytes);
        if (good && data) memcpy(data + (size_t)i * bytes, reply->str, bytes);
        freeReplyObject(taken);
    }
    return good;
}

static bool redis_put(redisContext *context, const char *data, int64_t count, size_t bytes) {
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < PIPELINED ? count - i : PIPELINED;
        for (int64_t j = i; j < i + n; j++)
            if (redisAppendCommand(context, "SET kvc-bench:%lld %b EX 60", (long long)j,
                                   data + (size_t)j * bytes, bytes) != REDIS_OK)
                return false;
        if (!take_replies(context, NULL, n, bytes)) return false;
    }
    return true;
}

static bool redis_get(redisContext *context, char *data, int64_t count, size_t bytes) {
    for (int64_t i = 0, n; i < count; i += n) {
        n = count - i < PIPELINED ? count - i : PIPELINED;
        for (int64_t j = i; j < i + n; j++)
            if (redisAppendCommand(context, "GET kvc-bench:%lld", (long long)j) != REDIS_OK)
                return false;
        if (!take_replies(context, data + (size_t)i * bytes, n, bytes)) return false;
    }
    return true;
}
#endif

int tier_plain_open(tier_plain **out, const char *text, const char *folder) {
    tier_plain *plain = *out = calloc(1, sizeof *plain);
    if (!plain) return cli_fail("no memory");
    plain->folder = -1;
#ifdef KVC_TOOL_REDIS
    if (!folder) return connect_plainly(plain, text);
#endif
    (void)text;
    plain->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return plain->folder >= 0 ? CLI_DONE : cli_fail("--tier: %s cannot be opened", folder);
}

void tier_plain_close(tier_plain *plain) {
    if (!plain) return;
    if (plain->folder >= 0) (void)close(plain->folder);
#ifdef KVC_TOOL_REDIS
    if (plain->context) redisFree(plain->context);
#endif
    free(plain);
}

static int open_file(const tier_plain *plain, int64_t number, int flags) {
    char name[32];
    (void)snprintf(name, sizeof name, "plain-%lld", (long long)number);
    return openat(plain->folder, name, flags | O_CLOEXEC, 0600);
}

static bool write_file(const tier_plain *plain, int64_t number, const char *data, size_t bytes) {
    const int fd = open_file(plain, number, O_WRONLY | O_CREAT | O_TRUNC);
    size_t done = 0;
    for (ssize_t n = 1; fd >= 0 && done < bytes && n > 0; done += n > 0 ? (size_t)n : 0)
        n = write(fd, data + done, bytes - done);
    return fd >= 0 && close(fd) == 0 && done == bytes;
}

static bool read_file(const tier_plain *plain, int64_t number, char *data, size_t bytes) {
    const int fd = open_file(plain, number, O_RDONLY);
    size_t done = 0;
    for (ssize_t n = 1; fd >= 0 && done < bytes && n > 0; done += n > 0 ? (size_t)n : 0)
        n = read(fd, data + done, bytes - done);
    return fd >= 0 && close(fd) == 0 && done == bytes;
}

bool tier_plain_put(tier_plain *plain, const char *data, int64_t count, int64_t bytes) {
    bool good = true;
#ifdef KVC_TOOL_REDIS
    if (plain->context) return redis_put(plain->context, data, count, (size_t)bytes);
#endif
    for (int64_t i = 0; i < count && good; i++)
        good = write_file(plain, i, data + i * bytes, (size_t)bytes);
    return good;
}

bool tier_plain_get(tier_plain *plain, char *data, int64_t count, int64_t bytes) {
    bool good = true;
#ifdef KVC_TOOL_REDIS
    if (plain->context) return redis_get(plain->context, data, count, (size_t)bytes);
#endif
    for (int64_t i = 0; i < count && good; i++)
        good = read_file(plain, i, data + i * bytes, (size_t)bytes);
    return good;
}
