#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "store/disk.h"

kvc__disk_calls kvc__disk_call = {
    .openat = openat,
    .preadv = preadv,
    .pwritev = pwritev,
    .fdatasync = fdatasync,
    .renameat2 = renameat2,
    .unlinkat = unlinkat,
    .mkdirat = mkdirat,
    .futimens = futimens,
};

kvc_tier_fault kvc__disk_fault(int error) {
    switch (error) {
    case EACCES:
    case EPERM:
    case EROFS: return KVC_TIER_REFUSED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return KVC_TIER_FULL;
    case ENOMEM: return KVC_TIER_NOMEM;
    default: return KVC_TIER_IO;
    }
}
