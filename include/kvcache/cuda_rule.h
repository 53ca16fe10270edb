/** @file
 * The seed's rule, spelled out: which attention kernel a cache gets on CUDA in MLX. There the
 * choice is silent; here every condition is told, with what to change.
 * @source MLX 0.32, CUDA backend's scaled_dot_product_attention */
#ifndef KVCACHE_CUDA_RULE_H
#define KVCACHE_CUDA_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache/dtype.h>
#include <kvcache/export.h>
#include <kvcache/status.h>

/** The kernels, fastest first. */
typedef enum kvc_cuda_kernel {
    KVC_CUDA_CUDNN = 0,      /**< fused cuDNN attention */
    KVC_CUDA_VECTOR = 1,     /**< one pass, one query vector at a time */
    KVC_CUDA_VECTOR_TWO = 2, /**< the same in two passes, above 1024 keys */
    KVC_CUDA_UNFUSED = 3     /**< scores and weights go through memory */
} kvc_cuda_kernel;

/** What decides. Zero it, then fill it. */
typedef struct kvc_cuda_shape {
    size_t struct_size;      /**< sizeof(kvc_cuda_shape) */
    int64_t q_len;           /**< query positions; 0 means 1 */
    int64_t kv_heads;        /**< > 0 */
    int64_t batch;           /**< 0 means 1 */
    int64_t key_dim;         /**< > 0 */
    int64_t value_dim;       /**< 0 means key_dim */
    kvc_dtype dtype;         /**< of queries, keys and values */
    int64_t capacity;        /**< stride of heads / stride of positions */
    int64_t length;          /**< positions in use */
    int64_t buffer_elements; /**< of the key buffer; 0: exactly batch · kv_heads · capacity · dim */
    int64_t value_buffer_elements; /**< of the value buffer, likewise */
    int64_t last_stride;           /**< of keys and values; 0 means 1 */
    int64_t alignment_bytes;       /**< of their pointers; 0 means 64 */
    int compute_capability;        /**< 80 for 8.0; 0 means 80 */
    bool array_mask;               /**< a mask given as an array */
} kvc_cuda_shape;

/** One condition of the fused kernel. */
typedef struct kvc_cuda_check {
    const char *name; /**< "capacity", "length", …; static storage */
    bool ok;          /**< the condition holds */
    char given[96];   /**< what it is: "capacity 812" */
    char wanted[96];  /**< what the rule wants: "a multiple of 256" */
    char remedy[160]; /**< what to change; "" when ok */
} kvc_cuda_check;

/** The most conditions of a report. */
#define KVC_CUDA_CHECKS 12

/** The kernel, and each condition of the fused one. */
typedef struct kvc_cuda_report {
    size_t struct_size;     /**< sizeof(kvc_cuda_report), set by the caller */
    kvc_cuda_kernel kernel; /**< what runs */
    char reason[200];       /**< one sentence: which kernel, and the first condition that decided */
    size_t count;           /**< checks in use */
    kvc_cuda_check checks[KVC_CUDA_CHECKS]; /**< the first count of them */
} kvc_cuda_report;

KVC_BEGIN_DECLS

/** Tells which kernel a shape gets. No GPU is needed: it is arithmetic.
 * The conditions on mask and cache are those of one query (decode). More queries are taken for a
 * causal prefill, to which only dims, dtype, GPU and q_len ≤ length matter.
 * @errors KVC_E_INVALID names the field; KVC_E_RANGE the sizes multiply to more than int64_t has */
KVC_API kvc_status kvc_cuda_explain(kvc_cuda_report *out, const kvc_cuda_shape *shape);

/** Returns "cudnn", "vector", "vector-two-pass" or "unfused"; "?" for another value. Static. */
KVC_API const char *kvc_cuda_kernel_name(kvc_cuda_kernel kernel);

KVC_END_DECLS

#endif
