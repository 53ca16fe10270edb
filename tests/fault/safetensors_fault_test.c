/* A file is the old one or the new one, whole, whatever happens while it is saved; and what is
 * damaged is refused or makes no difference. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <kvcache/safetensors.h>

#include "fault/file_faults.h"
#include "store/file.h"
#include "support/fault.h"
#include "support/files.h"
#include "support/support.h"

/* What a file of a generation has: 0 the old one, 1 the new one, which is larger than a piece. */
enum { LARGE = 300000, SMALL = 9, GAP = 2 };

typedef struct stage {
    test_folder folder;
    char path[TEST_PATH];
    char *old; /* the file of generation 0 */
    size_t old_bytes;
} stage;

static float large[LARGE];
static uint16_t small[SMALL * GAP];

static kvc_status give(void *context, void *out, size_t offset, size_t bytes) {
    memset(out, *(const char *)context, bytes);
    (void)offset;
    return KVC_OK;
}

static void fill_values(int generation) {
    for (int i = 0; i < LARGE; i++) large[i] = (float)(i + generation);
    for (int i = 0; i < SMALL * GAP; i++) small[i] = (uint16_t)(1000 * generation + i);
}

/* Makes a writer and saves: every allocation and every call to a file is in it. */
static kvc_status save(const char *path, int generation) {
    static const char letters[] = "on";
    const int64_t wide[] = {LARGE}, few[] = {SMALL}, gaps[] = {GAP}, filled[] = {3, 5};
    kvc_safetensors_writer *w;
    kvc_array a;
    fill_values(generation);
    kvc_status status = kvc_safetensors_writer_new(&w, "");
    if (status) return status;
    status = kvc_safetensors_writer_metadata(w, "generation", generation ? "new" : "old");
    if (!status) status = kvc_array_borrow(&a, KVC_F32, 1, wide, NULL, large);
    if (!status && generation) status = kvc_safetensors_writer_array(w, "large", &a);
    if (!status) status = kvc_array_borrow(&a, KVC_BF16, 1, few, gaps, small);
    if (!status) status = kvc_safetensors_writer_array(w, "small", &a);
    if (!status)
        status = kvc_safetensors_writer_fill(w, "filled", "I8", 2, filled, give,
                                             (void *)&letters[generation]);
    if (!status) status = kvc_safetensors_writer_save(w, path);
    kvc_safetensors_writer_free(w);
    return status;
}

static int setup(void **state) {
    static stage s;
    test_folder_init(&s.folder);
    (void)test_folder_path(&s.folder, "saved.safetensors", s.path);
    assert_ok(save(s.path, 0));
    s.old = test_file_get(s.path, &s.old_bytes);
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    test_folder_deinit(&s->folder);
    free(s->old);
    return 0;
}

/* Puts the old file back. */
static void restore(const stage *s) {
    test_file_put(s->path, s->old, s->old_bytes);
}

/* Opens, loads all and verifies: every allocation and every call to a file is in it. Returns the
 * generation read. */
static kvc_status load(const char *path, int *generation) {
    static float got_large[LARGE];
    static uint16_t got_small[SMALL];
    char got_filled[15];
    kvc_safetensors *file;
    kvc_array a;
    kvc_status status = kvc_safetensors_open(&file, path, KVC_SAFETENSORS_MAP);
    if (status) return status;
    *generation = strcmp(kvc_safetensors_metadata(file, "generation"), "new") == 0;
    fill_values(*generation);
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, "large");
    assert_true(!t == !*generation);
    assert_int_equal(kvc_array_borrow(&a, KVC_F32, 1, (int64_t[]){LARGE}, NULL, got_large), KVC_OK);
    if (t) status = kvc_safetensors_load(file, t, &a);
    if (t && !status) assert_memory_equal(got_large, large, sizeof large);
    assert_int_equal(kvc_array_borrow(&a, KVC_BF16, 1, (int64_t[]){SMALL}, NULL, got_small),
                     KVC_OK);
    if (!status) status = kvc_safetensors_load(file, kvc_safetensors_find(file, "small"), &a);
    for (int i = 0; !status && i < SMALL; i++) assert_int_equal(got_small[i], small[GAP * i]);
    t = kvc_safetensors_find(file, "filled");
    if (!status) status = kvc_safetensors_verify(file, t);
    if (!status) status = kvc_safetensors_read(file, t, got_filled, 0, sizeof got_filled);
    for (int i = 0; !status && i < 15; i++)
        assert_int_equal(got_filled[i], *generation ? 'n' : 'o');
    kvc_safetensors_close(file);
    return status;
}

static int generation_of(const stage *s) {
    int generation = -1;
    assert_ok(load(s->path, &generation));
    return generation;
}

/* Saves in a process of its own, which is killed at the nth call. Returns whether it was. */
static bool killed(const stage *s, test_file_fault fault, size_t nth) {
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        test_file_faults_use(fault, 0);
        test_fault_arm(nth, TEST_FAULT_ONCE);
        _exit(save(s->path, 1) == KVC_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    else assert_int_equal(WTERMSIG(status), SIGKILL);
    return WIFSIGNALED(status);
}

static void kill__at_any_call_leaves_the_old_file_or_the_new_one(void **state) {
    const stage *s = *state;
    static const test_file_fault faults[] = {TEST_FILE_KILLS, TEST_FILE_TEARS};
    for (size_t i = 0; i < 2; i++) {
        int seen[2] = {0, 0}, left = 0;
        for (size_t nth = 1;; nth++) {
            restore(s);
            const size_t files = test_folder_count(&s->folder);
            if (!killed(s, faults[i], nth)) break;
            seen[generation_of(s)]++;
            /* What it left behind, one file at most, the next one removes. */
            assert_true(test_folder_count(&s->folder) <= files + 1);
            left += test_folder_count(&s->folder) > files;
            test_file_faults_use(TEST_FILE_FAILS, 0);
            assert_ok(save(s->path, 1));
            test_file_faults_end();
            assert_int_equal(generation_of(s), 1);
            assert_int_equal(test_folder_count(&s->folder), files);
        }
        assert_int_equal(generation_of(s), 1);
        assert_true(seen[0] >= 8 && seen[1] >= 3); /* before the rename, and after it */
        assert_true(left >= 4);
    }
}

static void kill__the_first_save_leaves_no_file_or_a_whole_one(void **state) {
    const stage *s = *state;
    assert_int_equal(unlink(s->path), 0);
    for (size_t nth = 1; killed(s, TEST_FILE_KILLS, nth); nth++) {
        if (access(s->path, F_OK) == 0) assert_int_equal(generation_of(s), 1);
        else assert_int_equal(errno, ENOENT);
        (void)unlink(s->path);
    }
}

static void fail__of_any_call_is_an_error_that_changes_nothing(void **state) {
    const stage *s = *state;
    static const int errors[] = {EIO, ENOSPC, EDQUOT, EACCES, ENOMEM};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        size_t nth = 1;
        for (bool failed = true; failed; nth++) {
            restore(s);
            test_file_faults_use(TEST_FILE_FAILS, errors[i]);
            test_fault_arm(nth, TEST_FAULT_ONCE);
            const kvc_status status = save(s->path, 1);
            failed = test_fault_disarm();
            test_file_faults_end();
            assert_int_equal(test_file_faults_open(), 0);
            assert_int_equal(test_folder_count(&s->folder), 1);
            if (status != KVC_OK) {
                assert_int_equal(status, errors[i] == ENOMEM ? KVC_E_NOMEM : KVC_E_IO);
                assert_non_null(strstr(kvc_last_error(), strerror(errors[i])));
            }
            const bool folder_only = strstr(kvc_last_error(), "/.:") != NULL;
            assert_int_equal(generation_of(s), status == KVC_OK || folder_only);
        }
        assert_true(nth > 12);
    }
}

static void fail__of_every_call_from_one_on_leaves_a_whole_file(void **state) {
    const stage *s = *state;
    for (size_t nth = 1;; nth++) {
        restore(s);
        test_file_faults_use(TEST_FILE_FAILS, EIO);
        test_fault_arm(nth, TEST_FAULT_FOREVER);
        (void)save(s->path, 1);
        const bool failed = test_fault_disarm();
        test_file_faults_end();
        assert_int_equal(test_file_faults_open(), 0);
        (void)generation_of(s);
        if (!failed) break;
    }
}

static void fail__of_any_call_while_loading_is_an_error(void **state) {
    const stage *s = *state;
    size_t nth = 1;
    assert_ok(save(s->path, 1));
    for (bool failed = true; failed; nth++) {
        int generation;
        test_file_faults_use(TEST_FILE_FAILS, EIO);
        test_fault_arm(nth, TEST_FAULT_ONCE);
        const kvc_status status = load(s->path, &generation);
        failed = test_fault_disarm();
        test_file_faults_end();
        assert_int_equal(test_file_faults_open(), 0);
        if (status) assert_int_equal(status, KVC_E_IO);
    }
    assert_true(nth > 8);
}

static void less__than_asked_at_every_call_makes_no_difference(void **state) {
    const stage *s = *state;
    int generation;
    restore(s);
    test_file_faults_use(TEST_FILE_HAS_LESS, 0);
    assert_ok(save(s->path, 1));
    assert_ok(load(s->path, &generation));
    test_file_faults_end();
    assert_int_equal(generation, 1);
    assert_int_equal(generation_of(s), 1);
    assert_int_equal(test_folder_count(&s->folder), 1);
}

static void *failing_malloc(size_t bytes) {
    if (!test_fault_here()) return malloc(bytes);
    errno = ENOMEM; /* as malloc */
    return NULL;
}

/* jansson's allocations fail in turn with the library's own. */
static void memory__want_of_it_anywhere_changes_nothing(void **state) {
    const stage *s = *state;
    size_t saves = 0, loads = 0;
    for (bool failed = true; failed; saves++) {
        restore(s);
        const size_t held = test_allocator_held();
        test_allocator_use(true);
        json_set_alloc_funcs(failing_malloc, free);
        test_fault_arm(saves + 1, TEST_FAULT_ONCE);
        const kvc_status status = save(s->path, 1);
        failed = test_fault_disarm();
        json_set_alloc_funcs(malloc, free);
        test_allocator_use(false);
        if (failed && status) assert_int_equal(status, KVC_E_NOMEM);
        assert_int_equal(test_allocator_held(), held);
        assert_int_equal(generation_of(s), status == KVC_OK);
        assert_int_equal(test_folder_count(&s->folder), 1);
    }
    for (bool failed = true; failed; loads++) {
        int generation;
        test_allocator_use(true);
        json_set_alloc_funcs(failing_malloc, free);
        test_fault_arm(loads + 1, TEST_FAULT_ONCE);
        const kvc_status status = load(s->path, &generation);
        failed = test_fault_disarm();
        json_set_alloc_funcs(malloc, free);
        test_allocator_use(false);
        if (failed && status) assert_int_equal(status, KVC_E_NOMEM);
        assert_int_equal(test_allocator_held(), 0);
    }
    assert_true(saves > 40 && loads > 40);
}

/* What is there under its name is what was saved. */
static void expect_small_or_refused(const kvc_safetensors *file, const char *name,
                                    const int64_t *shape, int ndim, const char *wanted) {
    const kvc_safetensors_tensor *t = kvc_safetensors_find(file, name);
    char got[32];
    if (!t) return;
    assert_int_equal(t->ndim, ndim);
    assert_memory_equal(t->shape, shape, (size_t)ndim * sizeof *shape);
    if (kvc_safetensors_has_checksums(file) && kvc_safetensors_verify(file, t)) return;
    assert_ok(kvc_safetensors_read(file, t, got, 0, t->bytes));
    assert_memory_equal(got, wanted, t->bytes);
}

static void flip__of_any_byte_is_refused_or_harmless(void **state) {
    const stage *s = *state;
    const int64_t shape[] = {2, 3}, more[] = {6, 1};
    static const char first[] = "abcdef", second[] = "abc_defghijk";
    kvc_safetensors_writer *w;
    kvc_array a;
    size_t bytes, opened = 0;
    assert_ok(kvc_safetensors_writer_new(&w, "1."));
    assert_ok(kvc_safetensors_writer_metadata(w, "note", "0.125"));
    assert_ok(kvc_array_borrow(&a, KVC_I8, 2, shape, NULL, first));
    assert_ok(kvc_safetensors_writer_array(w, "one", &a));
    assert_ok(kvc_array_borrow(&a, KVC_U8, 2, more, NULL, second));
    assert_ok(kvc_safetensors_writer_array(w, "two", &a));
    assert_ok(kvc_safetensors_writer_save(w, s->path));
    kvc_safetensors_writer_free(w);
    char *whole = test_file_get(s->path, &bytes);
    for (size_t i = 0; i < bytes; i++)
        for (int bits = 1; bits < 256; bits += bits < 16 ? 1 : 16) {
            kvc_safetensors *file;
            whole[i] = (char)(whole[i] ^ bits);
            test_file_put(s->path, whole, bytes);
            whole[i] = (char)(whole[i] ^ bits);
            const kvc_status status = kvc_safetensors_open(&file, s->path, 0);
            if (status) continue;
            opened++;
            expect_small_or_refused(file, "one", shape, 2, first);
            expect_small_or_refused(file, "two", more, 2, second);
            const char *note = kvc_safetensors_metadata(file, "note");
            if (note) assert_string_equal(note, "0.125");
            kvc_safetensors_close(file);
        }
    assert_true(opened >= 12 * 30); /* flips in the data, which verify finds */
    free(whole);
}

static void cut__at_any_length_is_refused(void **state) {
    const stage *s = *state;
    kvc_safetensors *file;
    for (size_t length = 0; length < s->old_bytes; length++) {
        test_file_put(s->path, s->old, length);
        assert_fails(kvc_safetensors_open(&file, s->path, KVC_SAFETENSORS_MAP), KVC_E_CORRUPT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(kill__at_any_call_leaves_the_old_file_or_the_new_one),
        TEST(kill__the_first_save_leaves_no_file_or_a_whole_one),
        TEST(fail__of_any_call_is_an_error_that_changes_nothing),
        TEST(fail__of_every_call_from_one_on_leaves_a_whole_file),
        TEST(fail__of_any_call_while_loading_is_an_error),
        TEST(less__than_asked_at_every_call_makes_no_difference),
        TEST(memory__want_of_it_anywhere_changes_nothing),
        TEST(flip__of_any_byte_is_refused_or_harmless),
        TEST(cut__at_any_length_is_refused),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
