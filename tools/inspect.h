/** @file
 * How what a snapshot holds is told: by inspect, and by convert of both its files. */
#ifndef KVCACHE_TOOLS_INSPECT_H
#define KVCACHE_TOOLS_INSPECT_H

#include <jansson.h>

#include <kvcache/snapshot.h>

/** Returns "mlx-lm 0.31" or "mlx-lm 0.32". Static storage. */
const char *inspect_form_name(kvc_snapshot_form form);

/** Prints all layers, a line for those in a row that are alike. */
void inspect_print_layers(const kvc_snapshot_contents *contents);

/** Returns an array with an object for each layer; NULL for no memory. */
json_t *inspect_layers_object(const kvc_snapshot_contents *contents);

#endif
