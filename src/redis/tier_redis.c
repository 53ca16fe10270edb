#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/tier_redis.h>

#include "base/client.h"
#include "redis/link.h"

enum {
    MOST_CONNECTIONS = 64,
    MOST_VALUES = 16,      /* in one pipeline */
    READY_BYTES = 2 << 20, /* of replies that the server shall hold ready: cached on both sides */
    PREFIX_ROOM = 128,
    KEY_ROOM = PREFIX_ROOM + 2 * KVC_BLOCK_KEY_BYTES,
    MS_NS = 1000000
};

typedef struct redis {
    kvc__redis_peer peer;
    char prefix[PREFIX_ROOM];
    char lifetime[24]; /* seconds; "": none */
    uint64_t pause_ns, longest_pause_ns;

    pthread_mutex_t mutex; /* of the next two */
    uint64_t paused_until; /* kvc__now_ns */
    uint64_t next_pause_ns;

    int connections;
    kvc__redis_link links[]; /* [connections], each its worker's */
} redis;

/* A key as the server knows it. */
typedef struct name {
    char text[KEY_ROOM];
    size_t bytes;
} name;

static name name_of(const redis *r, const uint8_t *key) {
    static const char digits[] = "0123456789abcdef";
    name n = {.bytes = strlen(r->prefix)};
    memcpy(n.text, r->prefix, n.bytes);
    for (int i = 0; i < KVC_BLOCK_KEY_BYTES; i++) {
        n.text[n.bytes++] = digits[key[i] >> 4];
        n.text[n.bytes++] = digits[key[i] & 15];
    }
    return n;
}

static bool is_paused(redis *r) {
    (void)pthread_mutex_lock(&r->mutex);
    const bool paused = kvc__client_now_ns() < r->paused_until;
    (void)pthread_mutex_unlock(&r->mutex);
    return paused;
}

/* Connections that fail together are one fault: the pause grows once it is over. */
static void pause_after_fault(redis *r) {
    (void)pthread_mutex_lock(&r->mutex);
    const uint64_t now = kvc__client_now_ns();
    if (now >= r->paused_until) {
        r->paused_until = now + r->next_pause_ns;
        r->next_pause_ns *= 2;
        if (r->next_pause_ns > r->longest_pause_ns) r->next_pause_ns = r->longest_pause_ns;
    }
    (void)pthread_mutex_unlock(&r->mutex);
}

static void end_pause(redis *r) {
    (void)pthread_mutex_lock(&r->mutex);
    r->next_pause_ns = r->pause_ns;
    (void)pthread_mutex_unlock(&r->mutex);
}

/* Opens a worker's link, if it is time to; else says why there is none. */
static kvc_tier_fault open_link(redis *r, kvc__redis_link *link) {
    if (is_paused(r)) return KVC_TIER_PAUSED;
    return kvc__redis_link_open(link, &r->peer);
}

/* Ends a call: values from `first` on have the link's fault, and the link is given up. */
static void close_call(redis *r, kvc__redis_link *link, kvc_tier_fault fault,
                       kvc_tier_value *values, int64_t first, int64_t count) {
    const bool is_too_long = fault == KVC_TIER_BAD_LENGTH; /* of this value, not of the others */
    for (int64_t i = first; i < count; i++) {
        values[i].result = KVC_TIER_FAULT;
        values[i].fault = is_too_long && i > first ? KVC_TIER_CUT : fault;
    }
    if (!fault) end_pause(r);
    if (fault && fault != KVC_TIER_PAUSED) kvc__redis_link_close(link);
    if (fault && fault != KVC_TIER_PAUSED && !is_too_long) pause_after_fault(r);
}

static kvc_tier_fault add_command(const redis *r, kvc__redis_link *link, const char *verb,
                                  const uint8_t *key) {
    const name n = name_of(r, key);
    const char *words[2] = {verb, n.text};
    const size_t bytes[2] = {strlen(verb), n.bytes};
    return kvc__redis_link_add(link, 2, words, bytes);
}

/* The server's own words for a refusal: one of the value, not of the connection. */
static void refuse(const kvc__redis_reply *reply, kvc_tier_value *value) {
    const bool is_full = reply->type == REDIS_REPLY_ERROR && strncmp(reply->text, "OOM ", 4) == 0;
    value->result = KVC_TIER_FAULT;
    value->fault = is_full ? KVC_TIER_FULL : KVC_TIER_REPLY;
}

static void on_exists(const kvc__redis_reply *reply, kvc_tier_value *value) {
    if (reply->type != REDIS_REPLY_INTEGER) refuse(reply, value);
    else if (reply->integer) value->result = KVC_TIER_HIT;
}

static void on_get(const kvc__redis_reply *reply, kvc_tier_value *value) {
    if (reply->type == REDIS_REPLY_NIL) return;
    if (reply->type != REDIS_REPLY_STRING) {
        refuse(reply, value);
    } else if (reply->bytes != KVC_TIER_HEADER_BYTES + value->payload_bytes) {
        value->result = KVC_TIER_FAULT;
        value->fault = KVC_TIER_BAD_LENGTH;
    } else {
        value->result = KVC_TIER_HIT;
    }
}

static void on_put(const kvc__redis_reply *reply, kvc_tier_value *value) {
    if (reply->type == REDIS_REPLY_STATUS) value->result = KVC_TIER_HIT;
    else refuse(reply, value);
}

/* Receives the reply to a value's command. */
static kvc_tier_fault read_one(const redis *r, kvc__redis_link *link, kvc_tier_value *value,
                               void (*on_reply)(const kvc__redis_reply *, kvc_tier_value *)) {
    kvc_tier_value *into = on_reply == on_get ? value : NULL;
    const kvc_tier_fault fault = kvc__redis_link_read(link, &r->peer, into);
    if (!fault) on_reply(&link->reply, value);
    return fault;
}

/* Sends commands ahead of the replies that are waited for: those of `at` and what follows, as far
 * as the server shall hold replies ready. */
static kvc_tier_fault send_ahead(const redis *r, kvc__redis_link *link, const char *verb,
                                 const kvc_tier_value *values, int64_t at, int64_t count,
                                 int64_t *sent) {
    const int64_t before = *sent;
    kvc_tier_fault fault = KVC_TIER_FINE;
    size_t ready = 0;
    for (int64_t i = at; i < *sent; i++) ready += values[i].payload_bytes;
    for (; *sent < count && (*sent - at < 2 || ready < READY_BYTES) && !fault; ++*sent) {
        ready += values[*sent].payload_bytes;
        fault = add_command(r, link, verb, values[*sent].key);
    }
    return fault || *sent == before ? fault : kvc__redis_link_flush(link, &r->peer);
}

/* One command a value, some of them sent before the first reply is read. */
static void ask_all(redis *r, int worker, const char *verb, kvc_tier_value *values, int64_t count,
                    void (*on_reply)(const kvc__redis_reply *, kvc_tier_value *)) {
    kvc__redis_link *link = &r->links[worker];
    kvc_tier_fault fault = open_link(r, link);
    int64_t sent = 0, read = 0;
    while (!fault && read < count) {
        fault = send_ahead(r, link, verb, values, read, count, &sent);
        if (!fault) fault = read_one(r, link, &values[read], on_reply);
        read += !fault;
    }
    close_call(r, link, fault, values, read, count);
}

static void exists_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    ask_all(context, worker, "EXISTS", values, count, on_exists);
}

static void get_into_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    ask_all(context, worker, "GET", values, count, on_get);
}

/* SET key value [EX seconds], in its words' own form: hiredis takes a command's words whole, and
 * would have header and payload copied together first. */
static kvc_tier_fault add_set(const redis *r, kvc__redis_link *link, const kvc_tier_value *value) {
    char head[KEY_ROOM + 96], tail[64] = "\r\n";
    const name n = name_of(r, value->key);
    const int head_bytes = snprintf(
        head, sizeof head, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%.*s\r\n$%zu\r\n", *r->lifetime ? 5 : 3,
        n.bytes, (int)n.bytes, n.text, KVC_TIER_HEADER_BYTES + value->payload_bytes);
    if (*r->lifetime)
        (void)snprintf(tail, sizeof tail, "\r\n$2\r\nEX\r\n$%zu\r\n%s\r\n", strlen(r->lifetime),
                       r->lifetime);
    kvc_tier_fault fault = kvc__redis_link_add_bytes(link, head, (size_t)head_bytes);
    if (!fault) fault = kvc__redis_link_add_bytes(link, value->header, KVC_TIER_HEADER_BYTES);
    if (!fault && value->payload_bytes)
        fault = kvc__redis_link_add_bytes(link, value->payload, value->payload_bytes);
    if (!fault) fault = kvc__redis_link_add_bytes(link, tail, strlen(tail));
    return fault;
}

/* Values go out one by one, so that only one is copied at a time; replies are short, and wait. */
static void put_many(void *context, int worker, kvc_tier_value *values, int64_t count) {
    redis *r = context;
    kvc__redis_link *link = &r->links[worker];
    kvc_tier_fault fault = open_link(r, link);
    for (int64_t i = 0; i < count && !fault; i++) {
        fault = add_set(r, link, &values[i]);
        if (!fault) fault = kvc__redis_link_flush(link, &r->peer);
    }
    int64_t read = 0;
    for (; read < count && !fault; read += !fault) fault = read_one(r, link, &values[read], on_put);
    close_call(r, link, fault, values, read, count);
}

static void on_remove(const kvc__redis_reply *reply, kvc_tier_value *value) {
    (void)reply;
    (void)value;
}

static void remove_one(void *context, int worker, const uint8_t *key) {
    kvc_tier_value value = {.key = key};
    ask_all(context, worker, "DEL", &value, 1, on_remove);
}

static void free_redis(void *context) {
    redis *r = context;
    for (int i = 0; i < r->connections; i++) kvc__redis_link_close(&r->links[i]);
    kvc__redis_tls_deinit(&r->peer.tls);
    (void)pthread_mutex_destroy(&r->mutex);
    explicit_bzero(r->peer.url.password, sizeof r->peer.url.password);
    kvc__client_free(r, 1, sizeof *r + (size_t)r->connections * sizeof *r->links);
}

/* What 0 means, and what is too much. */
static kvc_status take_number(int *number, const char *field, int otherwise, int most) {
    if (*number == 0) *number = otherwise;
    if (*number > 0 && *number <= most) return KVC_OK;
    return kvc__fail(KVC_E_INVALID, "desc.%s: %d given, 0 to %d wanted", field, *number, most);
}

static kvc_status take_string(char *out, size_t room, const char *field, const char *given) {
    if (!given) return KVC_OK;
    if (strlen(given) >= room)
        return kvc__fail(KVC_E_INVALID, "desc.%s: %zu bytes given, less than %zu wanted", field,
                         strlen(given), room);
    memcpy(out, given, strlen(given) + 1);
    return KVC_OK;
}

static kvc_status take_desc(redis *r, kvc_tier_redis_desc *desc) {
    const int an_hour = 3600 * 1000;
    kvc__redis_url *url = &r->peer.url;
    KVC_TRY(kvc__redis_url_parse(url, desc->url));
    KVC_TRY(take_string(url->user, sizeof url->user, "user", desc->user));
    KVC_TRY(take_string(url->password, sizeof url->password, "password", desc->password));
    KVC_TRY(take_string(r->prefix, sizeof r->prefix, "prefix",
                        desc->prefix ? desc->prefix : KVC_TIER_REDIS_PREFIX));
    KVC_TRY(take_number(&desc->connect_ms, "connect_ms", KVC_TIER_REDIS_CONNECT_MS, an_hour));
    KVC_TRY(take_number(&desc->timeout_ms, "timeout_ms", KVC_TIER_REDIS_TIMEOUT_MS, an_hour));
    KVC_TRY(take_number(&desc->pause_ms, "pause_ms", KVC_TIER_REDIS_PAUSE_MS, an_hour));
    KVC_TRY(take_number(&desc->longest_pause_ms, "longest_pause_ms",
                        KVC_TIER_REDIS_LONGEST_PAUSE_MS, an_hour));
    if (desc->lifetime_seconds < 0)
        return kvc__fail(KVC_E_INVALID, "desc.lifetime_seconds: %lld given, at least 0 wanted",
                         (long long)desc->lifetime_seconds);
    if (desc->lifetime_seconds)
        (void)snprintf(r->lifetime, sizeof r->lifetime, "%lld", (long long)desc->lifetime_seconds);
    r->peer.connect_ms = desc->connect_ms;
    r->peer.timeout_ms = desc->timeout_ms;
    r->pause_ns = r->next_pause_ns = (uint64_t)desc->pause_ms * MS_NS;
    r->longest_pause_ns = (uint64_t)desc->longest_pause_ms * MS_NS;
    return url->tls ? kvc__redis_tls_init(&r->peer.tls, desc, url->host) : KVC_OK;
}

kvc_status kvc_tier_redis_new(kvc_tier **out, const kvc_tier_desc *tier,
                              const kvc_tier_redis_desc *desc) {
    kvc_tier_redis_desc full;
    void *memory;
    if (!out) return kvc__fail(KVC_E_INVALID, "out: NULL given");
    *out = NULL;
    KVC_TRY(kvc__client_struct_in(&full, sizeof full, desc, "kvc_tier_redis_desc"));
    KVC_TRY(take_number(&full.connections, "connections", KVC_TIER_REDIS_CONNECTIONS,
                        MOST_CONNECTIONS));
    const size_t bytes = sizeof(redis) + (size_t)full.connections * sizeof(kvc__redis_link);
    KVC_TRY(kvc__client_calloc(&memory, 1, bytes, "Redis tier"));
    redis *r = memory;
    r->connections = full.connections;
    (void)pthread_mutex_init(&r->mutex, NULL);
    kvc_status status = take_desc(r, &full);
    if (status == KVC_OK) {
        const kvc_tier_backend backend = {.struct_size = sizeof backend,
                                          .name = "redis",
                                          .context = r,
                                          .workers = r->connections,
                                          .most_values = MOST_VALUES,
                                          .exists_many = exists_many,
                                          .get_into_many = get_into_many,
                                          .put_many = put_many,
                                          .remove = remove_one,
                                          .free = free_redis};
        status = kvc_tier_new(out, &backend, tier);
    }
    if (status != KVC_OK) free_redis(r);
    return status;
}
