#include "append_plot.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "outfile.h"

extern char **environ;

/* Colours that colour-blind readers tell apart (Okabe and Ito), and a mark each. */
static const struct style {
    const char *colour;
    int mark; /* gnuplot's point type */
    int dash;
} styles[APPEND_STRATEGIES] = {
    [APPEND_CONCAT] = {"#D55E00", 5, 1},  [APPEND_CHUNK] = {"#0072B2", 7, 1},
    [APPEND_ASSIGN] = {"#CC79A7", 13, 1}, [APPEND_RESERVE] = {"#009E73", 9, 1},
    [APPEND_MEMCPY] = {"#000000", 2, 2},
};

/* Runs gnuplot on a script that comes from file descriptor `in`, its picture going to `out`. */
static int run_gnuplot(int in, int out) {
    char name[] = "gnuplot", dash[] = "-";
    char *const arguments[] = {name, dash, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    pid_t child;
    int status = 0;
    (void)sigemptyset(&defaults);
    (void)sigaddset(&defaults, SIGPIPE);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setsigdefault(&attributes, &defaults);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    const int failed = posix_spawnp(&child, name, &actions, &attributes, arguments, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    if (failed == ENOENT)
        return cli_fail("--plot: gnuplot is not installed; try 'apt-get install gnuplot-nox'");
    if (failed) return cli_fail("--plot: gnuplot cannot be started: %s", strerror(failed));
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return cli_fail("--plot: gnuplot failed with status %d", WEXITSTATUS(status));
    return CLI_DONE;
}

int append_plot_check(const char *path) {
    FILE *empty = tmpfile();
    if (!empty) return cli_fail("--plot: no temporary file: %s", strerror(errno));
    int status = run_gnuplot(fileno(empty), STDERR_FILENO);
    (void)fclose(empty);
    if (status == CLI_DONE) status = outfile_check("--plot", path);
    return status;
}

/* The script: data blocks, then the drawing. */

static bool has_kind(const append_row *rows, size_t count, append_kind kind) {
    for (size_t i = 0; i < count; i++)
        if (rows[i].kind == kind && !rows[i].cold) return true;
    return false;
}

static void put_block(FILE *script, const char *name, const append_row *rows, size_t count,
                      append_kind kind, bool growth) {
    (void)fprintf(script, "$%s << END\n", name);
    for (size_t i = 0; i < count; i++) {
        const double us = growth ? rows[i].growth_p50_us : rows[i].step_us.p50;
        if (rows[i].kind == kind && !rows[i].cold && isfinite(us))
            (void)fprintf(script, "%lld %.6g\n", (long long)rows[i].context, us);
    }
    (void)fputs("END\n", script);
}

/* How much slower the last context is than the first. */
static double slope(const append_row *rows, size_t count, append_kind kind) {
    double first = NAN, last = NAN;
    int64_t least = INT64_MAX, most = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind != kind || rows[i].cold) continue;
        if (rows[i].context < least) {
            least = rows[i].context;
            first = rows[i].step_us.p50;
        }
        if (rows[i].context > most) {
            most = rows[i].context;
            last = rows[i].step_us.p50;
        }
    }
    return last / first;
}

/* Says what is to be seen, if it is. */
static const char *headline(const append_row *rows, size_t count) {
    bool flat = false;
    for (append_kind kind = APPEND_CHUNK; kind <= APPEND_RESERVE; kind++) {
        if (!has_kind(rows, count, kind)) continue;
        if (slope(rows, count, kind) > 1.5) return "Time to append one position";
        flat = true;
    }
    return flat && slope(rows, count, APPEND_CONCAT) > 1.5
               ? "Concatenation slows down as the context grows; appending in place does not"
               : "Time to append one position";
}

static void put_axes(FILE *script, const append_row *rows, size_t count, const append_shape *shape,
                     const char *where) {
    (void)fprintf(script,
                  "set terminal svg size 960,600 font 'DejaVu Sans,Arial,15' background '#ffffff'\n"
                  "set encoding utf8\n"
                  "set title \"{/:Bold %s}\\n{/*0.85 %lld %s caches [1, %lld, N, %lld], one "
                  "position appended to each a step, warm}\"\n"
                  "set xlabel \"context N (positions)\\n{/*0.75 %s}\"\n"
                  "set ylabel 'time per step (µs, log scale)'\n"
                  "set logscale x 2\nset logscale y 10\n"
                  "set format y '%%h'\n"
                  "set grid ytics xtics lc rgb '#dddddd' lw 1\nset border 3 lc rgb '#444444'\n"
                  "set tics nomirror\nset key outside right center reverse Left spacing 1.4\n"
                  "set offsets graph 0.03, graph 0.03, 0, 0\n",
                  headline(rows, count), (long long)shape->caches, kvc_dtype_name(shape->dtype),
                  (long long)shape->heads, (long long)shape->dim, where);
    (void)fputs("set xtics (", script);
    int64_t last = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].cold || rows[i].context == last) continue;
        (void)fprintf(script, "%s%lld", last ? ", " : "", (long long)rows[i].context);
        last = rows[i].context;
    }
    (void)fputs(")\n", script);
}

static void put_script(FILE *script, const append_row *rows, size_t count,
                       const append_shape *shape, const char *where) {
    put_axes(script, rows, count, shape, where);
    for (append_kind kind = 0; kind < APPEND_STRATEGIES; kind++)
        put_block(script, append_names[kind], rows, count, kind, false);
    put_block(script, "growing", rows, count, APPEND_CHUNK, true);
    const char *before = "plot ";
    for (append_kind kind = 0; kind < APPEND_STRATEGIES; kind++) {
        const struct style *style = &styles[kind];
        if (!has_kind(rows, count, kind)) continue;
        (void)fprintf(script,
                      "%s$%s using 1:2 with linespoints lw 2.5 dt %d pt %d ps 0.9 lc rgb '%s' "
                      "title '%s%s'",
                      before, append_names[kind], style->dash, style->mark, style->colour,
                      append_names[kind], kind == APPEND_MEMCPY ? " (floor)" : "");
        before = ", \\\n     ";
    }
    if (has_kind(rows, count, APPEND_CHUNK))
        (void)fprintf(script,
                      "%s$growing using 1:2 with linespoints lw 1.5 dt 3 pt 6 ps 0.9 lc rgb '%s' "
                      "title 'chunk, the step that grows'",
                      before, styles[APPEND_CHUNK].colour);
    (void)fputc('\n', script);
}

int append_plot(const char *path, const append_row *rows, size_t count, const append_shape *shape,
                const char *where) {
    outfile out;
    FILE *script = tmpfile();
    if (!script) return cli_fail("--plot: no temporary file: %s", strerror(errno));
    put_script(script, rows, count, shape, where);
    int status = fflush(script) == 0 && fseek(script, 0, SEEK_SET) == 0
                     ? outfile_begin(&out, path)
                     : cli_fail("--plot: the script cannot be written: %s", strerror(errno));
    if (status == CLI_DONE)
        status = outfile_end(&out, run_gnuplot(fileno(script), fileno(out.stream)));
    (void)fclose(script);
    return status;
}
