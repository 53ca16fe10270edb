/** @file
 * Elements by the definition of their formats, slowly and exactly: what the library's conversions
 * are compared with. Shares no code with it. */
#ifndef KVC_TEST_REFERENCE_H
#define KVC_TEST_REFERENCE_H

#include <stdbool.h>

#include <kvcache/dtype.h>

/** Every dtype once. */
extern const kvc_dtype reference_dtypes[6];

/** Returns the value of an element. */
double reference_load(const void *element, kvc_dtype dtype);

/** Writes an element: floats round once, to nearest even; integers truncate and saturate, NaN
 * becomes 0. */
void reference_store(void *element, kvc_dtype dtype, double value);

/** Returns what value becomes in a dtype. */
double reference_round(kvc_dtype dtype, double value);

/** Tells whether two elements are the same word, or both NaN. */
bool reference_same(const void *a, const void *b, kvc_dtype dtype);

#endif
