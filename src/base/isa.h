/** @file
 * Which instruction set loops are chosen for: the best that the CPU runs and KVC_ISA in the
 * environment allows. */
#ifndef KVC_BASE_ISA_H
#define KVC_BASE_ISA_H

#include <stdbool.h>

/** Instruction sets; of those of one kind of CPU each is faster than those before it. */
typedef enum kvc__isa {
    KVC__ISA_GENERIC = 0, /**< portable C */
    KVC__ISA_AVX2,        /**< with FMA and F16C */
    KVC__ISA_AVX_VNNI,    /**< AVX2 and the form of VNNI that wants no AVX-512 */
    KVC__ISA_AVX512,      /**< F, BW, DQ and VL; VNNI too, where the CPU has it */
    KVC__ISA_AVX512_BF16, /**< likewise */
    KVC__ISA_NEON,
    KVC__ISA_NEON_DOT, /**< products of bytes */
    KVC__ISA_NEON_BF16
} kvc__isa;

/** A choice. Sentences are for people. */
typedef struct kvc__isa_choice {
    kvc__isa isa;
    const char *name; /**< as KVC_ISA knows it */
    char limit[96];   /**< what KVC_ISA does to the choice; "" where nothing */
    char remedy[96];  /**< what to do about that; "" where nothing */
} kvc__isa_choice;

/** Returns the choice by KVC_ISA. Made once; thread-safe. */
const kvc__isa_choice *kvc__isa_best(void);

/** x86-64: tells whether the CPU has AVX-512 VNNI, products of bytes. */
bool kvc__isa_has_vnni(void);

/** Chooses as kvc__isa_best does.
 * @param cap  the fastest instruction set allowed; one that the CPU lacks leaves the best it has.
 *             NULL, "" and unknown names allow all */
void kvc__isa_choose(kvc__isa_choice *out, const char *cap);

#endif
