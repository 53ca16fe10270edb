/** @file
 * How figures are printed: numbers that people read at a glance, and JSON. */
#ifndef KVCACHE_TOOLS_REPORT_H
#define KVCACHE_TOOLS_REPORT_H

#include <jansson.h>
#include <stddef.h>

/** Room for a number or a size as text. */
enum { REPORT_ROOM = 32 };

/** Writes a number with three significant digits at least, never with an exponent: "0.123", "7.21",
 * "118.4", "92841"; "-" for NAN. Returns out. */
const char *report_number(char out[REPORT_ROOM], double value);

/** Writes a time: "57.5 ns", "397 us", "6.83 ms"; "-" for NAN. Returns out. */
const char *report_time(char out[REPORT_ROOM], double ns);

/** Writes a count of bytes: "512 B", "80 KiB", "1.3 GiB". Returns out. */
const char *report_bytes(char out[REPORT_ROOM], double bytes);

/** Returns a JSON number; null for what is not finite. */
json_t *report_json_number(double value);

/** Prints one JSON object on stdout and drops it.
 * @return CLI_DONE, or CLI_FAILED with a line (object NULL: no memory to build it) */
int report_json(json_t *object);

#endif
