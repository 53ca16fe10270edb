/* AVX-VNNI: clients since 2021, most without AVX-512. Compiled for it, and run where it is. */
#include "attention/x86/tile_vnni.h"

void kvc__ops_avxvnni(kvc__ops *ops) {
    fill_vnni(ops);
}
