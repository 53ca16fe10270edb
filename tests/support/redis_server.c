#include "support/redis_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/support.h"
#include "support/tier_fixture.h"

static const char *find_program(void) {
    static char path[512];
    const char *const names[] = {"valkey-server", "redis-server"};
    const char *const folders[] = {"/usr/bin", "/usr/local/bin"};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            (void)snprintf(path, sizeof path, "%s/%s", folders[j], names[i]);
            if (access(path, X_OK) == 0) return path;
        }
    print_message("skipped: neither redis-server nor valkey-server is installed\n");
    skip();
    return NULL;
}

/* A port that was free a moment ago. */
static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    (void)close(fd);
    return ntohs(address.sin_port);
}

static redisContext *connect_to(const test_redis *server) {
    const struct timeval a_second = {.tv_sec = 1};
    redisContext *context = redisConnectWithTimeout("127.0.0.1", server->port, a_second);
    if (context && !context->err && server->password)
        freeReplyObject(redisCommand(context, "AUTH %s", server->password));
    return context;
}

static bool answers(const test_redis *server) {
    redisContext *context = connect_to(server);
    if (server->tls) { /* that it listens is enough */
        const bool listens = context && !context->err;
        if (context) redisFree(context);
        return listens;
    }
    redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
    const bool good = reply && reply->type == REDIS_REPLY_STATUS;
    freeReplyObject(reply);
    if (context) redisFree(context);
    return good;
}

static void run(const test_redis *server, const char *program) {
    char port[16], key[300], certificate[300];
    const char *words[24] = {program, "--bind", "127.0.0.1", "--save", "", "--dir", server->folder};
    int count = 7;
    (void)snprintf(port, sizeof port, "%d", server->port);
    (void)snprintf(key, sizeof key, "%s/key.pem", server->folder);
    (void)snprintf(certificate, sizeof certificate, "%s/cert.pem", server->folder);
    const char *const plain[] = {"--port", port};
    const char *const tls[] = {
        "--port",          "0",         "--tls-port",         port, "--tls-key-file", key,
        "--tls-cert-file", certificate, "--tls-auth-clients", "no"};
    for (int i = 0; i < (server->tls ? 10 : 2); i++)
        words[count++] = server->tls ? tls[i] : plain[i];
    if (server->password) {
        words[count++] = "--requirepass";
        words[count++] = server->password;
    }
    const int log = open("/dev/null", O_WRONLY);
    (void)dup2(log, STDOUT_FILENO);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)execv(program, (char **)words);
    _exit(127);
}

void test_redis_start(test_redis *server) {
    const char *program = find_program();
    const struct timespec moment = {.tv_nsec = 10000000};
    server->process = fork();
    assert_true(server->process >= 0);
    if (server->process == 0) run(server, program);
    for (int i = 0; !answers(server); i++) {
        if (i == 1000 || waitpid(server->process, NULL, WNOHANG) != 0)
            fail_msg("%s does not start on port %d", program, server->port);
        (void)nanosleep(&moment, NULL);
    }
}

void test_redis_init(test_redis *server, const char *password) {
    (void)find_program();
    *server = (test_redis){.port = free_port(), .password = password};
    server->folder = test_folder_new();
    test_redis_start(server);
}

void test_redis_init_tls(test_redis *server) {
    (void)find_program();
    server->port = free_port();
    server->tls = true;
    test_redis_start(server);
}

void test_redis_kill(test_redis *server) {
    if (server->process <= 0) return;
    (void)kill(server->process, SIGKILL);
    (void)waitpid(server->process, NULL, 0);
    server->process = 0;
}

void test_redis_deinit(test_redis *server) {
    test_redis_kill(server);
    if (server->folder) test_folder_remove(server->folder);
    server->folder = NULL;
}

void test_redis_pause(const test_redis *server, bool pause) {
    assert_int_equal(kill(server->process, pause ? SIGSTOP : SIGCONT), 0);
}

long long test_redis_command(const test_redis *server, const char *format, ...) {
    va_list arguments;
    redisContext *context = connect_to(server);
    assert_non_null(context);
    va_start(arguments, format);
    redisReply *reply = redisvCommand(context, format, arguments);
    va_end(arguments);
    assert_non_null(reply);
    assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
    const long long integer = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    redisFree(context);
    return integer;
}
