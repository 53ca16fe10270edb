#include "scratch.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

int scratch_make(char *out, size_t room, const char *option, const char *parent) {
    const int length = snprintf(out, room, "%s/kvc-bench-XXXXXX", parent);
    if (length >= 0 && (size_t)length >= room) errno = ENAMETOOLONG;
    else if ((mkdir(parent, 0700) == 0 || errno == EEXIST) && mkdtemp(out)) return CLI_DONE;
    const int error = errno;
    out[0] = '\0';
    return cli_fail("%s: %s: %s", option, parent, strerror(error));
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where) {
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

void scratch_remove(const char *path) {
    if (path[0]) (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
