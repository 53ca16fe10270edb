#include "quiet.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "support/support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Gives a trapped call its result. */
#if defined(__x86_64__)
#define SET_RESULT(context, value) ((context)->uc_mcontext.gregs[REG_RAX] = (value))
#elif defined(__aarch64__)
#define SET_RESULT(context, value) ((context)->uc_mcontext.regs[0] = (uint64_t)(int64_t)(value))
#endif

/* Only between the fork and the end of the work; the child has one thread. */
static volatile bool counting;
static volatile uint64_t calls, allocations;
static volatile int64_t first_call = -1;

#if defined(__GLIBC__) && !defined(SANITIZED)
/* NOLINTBEGIN(bugprone-reserved-identifier): glibc's names for its own */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nmemb, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
/* NOLINTEND(bugprone-reserved-identifier) */

static void count_allocation(void) {
    if (counting) allocations++;
}

void *malloc(size_t size) {
    count_allocation();
    return __libc_malloc(size);
}

void *calloc(size_t nmemb, size_t size) {
    count_allocation();
    return __libc_calloc(nmemb, size);
}

void *realloc(void *ptr, size_t size) {
    count_allocation();
    return __libc_realloc(ptr, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count_allocation();
    return __libc_memalign(alignment, size);
}
#endif

#if defined(__GLIBC__) && !defined(SANITIZED) && defined(SET_RESULT)

/* How a child ends. */
enum { RAN = 0, NO_FILTER = 9 };

static void on_trap(int number, siginfo_t *info, void *context) {
    (void)number;
    calls++;
    if (first_call < 0) first_call = info->si_syscall;
    /* brk has no error numbers: it returns the end of the heap, here before any that was asked for.
     */
    SET_RESULT((ucontext_t *)context, info->si_syscall == SYS_brk ? 0 : -ENOSYS);
}

/* Traps every call but those that the child ends with. */
static bool trap_calls(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static _Noreturn void run_in_child(bool (*work)(void *context), void *context, int out) {
    if (!trap_calls()) _exit(NO_FILTER);
    counting = true;
    const bool ok = work(context);
    counting = false;
    const quiet_counts counts = {ok, calls, first_call, allocations};
    const bool told = write(out, &counts, sizeof counts) == (ssize_t)sizeof counts;
    _exit(told ? RAN : 1);
}

/* Returns false where no filter can be set. */
static bool run(quiet_counts *counts, bool (*work)(void *context), void *context) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_in_child(work, context, ends[1]);
    (void)close(ends[1]);
    const ssize_t got = read(ends[0], counts, sizeof *counts);
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_FILTER) return false;
    assert_int_equal(WEXITSTATUS(status), RAN);
    assert_int_equal(got, sizeof *counts);
    return true;
}

static bool do_nothing(void *context) {
    (void)context;
    return true;
}

bool quiet_can_count(void) {
    quiet_counts counts;
    if (run(&counts, do_nothing, NULL)) return true;
    print_message("this system lets no seccomp filter be set\n");
    return false;
}

quiet_counts quiet_run(bool (*work)(void *context), void *context) {
    quiet_counts counts = {0};
    assert_true(run(&counts, work, context));
    return counts;
}

#else

bool quiet_can_count(void) {
    print_message("sanitizers and other libraries' malloc make calls of their own: glibc on x86-64 "
                  "or arm64 without them is wanted\n");
    return false;
}

quiet_counts quiet_run(bool (*work)(void *context), void *context) {
    return (quiet_counts){.ok = work(context)};
}

#endif
