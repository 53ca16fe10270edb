/** @file
 * Attention over keys and values where they lie: softmax(scale · q · kᵀ) · v.
 *
 * Plan, then run. The plan is made once per geometry; it validates, chooses a path and takes its
 * scratch. A run allocates nothing and makes no system call, but to wake sleeping threads where
 * the plan's executor has several. One plan serves all layers of that geometry, at every length.
 * Every plan can explain itself, counts what it ran, and in strict mode refuses a path that is
 * slow.
 *
 * Causal masks are aligned to the last key of each sequence: query i of n is at position
 * p = length - n + i and sees keys 0 to p, or with a window of W keys p - W + 1 to p, or with a
 * window of W of which K are kept the keys below K and p - (W - K) + 1 to p: W in all, its own
 * among them. A query that sees no key gives zeros. Keys and values that no query sees are not
 * read.
 *
 * Threads: one run at a time per plan.
 * @source FlashAttention's online softmax; FlashInfer's split of plan and run. */
#ifndef KVCACHE_ATTENTION_H
#define KVCACHE_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/array.h>
#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/cuda_rule.h>
#include <kvcache/dtype.h>
#include <kvcache/executor.h>
#include <kvcache/export.h>
#include <kvcache/quantize.h>
#include <kvcache/status.h>

/** The code that a run goes through. */
typedef enum kvc_path {
    KVC_PATH_AUTO = 0,      /**< in a description: the fastest that can */
    KVC_PATH_REFERENCE = 1, /**< readable, f64 accumulation, any strides: the truth, and slow */
    KVC_PATH_FUSED = 2 /**< one pass over K and V for all heads of a group, by the CPU's vectors */
} kvc_path;

/** What a plan is made for. Zero it, then fill it, or start from kvc_attention_desc_for. */
typedef struct kvc_attention_desc {
    size_t struct_size;           /**< sizeof(kvc_attention_desc) */
    int64_t batch;                /**< 0 means 1 */
    int64_t q_heads;              /**< a multiple of kv_heads; q_heads / kv_heads is the group */
    int64_t kv_heads;             /**< > 0 */
    int64_t key_dim;              /**< > 0 */
    int64_t value_dim;            /**< > 0; 0 means key_dim */
    int64_t max_q_len;            /**< most query positions of one run; 0 means 1 */
    kvc_dtype kv_dtype;           /**< KVC_F32, KVC_F16 or KVC_BF16; of scales, where packed */
    float scale;                  /**< 0 means 1 / sqrt(key_dim) */
    int64_t window;               /**< keys that a query sees, its own among them; 0: all before */
    float softcap;                /**< c > 0 caps scores to c · tanh(score / c); 0: none */
    bool not_causal;              /**< every query sees every key */
    bool strict;                  /**< refuse (KVC_E_SLOW) what would take a slow path */
    kvc_path path;                /**< KVC_PATH_AUTO, or the one to take */
    const kvc_executor *executor; /**< who runs the parts; NULL: the thread that calls run. The
                                       struct is copied; what it points to outlives the plan */
    int kv_bits;  /**< of a packed element: 2, 3, 4, 5, 6 or 8, and runs are those of
                       kvc_attention_run_quantized; 0: keys and values are not packed */
    int kv_group; /**< where packed: 32, 64 or 128, a divisor of both dims */
    int64_t keep; /**< of a window the first positions of the sequence, which stay in sight: 0 to
                       window - 1; the others are the most recent ones. Both as max_size and keep of
                       mlx-lm's RotatingKVCache */
    bool kv_keys_per_channel; /**< as keys_per_channel of kvc_layer_spec: runs are those over a
                                   cache */
    bool kv_rotated; /**< as rotated of kvc_layer_spec: queries and outputs are as ever, keys and
                          values rotated as a cache would */
} kvc_attention_desc;

/** What a run may take and give besides. Zero it, then fill it; arrays are borrowed for the call.
 */
typedef struct kvc_attention_extras {
    size_t struct_size;    /**< sizeof(kvc_attention_extras) */
    const kvc_array *mask; /**< which keys a query sees, of those that it sees without: u8, not 0 to
                                see it, or f32, f16, bf16, which joins the score, -inf to hide it.
                                It broadcasts to [batch][q_heads][n][length]: 1 to 4 dimensions,
                                any strides. What it hides does not reach a query, whatever the
                                key and the value hold (NaN too); a number far below 0 only makes
                                the weight 0, and 0 · NaN is NaN */
    const kvc_array *sinks;  /**< learned logits that join the softmax as keys without values would:
                                  [q_heads], f32, f16 or bf16, any stride; neither scaled nor capped.
                                  -inf weighs nothing */
    const kvc_array *slopes; /**< ALiBi: slope · (position of the key - that of the query) joins a
                                  score, after the soft cap; [q_heads], as sinks */
    kvc_array *lse;         /**< receives ln of the sum of exp(score) over what each query sees, its
                                 sink included: f32 [batch][q_heads][n], any strides; -inf where it
                                 sees nothing. It must not overlap another argument */
    const int64_t *lengths; /**< [batch] positions in use of each sequence, 0 to those of the cache
                                 or of k; what lies behind is not read. NULL: all, of every one */
} kvc_attention_extras;

/** Room for paths in the figures; more than there are. */
#define KVC_PATH_SLOTS 16

/** What a plan has run. */
typedef struct kvc_attention_stats {
    size_t struct_size;            /**< sizeof(kvc_attention_stats), set by the caller */
    uint64_t runs[KVC_PATH_SLOTS]; /**< by kvc_path */
    uint64_t refused;              /**< runs that strict mode refused */
    uint64_t kv_bytes; /**< bytes in use of keys and values that runs attended over, those
                            that a mask hides among them */
} kvc_attention_stats;

/** What a plan would do with a cache as it is now, and why. Sentences are for people. */
typedef struct kvc_explanation {
    size_t struct_size; /**< sizeof(kvc_explanation), set by the caller */
    kvc_path path;      /**< the code that would run */
    bool slow;          /**< strict mode would refuse it */
    char reason[320];   /**< why this path */
    char remedy[320];   /**< what would make it faster; "" when nothing is known */
} kvc_explanation;

/** A plan. */
typedef struct kvc_attention kvc_attention;

KVC_BEGIN_DECLS

/** Fills a description for one layer of a cache: batch, kv_heads, dims, dtype, how it packs, and
 * what it keeps of a sequence, window and keep; the rest zero.
 * @param out  its struct_size is set by the caller, and kept
 * @errors KVC_E_INVALID no such layer, out->struct_size is not set */
KVC_API KVC_MUST_USE kvc_status kvc_attention_desc_for(kvc_attention_desc *out,
                                                       const kvc_cache *cache, int64_t layer);

/** Makes a plan: validates, chooses the path, takes scratch.
 * @errors KVC_E_INVALID names the field, what it holds and what it should; KVC_E_SLOW strict and
 *         the geometry has only a slow path; KVC_E_RANGE; KVC_E_NOMEM */
KVC_API KVC_MUST_USE kvc_status kvc_attention_plan(kvc_attention **out,
                                                   const kvc_attention_desc *desc);

/** Frees a plan. NULL is allowed. */
KVC_API void kvc_attention_free(kvc_attention *plan);

/** Attends over the live positions of a layer. Reads each key and value once per block of queries.
 * @param q       [batch][q_heads][n][key_dim], 1 ≤ n ≤ max_q_len, f32, f16 or bf16, any strides
 *                whose last is 1, borrowed for the call
 * @param out     [batch][q_heads][n][value_dim], f32, f16 or bf16, last stride 1, written; must not
 *                overlap q or the cache. Its elements are written once, whatever they held.
 * @param extras  NULL for none
 * @errors KVC_E_INVALID layer, data that is NULL or not aligned to its dtype; KVC_E_SHAPE names the
 *         argument and both shapes (or dtypes, strides); KVC_E_RANGE one of extras->lengths, or a
 *         query would see a position that the layer's window has dropped; KVC_E_SLOW strict;
 *         KVC_E_UNSUPPORTED memory of a device other than the cpu. out and extras->lse are
 *         unchanged. */
KVC_API KVC_MUST_USE kvc_status kvc_attention_run(kvc_attention *plan, const kvc_cache *cache,
                                                  int64_t layer, const kvc_array *q, kvc_array *out,
                                                  const kvc_attention_extras *extras);

/** Attends over keys and values that lie anywhere: for engines that keep their own.
 * @param k  [batch][kv_heads][length][key_dim] of kv_dtype, any strides; a last stride other than 1
 *           takes the reference path, which explain, the counters and strict mode tell
 * @param v  [batch][kv_heads][length][value_dim], as k */
KVC_API KVC_MUST_USE kvc_status kvc_attention_run_kv(kvc_attention *plan, const kvc_array *k,
                                                     const kvc_array *v, const kvc_array *q,
                                                     kvc_array *out,
                                                     const kvc_attention_extras *extras);

/** Attends over packed keys and values. With AVX2 and on AArch64 they are multiplied as integers:
 * those of 8 and 4 bits where they lie, those of other widths split to bytes by blocks of 64
 * positions. Queries and weights are rounded to 8 bits for 4, to 16 for all others, which is finer
 * than the packing itself by some 2^4 and 2^8. On other CPUs, and where query rows are many, they
 * are unpacked to f32 by such blocks (kvc_attention_explain tells from how many on). No copy is
 * made of more.
 * @param k  [batch][kv_heads][length][key_dim], packed by the plan's kv_bits and kv_group, scales
 *           and biases of kv_dtype
 * @param v  [batch][kv_heads][length][value_dim], as k
 * @errors   also those of kvc_quantize for k and v; KVC_E_INVALID a plan without kv_bits, or with
 *           kv_keys_per_channel. kvc_attention_run_kv refuses a plan with kv_bits likewise. */
KVC_API KVC_MUST_USE kvc_status kvc_attention_run_quantized(kvc_attention *plan,
                                                            const kvc_quantized *k,
                                                            const kvc_quantized *v,
                                                            const kvc_array *q, kvc_array *out,
                                                            const kvc_attention_extras *extras);

/** Attends over blocks, packed or not, for engines that keep block tables themselves. Verifies
 * every id that lengths reach, and reads no other. Takes no lock.
 * @param blocks        the caller holds those that lengths reach, until the call returns
 * @param layer         of these; its kv_heads, dims, dtype and packing are the plan's
 * @param tables        [batch][table_stride] ids, borrowed for the call: position p of sequence b
 *                      is row p % B of block tables[b · table_stride + p / B], with B as in
 *                      blocks.h. What lies behind the last block of a length may be anything
 * @param table_stride  from one sequence's ids to the next one's, >= 0
 * @param lengths       [batch] positions in use, 0 to table_stride · B. The longest is the length
 *                      that masks are made for
 * @param extras        as kvc_attention_run, but for its lengths, which are NULL
 * @errors   those of kvc_attention_run; KVC_E_INVALID blocks, layer, tables or lengths that are
 *           NULL, extras->lengths, an id that names no block in memory; KVC_E_RANGE one of lengths;
 *           KVC_E_SHAPE a layer that the plan does not fit. out and extras->lse are unchanged.
 * @source   vLLM's paged attention; here a sequence may have any number of queries. */
KVC_API KVC_MUST_USE kvc_status
kvc_attention_run_blocks(kvc_attention *plan, const kvc_blocks *blocks, int64_t layer,
                         const int32_t *tables, int64_t table_stride, const int64_t *lengths,
                         const kvc_array *q, kvc_array *out, const kvc_attention_extras *extras);

/** Merges partial results of the same queries over disjoint sets of keys, as if one run had seen
 * all keys: parts by other threads, of a shared prefix, from other machines. O(count × elements of
 * out). out = Σ exp(lses[i] - lse) · outs[i], lse = ln Σ exp(lses[i]), summed up in f64 and rounded
 * once. What limits the result is that each lses[i] is an f32: a weight may be off by 6e-8 ·
 * |lses[i]| of itself, about 1e-6 at the scores of usual models. A part whose lse is -inf saw
 * nothing: its row is not read. Where all are, out is 0 and lse -inf.
 * @param out    [batch][q_heads][n][value_dim] f32, f16 or bf16, any strides whose last is 1,
 *               written. May be one of outs, element for element; must not overlap another
 * @param lse    [batch][q_heads][n] f32, any strides, written; NULL when it is not wanted. May be
 *               one of lses, as out
 * @param outs   [count] each shaped as out, of any of these dtypes and strides, borrowed
 * @param lses   [count] each shaped as lse: extras.lse of the runs that gave outs
 * @param count  parts, at least 1
 * @errors KVC_E_INVALID count, data that is NULL or not aligned to its dtype; KVC_E_SHAPE names the
 *         argument and both shapes (or dtypes, strides); KVC_E_UNSUPPORTED memory of a device other
 *         than the cpu. Nothing is written.
 * @source FlashInfer's merge_states, whose lse is a logarithm to base 2; here it is natural. */
KVC_API KVC_MUST_USE kvc_status kvc_attention_merge(kvc_array *out, kvc_array *lse,
                                                    const kvc_array *outs, const kvc_array *lses,
                                                    size_t count);

/** Says which path a run over this layer takes, and why.
 * @param cache  NULL: the plan alone, as for keys and values in order
 * @errors KVC_E_INVALID no such layer, out->struct_size is not set; KVC_E_SHAPE a layer that the
 *         plan does not fit; KVC_E_UNSUPPORTED as kvc_attention_run */
KVC_API kvc_status kvc_attention_explain(kvc_explanation *out, const kvc_attention *plan,
                                         const kvc_cache *cache, int64_t layer);

/** As kvc_attention_explain, for keys and values given to kvc_attention_run_kv. */
KVC_API kvc_status kvc_attention_explain_kv(kvc_explanation *out, const kvc_attention *plan,
                                            const kvc_array *k, const kvc_array *v);

/** Says which kernel a run of one query over this layer would get on CUDA in MLX, and why.
 * @errors as kvc_attention_explain */
KVC_API kvc_status kvc_attention_explain_cuda(kvc_cuda_report *out, const kvc_attention *plan,
                                              const kvc_cache *cache, int64_t layer);

/** Copies the figures of this moment.
 * @errors KVC_E_INVALID out->struct_size is not set */
KVC_API kvc_status kvc_attention_stats_get(const kvc_attention *plan, kvc_attention_stats *out);

/** Returns "reference", "fused", …; "?" for another value. Static storage. */
KVC_API const char *kvc_path_name(kvc_path path);

KVC_END_DECLS

#endif
