/** @file
 * What a layer of a kind is to hold for a position, as one record of bytes: of keys, then of
 * values, for each head a row, whose pieces are its elements; or, packed, its words, scales and
 * biases. Keys that are packed per channel are in it as the tail has them, unpacked: what a block
 * of them is packed to follows from its records. */
#ifndef KVC_TEST_NAIVE_RECORD_H
#define KVC_TEST_NAIVE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/cache.h>

enum { RECORD_PIECES = 3, RECORD_ROW_BYTES = 4096, RECORD_BLOCK = 64 * 96 }; /* at most */

/** Keys of one head that are packed per channel, kv_group positions. */
typedef struct record_block {
    uint8_t bytes[RECORD_BLOCK + RECORD_BLOCK / 4]; /* words, scales, biases of all channels */
    float unpacked[RECORD_BLOCK];                   /* [key_dim][kv_group] */
} record_block;

/** Tells the bytes of the pieces of a row of keys (side 0) or values (1). Returns how many pieces
 * there are. */
int record_pieces(size_t bytes[RECORD_PIECES], const kvc_layer_spec *spec, int side);

/** Returns the bytes of a record, and where one has the row of a head. */
size_t record_bytes(const kvc_layer_spec *spec);
size_t record_row_offset(const kvc_layer_spec *spec, int side, int64_t head);

/** Writes elements that follow each other as a layer keeps them: what kvc_quantize makes of that
 * row alone, rotated before where the layer is, or the conversion of each element. */
void record_store_row(uint8_t *out, const kvc_layer_spec *spec, int side, kvc_dtype dtype,
                      void *row);

/** Tells the bytes of the pieces of a block. */
void record_block_pieces(size_t bytes[RECORD_PIECES], const kvc_layer_spec *spec);

/** Packs the keys of a head: what kvc_quantize makes of each channel alone.
 * @param records  [kv_group] of them, one behind the other */
void record_pack_block(record_block *block, const kvc_layer_spec *spec, int64_t head,
                       const uint8_t *records);

/** Tells whether records of two kinds of layers are the same. */
bool record_is_alike(const kvc_layer_spec *a, const kvc_layer_spec *b);

/** Writes a record as a layer of another kind keeps it, or of the same.
 * @param block     [kv_heads], where its keys are packed per channel, and in a whole block; else
 *                  NULL
 * @param position  of the sequence */
void record_convert(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                    const kvc_layer_spec *from, const record_block *block, int64_t position);

#endif
