/** @file
 * Assertions are for bugs of the library, never for input.
 * KVC_ASSERT runs in debug builds; KVC_ASSERT_SLOW (walks over whole structures) where
 * KVC_SLOW_ASSERTS is defined too. */
#ifndef KVC_BASE_ASSERT_H
#define KVC_BASE_ASSERT_H

#include <assert.h>

#define KVC_ASSERT(condition) assert(condition)

#if !defined(NDEBUG) && defined(KVC_SLOW_ASSERTS)
#define KVC_ASSERT_SLOW(condition) assert(condition)
#else
#define KVC_ASSERT_SLOW(condition) ((void)0)
#endif

#endif
