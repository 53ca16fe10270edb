/** @file
 * Numbers in 2 to 8 bits: rows packed by affine groups along their last dimension.
 *
 * A group of values shares a scale and a bias; value = scale · q + bias, q an integer of so many
 * bits. The q of a row follow each other without gaps, lowest bits first, in bytes of growing
 * address. All is computed in f32, and scale and bias are rounded to their dtype last of all.
 *
 * The larger end of a group, by magnitude, is kept exactly, but for that rounding, where the step
 * of its scale allows; so is 0 in a group that spans it. Scales are of either sign: the end that is
 * kept has the smallest q. A scale is 0 in no group that kvc_quantize packed.
 * @source MLX's mx.quantize, mode "affine": the same bits, in words of u32 on little-endian
 *         machines. MLX leaves undefined what becomes of NaN and infinity. */
#ifndef KVCACHE_QUANTIZE_H
#define KVCACHE_QUANTIZE_H

#include <stddef.h>

#include <kvcache/array.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** Packed numbers, over arrays of the caller: a view, as they are. Zero it, then fill it.
 * The last stride of each array is 1, the others are any. */
typedef struct kvc_quantized {
    size_t struct_size; /**< sizeof(kvc_quantized) */
    int bits;           /**< of a value: 2, 3, 4, 5, 6 or 8 */
    int group;          /**< values that share a scale: 32, 64 or 128; the last dim is a multiple */
    kvc_array words;    /**< [...][dim · bits / 8] u8, or [...][dim · bits / 32] u32 */
    kvc_array scales;   /**< [...][dim / group] f32, f16 or bf16 */
    kvc_array biases;   /**< [...][dim / group], dtype as scales */
} kvc_quantized;

KVC_BEGIN_DECLS

/** Packs rows: one pass over them, without allocation. Widths of 4 and 8 bits take about as long as
 * a conversion to bf16, the others several times that.
 *
 * A group that holds NaN or infinity, or whose scale or bias is beyond f32 or the dtype of scales,
 * becomes NaN as a whole: its scale and bias are NaN and its q 0. Other groups are unaffected.
 * @param out  its arrays' elements are written where they lie, whoever else sees them; they overlap
 *             neither each other nor x
 * @param x    [...][dim] f32, f16 or bf16, at least one dimension, any strides whose last is 1
 * @errors KVC_E_INVALID bits, group, struct_size, data that is NULL or not aligned; KVC_E_SHAPE
 *         names the array and both shapes (or dtypes, strides), a dim that is no multiple of the
 *         group among them; KVC_E_UNSUPPORTED memory of a device other than the cpu. Nothing is
 *         written. */
KVC_API KVC_MUST_USE kvc_status kvc_quantize(const kvc_quantized *out, const kvc_array *x);

/** Unpacks rows: one pass over them, without allocation. scale · q + bias is rounded to f32 after
 * the product and after the sum, then to out's dtype. Every scale is taken as it is: negative ones
 * are usual, 0 gives the bias, and NaN and infinity give what they give in arithmetic.
 * @param out  [...][dim] f32, f16 or bf16, any strides whose last is 1, written where it lies; must
 *             not overlap x
 * @errors     as kvc_quantize */
KVC_API KVC_MUST_USE kvc_status kvc_dequantize(const kvc_array *out, const kvc_quantized *x);

KVC_END_DECLS

#endif
