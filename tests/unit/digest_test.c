#include <string.h>

#include "store/digest.h"
#include "support/support.h"

static void digest_of(char *out, const void *data, size_t bytes) {
    kvc__digest d;
    kvc__digest_init(&d);
    kvc__digest_add(&d, data, bytes);
    kvc__digest_text(&d, out);
}

/* The values are those of `xxhsum -H2`. */
static void digest__is_that_of_xxhsum(void **state) {
    (void)state;
    char found[KVC__DIGEST_DIGITS + 1];
    digest_of(found, "", 0);
    assert_string_equal(found, "99aa06d3014798d86001c324468d497f");
    digest_of(found, "\1\2\3\4", 4);
    assert_string_equal(found, "49a04899597a3567537653a0d9955b86");
}

static void digest__does_not_depend_on_pieces_or_instructions(void **state) {
    (void)state;
    static char data[40000];
    uint64_t seed = test_seed(4);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)test_random(&seed);
    for (int round = 0; round < 300; round++) {
        const size_t bytes = (size_t)test_below(&seed, sizeof data + 1);
        char wanted[KVC__DIGEST_DIGITS + 1], found[KVC__DIGEST_DIGITS + 1];
        kvc__digest d;
        digest_of(wanted, data, bytes);
        kvc__digest_init(&d);
        for (size_t at = 0; at < bytes;) {
            const size_t n = (size_t)test_below(&seed, (int64_t)(bytes - at) + 1);
            if (test_below(&seed, 2)) kvc__digest_add_generic(&d, data + at, n);
            else kvc__digest_add(&d, data + at, n);
            at += n;
        }
        kvc__digest_text(&d, found);
        assert_string_equal(found, wanted);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest__is_that_of_xxhsum),
        cmocka_unit_test(digest__does_not_depend_on_pieces_or_instructions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
