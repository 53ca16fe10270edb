/** @file
 * Keys of blocks: what a block is called outside of this process.
 *
 * A key is a SHA-256 over everything that decides what a block's bytes are: whose it is, which
 * model, which layout, and each token from the first position on. Equal keys mean equal blocks, in
 * every process and on every machine; docs/FORMAT.md has it byte for byte. Of libkvcache-store. */
#ifndef KVCACHE_BLOCK_KEY_H
#define KVCACHE_BLOCK_KEY_H

#include <stdint.h>

#include <kvcache/blocks.h>
#include <kvcache/export.h>
#include <kvcache/prefix.h>
#include <kvcache/status.h>

/** Bytes of a key, and of a fingerprint. */
#define KVC_BLOCK_KEY_BYTES 32

KVC_BEGIN_DECLS

/** Hashes what a block's bytes mean, whatever its tokens: O(layers).
 * @param out    [32]
 * @param model  the weights: such as a hash of their file, or a name and version that are never
 *               given twice
 * @param rope   how positions are coded: such as "theta=10000 scale=1"
 * @param desc   layers, specs and positions are taken, limits are not
 * @errors KVC_E_INVALID a pointer is NULL, a field has no data; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_block_fingerprint(uint8_t *out, kvc_bytes model, kvc_bytes rope,
                                                      const kvc_blocks_desc *desc);

/** Computes the keys of a sequence's full blocks: O(n), some 4 bytes hashed a token.
 * @param out          [n / positions][32]
 * @param space        seeds the chain, so that namespaces share nothing; NULL: all fields empty
 * @param fingerprint  [32], of kvc_block_fingerprint
 * @param positions    of a block
 * @param tokens       [n] from the first position on, borrowed for the call; what follows the last
 *                     full block is ignored
 * @errors KVC_E_INVALID n < 0, positions < 1, a pointer is NULL; space->struct_size is not set;
 *         KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_block_keys(uint8_t (*out)[KVC_BLOCK_KEY_BYTES],
                                               const kvc_prefix_namespace *space,
                                               const uint8_t *fingerprint, int64_t positions,
                                               const int32_t *tokens, int64_t n);

KVC_END_DECLS

#endif
