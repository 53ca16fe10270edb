/** @file
 * --cache: the kinds of cache by their names. */
#ifndef KVCACHE_TOOLS_CACHE_OPTION_H
#define KVCACHE_TOOLS_CACHE_OPTION_H

#include <stdbool.h>

#include "generate/transformer.h"

/** Reads the kind of a cache into what an engine is asked for; the rest of *out stays.
 * @return true, or false after telling what was given and what is wanted; *out is unchanged */
bool cache_option(const char *text, transformer_options *out);

#endif
