/** @file
 * The version of the headers and of the library that was loaded. */
#ifndef KVCACHE_VERSION_H
#define KVCACHE_VERSION_H

#include <kvcache/export.h>

/** Changes with the ABI; the shared library's soname carries it. */
#define KVC_VERSION_MAJOR 0
/** Changes with every addition and, while the major version is 0, with the ABI: the soname has
 * both. */
#define KVC_VERSION_MINOR 1
/** Changes with every release that only mends. */
#define KVC_VERSION_PATCH 0

KVC_BEGIN_DECLS

/** Returns the version of the library in use, as "major.minor.patch"; static storage. */
KVC_API const char *kvc_version(void);

KVC_END_DECLS

#endif
