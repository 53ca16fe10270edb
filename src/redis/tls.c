#include "redis/tls.h"

#include "base/client.h"

#ifdef KVC_HIREDIS_SSL

#include <arpa/inet.h>
#include <hiredis_ssl.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* A context of our own rather than hiredis', which does not compare the host's name with the
 * certificate's. */
kvc_status kvc__redis_tls_init(kvc__redis_tls *tls, const kvc_tier_redis_desc *desc,
                               const char *host) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) return kvc__fail(KVC_E_NOMEM, "desc.url: no memory for TLS");
    *tls = (kvc__redis_tls){context, host};
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    const char *wrong = NULL;
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) wrong = "url: TLS 1.2";
    if (desc->ca_file ? SSL_CTX_load_verify_locations(context, desc->ca_file, NULL) != 1
                      : SSL_CTX_set_default_verify_paths(context) != 1)
        wrong = "ca_file: certificates";
    if (desc->cert_file && SSL_CTX_use_certificate_chain_file(context, desc->cert_file) != 1)
        wrong = "cert_file: a certificate";
    if (desc->key_file &&
        SSL_CTX_use_PrivateKey_file(context, desc->key_file, SSL_FILETYPE_PEM) != 1)
        wrong = "key_file: the certificate's key";
    if (!wrong) return KVC_OK;
    kvc__redis_tls_deinit(tls);
    return kvc__fail(KVC_E_INVALID, "desc.%s wanted, and not to be had", wrong);
}

void kvc__redis_tls_deinit(kvc__redis_tls *tls) {
    SSL_CTX_free(tls->context);
    tls->context = NULL;
}

static bool expect_host(SSL *ssl, const char *host) {
    unsigned char address[16];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    return SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
}

bool kvc__redis_tls_start(const kvc__redis_tls *tls, redisContext *context) {
    if (!tls->context) return true;
    SSL *ssl = SSL_new(tls->context);
    if (!ssl) return false;
    if (!expect_host(ssl, tls->host)) {
        SSL_free(ssl);
        return false;
    }
    return redisInitiateSSL(context, ssl) == REDIS_OK; /* which owns it from here on */
}

#else

kvc_status kvc__redis_tls_init(kvc__redis_tls *tls, const kvc_tier_redis_desc *desc,
                               const char *host) {
    (void)tls;
    (void)desc;
    (void)host;
    return kvc__fail(KVC_E_UNSUPPORTED,
                     "desc.url: rediss:// given; this build has a hiredis without TLS");
}

void kvc__redis_tls_deinit(kvc__redis_tls *tls) {
    (void)tls;
}

bool kvc__redis_tls_start(const kvc__redis_tls *tls, redisContext *context) {
    (void)context;
    return !tls->context;
}

#endif
