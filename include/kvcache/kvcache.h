/** @file
 * libkvcache: keys and values of autoregressive generation, appended at the cost of copying their
 * bytes and attended over where they lie. This header includes all others.
 *
 * The common case: kvc_pool_new, kvc_cache_new, kvc_attention_plan; then per step and layer
 * kvc_cache_append and kvc_attention_run. */
#ifndef KVCACHE_KVCACHE_H
#define KVCACHE_KVCACHE_H

#include <kvcache/allocator.h>
#include <kvcache/array.h>
#include <kvcache/attention.h>
#include <kvcache/blocks.h>
#include <kvcache/cache.h>
#include <kvcache/cuda_rule.h>
#include <kvcache/device.h>
#include <kvcache/dtype.h>
#include <kvcache/executor.h>
#include <kvcache/export.h>
#include <kvcache/pool.h>
#include <kvcache/prefix.h>
#include <kvcache/status.h>
#include <kvcache/trace.h>
#include <kvcache/version.h>

#endif
