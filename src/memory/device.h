/** @file
 * Calls on a device, with their spans and sentences. */
#ifndef KVC_MEMORY_DEVICE_H
#define KVC_MEMORY_DEVICE_H

#include <kvcache/device.h>

/** Copies as the device's copy, within a COPY span. */
kvc_status kvc__device_copy(const kvc_device *device, const kvc_strided *dst,
                            const kvc_strided *src, int ndim, const int64_t *shape);

/** Fills as the device's fill, within a FILL span. */
kvc_status kvc__device_fill(const kvc_device *device, void *dst, kvc_dtype dtype, int64_t count,
                            double value);

/** Copies between host and device as the device's transfer, within a COPY span. */
kvc_status kvc__device_transfer(const kvc_device *device, void *dst, const void *src, size_t bytes);

/** Verifies that a device has all that it must: its size, a name, pages, the calls.
 * @errors KVC_E_INVALID tells what is missing */
kvc_status kvc__device_check(const kvc_device *device);

#endif
