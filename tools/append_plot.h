/** @file
 * Draws step time against context as an SVG, with gnuplot as a child process. */
#ifndef KVCACHE_TOOLS_APPEND_PLOT_H
#define KVCACHE_TOOLS_APPEND_PLOT_H

#include <stddef.h>

#include "append_measure.h"

/** Tells, before anything is measured, whether gnuplot is there and path can be written.
 * @return CLI_DONE, or CLI_FAILED with a line */
int append_plot_check(const char *path);

/** Draws the warm rows.
 * @param rows     [count], by context and strategy
 * @param shape    of the caches, for the title
 * @param where    the machine, one line
 * @return CLI_DONE, or CLI_FAILED with a line; no file is left then */
int append_plot(const char *path, const append_row *rows, size_t count, const append_shape *shape,
                const char *where);

#endif
