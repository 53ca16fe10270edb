#include "support/reference.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

const kvc_dtype reference_dtypes[6] = {KVC_F32, KVC_F16, KVC_BF16, KVC_I8, KVC_U8, KVC_U32};

/* A float format; its word is sign, exponent, mantissa from the highest bit on. */
typedef struct format {
    int exponent_bits, mantissa_bits;
} format;

static format format_of(kvc_dtype dtype) {
    return dtype == KVC_F32 ? (format){8, 23} : dtype == KVC_F16 ? (format){5, 10} : (format){8, 7};
}

/* Also the largest exponent of a finite number. */
static int bias_of(format f) {
    return (1 << (f.exponent_bits - 1)) - 1;
}

static double value_of(format f, uint32_t word) {
    const int32_t exponent = (int32_t)(word >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
    const int32_t mantissa = (int32_t)word & ((1 << f.mantissa_bits) - 1);
    const int lowest = 1 - bias_of(f) - f.mantissa_bits; /* exponent of the smallest number */
    double magnitude = ldexp(mantissa, lowest);
    if (exponent == 2 * bias_of(f) + 1) magnitude = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent) magnitude = ldexp(mantissa + (1 << f.mantissa_bits), exponent - 1 + lowest);
    return word >> (f.exponent_bits + f.mantissa_bits) & 1 ? -magnitude : magnitude;
}

/* The word nearest to x, the even one of two that are as near. Every step is exact in double: x is
 * counted in units of the last place at its exponent, and rounded to a whole one. */
static uint32_t nearest_word(format f, double x) {
    const uint32_t sign = signbit(x) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
    const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
    if (isnan(x)) return infinity | 1u << (f.mantissa_bits - 1);
    if (isinf(x)) return sign | infinity;
    int exponent;
    (void)frexp(x, &exponent); /* |x| = 0.5..1 × 2^exponent */
    exponent -= 1;
    if (x == 0 || exponent < 1 - bias_of(f)) exponent = 1 - bias_of(f);
    if (exponent > bias_of(f)) return sign | infinity;
    const double units = ldexp(fabs(x), f.mantissa_bits - exponent);
    double whole = floor(units);
    const double rest = units - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) == 1)) whole += 1;
    /* A word counts units too: each exponent holds 2^mantissa_bits of them, and the first that is
     * normal has as many below it. Carries go to the exponent by themselves. */
    const int binades = exponent + bias_of(f) - 1;
    const double word = whole + ldexp(binades, f.mantissa_bits);
    return word >= infinity ? sign | infinity : sign | (uint32_t)word;
}

static double clamp(double x, double low, double high) {
    return isnan(x) ? 0 : fmin(fmax(trunc(x), low), high);
}

double reference_load(const void *element, kvc_dtype dtype) {
    uint32_t word = 0;
    uint16_t half;
    uint8_t byte;
    int8_t signed_byte;
    switch (dtype) {
    case KVC_F32: memcpy(&word, element, 4); return value_of(format_of(dtype), word);
    case KVC_F16:
    case KVC_BF16: memcpy(&half, element, 2); return value_of(format_of(dtype), half);
    case KVC_I8: memcpy(&signed_byte, element, 1); return signed_byte;
    case KVC_U8: memcpy(&byte, element, 1); return byte;
    case KVC_U32: memcpy(&word, element, 4); return word;
    }
    return NAN;
}

void reference_store(void *element, kvc_dtype dtype, double value) {
    uint32_t word;
    uint16_t half;
    uint8_t byte;
    int8_t signed_byte;
    switch (dtype) {
    case KVC_F32:
        word = nearest_word(format_of(dtype), value);
        memcpy(element, &word, 4);
        break;
    case KVC_F16:
    case KVC_BF16:
        half = (uint16_t)nearest_word(format_of(dtype), value);
        memcpy(element, &half, 2);
        break;
    case KVC_I8:
        signed_byte = (int8_t)clamp(value, -128, 127);
        memcpy(element, &signed_byte, 1);
        break;
    case KVC_U8:
        byte = (uint8_t)clamp(value, 0, 255);
        memcpy(element, &byte, 1);
        break;
    case KVC_U32:
        word = (uint32_t)clamp(value, 0, 4294967295.0);
        memcpy(element, &word, 4);
        break;
    }
}

double reference_round(kvc_dtype dtype, double value) {
    uint32_t element;
    reference_store(&element, dtype, value);
    return reference_load(&element, dtype);
}

bool reference_same(const void *a, const void *b, kvc_dtype dtype) {
    if (memcmp(a, b, kvc_dtype_size_bytes(dtype)) == 0) return true;
    return isnan(reference_load(a, dtype)) && isnan(reference_load(b, dtype));
}
