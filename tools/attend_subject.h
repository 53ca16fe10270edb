/** @file
 * What `bench attend` measures: caches of one context, each filled, with its plan and the list of
 * what a run reads. */
#ifndef KVCACHE_TOOLS_ATTEND_SUBJECT_H
#define KVCACHE_TOOLS_ATTEND_SUBJECT_H

#include <kvcache/attention.h>
#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/executor.h>
#include <kvcache/pool.h>

#include "attend_floor.h"
#include "attend_measure.h"

/** What the caches of a context share. */
typedef struct attend_scene {
    const attend_shape *shape;
    kvc_pool *pool;
    kvc_threads *threads;
    kvc_executor executor; /**< of threads */
    kvc_array q, out;      /**< [batch][q_heads][q_len][dim] f32 */
    int64_t *lengths;      /**< [batch] */
} attend_scene;

/** One cache at work. */
typedef struct attend_subject {
    const attend_scene *scene;
    attend_row *row;
    kvc_cache *cache;
    kvc_blocks *blocks; /**< where it is paged */
    kvc_attention *plan;
    attend_floor *floors; /**< [layers] */
    int read;             /**< the fastest variant of reading */
    int64_t layer;        /**< the next to attend over or to read */
    stats_samples run_us, floor_us;
} attend_subject;

/** Makes threads, queries and lengths. Returns the exit status, as all here. */
int attend_scene_init(attend_scene *out, const attend_shape *shape, int64_t context);

/** Frees what subjects no longer use. */
void attend_scene_deinit(attend_scene *scene);

/** Makes and fills the cache of a row, plans, and lists what runs read: sets the row's bytes to
 * what that is. */
int attend_subject_init(attend_subject *out, const attend_scene *scene, attend_row *row);

/** Frees it. */
void attend_subject_deinit(attend_subject *subject);

/** Returns who shares the work of a run: NULL when that is one thread. */
const kvc_executor *attend_executor(const attend_scene *scene);

#endif
