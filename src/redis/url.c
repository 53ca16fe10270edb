#include "redis/url.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/client.h"

static kvc_status bad(const char *part, const char *wanted) {
    return kvc__fail(KVC_E_INVALID, "desc.url: %s: %s wanted", part, wanted);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const int lower = tolower((unsigned char)c);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Copies bytes, with each %xx as what it stands for; false when that is none or there is no room.
 */
static bool decode(char *out, size_t room, const char *text, size_t bytes) {
    size_t length = 0;
    for (size_t i = 0; i < bytes; i++) {
        int c = (unsigned char)text[i];
        if (c == '%') {
            const int high = bytes - i > 2 ? hex_digit(text[i + 1]) : -1;
            const int low = high < 0 ? -1 : hex_digit(text[i + 2]);
            if (low < 0) return false;
            c = high << 4 | low;
            i += 2;
        }
        if (c == 0 || length + 1 >= room) return false;
        out[length++] = (char)c;
    }
    out[length] = '\0';
    return true;
}

/* A number of digits alone, which ends the text. */
static bool read_number(long *out, const char *text, long most) {
    char *end;
    if (!isdigit((unsigned char)*text) || strlen(text) > 9) return false;
    *out = strtol(text, &end, 10);
    return !*end && *out <= most;
}

static kvc_status parse_login(kvc__redis_url *out, const char *text, size_t bytes) {
    const char *colon = memchr(text, ':', bytes);
    if (!colon) return bad("user", "user:password, or :password,");
    const size_t user = (size_t)(colon - text);
    if (!decode(out->user, sizeof out->user, text, user) ||
        !decode(out->password, sizeof out->password, colon + 1, bytes - user - 1))
        return bad("user and password", "less than 256 and 512 bytes, with good %xx,");
    return KVC_OK;
}

/* host[:port], where a host in [] may have colons. */
static kvc_status parse_host(kvc__redis_url *out, const char *text, size_t bytes) {
    char copy[sizeof out->host + 8];
    if (bytes >= sizeof copy) return bad("host", "less than 256 bytes");
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    char *host = copy, *after = copy + strcspn(copy, ":");
    if (*copy == '[') {
        host = copy + 1;
        after = strchr(host, ']');
        if (!after) return bad("host", "a ] for its [");
        *after++ = '\0';
        if (*after && *after != ':') return bad("host", "a port or nothing behind its ]");
    }
    long port = 6379;
    if (*after) {
        *after = '\0';
        if (!read_number(&port, after + 1, 65535) || port == 0) return bad("port", "1 to 65535");
    }
    if (!*host || strlen(host) >= sizeof out->host) return bad("host", "1 to 255 bytes");
    memcpy(out->host, host, strlen(host) + 1);
    out->port = (int)port;
    return KVC_OK;
}

kvc_status kvc__redis_url_parse(kvc__redis_url *out, const char *text) {
    *out = (kvc__redis_url){0};
    if (!text) return kvc__fail(KVC_E_INVALID, "desc.url: NULL given");
    if (strncmp(text, "rediss://", 9) == 0) out->tls = true;
    else if (strncmp(text, "redis://", 8) != 0) return bad("scheme", "redis:// or rediss://");
    text += out->tls ? 9 : 8;
    size_t authority = strcspn(text, "/");
    const char *path = text + authority;
    for (size_t i = authority; i-- > 0;) { /* the last @: others may be the password's */
        if (text[i] != '@') continue;
        KVC_TRY(parse_login(out, text, i));
        text += i + 1;
        authority -= i + 1;
        break;
    }
    KVC_TRY(parse_host(out, text, authority));
    if (*path && path[1]) {
        long database;
        if (!read_number(&database, path + 1, 1 << 24)) return bad("path", "a database's number");
        (void)snprintf(out->database, sizeof out->database, "%ld", database);
    }
    return KVC_OK;
}
