/** @file
 * redis://[[user]:password@]host[:port][/database] */
#ifndef KVC_REDIS_URL_H
#define KVC_REDIS_URL_H

#include <stdbool.h>

#include <kvcache/status.h>

typedef struct kvc__redis_url {
    bool tls;
    char host[256];
    int port;
    char user[256], password[512]; /* "": none */
    char database[24];             /* a number; "": the default */
} kvc__redis_url;

/** Reads a URL.
 * @errors KVC_E_INVALID; the sentence does not repeat the URL, which may hold a password */
kvc_status kvc__redis_url_parse(kvc__redis_url *out, const char *text);

#endif
