#include "report.h"

#include <math.h>
#include <stdio.h>

#include "cli.h"

const char *report_number(char out[REPORT_ROOM], double value) {
    const double size = fabs(value);
    const int decimals = size < 1 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
    if (!isfinite(value)) (void)snprintf(out, REPORT_ROOM, "-");
    else (void)snprintf(out, REPORT_ROOM, "%.*f", decimals, value);
    return out;
}

const char *report_time(char out[REPORT_ROOM], double ns) {
    static const char *const units[] = {"ns", "us", "ms", "s"};
    size_t unit = 0;
    for (; ns >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++) ns /= 1000;
    if (!isfinite(ns)) (void)snprintf(out, REPORT_ROOM, "-");
    else (void)snprintf(out, REPORT_ROOM, "%.3g %s", ns, units[unit]);
    return out;
}

const char *report_bytes(char out[REPORT_ROOM], double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) bytes /= 1024;
    const int decimals = bytes < 10 && bytes != floor(bytes) ? 1 : 0;
    (void)snprintf(out, REPORT_ROOM, "%.*f %s", decimals, bytes, units[unit]);
    return out;
}

json_t *report_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

int report_json(json_t *object) {
    if (!object) return cli_fail("no memory for the JSON object");
    /* A failing write is told when stdout is flushed. */
    (void)json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    (void)putchar('\n');
    json_decref(object);
    return CLI_DONE;
}
