/** @file
 * Arithmetic on sizes that says when it overflows. Each returns false then; *out is undefined. */
#ifndef KVC_BASE_CHECKED_H
#define KVC_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool kvc__add(size_t *out, size_t a, size_t b) {
    return !__builtin_add_overflow(a, b, out);
}

static inline bool kvc__mul(size_t *out, size_t a, size_t b) {
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool kvc__add_i64(int64_t *out, int64_t a, int64_t b) {
    return !__builtin_add_overflow(a, b, out);
}

static inline bool kvc__mul_i64(int64_t *out, int64_t a, int64_t b) {
    return !__builtin_mul_overflow(a, b, out);
}

/** Rounds up to a multiple of a power of two. */
static inline bool kvc__round_up(size_t *out, size_t a, size_t power_of_two) {
    if (!kvc__add(out, a, power_of_two - 1)) return false;
    *out &= ~(power_of_two - 1);
    return true;
}

#endif
