/** @file
 * What a layer of a kind is to hold for a position, as one record of bytes: of keys, then of
 * values, for each head a row, whose pieces are its elements; or, packed, its words, scales and
 * biases. */
#ifndef KVC_TEST_NAIVE_RECORD_H
#define KVC_TEST_NAIVE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include <kvcache/cache.h>

enum { RECORD_PIECES = 3, RECORD_ROW_BYTES = 4096 /* at most */ };

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

/** Writes a record as a layer of another kind keeps it. */
void record_convert(uint8_t *out, const kvc_layer_spec *to, const uint8_t *in,
                    const kvc_layer_spec *from);

#endif
