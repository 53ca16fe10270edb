#include "memory/device.h"

#include "base/error.h"
#include "base/trace.h"

static kvc_status told(kvc_status status, const kvc_device *device, const char *call) {
    if (status == KVC_OK) return KVC_OK;
    return kvc__fail(status, "device '%s': its %s failed: %s", device->name, call,
                     kvc_status_text(status));
}

kvc_status kvc__device_copy(const kvc_device *device, const kvc_strided *dst,
                            const kvc_strided *src, int ndim, const int64_t *shape) {
    const uint64_t start_ns = kvc__span_begin();
    const kvc_status status = device->copy(device->context, dst, src, ndim, shape);
    if (start_ns) {
        size_t bytes = kvc_dtype_size_bytes(dst->dtype);
        for (int i = 0; i < ndim; i++) bytes *= (size_t)shape[i];
        kvc__span_end(start_ns, KVC_SPAN_COPY, "copy", bytes);
    }
    return told(status, device, "copy");
}

kvc_status kvc__device_fill(const kvc_device *device, void *dst, kvc_dtype dtype, int64_t count,
                            double value) {
    const uint64_t start_ns = kvc__span_begin();
    const kvc_status status = device->fill(device->context, dst, dtype, count, value);
    kvc__span_end(start_ns, KVC_SPAN_FILL, "fill", (size_t)count * kvc_dtype_size_bytes(dtype));
    return told(status, device, "fill");
}

kvc_status kvc__device_transfer(const kvc_device *device, void *dst, const void *src,
                                size_t bytes) {
    const uint64_t start_ns = kvc__span_begin();
    const kvc_status status = device->transfer(device->context, dst, src, bytes);
    kvc__span_end(start_ns, KVC_SPAN_COPY, "transfer", bytes);
    return told(status, device, "transfer");
}

kvc_status kvc__device_check(const kvc_device *device) {
    if (!device) return kvc__fail(KVC_E_INVALID, "device: NULL given, a device wanted");
    if (device->struct_size < sizeof(kvc_device))
        return kvc__fail(KVC_E_INVALID, "device.struct_size: %zu given, %zu wanted",
                         device->struct_size, sizeof(kvc_device));
    if (!device->name) return kvc__fail(KVC_E_INVALID, "device.name: NULL given, a name wanted");
    if (device->page_bytes == 0 || (device->page_bytes & (device->page_bytes - 1)) != 0)
        return kvc__fail(KVC_E_INVALID, "device.page_bytes: %zu given, a power of two wanted",
                         device->page_bytes);
    if (!device->allocate || !device->deallocate || !device->copy || !device->fill ||
        !device->transfer || !device->synchronize)
        return kvc__fail(KVC_E_INVALID,
                         "device '%s': one of allocate, deallocate, copy, fill, transfer and "
                         "synchronize is NULL, all are wanted",
                         device->name);
    if (!device->reserve != !device->commit || !device->reserve != !device->release)
        return kvc__fail(KVC_E_INVALID,
                         "device '%s': reserve, commit and release go together, some are NULL",
                         device->name);
    return KVC_OK;
}

kvc_status kvc_sync(const kvc_device *device) {
    if (!device) return kvc__fail(KVC_E_INVALID, "device: NULL given, a device wanted");
    return told(device->synchronize(device->context), device, "synchronize");
}
