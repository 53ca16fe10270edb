#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "support/redis_server.h"
#include "support/support.h"

enum { MOST = 32, CHUNK = 16384 };

/* A client's connection, and ours to the server for it. */
typedef struct pair {
    int client, server; /* -1: free */
    int64_t sent;       /* to the client since the mode was set */
} pair;

struct test_proxy {
    int listener, port, server_port;
    pthread_t thread;
    atomic_bool stop;
    atomic_int mode, turn;
    atomic_llong amount, connections;
    int seen_turn;
    uint64_t random;
    pair pairs[MOST];
};

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void close_pair(pair *p) {
    if (p->client >= 0) (void)close(p->client);
    if (p->server >= 0) (void)close(p->server);
    *p = (pair){-1, -1, 0};
}

static void accept_one(test_proxy *proxy) {
    const struct sockaddr_in address = loopback(proxy->server_port);
    const int client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
    pair *p = NULL;
    if (client < 0) return;
    (void)atomic_fetch_add(&proxy->connections, 1);
    for (int i = 0; i < MOST; i++)
        if (proxy->pairs[i].client < 0) p = &proxy->pairs[i];
    if (!p || atomic_load(&proxy->mode) == TEST_PROXY_REFUSE) {
        (void)close(client);
        return;
    }
    *p = (pair){client, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 0};
    if (connect(p->server, (const struct sockaddr *)&address, sizeof address) != 0) close_pair(p);
}

/* Sends all of it, unless the other side has gone, or stops reading for long. */
static bool send_all(int fd, const char *data, ssize_t bytes) {
    while (bytes > 0) {
        const ssize_t sent = send(fd, data, (size_t)bytes, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        data += sent;
        bytes -= sent;
    }
    return true;
}

static bool drip(const test_proxy *proxy, int fd, const char *data, ssize_t bytes) {
    const struct timespec moment = {.tv_nsec = 5000000};
    for (ssize_t i = 0; i < bytes; i++) {
        if (atomic_load(&proxy->stop) || atomic_load(&proxy->mode) != TEST_PROXY_DRIP) return false;
        if (!send_all(fd, data + i, 1)) return false;
        (void)nanosleep(&moment, NULL);
    }
    return true;
}

/* Hands on what the server sent, in the manner of the mode; false ends the connection. */
static bool hand_on(test_proxy *proxy, pair *p, char *data, ssize_t bytes) {
    const int64_t amount = atomic_load(&proxy->amount);
    switch ((test_proxy_mode)atomic_load(&proxy->mode)) {
    case TEST_PROXY_CUT:
        if (p->sent + bytes >= amount) {
            (void)send_all(p->client, data, (ssize_t)(amount - p->sent));
            return false;
        }
        break;
    case TEST_PROXY_GARBLE:
        for (ssize_t i = 0; i < bytes; i++)
            if (test_below(&proxy->random, amount) == 0)
                data[i] = (char)(data[i] ^ 1 << test_below(&proxy->random, 8));
        break;
    case TEST_PROXY_DRIP: return drip(proxy, p->client, data, bytes);
    case TEST_PROXY_SWALLOW:
    case TEST_PROXY_NOISE: return true;
    case TEST_PROXY_REFUSE: return false;
    case TEST_PROXY_PASS: break;
    }
    p->sent += bytes;
    return send_all(p->client, data, bytes);
}

static bool from_client(test_proxy *proxy, const pair *p, char *data, ssize_t bytes) {
    if (atomic_load(&proxy->mode) != TEST_PROXY_NOISE) return send_all(p->server, data, bytes);
    for (ssize_t i = 0; i < bytes; i++) data[i] = (char)test_random(&proxy->random);
    data[0] = "+-:$*"[test_below(&proxy->random, 5)]; /* as if it were a reply */
    return send_all(p->client, data, bytes);
}

static void serve(test_proxy *proxy, pair *p, bool client_speaks, bool server_speaks) {
    char data[CHUNK];
    bool good = true;
    if (client_speaks) {
        const ssize_t bytes = recv(p->client, data, sizeof data, 0);
        good = bytes > 0 && from_client(proxy, p, data, bytes);
    }
    if (good && server_speaks) {
        const ssize_t bytes = recv(p->server, data, sizeof data, 0);
        good = bytes > 0 && hand_on(proxy, p, data, bytes);
    }
    if (!good) close_pair(p);
}

static void *run(void *argument) {
    test_proxy *proxy = argument;
    while (!atomic_load(&proxy->stop)) {
        struct pollfd fds[1 + 2 * MOST] = {{.fd = proxy->listener, .events = POLLIN}};
        for (int i = 0; i < MOST; i++) {
            fds[1 + 2 * i] = (struct pollfd){.fd = proxy->pairs[i].client, .events = POLLIN};
            fds[2 + 2 * i] = (struct pollfd){.fd = proxy->pairs[i].server, .events = POLLIN};
        }
        (void)poll(fds, 1 + 2 * MOST, 10);
        const int turn = atomic_load(&proxy->turn);
        for (int i = 0; i < MOST; i++) {
            pair *p = &proxy->pairs[i];
            if (turn != proxy->seen_turn) p->sent = 0;
            if (p->client >= 0) serve(proxy, p, fds[1 + 2 * i].revents, fds[2 + 2 * i].revents);
        }
        proxy->seen_turn = turn;
        if (fds[0].revents) accept_one(proxy);
    }
    return NULL;
}

test_proxy *test_proxy_new(int server_port) {
    struct sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof address;
    test_proxy *proxy = calloc(1, sizeof *proxy);
    assert_non_null(proxy);
    proxy->server_port = server_port;
    proxy->random = 77;
    for (int i = 0; i < MOST; i++) proxy->pairs[i] = (pair){-1, -1, 0};
    proxy->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(proxy->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(proxy->listener, MOST), 0);
    assert_int_equal(getsockname(proxy->listener, (struct sockaddr *)&address, &bytes), 0);
    proxy->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&proxy->thread, NULL, run, proxy), 0);
    return proxy;
}

void test_proxy_free(test_proxy *proxy) {
    atomic_store(&proxy->stop, true);
    (void)pthread_join(proxy->thread, NULL);
    for (int i = 0; i < MOST; i++) close_pair(&proxy->pairs[i]);
    (void)close(proxy->listener);
    free(proxy);
}

int test_proxy_port(const test_proxy *proxy) {
    return proxy->port;
}

void test_proxy_set(test_proxy *proxy, test_proxy_mode mode, int64_t amount) {
    atomic_store(&proxy->amount, amount);
    atomic_store(&proxy->mode, (int)mode);
    (void)atomic_fetch_add(&proxy->turn, 1);
}

int64_t test_proxy_connections(const test_proxy *proxy) {
    return atomic_load(&proxy->connections);
}
