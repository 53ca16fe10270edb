#include "outfile.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

static bool is_special(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

static int fail(const char *what, const char *path) {
    return cli_fail("%s: '%s' cannot be written: %s", what, path, strerror(errno));
}

/* Opens the stream; the error is left in errno. */
static bool open_stream(outfile *out, const char *path) {
    struct stat status;
    out->path = path;
    out->stream = NULL;
    errno = EISDIR;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) return false;
    const char *suffix = is_special(path) ? "" : ".part";
    const int length = snprintf(out->writing_at, sizeof out->writing_at, "%s%s", path, suffix);
    errno = ENAMETOOLONG;
    if (length < 0 || (size_t)length >= sizeof out->writing_at) return false;
    out->stream = fopen(out->writing_at, "w");
    return out->stream != NULL;
}

int outfile_check(const char *option, const char *path) {
    outfile trial;
    if (is_special(path)) return CLI_DONE;
    if (!open_stream(&trial, path)) return fail(option, path);
    (void)fclose(trial.stream);
    (void)unlink(trial.writing_at);
    return CLI_DONE;
}

int outfile_begin(outfile *out, const char *path) {
    return open_stream(out, path) ? CLI_DONE : fail("output", path);
}

int outfile_end(outfile *out, int status) {
    const bool renames = strcmp(out->path, out->writing_at) != 0;
    const bool was_bad = ferror(out->stream) != 0;
    errno = was_bad ? EIO : 0;
    const bool written = fclose(out->stream) == 0 && !was_bad;
    if (status == CLI_DONE && written && (!renames || rename(out->writing_at, out->path) == 0))
        return CLI_DONE;
    const int reason = errno;
    if (renames) (void)unlink(out->writing_at);
    errno = reason;
    return status != CLI_DONE ? status : fail("output", out->path);
}
