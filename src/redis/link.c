#include "redis/link.h"

#include <errno.h>
#include <string.h>
#include <sys/time.h>

#include "base/client.h"

/* A reply that is not a value is short; what is longer is none of ours. */
enum { SHORT_BYTES = 64 * 1024 };

/* hiredis hands over each part of a reply as it lies in its buffer. By default it would copy it to
 * an object of its own; here it goes where it belongs. What these functions return stands for the
 * reply and must not be NULL: a place in this table, by the reply's type. */
static char types[16];

static void *stand_in(int type) {
    return &types[type];
}

/* The type that a stand-in means; 0 for those of types that nobody asked for. */
static int type_of(const void *reply) {
    for (int type = 1; type < (int)sizeof types; type++)
        if (reply == &types[type]) return type;
    return 0;
}

static void *take_string(const redisReadTask *task, char *data, size_t bytes) {
    kvc__redis_reply *reply = task->privdata;
    kvc_tier_value *into = reply->into;
    if (task->parent) return stand_in(task->type); /* of an array, which nobody asked for */
    reply->bytes = bytes;
    if (task->type == REDIS_REPLY_STRING && into &&
        bytes == KVC_TIER_HEADER_BYTES + into->payload_bytes) {
        memcpy(into->header, data, KVC_TIER_HEADER_BYTES);
        if (into->payload_bytes)
            memcpy(into->payload, data + KVC_TIER_HEADER_BYTES, into->payload_bytes);
    } else {
        const size_t shown = bytes < sizeof reply->text ? bytes : sizeof reply->text - 1;
        memcpy(reply->text, data, shown);
        reply->text[shown] = '\0';
    }
    return stand_in(task->type);
}

static void *take_integer(const redisReadTask *task, long long value) {
    kvc__redis_reply *reply = task->privdata;
    if (!task->parent) reply->integer = value;
    return stand_in(task->type);
}

static void *take_nil(const redisReadTask *task) {
    (void)task; /* whose type is that of a string */
    return stand_in(REDIS_REPLY_NIL);
}

static void drop(void *reply) {
    (void)reply; /* a number, not an object */
}

/* Arrays, and the types that later versions add, are left NULL: hiredis stands something else in
 * for them. */
static redisReplyObjectFunctions take = {.createString = take_string,
                                         .createInteger = take_integer,
                                         .createNil = take_nil,
                                         .freeObject = drop};

static struct timeval timeval_of(int ms) {
    return (struct timeval){ms / 1000, ms % 1000 * 1000L};
}

static uint64_t deadline_of(const kvc__redis_peer *peer) {
    return kvc__client_now_ns() + (uint64_t)peer->timeout_ms * 1000000;
}

/* What a context's error means; errno is still that of the call that failed. */
static kvc_tier_fault fault_of(const redisContext *context) {
    switch (context->err) {
    case REDIS_ERR_EOF: return KVC_TIER_CUT;
    case REDIS_ERR_PROTOCOL: return KVC_TIER_REPLY;
    case REDIS_ERR_OOM: return KVC_TIER_NOMEM;
#ifdef REDIS_ERR_TIMEOUT
    case REDIS_ERR_TIMEOUT: return KVC_TIER_SLOW;
#endif
    case REDIS_ERR_IO:
        if (errno == EAGAIN || errno == ETIMEDOUT) return KVC_TIER_SLOW;
        if (errno == ECONNRESET || errno == EPIPE) return KVC_TIER_CUT;
        return KVC_TIER_IO;
    default: return KVC_TIER_IO;
    }
}

kvc_tier_fault kvc__redis_link_add(kvc__redis_link *link, int count, const char **words,
                                   const size_t *bytes) {
    if (redisAppendCommandArgv(link->context, count, words, bytes) == REDIS_OK)
        return KVC_TIER_FINE;
    return KVC_TIER_NOMEM;
}

kvc_tier_fault kvc__redis_link_add_bytes(kvc__redis_link *link, const void *data, size_t bytes) {
    if (redisAppendFormattedCommand(link->context, data, bytes) == REDIS_OK) return KVC_TIER_FINE;
    return KVC_TIER_NOMEM;
}

kvc_tier_fault kvc__redis_link_flush(kvc__redis_link *link, const kvc__redis_peer *peer) {
    const uint64_t deadline = deadline_of(peer);
    for (int done = 0; !done;) {
        if (redisBufferWrite(link->context, &done) != REDIS_OK) return fault_of(link->context);
        if (!done && kvc__client_now_ns() >= deadline) return KVC_TIER_SLOW;
    }
    return KVC_TIER_FINE;
}

kvc_tier_fault kvc__redis_link_read(kvc__redis_link *link, const kvc__redis_peer *peer,
                                    kvc_tier_value *into) {
    const uint64_t deadline = deadline_of(peer);
    const size_t most = SHORT_BYTES + (into ? into->payload_bytes : 0);
    redisContext *context = link->context;
    link->reply = (kvc__redis_reply){.into = into};
    for (;;) {
        void *reply = NULL;
        if (redisGetReplyFromReader(context, &reply) != REDIS_OK) return fault_of(context);
        if (reply) {
            link->reply.type = type_of(reply);
            return KVC_TIER_FINE;
        }
        /* Whatever length a reply claims, no more than this of it is waited for. */
        if (context->reader->len > most) return KVC_TIER_BAD_LENGTH;
        if (kvc__client_now_ns() >= deadline) return KVC_TIER_SLOW;
        if (redisBufferRead(context) != REDIS_OK) return fault_of(context);
    }
}

/* Sends a command that is to be answered with "OK". */
static kvc_tier_fault command(kvc__redis_link *link, const kvc__redis_peer *peer, int count,
                              const char **words) {
    size_t bytes[3];
    for (int i = 0; i < count; i++) bytes[i] = strlen(words[i]);
    kvc_tier_fault fault = kvc__redis_link_add(link, count, words, bytes);
    if (!fault) fault = kvc__redis_link_flush(link, peer);
    if (!fault) fault = kvc__redis_link_read(link, peer, NULL);
    if (!fault && link->reply.type == REDIS_REPLY_ERROR) fault = KVC_TIER_REFUSED;
    if (!fault && link->reply.type != REDIS_REPLY_STATUS) fault = KVC_TIER_REPLY;
    return fault;
}

static kvc_tier_fault log_in(kvc__redis_link *link, const kvc__redis_peer *peer) {
    const kvc__redis_url *url = &peer->url;
    kvc_tier_fault fault = KVC_TIER_FINE;
    if (*url->password) {
        const char *words[3] = {"AUTH", url->user, url->password};
        if (!*url->user) words[1] = url->password;
        fault = command(link, peer, *url->user ? 3 : 2, words);
    }
    if (!fault && *url->database && strcmp(url->database, "0") != 0) {
        const char *words[2] = {"SELECT", url->database};
        fault = command(link, peer, 2, words);
    }
    return fault;
}

static kvc_tier_fault connect_to(kvc__redis_link *link, const kvc__redis_peer *peer) {
    const struct timeval connect = timeval_of(peer->connect_ms),
                         each = timeval_of(peer->timeout_ms);
    link->context = redisConnectWithTimeout(peer->url.host, peer->url.port, connect);
    if (!link->context) return KVC_TIER_NOMEM;
    if (link->context->err) {
        const kvc_tier_fault fault = fault_of(link->context);
        return fault == KVC_TIER_SLOW ? fault : KVC_TIER_REFUSED;
    }
    if (redisSetTimeout(link->context, each) != REDIS_OK) return KVC_TIER_IO;
    link->context->reader->fn = &take;
    link->context->reader->privdata = &link->reply;
    link->context->reader->maxbuf = 0; /* keep the buffer: the next value is as long */
    if (!kvc__redis_tls_start(&peer->tls, link->context)) return KVC_TIER_REFUSED;
    return log_in(link, peer);
}

kvc_tier_fault kvc__redis_link_open(kvc__redis_link *link, const kvc__redis_peer *peer) {
    if (link->context) return KVC_TIER_FINE;
    const kvc_tier_fault fault = connect_to(link, peer);
    if (fault) kvc__redis_link_close(link);
    return fault;
}

void kvc__redis_link_close(kvc__redis_link *link) {
    if (link->context) redisFree(link->context);
    link->context = NULL;
}
