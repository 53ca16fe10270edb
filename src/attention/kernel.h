/** @file
 * What a kernel is given: raw pointers, strides and counts, all checked by the plan.
 *
 * All kernels compute the same thing. With group = q_heads / kv_heads, for each sequence b, kv head
 * h, query i of n and query head of the group:
 *
 *     s_j = cap(scale · q · k_j) + slope · (j - position of i) + mask_j
 *     p_j = exp(s_j - max s)
 *     out = sum_j p_j v_j / (sum_j p_j + exp(sink - max s))
 *
 * over the keys that the query sees: those of kvc__seen that the mask does not hide. When there is
 * none, or every score is -inf, out is zeros. A NaN in a key or value reaches the queries that see
 * it and no other. In f32 a score beyond 3.4e38 is an infinity: +inf makes its row NaN, -inf weighs
 * nothing. */
#ifndef KVC_ATTENTION_KERNEL_H
#define KVC_ATTENTION_KERNEL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <kvcache/dtype.h>
#include <kvcache/executor.h>

#include "attention/ops.h"
#include "base/half.h"
#include "cache/view.h"

/** Dims up to this have the fused kernel: its scratch grows with them. */
#define KVC__FUSED_MAX_DIM 1024

/** Elements [batch][head][position][dim], anywhere in memory. Where a map says that positions lie
 * in rings, the third is the row of a ring; in blocks, the row of a block, and no batch. */
typedef struct kvc__rows {
    void *data; /**< host memory; only that of the output is written. Unused in blocks */
    kvc_dtype dtype;
    int64_t batch_stride; /**< in elements, as all four */
    int64_t head_stride;
    int64_t position_stride;
    int64_t last_stride; /**< 1 but for keys and values of the reference kernel */
    size_t offset_bytes; /**< in blocks: from the begin of one to these rows */
} kvc__rows;

/** What keys and values are made of. */
typedef struct kvc__format {
    kvc_dtype dtype;       /**< of elements; where those are packed, of scales and biases */
    int bits;              /**< of a packed element (quantize.h); 0: not packed */
    int group;             /**< packed elements that share a scale and a bias */
    bool keys_per_channel; /**< keys share them over `group` positions, in whole blocks of these */
    bool rotated;          /**< rows are rotated (array/rotate.h) */
} kvc__format;

/** Tells whether tiles want packed elements split, a byte for each. */
static inline bool kvc__is_split(kvc__format format) {
    return format.bits && format.bits != 4 && format.bits != 8;
}

/** Beside packed keys or values: [batch][head][position][group]. */
typedef struct kvc__scaling {
    kvc__rows scales, biases;
} kvc__scaling;

/** One run. */
typedef struct kvc__job {
    int64_t batch;
    int64_t kv_heads;
    int64_t group; /**< query heads to a kv head; query head = kv head · group + g */
    int64_t key_dim;
    int64_t value_dim;
    int64_t queries;        /**< positions of q */
    int64_t length;         /**< positions of k and v */
    const int64_t *lengths; /**< [batch] those in use, nothing behind them is read; NULL: all */
    int64_t window;         /**< keys that a query sees; INT64_MAX: all before it */
    int64_t keep;           /**< of these the first ones, less than window: the others are the most
                                 recent */
    float scale;
    float softcap; /**< 0: none */
    bool causal;
    kvc__format format;                /**< of k and v */
    kvc__rows q, k, v, out;            /**< k, v: the head is a kv head; bytes (u8) where packed */
    kvc__scaling k_scaling, v_scaling; /**< where packed */
    kvc__map map;                      /**< of positions to rows of k, v and their scaling */
    /* Of keys per channel, where k and its scaling have a row a block of positions: */
    kvc__rows tail;      /**< unpacked keys: position p in row p mod 2 · group */
    const int64_t *held; /**< [batch] positions that the cache holds, whole blocks of them packed */
    kvc__rows mask;      /**< [b][query head][i][j], strides of 0 where it repeats; data is NULL
                              where there is none */
    kvc__rows sinks;     /**< one element a query head; data is NULL where there are none */
    kvc__rows slopes;    /**< as sinks */
    kvc__rows lse;       /**< f32, one element a position; data is NULL where nobody asks */
} kvc__job;

/** Returns the positions that a sequence has in use. */
static inline int64_t kvc__length(const kvc__job *job, int64_t b) {
    return job->lengths ? job->lengths[b] : job->length;
}

/** Returns the position of query i of a sequence: the last key is at length - 1. */
static inline int64_t kvc__position(const kvc__job *job, int64_t b, int64_t i) {
    return kvc__length(job, b) - job->queries + i;
}

/** Returns which keys query i of a sequence sees: its own and those before it, aligned to the last
 * key, as far as its window reaches; besides these, kvc__kept_besides. Neither end decreases from
 * query to query. */
static inline kvc__range kvc__seen(const kvc__job *job, int64_t b, int64_t i) {
    if (!job->causal) return (kvc__range){0, kvc__length(job, b)};
    const int64_t end = kvc__position(job, b, i) + 1;
    if (end <= 0) return (kvc__range){0, 0};
    return (kvc__range){end > job->window ? end - job->window + job->keep : 0, end};
}

/** Returns what any of queries first to last sees: no query begins before the first, or ends behind
 * the last. Each of these positions is seen by one of them. */
static inline kvc__range kvc__reach(const kvc__job *job, int64_t b, int64_t first, int64_t last) {
    return (kvc__range){kvc__seen(job, b, first).begin, kvc__seen(job, b, last).end};
}

/** Returns how many kept positions, from 0 on, are seen besides a range that kvc__seen or
 * kvc__reach gave: none where it begins at 0, as it does where it would touch them. */
static inline int64_t kvc__kept_besides(const kvc__job *job, kvc__range seen) {
    return seen.begin > 0 ? job->keep : 0;
}

/** Return the smaller and the larger of two. */
static inline int64_t kvc__smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t kvc__larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/** Returns the bytes of an element that a kernel takes: f32, f16, bf16, or u8 of a mask or packed.
 */
static inline int64_t kvc__element_bytes(kvc_dtype dtype) {
    return dtype == KVC_F32 ? 4 : dtype == KVC_U8 ? 1 : 2;
}

/** Returns the address of an element. */
static inline char *kvc__at(const kvc__rows *rows, int64_t b, int64_t h, int64_t i, int64_t d) {
    const int64_t element = b * rows->batch_stride + h * rows->head_stride +
                            i * rows->position_stride + d * rows->last_stride;
    return (char *)rows->data + element * kvc__element_bytes(rows->dtype);
}

/** Returns the address of a position's row: all that reads keys, values, scales or biases finds
 * them here. The position is one that a query of the sequence sees: only those have a row for sure.
 * @param rows  of these
 * @param run   receives how many positions from it on follow at position_stride: at least 1 */
static inline char *kvc__kv_at(const kvc__job *job, const kvc__rows *rows, int64_t b, int64_t h,
                               int64_t position, int64_t *run) {
    if (job->map.tables) {
        const int64_t row = position % job->map.block_positions;
        const int64_t element = h * rows->head_stride + row * rows->position_stride;
        *run = job->map.block_positions - row;
        return kvc__map_block(&job->map, b, position) + rows->offset_bytes +
               element * kvc__element_bytes(rows->dtype);
    }
    *run = INT64_MAX;
    if (job->map.rings) position = kvc__ring_row(&job->map.rings[b], position, run);
    return kvc__at(rows, b, h, position, 0);
}

/** Returns how many positions of a sequence are in packed blocks of keys per channel. */
static inline int64_t kvc__packed_end(const kvc__job *job, int64_t b) {
    return job->held[b] / job->format.group * job->format.group;
}

/** Returns the bits of an element of keys and values. */
static inline int64_t kvc__element_bits(kvc__format format) {
    return format.bits ? format.bits : 8 * kvc__element_bytes(format.dtype);
}

/** Returns the bytes of a row of keys or values, without scales and biases. */
static inline int64_t kvc__row_bytes(const kvc__job *job, int64_t dim) {
    return dim * kvc__element_bits(job->format) / 8;
}

/** Returns an element of a float type. */
static inline float kvc__load(const void *at, kvc_dtype dtype) {
    if (dtype == KVC_F32) return *(const float *)at;
    const uint16_t word = *(const uint16_t *)at;
    return dtype == KVC_F16 ? kvc__f32_of_f16(word) : kvc__f32_of_bf16(word);
}

/** Returns the sink of a query head, -inf where there is none. */
static inline float kvc__sink(const kvc__job *job, int64_t head) {
    if (!job->sinks.data) return -INFINITY;
    return kvc__load(kvc__at(&job->sinks, 0, head, 0, 0), job->sinks.dtype);
}

/** Writes a row's log-sum-exp, where it is asked for. A total of 0 gives -inf. */
static inline void kvc__store_lse(const kvc__job *job, int64_t b, int64_t head, int64_t i,
                                  double max, double total) {
    if (!job->lse.data) return;
    float *to = (float *)(void *)kvc__at(&job->lse, b, head, i, 0);
    *to = total == 0 ? -INFINITY : (float)(max + log(total));
}

/** The truth: one query at a time, two passes over the keys, f64 throughout, any strides.
 * @param scratch  [key_dim + value_dim] */
void kvc__attend_reference(const kvc__job *job, double *scratch);

/** How the fused path divides its work (schedule.h) and its scratch: chosen once, by the plan. */
typedef struct kvc__schedule {
    const kvc__ops *ops;
    kvc_executor executor; /**< parallel_for is NULL for the calling thread alone */
    int64_t batch;
    int64_t slots;        /**< for the sums of parts that are merged: as many as a run can need */
    size_t worker_floats; /**< scratch of one thread */
    size_t slot_floats;   /**< of one slot */
    size_t bytes;         /**< of all scratch */
} kvc__schedule;

/** Tells the scratch that runs need.
 * @param executor  NULL: the calling thread
 * @param rows      most rows of a kv head: group × queries
 * @errors KVC_E_RANGE the scratch is more than a size can hold */
kvc_status kvc__schedule_init(kvc__schedule *out, const kvc_executor *executor, kvc__format format,
                              int64_t batch, int64_t rows, int64_t key_dim, int64_t value_dim);

/** Returns from how many rows of a kv head on panels take them, which want keys and values in f32;
 * INT_MAX: never. Fewer are taken by tiles. */
int64_t kvc__panel_least(const kvc__ops *ops, kvc__format format, int64_t key_dim,
                         int64_t value_dim);

/** One pass over keys and values for a block of rows.
 * Wants both dims ≤ KVC__FUSED_MAX_DIM and last strides of 1.
 * @param scratch  [schedule->bytes], 64-byte aligned; contents undefined */
void kvc__attend_fused(const kvc__job *job, const kvc__schedule *schedule, void *scratch);

#endif
