#include "support/files.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

void test_folder_init(test_folder *folder) {
    const char *below = getenv("TMPDIR");
    (void)snprintf(folder->path, sizeof folder->path, "%s/kvc-test-XXXXXX",
                   below && *below ? below : "/tmp");
    assert_non_null(mkdtemp(folder->path));
}

/* Counts the files of a folder, and removes them where that is asked. */
static size_t walk(const test_folder *folder, bool remove_them) {
    size_t count = 0;
    DIR *d = opendir(folder->path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char path[TEST_PATH];
        count++;
        if (remove_them) assert_int_equal(unlink(test_folder_path(folder, e->d_name, path)), 0);
    }
    (void)closedir(d);
    return count;
}

void test_folder_deinit(test_folder *folder) {
    (void)walk(folder, true);
    assert_int_equal(rmdir(folder->path), 0);
}

size_t test_folder_count(const test_folder *folder) {
    return walk(folder, false);
}

const char *test_folder_path(const test_folder *folder, const char *name, char out[TEST_PATH]) {
    const int length = snprintf(out, TEST_PATH, "%s/%s", folder->path, name);
    assert_in_range(length, 1, TEST_PATH - 1);
    return out;
}

void test_file_put(const char *path, const void *data, size_t bytes) {
    (void)unlink(path); /* to cut a file and write it anew has ext4 wait for the disk */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

char *test_file_get(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long end = ftell(f);
    assert_true(end >= 0);
    rewind(f);
    char *data = malloc((size_t)end + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)end, f), end);
    (void)fclose(f);
    *bytes = (size_t)end;
    return data;
}
