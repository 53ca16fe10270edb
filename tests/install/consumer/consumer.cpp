#include <cstdio>

#include <kvcache/kvcache.h>

int main() {
    kvc_dtype dtype;
    if (kvc_dtype_from_name(&dtype, "bf16") != KVC_OK || dtype != KVC_BF16) return 1;
    std::printf("libkvcache %s\n", kvc_version());
    return 0;
}
