/** @file
 * A Redis or Valkey server of the test's own, on loopback and a free port; and a proxy before it
 * that does to replies what networks do. */
#ifndef KVC_TEST_REDIS_SERVER_H
#define KVC_TEST_REDIS_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** A server. */
typedef struct test_redis {
    pid_t process; /* 0: none runs */
    int port;
    char *folder;
    const char *password; /* NULL: none */
    bool tls;             /* on its port, nothing else */
} test_redis;

/** Finds a port, starts a server and waits for it; skips the running test where none is installed.
 */
void test_redis_init(test_redis *server, const char *password);

/** The same with TLS, and what key.pem and cert.pem in its folder hold. */
void test_redis_init_tls(test_redis *server);

/** Kills it, and removes its folder. */
void test_redis_deinit(test_redis *server);

/** Kills it: what it held is gone. */
void test_redis_kill(test_redis *server);

/** Starts it again, on the same port. */
void test_redis_start(test_redis *server);

/** Stops it where it is, or has it go on. */
void test_redis_pause(const test_redis *server, bool pause);

/** Sends a command, as a user of the server's would; returns its integer, or 0. The test fails
 * where the server refuses it. */
long long test_redis_command(const test_redis *server, const char *format, ...);

/** What a proxy does with what the server sends. */
typedef enum test_proxy_mode {
    TEST_PROXY_PASS,    /* hands it on */
    TEST_PROXY_CUT,     /* closes after `amount` bytes of a connection */
    TEST_PROXY_GARBLE,  /* flips a bit in about one of `amount` bytes */
    TEST_PROXY_DRIP,    /* a byte each 5 ms */
    TEST_PROXY_SWALLOW, /* nothing comes */
    TEST_PROXY_NOISE,   /* sends random bytes, for each that the client sends */
    TEST_PROXY_REFUSE   /* closes at once */
} test_proxy_mode;

/** A proxy. */
typedef struct test_proxy test_proxy;

/** Starts one before a server's port. */
test_proxy *test_proxy_new(int server_port);

/** Ends it. */
void test_proxy_free(test_proxy *proxy);

/** Its port. */
int test_proxy_port(const test_proxy *proxy);

/** Changes what it does, from the next bytes on; counts of bytes begin anew. */
void test_proxy_set(test_proxy *proxy, test_proxy_mode mode, int64_t amount);

/** The connections that it was asked for so far. */
int64_t test_proxy_connections(const test_proxy *proxy);

#endif
