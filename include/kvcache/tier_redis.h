/** @file
 * A tier in Redis or Valkey, through hiredis: one string a value, for several machines.
 *
 * Each connection is a thread's own; batches are spread over them and pipelined. A connection that
 * fails is closed, never used again, and for some time after that nothing is asked: values are
 * KVC_TIER_PAUSED at once. That time doubles with each fault in a row.
 *
 * Copies between the socket and the caller's buffer: a get makes three (hiredis reads 16 KiB at a
 * time, adds them to its buffer, and from there they go to their place), a put two (into hiredis'
 * buffer, from there to the socket).
 *
 * A cluster is not addressed: hiredis has no client for it, and a node's answer that a key lives
 * elsewhere is a fault. Put a proxy that speaks for the cluster before it, such as Envoy's Redis
 * filter or redis-cluster-proxy. Sentinels are not asked either.
 *
 * What is not bounded by the timeouts: looking up the host's name (give an address where that
 * matters), and a TLS handshake whose other side sends byte by byte.
 * Of libkvcache-redis. */
#ifndef KVCACHE_TIER_REDIS_H
#define KVCACHE_TIER_REDIS_H

#include <kvcache/export.h>
#include <kvcache/status.h>
#include <kvcache/tier.h>

/** What fields of a description that are 0 or NULL mean. */
#define KVC_TIER_REDIS_PREFIX           "kvc:"
#define KVC_TIER_REDIS_CONNECTIONS      2     /**< see KVC_TIER_REDIS_PREFIX */
#define KVC_TIER_REDIS_CONNECT_MS       500   /**< see KVC_TIER_REDIS_PREFIX */
#define KVC_TIER_REDIS_TIMEOUT_MS       2000  /**< see KVC_TIER_REDIS_PREFIX */
#define KVC_TIER_REDIS_PAUSE_MS         100   /**< see KVC_TIER_REDIS_PREFIX */
#define KVC_TIER_REDIS_LONGEST_PAUSE_MS 10000 /**< see KVC_TIER_REDIS_PREFIX */

/** What a Redis tier is made with; all strings are borrowed for the call. Zero it, then fill it. */
typedef struct kvc_tier_redis_desc {
    size_t struct_size;       /**< sizeof(kvc_tier_redis_desc) */
    const char *url;          /**< redis://[[user]:password@]host[:port][/database]; rediss:// for
                                 TLS; %xx in user and password; an IPv6 address in [] */
    const char *user;         /**< instead of the URL's */
    const char *password;     /**< instead of the URL's */
    const char *prefix;       /**< of every key; the key follows in hexadecimal */
    int connections;          /**< at most 64 */
    int connect_ms;           /**< most time for a connection */
    int timeout_ms;           /**< most time for a value; at worst twice that */
    int pause_ms;             /**< nothing is asked for so long after a fault, … */
    int longest_pause_ms;     /**< … doubling up to this */
    int64_t lifetime_seconds; /**< the server forgets a value after this; 0: as it is configured */
    const char *ca_file;      /**< TLS: whom to trust, a PEM file; NULL: as the system does */
    const char *cert_file;    /**< TLS: our certificate, a PEM file; NULL: none */
    const char *key_file;     /**< TLS: its key, a PEM file */
} kvc_tier_redis_desc;

KVC_BEGIN_DECLS

/** Makes a tier. It connects when first asked: a server that is not there is a miss.
 * @errors KVC_E_INVALID a description; KVC_E_UNSUPPORTED rediss:// where hiredis was built without
 *         TLS; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_tier_redis_new(kvc_tier **out, const kvc_tier_desc *tier,
                                                   const kvc_tier_redis_desc *desc);

KVC_END_DECLS

#endif
