/** @file
 * What a call says of its end: a status, and a sentence for people.
 * Every call that can fail returns a kvc_status. Zero is success, negatives are errors. On an
 * error nothing has changed, and output pointers are NULL (output structs zeroed). */
#ifndef KVCACHE_STATUS_H
#define KVCACHE_STATUS_H

#include <kvcache/export.h>

/** Name, value and text of every status, once. */
#define KVC_STATUS_LIST(X)                                                                         \
    X(KVC_OK, 0, "ok")                                                                             \
    X(KVC_E_INVALID, -1, "an argument has a value that the call does not take")                    \
    X(KVC_E_RANGE, -2, "a position, size or product lies outside its range")                       \
    X(KVC_E_SHAPE, -3, "shapes, axes or dtypes do not fit together")                               \
    X(KVC_E_NOMEM, -4, "the system has no more memory to give")                                    \
    X(KVC_E_LIMIT, -5, "the pool's memory limit is reached")                                       \
    X(KVC_E_UNSUPPORTED, -6, "the device or build does not do this")                               \
    X(KVC_E_SLOW, -7, "strict mode refuses a slow path")                                           \
    X(KVC_E_CORRUPT, -8, "an invariant does not hold, or a file is not what it should be")         \
    X(KVC_E_IO, -9, "the system could not read or write a file")

/** The end of a call: KVC_OK, or what went wrong. */
typedef enum kvc_status {
#define KVC_STATUS_ENUM(name, value, text) name = (value),
    KVC_STATUS_LIST(KVC_STATUS_ENUM)
#undef KVC_STATUS_ENUM
} kvc_status;

KVC_BEGIN_DECLS

/** Returns the name of a status, such as "KVC_E_RANGE"; "KVC_E_?" for an unknown one. Static. */
KVC_API const char *kvc_status_name(kvc_status status);

/** Returns one phrase that says what a status means. Static storage. */
KVC_API const char *kvc_status_text(kvc_status status);

/** Returns the sentence of this thread's last failed call: the argument, what was given, what was
 * wanted. Never NULL; empty before the first failure. A success does not clear it.
 * @lifetime until the next failing call of this thread */
KVC_API const char *kvc_last_error(void);

/** Records the sentence that kvc_last_error returns, as printf would; what is longer than 511 bytes
 * is cut. For libraries above this one and for callbacks that return a status; the last sentence
 * may be an argument. */
KVC_API KVC_PRINTF(1, 2) void kvc_last_error_set(const char *format, ...);

KVC_END_DECLS

#endif
