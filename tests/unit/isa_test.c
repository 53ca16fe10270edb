/* Which inner loops are chosen: by the CPU, and by what KVC_ISA allows of them. */
#include <string.h>

#include "attention/ops.h"
#include "support/support.h"

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static void isa__is_the_best_without_a_cap(void **state) {
    (void)state;
    kvc__ops ops, same;
    kvc__ops_choose(&ops, NULL);
    assert_string_equal(ops.limit, "");
    assert_string_equal(ops.remedy, "");
    kvc__ops_choose(&same, "");
    assert_memory_equal(&same, &ops, sizeof ops);
    kvc__ops_choose(&same, ops.name); /* as if there were none */
    assert_memory_equal(&same, &ops, sizeof ops);
}

static void isa__is_capped_by_name(void **state) {
    (void)state;
    kvc__ops ops, best;
    kvc__ops_choose(&ops, "generic");
    kvc__ops_choose(&best, NULL);
    assert_string_equal(ops.name, "generic");
    if (strcmp(best.name, "generic") == 0) return;
    assert_true(ops.score[0][0] != best.score[0][0]);
    assert_contains(ops.limit, "KVC_ISA=generic");
    assert_contains(ops.remedy, best.name);
}

static void isa__that_is_unknown_allows_all_and_is_told(void **state) {
    (void)state;
    static const char *const unknown[] = {"avx3", "AVX2", "generic ", "a name of more than 16"};
    kvc__ops ops, best;
    kvc__ops_choose(&best, NULL);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        kvc__ops_choose(&ops, unknown[i]);
        assert_string_equal(ops.name, best.name);
        assert_true(ops.score[0][0] == best.score[0][0]);
        assert_contains(ops.limit, "names no instruction set");
        assert_contains(ops.remedy, "generic");
        assert_contains(ops.remedy, best.name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(isa__is_the_best_without_a_cap),
        cmocka_unit_test(isa__is_capped_by_name),
        cmocka_unit_test(isa__that_is_unknown_allows_all_and_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
