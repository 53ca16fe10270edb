/** @file
 * Rows to and from affine groups: the loops of quantize.h, on plain memory. */
#ifndef KVC_ARRAY_PACK_H
#define KVC_ARRAY_PACK_H

#include <stdint.h>

#include <kvcache/quantize.h>

/** Verifies what kvc_quantized can have.
 * @errors KVC_E_INVALID */
kvc_status kvc__packing_check(int bits, int group);

/** Verifies that x is the packed form of an array of a shape, in memory of the cpu.
 * @param name  begins the sentence
 * @errors those of kvc_quantize */
kvc_status kvc__quantized_check(const kvc_quantized *x, const char *name, int ndim,
                                const int64_t *shape);

/** Values of the largest group. */
#define KVC__GROUP_MOST 128

/** How rows are packed. */
typedef struct kvc__packing {
    int bits, group;
    int64_t groups;    /**< of a row */
    kvc_dtype dtype;   /**< of numbers: f32, f16 or bf16 */
    kvc_dtype scaling; /**< of scales and biases, likewise */
} kvc__packing;

/** A packed row; what is only read is not written through these. */
typedef struct kvc__packed {
    uint8_t *words; /**< [groups · group · bits / 8] */
    void *scales;   /**< [groups] */
    void *biases;   /**< [groups] */
} kvc__packed;

/** The loops of one instruction set. All give the same bits. */
typedef struct kvc__pack_ops {
    /** Packs a row of groups · group contiguous numbers. */
    void (*pack)(const kvc__packing *p, const kvc__packed *to, const void *from);
    /** Unpacks a row. */
    void (*unpack)(const kvc__packing *p, void *to, const kvc__packed *from);
    /** Splits elements of less than 8 bits, a byte for each.
     * @param to    [n], not overlapping
     * @param from  [n · bits / 8]
     * @param n     a multiple of 32 */
    void (*split)(uint8_t *to, const uint8_t *from, int64_t n, int bits);
} kvc__pack_ops;

extern const kvc__pack_ops kvc__pack_generic;
extern const kvc__pack_ops kvc__pack_avx2;

/** Returns the loops of kvc__isa_best. */
const kvc__pack_ops *kvc__pack_best(void);

#endif
