/** @file
 * TLS, where hiredis was built with it; else it is refused when a tier is made. */
#ifndef KVC_REDIS_TLS_H
#define KVC_REDIS_TLS_H

#include <hiredis.h>
#include <stdbool.h>

#include <kvcache/status.h>
#include <kvcache/tier_redis.h>

typedef struct kvc__redis_tls {
    void *context;    /* an SSL_CTX; NULL: no TLS */
    const char *host; /* whose certificate it must be */
} kvc__redis_tls;

/** Reads certificates.
 * @param host  kept
 * @errors KVC_E_UNSUPPORTED built without; KVC_E_INVALID a file; KVC_E_NOMEM */
kvc_status kvc__redis_tls_init(kvc__redis_tls *tls, const kvc_tier_redis_desc *desc,
                               const char *host);

void kvc__redis_tls_deinit(kvc__redis_tls *tls);

/** Shakes hands and verifies the other side; true at once where TLS is not wanted. */
bool kvc__redis_tls_start(const kvc__redis_tls *tls, redisContext *context);

#endif
