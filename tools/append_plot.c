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

/* Colours that colour-blind readers tell apart (Okabe and Ito), and a mark each: first those of the
 * seed's table, which look the same in every picture, then what others get in turn. */
static const struct style {
    const char *name;
    const char *colour;
    int mark; /* gnuplot's point type */
    int dash;
} styles[] = {
    {"concat", "#D55E00", 5, 1},  {"chunk", "#0072B2", 7, 1},  {"assign", "#CC79A7", 13, 1},
    {"reserve", "#009E73", 9, 1}, {"memcpy", "#000000", 2, 2}, {NULL, "#E69F00", 4, 1},
    {NULL, "#56B4E9", 6, 1},      {NULL, "#B0A000", 8, 1},     {NULL, "#666666", 12, 1},
};
enum { STYLES = sizeof styles / sizeof *styles, NAMED_STYLES = 5 };

/* The style of the n-th strategy that has none of its own, or of one that has. */
static const struct style *style_of(const char *name, size_t n) {
    for (size_t i = 0; i < NAMED_STYLES; i++)
        if (strcmp(name, styles[i].name) == 0) return &styles[i];
    return &styles[NAMED_STYLES + n % (STYLES - NAMED_STYLES)];
}

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

/* The script: a curve a strategy, labelled at its end in its own colour. */

typedef struct curve {
    const append_strategy *strategy;
    const struct style *style;
    bool growth; /* the steps that begin a chunk, not the median step */
    char label[CACHE_KIND_ROOM + 16];
    double first_us, last_us; /* at the least and the largest context */
    double label_us;          /* where the label stands, clear of the others */
} curve;

typedef struct drawing {
    const append_row *rows;
    size_t row_count;
    curve curves[APPEND_MOST + 1];
    size_t curve_count;
    int64_t least, most;      /* contexts */
    double bottom_us, top_us; /* of the axis: powers of ten */
    const append_shape *shape;
} drawing;

/* The figure that a curve draws of a row; NAN when the row is not its own. */
static double figure(const curve *c, const append_row *row) {
    if (row->cold || strcmp(row->strategy.name, c->strategy->name) != 0) return NAN;
    return c->growth ? row->growth_p50_us : row->step_us.p50;
}

static void add_curve(drawing *d, const append_strategy *strategy, bool growth, const char *label) {
    curve *c = &d->curves[d->curve_count];
    *c = (curve){.strategy = strategy,
                 .style = style_of(strategy->name, d->curve_count),
                 .growth = growth,
                 .first_us = NAN,
                 .last_us = NAN};
    (void)snprintf(c->label, sizeof c->label, "%s", label);
    for (size_t i = 0; i < d->row_count; i++) {
        const double us = figure(c, &d->rows[i]);
        if (!isfinite(us)) continue;
        if (d->rows[i].context == d->least) c->first_us = us;
        if (d->rows[i].context == d->most) c->last_us = us;
        d->bottom_us = fmin(d->bottom_us, us);
        d->top_us = fmax(d->top_us, us);
    }
    c->label_us = c->last_us;
    if (isfinite(c->last_us)) d->curve_count++;
}

/* Moves labels apart, in steps of the axis's own scale, the lowest staying where it is. */
static void spread_labels(drawing *d) {
    const double gap = pow(d->top_us / d->bottom_us, 0.055);
    curve *order[APPEND_MOST + 1];
    for (size_t i = 0; i < d->curve_count; i++) {
        size_t at = i;
        for (; at > 0 && order[at - 1]->last_us > d->curves[i].last_us; at--)
            order[at] = order[at - 1];
        order[at] = &d->curves[i];
    }
    for (size_t i = 1; i < d->curve_count; i++)
        order[i]->label_us = fmax(order[i]->label_us, order[i - 1]->label_us * gap);
}

/* A curve for each strategy, of the rows that the first context has; chunk has two. */
static void add_curves(drawing *d) {
    const append_strategy *chunk = NULL;
    char growing[64];
    (void)snprintf(growing, sizeof growing, "chunk: the one step in %lld that grows",
                   (long long)d->shape->chunk);
    for (size_t i = 0; i < d->row_count; i++) {
        const append_row *row = &d->rows[i];
        if (row->cold || row->context != d->rows[0].context) continue;
        const bool floor = row->strategy.way == APPEND_MEMCPY;
        add_curve(d, &row->strategy, false, floor ? "memcpy (floor)" : row->strategy.name);
        if (strcmp(row->strategy.name, "chunk") == 0) chunk = &row->strategy;
    }
    if (chunk) add_curve(d, chunk, true, growing);
}

static drawing plan_drawing(const append_row *rows, size_t count, const append_shape *shape) {
    drawing d = {.rows = rows,
                 .row_count = count,
                 .least = INT64_MAX,
                 .bottom_us = INFINITY,
                 .top_us = 0,
                 .shape = shape};
    for (size_t i = 0; i < count; i++) {
        if (rows[i].context < d.least) d.least = rows[i].context;
        if (rows[i].context > d.most) d.most = rows[i].context;
    }
    add_curves(&d);
    d.bottom_us = pow(10, floor(log10(d.bottom_us)));
    d.top_us = pow(10, ceil(log10(d.top_us)));
    if (d.top_us <= d.bottom_us) d.top_us = 10 * d.bottom_us;
    spread_labels(&d);
    return d;
}

/* Says what is to be seen, if it is. */
static const char *headline(const drawing *d) {
    bool flat = false, steep = false;
    for (size_t i = 0; i < d->curve_count; i++) {
        const curve *c = &d->curves[i];
        const bool rises = c->last_us > 1.5 * c->first_us;
        if (c->growth || c->strategy->way == APPEND_MEMCPY) continue;
        if (append_is_slow(c->strategy)) steep = rises;
        else if (rises) return "Time to append one position";
        else flat = true;
    }
    return flat && steep ? "Concatenating slows down as the context grows; appending in place "
                           "does not"
                         : "Time to append one position";
}

/* "100 ns", "1 µs", "10 µs", …, "1 s": every power of ten. */
static void put_y_axis(FILE *script, const drawing *d) {
    static const char *const units[] = {"ns", "µs", "ms", "s"};
    const int first = (int)lround(log10(d->bottom_us)), last = (int)lround(log10(d->top_us));
    (void)fprintf(script, "set logscale y 10\nset yrange [%g:%g]\nset ytics (", d->bottom_us,
                  d->top_us);
    for (int power = first; power <= last; power++) {
        int unit = (power + 3 < 0 ? 0 : power + 3) / 3; /* of 1000 each, from nanoseconds on */
        if (unit > 3) unit = 3;
        (void)fprintf(script, "%s'%g %s' 1e%d", power == first ? "" : ", ",
                      pow(10, power + 3 - 3 * unit), units[unit], power);
    }
    (void)fputs(")\nset ylabel 'time per step (median, log scale)' offset 1,0\n", script);
}

static void put_x_axis(FILE *script, const drawing *d) {
    int64_t last = 0;
    (void)fputs("set logscale x 2\nset xtics (", script);
    for (size_t i = 0; i < d->row_count; i++) {
        if (d->rows[i].cold || d->rows[i].context == last) continue;
        (void)fprintf(script, "%s%lld", last ? ", " : "", (long long)d->rows[i].context);
        last = d->rows[i].context;
    }
    (void)fprintf(script,
                  ")\nset xrange [%g:%g]\nset xlabel 'context N: positions in each cache'\n",
                  0.92 * (double)d->least, 1.06 * (double)d->most);
}

static void put_texts(FILE *script, const drawing *d, const char *where) {
    const append_shape *shape = d->shape;
    (void)fprintf(script,
                  "set label 1 \"{/:Bold=18 %s}\" at screen 0.02, 0.955 left\n"
                  "set label 2 \"One position appended a step to each of %lld %s caches [1, %lld, "
                  "N, %lld]; warm: memory comes from the pool\" at screen 0.02, 0.905 left\n"
                  "set label 3 \"{/=11 %s}\" at screen 0.02, 0.025 left tc rgb '#666666'\n",
                  headline(d), (long long)shape->caches, kvc_dtype_name(shape->dtype),
                  (long long)shape->heads, (long long)shape->dim, where);
    for (size_t i = 0; i < d->curve_count; i++)
        (void)fprintf(script, "set label %zu '%s' at %lld, %g left offset 1.2,0 tc rgb '%s'\n",
                      10 + i, d->curves[i].label, (long long)d->most, d->curves[i].label_us,
                      d->curves[i].style->colour);
}

static void put_curves(FILE *script, const drawing *d) {
    for (size_t i = 0; i < d->curve_count; i++) {
        (void)fprintf(script, "$curve%zu << END\n", i);
        for (size_t k = 0; k < d->row_count; k++) {
            const double us = figure(&d->curves[i], &d->rows[k]);
            if (isfinite(us))
                (void)fprintf(script, "%lld %.6g\n", (long long)d->rows[k].context, us);
        }
        (void)fputs("END\n", script);
    }
    for (size_t i = 0; i < d->curve_count; i++) {
        const curve *c = &d->curves[i];
        const struct style *style = c->style;
        (void)fprintf(script,
                      "%s$curve%zu using 1:2 with linespoints lw %s dt %d pt %d ps 0.8 lc rgb '%s' "
                      "notitle",
                      i ? ", \\\n     " : "plot ", i, c->growth ? "1.5" : "2.5",
                      c->growth ? 3 : style->dash, c->growth ? 6 : style->mark, style->colour);
    }
    (void)fputc('\n', script);
}

static void put_script(FILE *script, const append_row *rows, size_t count,
                       const append_shape *shape, const char *where) {
    const drawing d = plan_drawing(rows, count, shape);
    (void)fputs("set terminal svg size 960,560 font 'DejaVu Sans,Arial,14' background '#ffffff'\n"
                "set encoding utf8\n"
                "set lmargin at screen 0.105\nset rmargin at screen 0.66\n"
                "set tmargin at screen 0.86\nset bmargin at screen 0.16\n"
                "set grid ytics lc rgb '#dddddd' lw 1\nset border 3 lc rgb '#444444'\n"
                "set tics nomirror\n",
                script);
    put_y_axis(script, &d);
    put_x_axis(script, &d);
    put_texts(script, &d, where);
    put_curves(script, &d);
}

int append_plot(const char *path, const append_row *rows, size_t count, const append_shape *shape,
                const char *where) {
    outfile out = {0};
    FILE *script = tmpfile();
    if (!script) return cli_fail("--plot: no temporary file: %s", strerror(errno));
    put_script(script, rows, count, shape, where);
    int status = CLI_DONE;
    if (fflush(script) != 0 || fseek(script, 0, SEEK_SET) != 0)
        status = cli_fail("--plot: the script cannot be written: %s", strerror(errno));
    else if ((status = outfile_begin(&out, path)) == CLI_DONE)
        status = outfile_end(&out, run_gnuplot(fileno(script), fileno(out.stream)));
    (void)fclose(script);
    return status;
}
