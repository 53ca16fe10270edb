#include <cstdio>

#include <kvcache/kvcache.h>

int main() {
    const int64_t shape[] = {1, 2, 3, 4};
    kvc_pool *pool = nullptr;
    kvc_array zeros = {};
    const int failed = kvc_pool_new(&pool, kvc_device_cpu()) ||
                       kvc_array_zeros(&zeros, pool, KVC_BF16, 4, shape) ||
                       kvc_array_nbytes(&zeros) != 48;
    kvc_array_release(&zeros);
    kvc_pool_free(pool);
    std::printf("libkvcache %s\n", failed ? kvc_last_error() : kvc_version());
    return failed;
}
