/** @file
 * Visibility and linkage of every public declaration. */
#ifndef KVCACHE_EXPORT_H
#define KVCACHE_EXPORT_H

/** @def KVC_BEGIN_DECLS
 * Opens the declarations of a header: C linkage in C++. */
/** @def KVC_END_DECLS
 * Closes what KVC_BEGIN_DECLS opened. */
#ifdef __cplusplus
#define KVC_BEGIN_DECLS extern "C" {
#define KVC_END_DECLS   }
#else
#define KVC_BEGIN_DECLS
#define KVC_END_DECLS
#endif

/** @def KVC_API
 * Marks a symbol that the shared library exports; all others are hidden. */
/** @def KVC_MUST_USE
 * Has the compiler warn where a result is dropped. */
/** @def KVC_PRINTF
 * Has the compiler check arguments against a printf format: which parameter that is, and which the
 * first argument of it. */
#if defined(__GNUC__)
#define KVC_API               __attribute__((visibility("default")))
#define KVC_MUST_USE          __attribute__((warn_unused_result))
#define KVC_PRINTF(at, first) __attribute__((__format__(__printf__, at, first)))
#else
#define KVC_API
#define KVC_MUST_USE
#define KVC_PRINTF(at, first)
#endif

#endif
