/* AVX-512 VNNI: servers since 2019. This file is compiled for it, and run where it is. */
#include "attention/x86/tile_vnni.h"

void kvc__ops_vnni(kvc__ops *ops) {
    fill_vnni(ops);
}
