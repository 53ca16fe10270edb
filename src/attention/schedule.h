/** @file
 * How a run of the fused path is divided into parts.
 *
 * A part is one kv head of one sequence, some rows (a row being one query position of one query
 * head of the group), and one of `splits` ranges of positions. The plan takes scratch for any
 * division (kvc__schedule); each run cuts its sequences by their lengths of that moment, so that
 * parts cost about the same where positions allow, and hands them out longest first. What a part
 * computes depends on the plan and the lengths, never on who runs it or when. */
#ifndef KVC_ATTENTION_SCHEDULE_H
#define KVC_ATTENTION_SCHEDULE_H

#include "attention/kernel.h"

/** What a run makes of one sequence: kv heads × splits × blocks of rows, parts in a row. */
typedef struct kvc__share {
    int64_t sequence;
    int64_t splits;
    int64_t first_part;
    int64_t first_slot; /**< of as many as parts, where splits > 1 */
} kvc__share;

/** A run, divided. */
typedef struct kvc__division {
    const kvc__job *job;
    int64_t part_rows;  /**< of a part, but for the last of a kv head */
    int64_t row_blocks; /**< of a kv head */
    int64_t parts;
    float *workers;     /**< [threads][worker_floats] */
    float *slots;       /**< [slots][slot_floats]: sums of ranges, to be merged */
    kvc__share *shares; /**< [batch], by their first part */
    _Atomic int *left;  /**< [slots], at that of the first range: ranges not done */
} kvc__division;

/** A part. */
typedef struct kvc__part {
    int64_t sequence, kv_head;
    int64_t row, rows;  /**< the first row, and how many */
    int64_t begin, end; /**< positions */
    int64_t kept;       /**< and before them [0, kept), which all rows see; 0: none */
    int64_t split;      /**< which range of positions */
    int64_t splits;     /**< of how many; 1: the part is all there is, and has no slot */
    int64_t slot;       /**< its own */
    int64_t first_slot; /**< of the first range of these rows */
    int64_t step;       /**< from one range's slot to the next one's */
} kvc__part;

/** Tells the scratch of a schedule that has executor, batch, worker_floats and
 * slot_floats.
 * @errors KVC_E_RANGE it is more than a size can hold */
kvc_status kvc__schedule_size(kvc__schedule *schedule);

/** Divides a run: O(batch).
 * @param part_rows  most rows of a part
 * @param scratch    [schedule->bytes], 64-byte aligned; contents undefined */
kvc__division kvc__divide(const kvc__job *job, const kvc__schedule *schedule, int64_t part_rows,
                          void *scratch);

/** Finds a part: O(log batch). */
kvc__part kvc__division_part(const kvc__division *division, int64_t index);

#endif
