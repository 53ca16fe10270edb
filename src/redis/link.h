/** @file
 * One connection: commands go out, replies come in, each within a time. A link that met a fault is
 * closed, since nobody knows which reply would be next. */
#ifndef KVC_REDIS_LINK_H
#define KVC_REDIS_LINK_H

#include <hiredis.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/tier.h>

#include "redis/tls.h"
#include "redis/url.h"

/** To whom, and how patiently. */
typedef struct kvc__redis_peer {
    kvc__redis_url url;
    kvc__redis_tls tls;
    int connect_ms, timeout_ms;
} kvc__redis_peer;

/** What a reply said. */
typedef struct kvc__redis_reply {
    int type; /* REDIS_REPLY_… */
    long long integer;
    size_t bytes;         /* of a string */
    char text[64];        /* its begin, when it did not go to `into` */
    kvc_tier_value *into; /* where a string of just the right length goes; NULL: nowhere */
} kvc__redis_reply;

typedef struct kvc__redis_link {
    redisContext *context; /* NULL: closed */
    kvc__redis_reply reply;
} kvc__redis_link;

/** Connects and logs in, unless it is open. */
kvc_tier_fault kvc__redis_link_open(kvc__redis_link *link, const kvc__redis_peer *peer);

/** Closes; nothing when closed. */
void kvc__redis_link_close(kvc__redis_link *link);

/** Appends a command to what will be sent. */
kvc_tier_fault kvc__redis_link_add(kvc__redis_link *link, int count, const char **words,
                                   const size_t *bytes);

/** Appends bytes of a command that are there already: one copy. */
kvc_tier_fault kvc__redis_link_add_bytes(kvc__redis_link *link, const void *data, size_t bytes);

/** Sends what was added. */
kvc_tier_fault kvc__redis_link_flush(kvc__redis_link *link, const kvc__redis_peer *peer);

/** Receives the next reply into link->reply; a string into a value, where one is given. */
kvc_tier_fault kvc__redis_link_read(kvc__redis_link *link, const kvc__redis_peer *peer,
                                    kvc_tier_value *into);

#endif
